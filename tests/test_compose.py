"""docker-compose.yml: valid by the specification, and each service's very command runs, here on our own servers."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.celeryproc import Process
from tests.environments import Environments
from tests.servers import PostgreSQL, Redis, wait_for

with warnings.catch_warnings():
    # Its models warn with the oldest pydantic that we work with.
    warnings.simplefilter("ignore")
    from compose_spec import PyCompose

ROOT = Path(__file__).parents[1]
FILE = ROOT / "docker-compose.yml"
DOCKERFILE = ROOT / "docker" / "Dockerfile"
BEATS = ("beat-1", "beat-2")

Compose = dict[str, Any]


@pytest.fixture(scope="module")
def compose() -> Compose:
    loaded: Compose = yaml.safe_load(FILE.read_text())
    return loaded


def test_the_file_is_valid_by_the_compose_specification(compose: Compose) -> None:
    assert set(PyCompose.from_yaml(yaml.safe_dump(compose)).service_names()) == set(compose["services"])


def test_the_validator_does_not_take_everything(compose: Compose) -> None:
    worker = {**compose["services"]["worker"], "healthcheck": {"test": "true", "intervall": "5s"}}
    with pytest.raises(ValueError, match="intervall"):
        PyCompose.from_yaml(yaml.safe_dump({"services": {"worker": worker}}))


def test_there_are_two_equal_beats_a_worker_and_what_they_need(compose: Compose) -> None:
    services = compose["services"]
    assert set(services) == {"redis", "postgres", "migrate", "worker", *BEATS}
    assert services["beat-1"] == services["beat-2"]


def test_whoever_waits_for_a_healthy_service_finds_its_health_check(compose: Compose) -> None:
    services = compose["services"]
    for name, service in services.items():
        assert name == "migrate" or service["healthcheck"]["test"][0] in ("CMD", "CMD-SHELL")
        for needed, terms in service.get("depends_on", {}).items():
            assert terms["condition"] != "service_healthy" or "healthcheck" in services[needed], (name, needed)


def test_named_volumes_are_declared_and_images_have_a_version(compose: Compose) -> None:
    used = {volume.partition(":")[0] for s in compose["services"].values() for volume in s.get("volumes", ())}
    assert used == set(compose["volumes"])
    for service in compose["services"].values():
        assert "build" in service or ":" in service["image"]


def test_the_image_is_built_from_files_that_exist(compose: Compose) -> None:
    build = compose["services"]["worker"]["build"]
    context = ROOT / build["context"]
    lines = (context / build["dockerfile"]).read_text().splitlines()
    copied = [word for line in lines if line.startswith("COPY ") for word in line.split()[1:-1]]
    assert {"celery_qbeat", "docker/proj"} <= set(copied)
    # The README is the package's long description; it is checked where it is written.
    assert [name for name in copied if name != "README.md" and not (context / name).exists()] == []


# ---------------------------------------------------------------- run it


class Services:
    """The services of the file as local processes with the packages of the image: only hosts and ports differ."""

    def __init__(self, compose: Compose, folder: Path, programs: Path, postgres: PostgreSQL) -> None:
        self._services = compose["services"]
        self._folder = folder
        self._programs = programs
        self._stack = ExitStack()
        self.postgres = postgres
        self.redis = self._start_redis()
        self._create_database(self._services["postgres"]["environment"])

    def start(self, name: str) -> Process:
        """The service's command with its environment."""
        output = self._folder / f"{name}.log"
        process = Process(name, self._services[name]["command"], ROOT / "docker", self._environment(name), output)
        self._stack.callback(process.close)
        return process

    def healthy(self, name: str) -> subprocess.CompletedProcess[str]:
        """Its health check, run once."""
        kind, *command = self._services[name]["healthcheck"]["test"]
        # Compose writes $$ where the shell shall see $.
        command = [word.replace("$$", "$") for word in command]
        return subprocess.run(
            ["sh", "-c", *command] if kind == "CMD-SHELL" else command,
            cwd=ROOT / "docker",
            env=self._environment(name),
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )

    def run(self, service: str, *command: str) -> subprocess.CompletedProcess[str]:
        """`docker compose exec`."""
        return subprocess.run(
            command,
            cwd=ROOT / "docker",
            env=self._environment(service),
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )

    def close(self) -> None:
        self._stack.close()

    def _environment(self, name: str) -> Mapping[str, str]:
        own = {key: self._here(value) for key, value in self._services[name].get("environment", {}).items()}
        if "QBEAT_HEARTBEAT_FILE" in own:
            # Containers have a file system of their own.
            own["QBEAT_HEARTBEAT_FILE"] = str(self._folder / f"heartbeat-{name}")
        # Where the programs of the image's environment are, and the servers' tools.
        place = {
            "PATH": os.pathsep.join([str(self._programs), os.environ["PATH"]]),
            "PYTHONUNBUFFERED": "1",
            "PGHOST": "127.0.0.1",
            "PGPORT": str(self.postgres.port),
        }
        dropped = ("CELERY", "QBEAT_", "PYTEST", "PYTHONPATH")
        kept = {key: value for key, value in os.environ.items() if not key.startswith(dropped)}
        return {**kept, **place, **own}

    def _here(self, value: str) -> str:
        return value.replace("redis:6379", f"127.0.0.1:{self.redis.port}").replace(
            "postgres:5432", f"127.0.0.1:{self.postgres.port}"
        )

    def _start_redis(self) -> Redis:
        program, *options = self._services["redis"]["command"]
        assert program == "redis-server"
        return self._stack.enter_context(Redis(*options).start())

    def _create_database(self, wanted: Mapping[str, str]) -> None:
        """What the image does at its first start."""
        user, database = wanted["POSTGRES_USER"], wanted["POSTGRES_DB"]
        with self.postgres.connect() as connection:
            connection.execute(f"CREATE ROLE {user} LOGIN PASSWORD '{wanted['POSTGRES_PASSWORD']}'")
            connection.execute(f"CREATE DATABASE {database} OWNER {user}")


