"""The servers of a run, started when the first benchmark asks for one; databases with rows in them."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import psycopg
import sqlalchemy as sa

from celery_qbeat.stores import open_store
from tests.servers import MariaDB, PostgreSQL, Redis

TASK = "bench.nothing"
HOUR_US = 3_600_000_000

COLUMNS = ("id", "fn", "schedule_kind", "schedule", "timezone", "days_only", "args", "kwargs", "start_us")

JobRow = tuple[str, str, str, str, str, str, str, str, int | None]


@dataclass(frozen=True, slots=True)
class Options:
    """What the command line asked for."""

    sizes: Sequence[int] = (100, 10_000, 100_000)
    stock_sizes: Sequence[int] = (100, 10_000, 100_000)
    seconds: float = 30.0


class Places:
    """The servers that a machine has. Raises `tests.servers.ServerMissing` for one that it has not."""

    def __init__(self) -> None:
        self._stack = ExitStack()
        self._redis: Redis | None = None
        self._postgresql: PostgreSQL | None = None
        self._mariadb: MariaDB | None = None

    def __enter__(self) -> Self:
        self._folder = Path(self._stack.enter_context(tempfile.TemporaryDirectory(prefix="qbeat-bench-")))
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stack.close()

    @property
    def redis(self) -> Redis:
        if self._redis is None:
            self._redis = self._stack.enter_context(Redis()).start()
        return self._redis

    @property
    def postgresql(self) -> PostgreSQL:
        """As it comes, and unlike in tests: every commit is on the disk."""
        if self._postgresql is None:
            server = PostgreSQL("fsync=on", "full_page_writes=on", "shared_buffers=128MB")
            self._postgresql = self._stack.enter_context(server).start()
        return self._postgresql

    @property
    def mariadb(self) -> MariaDB:
        if self._mariadb is None:
            self._mariadb = self._stack.enter_context(MariaDB()).start()
        return self._mariadb

    def database(self, kind: str) -> str:
        """The URL of a new database whose table of jobs is empty."""
        if kind == "postgresql":
            url = self.postgresql.url_of(self.postgresql.create_database())
        elif kind == "mariadb":
            url = self.mariadb.url_of(self.mariadb.create_database())
        else:
            url = f"sqlite:///{tempfile.mkdtemp(dir=self._folder)}/jobs.sqlite3"
        store = open_store(url, create_tables=True)
        store.open()
        store.close()
        write(url, "DELETE FROM qbeat_jobs")
        return url


def fill(url: str, rows: Iterable[JobRow]) -> None:
    """Insert rows of `qbeat_jobs`, as a person would: through SQL, past the scheduler."""
    if url.startswith("postgresql"):
        _copy(url.replace("+psycopg", "", 1), rows)
        return
    engine = sa.create_engine(url, poolclass=sa.NullPool)
    names = ", ".join(f":{name}" for name in COLUMNS)
    statement = sa.text(f"INSERT INTO qbeat_jobs ({', '.join(COLUMNS)}) VALUES ({names})")
    with engine.begin() as connection:
        connection.execute(statement, [dict(zip(COLUMNS, row, strict=True)) for row in rows])


def _copy(url: str, rows: Iterable[JobRow]) -> None:
    with psycopg.connect(url, autocommit=True) as connection, connection.cursor() as cursor:
        with cursor.copy(f"COPY qbeat_jobs ({', '.join(COLUMNS)}) FROM STDIN") as copy:
            for row in rows:
                copy.write_row(row)
        # What autovacuum would do a minute later, in the middle of a measurement.
        cursor.execute("VACUUM ANALYZE qbeat_jobs")
        cursor.execute("VACUUM ANALYZE qbeat_changes")


def calendar(count: int, now_us: int) -> Iterator[JobRow]:
    """Rows as a shop has them, none of which is due within six hours."""
    zones = ("UTC", "Europe/Berlin", "America/New_York", "Asia/Tokyo")
    for number in range(count):
        due = now_us // 60_000_000 + 360 + number % 720
        kind, text, zone, days = "daily", f"{due // 60 % 24:02}:{due % 60:02}", "UTC", ""
        if number % 4 == 1:
            # Due tomorrow at the earliest, whatever the zone.
            kind, text, zone = "once", "2199-06-01T09:00", zones[number // 4 % 4]
        elif number % 4 == 2:
            days = "mon-sun"
        args, kwargs = json.dumps([number]), json.dumps({"customer": number, "full": True})
        yield f"shop.customer-{number:07}.report", TASK, kind, text, zone, days, args, kwargs, None


def due_at(count: int, slot_us: int, step_us: int = 0) -> Iterator[JobRow]:
    """Rows due at `slot_us`, or one after the other `step_us` apart, and then not for an hour."""
    for number in range(count):
        start = slot_us + number * step_us
        yield f"shop.order-{number:07}.check", TASK, "interval", "3600", "UTC", "", f"[{number}]", "{}", start


def write(url: str, statement: str, **parameters: Any) -> None:
    """One statement, committed, over a connection of its own."""
    engine = sa.create_engine(url, poolclass=sa.NullPool)
    with engine.begin() as connection:
        connection.execute(sa.text(statement), parameters)


def scalar(url: str, query: str) -> Any:
    """The one value of a query."""
    engine = sa.create_engine(url, poolclass=sa.NullPool)
    with engine.connect() as connection:
        return connection.execute(sa.text(query)).scalar_one()


def scalars(url: str, query: str) -> list[Any]:
    """The first column of a query."""
    engine = sa.create_engine(url, poolclass=sa.NullPool)
    with engine.connect() as connection:
        return list(connection.execute(sa.text(query)).scalars())
