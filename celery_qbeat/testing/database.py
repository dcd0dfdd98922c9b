"""What a MemoryStore's sessions share, and how a test edits it."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from celery_qbeat.core.jobs import State, Verdict
from celery_qbeat.ports import Request

INSTANCE = "5f0c6e2e-6f0e-4a62-9a55-0d5b6f6ff001"

JOB_DEFAULTS: Mapping[str, Any] = {
    "worker": "",
    "args": "[]",
    "kwargs": "{}",
    "enabled": True,
    "timezone": "UTC",
    "days_only": "",
    "days_skip": "",
    "dates_skip": "",
    "start_us": None,
    "end_us": None,
    "overlap": "skip",
    "catch_up": "once",
    "grace_seconds": None,
    "on_doubt": "drop",
    "max_run_seconds": 3600,
    "queue": None,
    "priority": None,
    "expires_seconds": None,
    "description": "",
    "rev": 0,
}
REQUIRED = ("id", "fn", "schedule_kind", "schedule")
WORKER_DEFAULTS: Mapping[str, Any] = {"enabled": True, "queue": "", "queues": "", "functions": "", "description": ""}


@dataclass(slots=True)
class Entry:
    """A line of a MemoryStore's ledger; the fields are the columns of `qbeat_runs`, and the epoch of its batch."""

    job_id: str
    slot_us: int
    task_id: str
    verdict: Verdict
    claimed_us: int
    batch_id: int | None
    epoch: int
    late_us: int = 0
    collapsed: int = 0
    detail: str = ""
    by_hand: bool = False
    resend: bool = False
    sent_us: int | None = None
    finished_us: int | None = None
    lease_until_us: int | None = None
    started_us: int | None = None
    took_us: int | None = None


@dataclass(slots=True)
class Extra:
    """The columns of `qbeat_state` that `State` does not carry."""

    last_finished_us: int | None = None
    last_verdict: str = ""
    last_error: str = ""
    runs: int = 0
    failures_in_a_row: int = 0
    claim_epoch: int = 0


@dataclass(slots=True)
class Batch:
    epoch: int
    claimed_us: int
    n: int
    sent_us: int | None = None


@dataclass(slots=True)
class Database:
    """What the sessions of a MemoryStore share.

    `down`: every call of every session raises Unavailable. `clock`: the server's own clock, in microseconds; None where
    it has none.
    """

    instance: str = INSTANCE
    down: bool = False
    clock: Callable[[], int] | None = None
    epoch: int = 0
    holder: str = ""
    seen_us: int = 0
    silence_us: int = 0
    rev: int = 0
    jobs: dict[str, dict[str, Any]] = field(default_factory=dict)
    workers: dict[str, dict[str, Any]] = field(default_factory=dict)
    state: dict[str, State] = field(default_factory=dict)
    extra: dict[str, Extra] = field(default_factory=dict)
    ledger: list[Entry] = field(default_factory=list)
    by_task: dict[str, Entry] = field(default_factory=dict)
    by_slot: dict[tuple[int, str], Entry] = field(default_factory=dict)
    batches: dict[int, Batch] = field(default_factory=dict)
    history: list[tuple[str, int, str | None]] = field(default_factory=list)
    requests: dict[int, Request] = field(default_factory=dict)
    last_request: int = 0
    log: list[tuple[str, str | None]] = field(default_factory=list)
    lock: threading.RLock = field(default_factory=threading.RLock)


class Edits:
    """Edits the tables as people do, and looks at them."""

    def __init__(self, database: Database) -> None:
        self.database = database

    def insert(self, **columns: Any) -> None:
        """As `INSERT INTO qbeat_jobs`: `id`, `fn`, `schedule_kind`, `schedule` are needed, the rest has defaults."""
        missing = [name for name in REQUIRED if name not in columns]
        if missing:
            raise ValueError(f"a row needs {', '.join(missing)}")
        with self.database.lock:
            if columns["id"] in self.database.jobs:
                raise ValueError(f"there is a row {columns['id']!r}")
            self._put({**JOB_DEFAULTS, **_known_columns(columns)}, "I")

    def update(self, job_id: str, **columns: Any) -> None:
        """As `UPDATE qbeat_jobs ... WHERE id = job_id`; a new `id` renames the row."""
        with self.database.lock:
            row = {**self.database.jobs[job_id], **_known_columns(columns)}
            if row["id"] != job_id:
                self.delete(job_id)
            self._put(row, "U")

    def delete(self, job_id: str) -> None:
        """As `DELETE FROM qbeat_jobs WHERE id = job_id`."""
        with self.database.lock:
            del self.database.jobs[job_id]
            self.database.log.append(("D", job_id))

    def set_worker(self, **columns: Any) -> None:
        """Insert or update a row of `qbeat_workers`; `name` is needed."""
        unknown = columns.keys() - WORKER_DEFAULTS.keys() - {"name"}
        if unknown:
            raise ValueError(f"qbeat_workers has no column {', '.join(sorted(unknown))}")
        with self.database.lock:
            name = columns["name"]
            self.database.workers[name] = {**WORKER_DEFAULTS, **self.database.workers.get(name, {}), **columns}
            self.database.log.append(("W", name))

    def delete_worker(self, name: str) -> None:
        """As `DELETE FROM qbeat_workers WHERE name = name`."""
        with self.database.lock:
            del self.database.workers[name]
            self.database.log.append(("W", name))

    def ask(self, job_id: str, asked_us: int, asked_by: str = "", action: str = "run", task_id: str = "") -> Request:
        """As `INSERT INTO qbeat_requests`: somebody wants a run by hand, or the release of one. Gives the request."""
        with self.database.lock:
            new = self.database.last_request = self.database.last_request + 1
            self.database.requests[new] = Request(new, job_id, asked_us, asked_by, action, task_id)
            self.database.log.append(("R", job_id))
            return self.database.requests[new]

    @property
    def state(self) -> dict[str, State]:
        return self.database.state

    @property
    def ledger(self) -> list[Entry]:
        return self.database.ledger

    @property
    def history(self) -> list[tuple[str, int, str | None]]:
        """(job_id, since_us, spec), oldest first."""
        return self.database.history

    @property
    def rows(self) -> dict[str, dict[str, Any]]:
        return self.database.jobs

    def _put(self, row: dict[str, Any], op: str) -> None:
        self.database.rev += 1
        self.database.jobs[row["id"]] = {**row, "rev": self.database.rev}
        self.database.log.append((op, row["id"]))


def _known_columns(columns: Mapping[str, Any]) -> Mapping[str, Any]:
    unknown = columns.keys() - JOB_DEFAULTS.keys() - set(REQUIRED)
    if unknown:
        raise ValueError(f"qbeat_jobs has no column {', '.join(sorted(unknown))}")
    return columns