@pytest.fixture
def services(
    compose: Compose, tmp_path: Path, own_postgres: Callable[..., PostgreSQL], environments: Environments
) -> Iterator[Services]:
    install = re.search(r"^RUN pip install --no-cache-dir '\.\[([a-z,]+)]'$", DOCKERFILE.read_text(), re.MULTILINE)
    assert install is not None
    found = Services(compose, tmp_path, environments.python(install[1]).parent, own_postgres())
    yield found
    found.close()


@pytest.mark.slow
def test_the_commands_run_and_the_health_checks_tell_the_truth(services: Services) -> None:
    if shutil.which("redis-cli") and shutil.which("pg_isready"):
        # Those of the servers need the tools that their images have, and the port of ours.
        assert services.healthy("postgres").returncode == 0
    migrate = services.start("migrate")
    assert migrate.wait_exit(60) == 0, migrate.output()
    assert services.healthy("beat-1").returncode != 0

    beats = [services.start(name) for name in BEATS]
    worker = services.start("worker")
    worker.wait_output(r" ready\.$", 60)
    wait_for(lambda: sum("beat: writer" in beat.output() for beat in beats) == 1, 60, what="one beat writes")
    wait_for(
        lambda: sum("follower: jobs paused" in beat.output() for beat in beats) == 1, 60, what="the other stands by"
    )
    for name in (*BEATS, "worker"):
        wait_for(lambda name=name: services.healthy(name).returncode == 0, 60, every=0.5, what=f"{name} is healthy")

    add = ["celery", "-A", "proj", "qbeat", "add", "hello", "proj.tasks.greet", "--interval", "10", "--args"]
    assert " ".join(add) in FILE.read_text()
    added = services.run("beat-1", *add, '["world"]')
    assert added.returncode == 0, added.stderr
    worker.wait_output("hello, world", 60)
    for beat in beats:
        beat.terminate()
    assert [beat.wait_exit(30) for beat in beats] == [0, 0]
