"""What a command imports is most of what it costs: none imports what it has no use for."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.unit.making_cli import Cli, migrated

HEAVY = (
    "alembic",
    "rich",
    "pygments",
    "django",
    "redis",
    "kombu.transport.redis",
    "celery_qbeat.engine",
    "celery_qbeat.gates",
    "celery_qbeat.dispatchers",
    "celery_qbeat.beat_schedule",
    "celery_qbeat.demo",
    "celery_qbeat.testing",
)
LISTS = ("sqlalchemy", "pydantic", "celery_qbeat.stores", "celery_qbeat.core.jobs")
EVERYTHING = (*HEAVY, *LISTS)
COMMANDS = (
    ("--help", EVERYTHING),
    ("list --help", HEAVY),
    ("list", HEAVY),
    ("show x", HEAVY),
    ("runs", HEAVY),
    ("preview x", HEAVY),
    ("add y app.a --every 1h", HEAVY),
    ("disable x", HEAVY),
    ("run-now x --wait 0", HEAVY),
    ("audit", HEAVY),
)
# Each command in a child of a process that has imported the app of a user, as the commands do.
PROGRAM = """
import json, os, sys
import proj
heavy, commands = json.loads(sys.argv[1])
before = set(sys.modules)
for command in commands:
    if os.fork() == 0:
        sys.stdout = open(os.devnull, "w")
        from celery_qbeat.cli import main
        try:
            main(["-A", "proj", *command.split()])
        except SystemExit as ended:
            code = ended.code
        found = [name for name in heavy if name in sys.modules and name not in before]
        os.write(1, (json.dumps([command, code, found]) + "\\n").encode())
        os._exit(0)
    os.wait()
"""


@pytest.fixture
def folder(tmp_path: Path, sqlite_url: str) -> Path:
    migrated(sqlite_url)
    Cli(sqlite_url).ok("add", "x", "app.a", "--every", "1h")
    (tmp_path / "proj.py").write_text(
        "from celery import Celery\n"
        "app = Celery('proj', broker='memory://')\n"
        f"app.conf.qbeat_database_url = {sqlite_url!r}\n"
        "@app.task(name='app.a')\n"
        "def a():\n"
        "    pass\n"
    )
    return tmp_path


def test_no_command_imports_what_it_does_not_need(folder: Path) -> None:
    commands = [command for command, _ in COMMANDS]
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, json.dumps([EVERYTHING, commands])],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": os.pathsep.join([str(Path(__file__).parents[2]), str(folder)])},
        capture_output=True,
        text=True,
        timeout=200,
        check=True,
    )
    told = {command: (code, set(found)) for command, code, found in map(json.loads, done.stdout.splitlines())}
    assert list(told) == commands
    for command, forbidden in COMMANDS:
        code, found = told[command]
        assert code == 0, (command, done.stderr)
        assert found & set(forbidden) == set(), command
