"""The commands in this process, on tables of their own, and a ledger written by hand."""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from importlib.metadata import version
from typing import Any

import sqlalchemy as sa
from celery import Celery
from click.testing import CliRunner, Result

from celery_qbeat.cli import Chosen, main, qbeat
from celery_qbeat.core.identity import task_id
from celery_qbeat.core.jobs import RowRules, read_row
from celery_qbeat.core.liveness import LEAST_SILENCE_US
from celery_qbeat.stores import rows, tables
from celery_qbeat.testing.database import INSTANCE

SECOND = 1_000_000
MINUTE = 60 * SECOND
HOUR = 60 * MINUTE
DAY = 24 * HOUR


def make_app(**conf: Any) -> Celery:
    """An app with the tasks `app.a` and `app.b`."""
    app = Celery("t", broker="memory://", set_as_current=False)
    app.conf.update(conf)
    for name in ("app.a", "app.b"):
        app.task(name=name)(_nothing)
    return app


def _nothing() -> None:
    pass


def make_runner() -> CliRunner:
    """A runner that keeps standard error apart, as every one does from click 8.2 on."""
    old = version("click").startswith("8.1.")
    return CliRunner(**{"mix_stderr": False} if old else {})


class Cli:
    """Runs commands; `now` is the instant at which it was made."""

    def __init__(self, url: str, **conf: Any) -> None:
        self.url = url
        self.app = make_app(qbeat_database_url=url, **conf)
        self.engine = sa.create_engine(url, poolclass=sa.NullPool)
        self.now = time.time_ns() // 1000

    def run(self, *args: str, input: str | None = None) -> Result:  # noqa: A002
        """As `celery -A app qbeat ...`."""
        return make_runner().invoke(qbeat, args, input=input, obj=Chosen(app=self.app))

    def ok(self, *args: str) -> str:
        """What it printed; it must end with 0."""
        result = self.run(*args)
        assert result.exit_code == 0, result.output
        return result.stdout

    def refused(self, *args: str) -> str:
        """The sentence with which it ended with 1."""
        result = self.run(*args)
        assert result.exit_code == 1, result.output
        assert result.stderr.startswith("Error: ")
        assert result.stderr.count("\n") == 1
        return result.stderr

    def json(self, *args: str, code: int = 0) -> Any:
        result = self.run(*args, "--json")
        assert result.exit_code == code, result.output
        return json.loads(result.stdout)

    @property
    def instance(self) -> str:
        """The UUID of the tables."""
        with self.engine.begin() as connection:
            return str(connection.execute(sa.select(tables.meta.c.instance)).scalar_one())

    def row(self, job_id: str) -> Any:
        """The row as the database has it."""
        with self.engine.begin() as connection:
            return rows.get(connection, [job_id])[job_id].row

    def insert(self, table: sa.Table, *lines: dict[str, Any]) -> None:
        with self.engine.begin() as connection:
            for row in lines:
                connection.execute(sa.insert(table).values(row))

    def update(self, table: sa.Table, **values: Any) -> None:
        with self.engine.begin() as connection:
            connection.execute(sa.update(table).values(values))

    # What a beat would have written.

    def beat_seen(self, ago_us: int = 0, holder: str = "elsewhere:7", silence_us: int = LEAST_SILENCE_US) -> None:
        at = self.now - ago_us
        values = {"holder": holder, "taken_us": at - HOUR, "seen_us": at, "silence_us": silence_us}
        self.update(tables.leader, epoch=3, **values)

    def known(self, job_id: str, since_us: int, **state: Any) -> None:
        """A beat took the row in at `since_us`."""
        job = read_row(dict(self.row(job_id)), RowRules(), {}).job
        assert job is not None
        self.insert(tables.history, {"job_id": job_id, "since_us": since_us, "spec": job.spec})
        values = {"job_id": job_id, "first_seen_us": since_us, "plan_key": job.plan_key, **state}
        self.insert(tables.state, values)

    def ran(self, job_id: str, slots: Sequence[int], verdict: str = "succeeded", **more: Any) -> None:
        lines = [
            {
                "job_id": job_id,
                "slot_us": slot,
                "task_id": task_id(INSTANCE, job_id, slot),
                "verdict": verdict,
                "claimed_us": slot,
                "sent_us": slot,
                "finished_us": slot + SECOND,
                **more,
            }
            for slot in slots
        ]
        self.insert(tables.runs, *lines)


def migrated(url: str) -> None:
    """Make the tables, without the row that a new database has."""
    for command in (["migrate"], ["delete", "_builtin.prune"]):
        result = CliRunner().invoke(main, ["--database-url", url, *command])
        assert result.exit_code == 0, result.output
