"""Every kind of store with the means to edit its tables as people do, and to look at what it wrote.

A new store joins the contract suite by one line in RIGS.
"""

from __future__ import annotations

import shutil
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa

from celery_qbeat.core.identity import task_id
from celery_qbeat.core.jobs import Run, Verdict
from celery_qbeat.ports import Claim, Plan, Store
from celery_qbeat.stores import SqlStore, open_store
from celery_qbeat.testing import MemoryStore

T0 = 1_767_225_600_000_000
SECOND = 1_000_000
NEW_ROW = {"fn": "proj.tasks.work", "schedule_kind": "every", "schedule": "1m"}


class Rig(ABC):
    """A store over an empty database, opened, and with an epoch."""

    store: Store
    epoch: int = 0

    def __init__(self) -> None:
        self._batches = 0

    def start(self) -> None:
        """Be the writer, with everything read."""
        self.store.open()
        self.epoch = self.store.take_epoch("here:1", T0)
        assert [part.rows for part in self.store.load() if part.rows] == []

    @abstractmethod
    def other(self) -> Store:
        """A second beat's store on the same database, opened."""

    @abstractmethod
    def insert(self, job_id: str, **columns: Any) -> None: ...

    @abstractmethod
    def update(self, job_id: str, **columns: Any) -> None: ...

    @abstractmethod
    def delete(self, job_id: str) -> None: ...

    @abstractmethod
    def set_worker(self, name: str, **columns: Any) -> None: ...

    @abstractmethod
    def delete_worker(self, name: str) -> None: ...

    @abstractmethod
    def ask(self, job_id: str, asked_us: int, asked_by: str = "", **columns: str) -> None: ...

    @abstractmethod
    def runs(self) -> Sequence[Mapping[str, Any]]:
        """The ledger by slot and job."""

    @abstractmethod
    def state(self, job_id: str) -> Mapping[str, Any]:
        """All columns of the job's state."""

    @abstractmethod
    def batches(self) -> Mapping[int, tuple[int, int, int | None]]:
        """Batch id to epoch, n, sent_us."""

    @abstractmethod
    def history(self) -> Sequence[tuple[str, int, str | None]]:
        """job_id, since_us, spec."""

    # ------------------------------------------------------------ what most tests begin with

    def planned(self, *job_ids: str, next_us: int | None = T0, **columns: Any) -> None:
        """Rows that the beat has read and planned."""
        for job_id in job_ids:
            self.insert(job_id, **columns)
        self.store.read_changes()
        plans = [Plan(job_id, T0, next_us, "key", spec="spec", record=True) for job_id in job_ids]
        self.store.write_plans(self.epoch, plans, T0)

    def rev(self, job_id: str) -> int:
        """The row's rev, as a beat would learn it."""
        for part in self.other().load():
            for row, _ in part.rows:
                if row["id"] == job_id:
                    return int(row["rev"])
        raise AssertionError(f"no row {job_id}")

    def run(self, job_id: str, slot_us: int = T0, verdict: Verdict = Verdict.CLAIMED, **fields: Any) -> Run:
        lease = T0 + 3600 * SECOND if verdict is Verdict.CLAIMED else None
        known = {"lease_until_us": lease, **fields}
        return Run(job_id, slot_us, task_id(self.store.instance, job_id, slot_us), verdict, **known)

    def claim_of(self, job_id: str, *runs: Run, next_us: int | None = T0 + 60 * SECOND, **fields: Any) -> Claim:
        """A claim of the slot T0, with the row's rev."""
        known = {"rev": self.rev(job_id), "expected_us": T0, **fields} if "rev" not in fields else fields
        return Claim(job_id, next_us=next_us, runs=runs or (self.run(job_id),), **{"expected_us": T0, **known})

    def batch_id(self) -> int:
        self._batches += 1
        return (self.epoch << 20) + self._batches

    def claim(self, *claims: Claim, now_us: int = T0 + SECOND) -> frozenset[str]:
        self.last_batch = self.batch_id()
        return self.store.claim(self.epoch, self.last_batch, claims, now_us)

    def claimed(self, *job_ids: str) -> list[str]:
        """Planned jobs with a run each, claimed: the task ids."""
        self.planned(*job_ids)
        claims = [self.claim_of(job_id) for job_id in job_ids]
        assert self.claim(*claims) == frozenset()
        return [claim.runs[0].task_id for claim in claims]


