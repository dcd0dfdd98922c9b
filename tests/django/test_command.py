"""`manage.py qbeat ...` is `celery -A proj qbeat ...`, in the example project."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from celery_qbeat.django.management.commands.qbeat import Command
from tests.django.shop import ROOT

EXAMPLE = ROOT / "examples" / "django"


class Manage:
    """The example's manage.py in a folder of its own."""

    def __init__(self, folder: Path) -> None:
        dropped = ("DJANGO", "CELERY", "QBEAT_", "PYTEST")
        kept = {name: value for name, value in os.environ.items() if not name.startswith(dropped)}
        self.environment = {**kept, "PYTHONPATH": f"{ROOT}{os.pathsep}{EXAMPLE}", "SHOP_FOLDER": str(folder)}

    def __call__(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        return self.run("manage.py", *arguments)

    def celery(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        """`celery -A shop ...`."""
        return self.run("-m", "celery", "-A", "shop", *arguments)

    def run(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, *arguments]
        environment = self.environment
        return subprocess.run(
            command, cwd=EXAMPLE, env=environment, capture_output=True, text=True, timeout=60, check=False
        )


@pytest.fixture
def manage(tmp_path: Path) -> Manage:
    return Manage(tmp_path)


def test_the_commands_of_celery_qbeat_work_on_djangos_database(manage: Manage) -> None:
    assert manage("migrate", "--verbosity=0").returncode == 0
    added = manage("qbeat", "add", "shop.nightly", "shop.report", "--cron", "30 2 * * *", "--timezone", "Europe/Berlin")
    assert added.returncode == 0, added.stderr
    listed = json.loads(manage("qbeat", "list", "--json").stdout)
    # The setting CELERY_QBEAT_CRON of the project was read, else the row would be reserved.
    conditions = {job["id"]: job["condition"] for job in listed}
    assert conditions == {"_builtin.prune": "stopped", "shop.nightly": "stopped"}
    assert json.loads(manage.celery("qbeat", "list", "--json").stdout) == listed
    shown = manage("qbeat", "show", "nobody")
    assert shown.returncode == 1
    assert "there is no row 'nobody'" in shown.stderr
    assert "Traceback" not in shown.stderr


def test_the_command_can_be_called_from_code(db: None, celery_app: object, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        Command().handle("--help")
    assert ended.value.code == 0
    assert "Usage: manage.py qbeat" in capsys.readouterr().out
