"""The servers and the beats of a run, and what is done to them."""

from __future__ import annotations

import re
import signal
import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, ExitStack
from functools import cached_property
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import psutil
import redis
import sqlalchemy as sa

from celery_qbeat.gates import lock_key
from celery_qbeat.stores import open_store
from celery_qbeat.wiring import FAIL_POINT
from tests.celeryproc import Process, Project
from tests.chaos.evidence import Incident
from tests.servers import MariaDB, PostgreSQL, Redis, wait_for

TTL_S = 2.0
POLL_S = 0.25
LOCK_KEYS = "qbeat:{default:*}:lock"
TROUBLE = re.compile(r"^.*(?:unexpected error|Traceback).*$", re.MULTILINE)

Database = PostgreSQL | MariaDB


def lock_in(client: redis.Redis) -> str | None:
    """The key of the one lock in this Redis, None while nobody holds it."""
    found = [key.decode() for key in client.scan_iter(LOCK_KEYS)]
    assert len(found) <= 1, found
    return found[0] if found else None


class Seat:
    """A place for a beat: one process after the other.

    `armed`: the fail point at which the present one will kill or freeze itself, see `celery_qbeat.wiring.fail_point`.
    """

    def __init__(self, number: int, project: Project) -> None:
        self.number = number
        self.busy = False
        self.down = False
        self.complaints: list[str] = []
        self.incidents: list[Incident] = []
        self._project = project
        self.start()

    def start(self, armed: str = "") -> None:
        environment = self._project.environment
        if armed:
            environment[FAIL_POINT] = armed
        self.process: Process = self._project.beat()
        environment.pop(FAIL_POINT, None)
        self.armed, self.down = armed, False
        self._read = self._stopped_us = 0

    def kill(self) -> None:
        self.down = True
        self.process.kill()
        self._forget()

    def end(self) -> None:
        """SIGTERM; it has until `await_end` to go."""
        self.down = True
        # One that froze itself would not hear the signal.
        self.process.thaw()
        self.process.terminate()

    def await_end(self) -> None:
        code = self.process.wait_exit(60)
        # Before Celery has put up its handlers, the signal ends it as it ends any process.
        started = "beat: Starting" in self.process.output()
        if code != 0 and (started or code != -signal.SIGTERM) and not (self.armed and code == -signal.SIGKILL):
            self.complaints.append(f"{self.process.name} ended with {code} after SIGTERM")
        self._forget()

    def look(self) -> None:
        """It must be alive unless somebody ended it or it was armed, and must not have met a bug."""
        self._read_output()
        if self.down or (self.armed and self.busy):
            return
        if self.armed:
            self._look_at_the_fail_point()
        if not self.process.running:
            self.complaints.append(f"{self.process.name} ended by itself:\n{self.process.output()[-3000:]}")
            self.down = True

    def _look_at_the_fail_point(self) -> None:
        """Replace it when it has killed itself; wake it up when it has been frozen for longer than its lock lasts."""
        now = now_us()
        if not self.process.running:
            if self.process.wait_exit() == -signal.SIGKILL:
                self.incidents.append(Incident(f"dies at {self.armed}", f"beat {self.number}", now, now))
                self._forget()
                self.start()
        elif psutil.Process(self.process.pid).status() == psutil.STATUS_STOPPED:
            self._stopped_us = self._stopped_us or now
            if now - self._stopped_us > 2 * TTL_S * 1_000_000:
                self.process.thaw()
                frozen = f"freezes at {self.armed}"
                self.incidents.append(Incident(frozen, f"beat {self.number}", self._stopped_us, now))
                self.armed = ""

    def _read_output(self) -> None:
        with self.process.output_file.open("rb") as output:
            output.seek(self._read)
            new = output.read()
        self._read += len(new)
        self.complaints.extend(f"{self.process.name}: {line}" for line in TROUBLE.findall(new.decode(errors="replace")))

    def _forget(self) -> None:
        self._read_output()
        # Its pid may soon be another's.
        self._project.processes.remove(self.process)
        self.process.close()


class World:
    """`with World(...)`: everything runs and the tables are there; afterwards nothing is left but the logs."""

    def __init__(self, database: str, beats: int, folder: Path) -> None:
        self._stack = ExitStack()
        self.broker = self._begin(Redis("--appendfsync", "always", persist=True))
        self.gate = self._begin(Redis())
        self.database: Database | None = None
        self.url = f"sqlite:///{folder / 'qbeat.sqlite3'}"
        if database != "sqlite":
            self.database = self._begin(PostgreSQL() if database == "postgresql" else MariaDB())
            self.url = self.database.url_of(self.database.create_database())
        self.create_tables()
        settings: dict[str, Any] = {
            "qbeat_database_url": self.url,
            "qbeat_redis_url": self.gate.url,
            "qbeat_lock_ttl": TTL_S,
            "qbeat_poll_interval": POLL_S,
            "qbeat_cron": True,
        }
        self.project = self._stack.enter_context(Project(folder / "project", self.broker.url, settings))
        self.reachable = True
        self.seats: Sequence[Seat] = []
        self._beats = beats

    def create_tables(self) -> None:
        store = open_store(self.url, create_tables=True)
        store.open()
        store.close()

    def start_beats(self) -> None:
        self.seats = [Seat(number, self.project) for number in range(self._beats)]

    def connect(self) -> AbstractContextManager[sa.Connection]:
        """A transaction of one's own; it gives up soon when somebody holds a lock."""
        waits = {"postgresql": "SET lock_timeout = '2s'", "mysql": "SET innodb_lock_wait_timeout = 2"}
        engine = sa.create_engine(self.url, poolclass=sa.NullPool)

        @sa.event.listens_for(engine, "connect")
        def _bound(connection: Any, _record: Any) -> None:
            statement = waits.get(engine.dialect.name)
            if statement:
                connection.cursor().execute(statement)

        return engine.begin()

    @cached_property
    def lock(self) -> str:
        """The key of the beats' lock."""
        with self.connect() as connection:
            return lock_key("default", connection.execute(sa.text("SELECT instance FROM qbeat_meta")).scalar_one())

    def writer(self) -> Seat | None:
        """Who has the lock, by what the beats announced; None when nobody can tell."""
        with self.gate.client(timeout=1.0) as client:
            held = client.get(self.lock)
            listed = client.zrange(self.lock.removesuffix("lock") + "beats", 0, -1)
        token = (held or b"").decode().partition(":")[0]  # type: ignore[union-attr]
        for seat in self.seats:
            if token and any(f'"{token}"' in text and f':{seat.process.pid}"' in text for text in map(_text, listed)):  # type: ignore[arg-type]
                return seat
        return None

    def look(self) -> None:
        for seat in self.seats:
            seat.look()

    def incidents(self) -> list[Incident]:
        """What beats did to themselves."""
        return [incident for seat in self.seats for incident in seat.incidents]

    def complaints(self) -> list[str]:
        return [complaint for seat in self.seats for complaint in seat.complaints]

    def wait_for(self, condition: Callable[[], Any], deadline: float, what: str) -> None:
        """Wait; the error also tells which beat has died meanwhile."""

        def look_and_ask() -> Any:
            self.look()
            return condition()

        try:
            wait_for(look_and_ask, deadline, every=0.1, what=what)
        except AssertionError as late:
            raise AssertionError("\n".join([str(late), *self.complaints()])) from None

    def close(self) -> None:
        self._stack.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _begin(self, server: Any) -> Any:
        return self._stack.enter_context(server.start())


def _text(value: bytes) -> str:
    return value.decode()


def now_us() -> int:
    return time.time_ns() // 1000