class MemoryRig(Rig):
    def __init__(self) -> None:
        super().__init__()
        self.memory = MemoryStore()
        self.store = self.memory

    def other(self) -> Store:
        return self.memory.session()

    def insert(self, job_id: str, **columns: Any) -> None:
        self.memory.insert(id=job_id, **{**NEW_ROW, **columns})

    def update(self, job_id: str, **columns: Any) -> None:
        self.memory.update(job_id, **columns)

    def delete(self, job_id: str) -> None:
        self.memory.delete(job_id)

    def set_worker(self, name: str, **columns: Any) -> None:
        self.memory.set_worker(name=name, **columns)

    def delete_worker(self, name: str) -> None:
        self.memory.delete_worker(name)

    def ask(self, job_id: str, asked_us: int, asked_by: str = "", **columns: str) -> None:
        self.memory.ask(job_id, asked_us, asked_by, **columns)

    def runs(self) -> Sequence[Mapping[str, Any]]:
        return [asdict(entry) for entry in sorted(self.memory.ledger, key=lambda entry: (entry.slot_us, entry.job_id))]

    def state(self, job_id: str) -> Mapping[str, Any]:
        return {**asdict(self.memory.state[job_id]), **asdict(self.memory.database.extra[job_id])}

    def batches(self) -> Mapping[int, tuple[int, int, int | None]]:
        return {key: (batch.epoch, batch.n, batch.sent_us) for key, batch in self.memory.database.batches.items()}

    def history(self) -> Sequence[tuple[str, int, str | None]]:
        return self.memory.history


class SqlRig(Rig):
    """Edits by plain SQL on a connection of its own, as from a database's command line."""

    def __init__(self, url: str, stack: ExitStack) -> None:
        super().__init__()
        self.url = url
        self._stack = stack
        self.store = self._opened()
        link_url = self.store.link.engine.url
        # A pooler may be between.
        options = {"prepare_threshold": None} if link_url.get_driver_name() == "psycopg" else {}
        engine = sa.create_engine(link_url, isolation_level="AUTOCOMMIT", connect_args=options)
        stack.callback(engine.dispose)
        self.connection = stack.enter_context(engine.connect())
        if engine.dialect.name == "sqlite":
            self.connection.exec_driver_sql("PRAGMA synchronous = OFF")

    def _opened(self) -> SqlStore:
        store = open_store(self.url)
        self._stack.callback(store.close)
        store.open()
        return store

    def other(self) -> SqlStore:
        return self._opened()

    def sql(self, statement: str, **values: Any) -> sa.CursorResult[Any]:
        return self.connection.execute(sa.text(statement), values)

    def insert(self, job_id: str, **columns: Any) -> None:
        row = {"id": job_id, **NEW_ROW, **columns}
        self.sql(f"INSERT INTO qbeat_jobs ({', '.join(row)}) VALUES ({', '.join(':' + name for name in row)})", **row)

    def update(self, job_id: str, **columns: Any) -> None:
        setting = ", ".join(f"{name} = :new_{name}" for name in columns)
        values = {f"new_{name}": value for name, value in columns.items()}
        self.sql(f"UPDATE qbeat_jobs SET {setting} WHERE id = :job", job=job_id, **values)

    def delete(self, job_id: str) -> None:
        self.sql("DELETE FROM qbeat_jobs WHERE id = :job", job=job_id)

    def set_worker(self, name: str, **columns: Any) -> None:
        row = {"name": name, **columns}
        if self.sql("SELECT 1 FROM qbeat_workers WHERE name = :name", name=name).first() is None:
            words = (", ".join(row), ", ".join(":" + column for column in row))
            self.sql("INSERT INTO qbeat_workers ({}) VALUES ({})".format(*words), **row)
        else:
            setting = ", ".join(f"{column} = :{column}" for column in columns)
            self.sql(f"UPDATE qbeat_workers SET {setting} WHERE name = :name", **row)

    def delete_worker(self, name: str) -> None:
        self.sql("DELETE FROM qbeat_workers WHERE name = :name", name=name)

    def ask(self, job_id: str, asked_us: int, asked_by: str = "", **columns: str) -> None:
        values: dict[str, Any] = {"job_id": job_id, "asked_us": asked_us, "asked_by": asked_by, **columns}
        names, marks = ", ".join(values), ", ".join(f":{name}" for name in values)
        self.sql(f"INSERT INTO qbeat_requests ({names}) VALUES ({marks})", **values)

    def runs(self) -> Sequence[Mapping[str, Any]]:
        return [dict(row) for row in self.sql("SELECT * FROM qbeat_runs ORDER BY slot_us, job_id").mappings()]

    def state(self, job_id: str) -> Mapping[str, Any]:
        return dict(self.sql("SELECT * FROM qbeat_state WHERE job_id = :job", job=job_id).mappings().one())

    def batches(self) -> Mapping[int, tuple[int, int, int | None]]:
        found = self.sql("SELECT batch_id, epoch, n, sent_us FROM qbeat_batches")
        return {row[0]: (row[1], row[2], row[3]) for row in found}

    def history(self) -> Sequence[tuple[str, int, str | None]]:
        found = self.sql("SELECT job_id, since_us, spec FROM qbeat_history ORDER BY id")
        return [(row[0], row[1], row[2]) for row in found]


