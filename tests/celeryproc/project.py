"""A Celery project in a folder, as a user would have it."""

from __future__ import annotations

import ast
import itertools
import json
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import sqlalchemy

from tests.celeryproc.process import Process
from tests.servers.waiting import wait_for

_ROOT = Path(__file__).parents[2]
_TEMPLATE = Path(__file__).parent / "template"


class Code(str):
    """A setting's value given as Python source, e.g. ``Code("__import__('kombu').Queue('q')")``."""


class Project:
    """The package `proj` in a folder, and the processes that run it.

    Its tasks (see `template/tasks.py`) are `proj.tasks.record`, `fail`, `sleep`, `retry`, `ignore`; each appends a line
    to a file, which `records` reads. ``settings`` are those of Celery, ``broker`` is a URL; for `filesystem://` the
    folders are filled in. ``tasks`` is source that goes to the end of `tasks.py`. With ``headers=True`` a record
    also has the message's headers and delivery information. ``python`` runs its processes; one of another environment
    finds the package there.
    """

    def __init__(
        self,
        folder: Path,
        broker: str,
        settings: dict[str, Any] | None = None,
        *,
        tasks: str = "",
        headers: bool = False,
        python: Path | None = None,
    ) -> None:
        self.folder = folder
        self.processes: list[Process] = []
        self.environment: dict[str, str] = {}
        self._counter = itertools.count(1)
        self._settings: dict[str, Any] = {"broker_url": broker, "broker_connection_retry_on_startup": True}
        if broker.startswith("filesystem://"):
            self._settings["broker_transport_options"] = self._message_folders()
        self._headers = headers
        self._python = python
        self._write_package(tasks)
        self.configure(**(settings or {}))

    # What it is.

    @property
    def database_url(self) -> str:
        """The setting `qbeat_database_url`, or what it means when it is not set."""
        default = f"sqlite:///{self.folder / 'celery-qbeat.sqlite3'}"
        url: str = self._settings.get("qbeat_database_url", default)
        return url

    def configure(self, **settings: Any) -> None:
        """Add settings, or replace some. Processes that run already keep theirs."""
        self._settings |= settings
        lines = [f"{name} = {_source(name, value)}\n" for name, value in self._settings.items()]
        (self.folder / "proj" / "celeryconfig.py").write_text("".join(lines))

    # Its processes.

    def worker(self, *args: str, concurrency: int = 2, ready: bool = True) -> Process:
        """`celery worker`; returns when it is ready to take tasks (or at once with ``ready=False``)."""
        name = f"worker-{next(self._counter)}"
        process = self.start(
            name,
            *("worker", "--loglevel=INFO", "--without-gossip", "--without-mingle"),
            *(f"--hostname={name}@localhost", f"--concurrency={concurrency}", *args),
        )
        if ready:
            process.wait_output(r" ready\.$", deadline=60)
        return process

    def beat(self, *args: str, scheduler: str = "celery_qbeat.Scheduler") -> Process:
        """`celery beat`; returns at once."""
        name = f"beat-{next(self._counter)}"
        # --pidfile= so that several may run in one folder; the schedule file is the stock scheduler's.
        return self.start(
            name,
            *(
                "beat",
                f"--scheduler={scheduler}",
                "--loglevel=INFO",
                "--pidfile=",
                f"--schedule={name}-schedule",
                *args,
            ),
        )

    def start(self, name: str, *args: str) -> Process:
        """Any `celery -A proj ...` as a process that goes on."""
        return self.run(name, self._command(*args))

    def run(self, name: str, command: Sequence[str]) -> Process:
        """Any command, in the project's folder and environment, as a process that goes on."""
        output = self.folder / f"{name}.log"
        process = Process(name, command, self.folder, self._environ(), output)
        self.processes.append(process)
        return process

    def cli(self, *args: str, timeout: float = 60.0, text: str | None = None) -> subprocess.CompletedProcess[str]:
        """`celery -A proj ...` to its end; ``text`` is its standard input. The exit code is not checked."""
        return subprocess.run(
            self._command(*args),
            cwd=self.folder,
            env=self._environ(),
            input=text or "",
            capture_output=True,
            text=True,
            timeout=timeout,
            check=False,
        )

    def qbeat(self, *args: str, **options: Any) -> subprocess.CompletedProcess[str]:
        """`celery -A proj qbeat ...` to its end."""
        return self.cli("qbeat", *args, **options)

    def close(self) -> None:
        """Kill all processes that still run."""
        while self.processes:
            self.processes.pop().close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    # What it did.

    def records(self, task: str | None = None) -> list[dict[str, Any]]:
        """The lines that tasks wrote, oldest first: task, id, event, time (s), args, kwargs; of one task, if given.

        ``event`` is `started`; `sleep` writes a second record, `finished`. A name without a dot is one of `proj.tasks`.
        """
        journal = self.folder / "journal.jsonl"
        if not journal.exists():
            return []
        records = [json.loads(line) for line in journal.read_text().splitlines()]
        name = task if task is None or "." in task else f"proj.tasks.{task}"
        return [record for record in records if name is None or record["task"] == name]

    def wait_records(self, count: int, task: str | None = None, deadline: float = 60.0) -> list[dict[str, Any]]:
        """Wait for at least ``count`` records and return all that there are."""
        what = f"{count} records of {task or 'any task'}"
        return wait_for(lambda: r if len(r := self.records(task)) >= count else None, deadline, what=what) or []

    def sql(self, statement: str, **parameters: Any) -> list[sqlalchemy.Row[Any]]:
        """Run one statement (``:name`` for parameters) on the project's database, commit, and return the rows."""
        engine = sqlalchemy.create_engine(self.database_url, poolclass=sqlalchemy.NullPool)
        with engine.begin() as connection:
            result = connection.execute(sqlalchemy.text(statement), parameters)
            return list(result) if result.returns_rows else []

    # How.

    def _command(self, *args: str) -> list[str]:
        return [str(self._python or sys.executable), "-m", "celery", "-A", "proj", *args]

    def _environ(self) -> dict[str, str]:
        kept = {
            name: value for name, value in os.environ.items() if not name.startswith(("CELERY", "QBEAT_", "PYTEST"))
        }
        path = os.pathsep.join([str(self.folder)] if self._python else [str(self.folder), str(_ROOT)])
        own = {
            "PYTHONPATH": path,
            "PYTHONUNBUFFERED": "1",
            "QBEAT_TEST_JOURNAL": str(self.folder / "journal.jsonl"),
        }
        if self._headers:
            own["QBEAT_TEST_HEADERS"] = "1"
        return {**kept, **own, **self.environment}

    def _write_package(self, tasks: str) -> None:
        package = self.folder / "proj"
        package.mkdir(parents=True)
        for part in _TEMPLATE.glob("*.py"):
            (package / part.name).write_text(part.read_text())
        with (package / "tasks.py").open("a") as file:
            file.write(tasks)

    def _message_folders(self) -> dict[str, Any]:
        messages = self.folder / "messages"
        for name in ("queues", "control"):
            (messages / name).mkdir(parents=True)
        return {
            "data_folder_in": str(messages / "queues"),
            "data_folder_out": str(messages / "queues"),
            "control_folder": str(messages / "control"),
            "polling_interval": 0.1,
        }


def _source(name: str, value: Any) -> str:
    if isinstance(value, Code):
        return str(value)
    source = repr(value)
    assert ast.literal_eval(source) == value, f"{name}: cannot be written as a literal, use Code: {source}"
    return source
