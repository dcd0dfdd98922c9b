"""The servers and the beats of a run, and what is done to them."""

from __future__ import annotations

import re
import signal
import threading
import time
import uuid
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, ExitStack, suppress
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import psutil
import redis
import sqlalchemy as sa

from celery_qbeat.stores import open_store, tables
from celery_qbeat.wiring import FAIL_POINT
from tests.celeryproc import Code, Process, Project
from tests.chaos.app_threads import THREADS
from tests.chaos.evidence import IN_FLIGHT, Incident
from tests.chaos.links import Links, from_environment
from tests.chaos.tap import Tap
from tests.servers import MariaDB, PostgreSQL, Redis, wait_for

TTL_S = 2.0
POLL_S = 0.25
LOCK_KEYS = "qbeat:*:lock"
TROUBLE = re.compile(r"^.*(?:unexpected error|Traceback).*$", re.MULTILINE)

ENDS_WITHIN_S = 10.0
"""Seconds from SIGTERM to the end of a beat: what container managers wait before they kill. A beat promises five."""

Database = PostgreSQL | MariaDB


def lock_in(client: redis.Redis) -> str | None:
    """The key of the one lock in this Redis, None while nobody holds it."""
    found = [key.decode() for key in client.scan_iter(LOCK_KEYS)]
    assert len(found) <= 1, found
    return found[0] if found else None


class Seat:
    """A place for a beat: one process after the other.

    `links`: its ways to the servers. `armed`: the fail point at which the present one will kill or freeze itself, see
    `celery_qbeat.wiring.fail_point`.
    """

    def __init__(self, number: int, project: Project, links: Links) -> None:
        self.number = number
        self.links = links
        self.busy = False
        self.down = False
        self.complaints: list[str] = []
        self.incidents: list[Incident] = []
        self.ends_s: list[float] = []
        self._project = project
        self.start()

    def start(self, armed: str = "") -> None:
        environment = self._project.environment
        environment.update(self.links.environment)
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
        self._ending = threading.Thread(target=self._measure_end, args=(self.process,), daemon=True)
        self._ending.start()

    def _measure_end(self, process: Process) -> None:
        began = time.monotonic()
        with suppress(AssertionError):
            process.wait_exit(60)
        self.ends_s.append(time.monotonic() - began)

    def await_end(self) -> None:
        self._ending.join()
        if self.ends_s[-1] > ENDS_WITHIN_S:
            self.complaints.append(f"{self.process.name} ended {self.ends_s[-1]:.1f} s after SIGTERM")
            self.process.kill()
            self._forget()
            return
        code = self.process.wait_exit()
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
    """`with World(...)`: everything runs and the tables are there; afterwards nothing is left but the logs.

    `threads`: whether the beats' app starts threads of its own.
    """

    tap: Tap

    def __init__(self, database: str, beats: int, folder: Path, *, threads: bool = True) -> None:
        self._stack = ExitStack()
        self.broker = self._begin(Redis("--appendfsync", "always", persist=True))
        self.gate = self._begin(Redis())
        self.database: Database | None = None
        self.url = url_of_beats = f"sqlite:///{folder / 'qbeat.sqlite3'}"
        if database != "sqlite":
            self.database = self._begin(PostgreSQL() if database == "postgresql" else MariaDB())
            name = self.database.create_database()
            self.url = self.database.url_of(name)
            user, own = ("postgres", "beats") if database == "postgresql" else ("root", "qbeat")
            url_of_beats = self.url.replace(f"//{user}@", f"//{own}@")
        self.create_tables()
        self._servers = {"gate": (self.gate.url, self.gate.port), "broker": (self.broker.url, self.broker.port)}
        if self.database is not None:
            self._servers["database"] = (url_of_beats, self.database.port)
        settings: dict[str, Any] = {
            "broker_url": Code(from_environment("broker")),
            "qbeat_database_url": Code(from_environment("database")) if self.database else url_of_beats,
            "qbeat_redis_url": Code(from_environment("gate")),
            "qbeat_lock_ttl": TTL_S,
            "qbeat_poll_interval": POLL_S,
            "qbeat_cron": True,
        }
        tasks = THREADS if threads else ""
        self.project = self._stack.enter_context(Project(folder / "project", self.broker.url, settings, tasks=tasks))
        self.reachable = True
        self.seats: Sequence[Seat] = []
        self._beats = beats
        self._lock_key: str | None = None
        self._writer: Seat | None = None

    def create_tables(self) -> None:
        """The tables; on PostgreSQL and MariaDB the beats are users of their own, without rights to administrate."""
        store = open_store(self.url, create_tables=True)
        store.open()
        store.close()
        if isinstance(self.database, PostgreSQL):
            with self.administrate() as connection:
                connection.execute(sa.text("CREATE ROLE beats LOGIN"))
                connection.execute(sa.text("GRANT ALL ON ALL TABLES IN SCHEMA public TO beats"))
                connection.execute(sa.text("GRANT ALL ON ALL SEQUENCES IN SCHEMA public TO beats"))

    def insert_in_flight(self, count: int) -> None:
        """Insert runs that were sent and have not ended, 100 for each of `count` / 100 ids.

        No row has these ids, so nothing else of the run depends on them.
        """
        now = now_us()
        with self.connect() as connection:
            connection.execute(
                sa.insert(tables.batches).values(batch_id=1, epoch=0, claimed_us=now, n=count, sent_us=now)
            )
            for first in range(0, count, 10_000):
                numbers = range(first, min(first + 10_000, count))
                connection.execute(sa.insert(tables.runs), [_run_in_flight(number, now) for number in numbers])

    def start_beats(self) -> None:
        self.seats = [Seat(number, self.project, self._begin_links()) for number in range(self._beats)]

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

    def administrate(self) -> AbstractContextManager[sa.Connection]:
        """A connection of an administrator without a transaction; no fault on links reaches it."""
        return sa.create_engine(self.url, poolclass=sa.NullPool, isolation_level="AUTOCOMMIT").connect()

    def writer(self) -> Seat | None:
        """Who took the newest epoch; the last one that was known where the database cannot be asked."""
        if self.reachable:
            with suppress(sa.exc.OperationalError), self.connect() as connection:
                holder = str(connection.execute(sa.select(tables.leader.c.holder)).scalar_one())
                pid = holder.rpartition(":")[2]
                self._writer = next((seat for seat in self.seats if str(seat.process.pid) == pid), None)
        return self._writer

    def lock_key(self, client: redis.Redis) -> str | None:
        """The key of the lock, once there was one."""
        self._lock_key = lock_in(client) or self._lock_key
        return self._lock_key

    def look(self) -> None:
        for seat in self.seats:
            seat.look()

    def incidents(self) -> list[Incident]:
        """What beats did to themselves."""
        return [incident for seat in self.seats for incident in seat.incidents]

    def ends_s(self) -> list[float]:
        """How long each beat took from SIGTERM to its end."""
        return [seconds for seat in self.seats for seconds in seat.ends_s]

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

    def _begin_links(self) -> Links:
        links = Links(self._servers)
        self._stack.callback(links.close)
        return links


def _run_in_flight(number: int, now: int) -> dict[str, Any]:
    job, slot = f"{IN_FLIGHT}{number // 100}", now - 60_000_000 + number % 100
    times = {"claimed_us": now, "sent_us": now, "lease_until_us": now + 3_600_000_000}
    return {"task_id": str(uuid.uuid4()), "job_id": job, "slot_us": slot, "batch_id": 1, "verdict": "sent", **times}


def now_us() -> int:
    return time.time_ns() // 1000