TABLES = (
    "qbeat_jobs",
    "qbeat_workers",
    "qbeat_requests",
    "qbeat_state",
    "qbeat_runs",
    "qbeat_batches",
    "qbeat_history",
    "qbeat_changes",
)


def made(url: str) -> str:
    """The URL of a database, with our tables in it, without the row that a new database has."""
    store = open_store(url, create_tables=True)
    store.open()
    with store.link.engine.connect() as connection:
        connection.exec_driver_sql("DELETE FROM qbeat_jobs")
        connection.exec_driver_sql("DELETE FROM qbeat_changes WHERE op = 'D'")
    store.close()
    return url


def emptied(url: str) -> str:
    """The URL of a database whose tables are ours, without rows."""
    store = open_store(url)
    with store.link.engine.connect() as connection:
        # What the log has lost by this counts as pruned; PostgreSQL's floor is a transaction, not a number of the log.
        lost = (
            "0" if connection.dialect.name == "postgresql" else "(SELECT COALESCE(MAX(version), 0) FROM qbeat_changes)"
        )
        for table in TABLES:
            if table == "qbeat_changes":
                connection.exec_driver_sql(f"UPDATE qbeat_meta SET log_floor = {lost}")
            connection.exec_driver_sql(f"DELETE FROM {table}")
        connection.exec_driver_sql("UPDATE qbeat_leader SET epoch = 0, holder = ''")
    return url


def _memory(_request: pytest.FixtureRequest, _stack: ExitStack) -> Rig:
    return MemoryRig()


def _sqlite(request: pytest.FixtureRequest, stack: ExitStack) -> Rig:
    file = request.getfixturevalue("tmp_path") / "qbeat.sqlite3"
    shutil.copy(Path(request.getfixturevalue("sqlite_home")), file)
    return SqlRig(f"sqlite:///{file}", stack)


def _postgresql(request: pytest.FixtureRequest, stack: ExitStack) -> Rig:
    return SqlRig(emptied(request.getfixturevalue("postgres_home")), stack)


def _mariadb(request: pytest.FixtureRequest, stack: ExitStack) -> Rig:
    return SqlRig(emptied(request.getfixturevalue("mariadb_home")), stack)


RIGS = {
    "memory": _memory,
    "sqlite": _sqlite,
    "postgresql": _postgresql,
    "mariadb": _mariadb,
}
SQL_RIGS = tuple(name for name in RIGS if name != "memory")
