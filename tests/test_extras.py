"""Each extra alone, installed from the wheel into a bare environment: a job runs on what the extra is named after."""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from configparser import ConfigParser
from pathlib import Path
from typing import Any

import pytest

from tests.celeryproc import Project
from tests.django.shop import Shop
from tests.environments import Environments

pytestmark = pytest.mark.slow

# Beside the names, what the extra is for.
EXTRAS = {
    "": {"broker": "rabbitmq_url"},
    "redis": {"broker": "redis_url", "lock": "redis_url"},
    "postgresql": {"database": "postgres_url"},
    "mysql": {"database": "mariadb_url"},
}
# Sets of others, or none of the user's business; `django` has a test of its own.
OTHERS = {"all", "dev", "test", "django"}


def test_every_extra_is_tried() -> None:
    config = ConfigParser()
    config.read(Path(__file__).parents[1] / "setup.cfg")
    assert set(config["options.extras_require"]) == (set(EXTRAS) | OTHERS) - {""}


@pytest.mark.parametrize("extra", EXTRAS)
def test_a_job_runs_with_this_extra_alone(
    extra: str,
    environments: Environments,
    make_project: Callable[..., Project],
    request: pytest.FixtureRequest,
) -> None:
    servers = {use: request.getfixturevalue(fixture) for use, fixture in EXTRAS[extra].items()}
    settings: dict[str, Any] = {}
    if "database" in servers:
        settings["qbeat_database_url"] = _without_driver(servers["database"])
    if "lock" in servers:
        settings["qbeat_redis_url"] = servers["lock"]
    project = make_project(servers.get("broker", "filesystem://"), settings, python=environments.python(extra))
    migrated = project.qbeat("migrate")
    assert migrated.returncode == 0, migrated.stderr
    added = project.qbeat("add", "hello", "proj.tasks.record", "--interval", "60")
    assert added.returncode == 0, added.stderr
    project.worker()
    project.beat()
    assert len(project.wait_records(1, "record")) == 1


def test_the_django_example_runs_with_its_extra_alone(environments: Environments, tmp_path: Path) -> None:
    shop = Shop(tmp_path, "filesystem://", python=environments.python("django"))
    try:
        shop.wait_ready()
        shop.wait_runs("shop.baskets")
    finally:
        shop.close()


def test_the_demo_runs_without_any_extra(environments: Environments, tmp_path: Path) -> None:
    command = [str(environments.python()), "-m", "celery_qbeat.demo", "--seconds", "20"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=200, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("  demo | loading Celery and making the tables ...\n")
    assert "ran: demo.greet('interval'): hello, interval" in done.stdout


def _without_driver(url: str) -> str:
    """The URL as the documents write it: the extra brings the driver, we choose it."""
    scheme, _, rest = url.partition("://")
    return f"{scheme.partition('+')[0]}://{rest}"
