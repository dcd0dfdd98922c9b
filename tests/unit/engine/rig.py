"""An engine with stand-ins for everything, and a clock that the test moves."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any

from celery_qbeat.core.jobs import Job, RowRules
from celery_qbeat.core.privileges import Privileges
from celery_qbeat.engine import Dependencies, Engine, Limits
from celery_qbeat.testing import FakeClock, FakeCompletions, FakeDispatcher, MemoryStore, OpenGate

SECOND = 1_000_000
MINUTE = 60 * SECOND
HOUR = 60 * MINUTE
DAY = 24 * HOUR


def at(text: str) -> int:
    """Microseconds of '2026-06-01T12:00:00' (UTC)."""
    moment = datetime.fromisoformat(text)
    return int((moment.replace(tzinfo=UTC) - datetime(1970, 1, 1, tzinfo=UTC)).total_seconds() * SECOND)


class Rig:
    def __init__(
        self,
        now: str = "2026-06-01T12:00:00",
        *,
        store: MemoryStore | None = None,
        outbox: FakeDispatcher | None = None,
        clock: FakeClock | None = None,
        cron: bool = True,
        code_jobs: Sequence[Job] = (),
        ends: bool = True,
        limits: Limits | None = None,
        **parts: Any,
    ) -> None:
        self.clock = clock or FakeClock(at(now))
        self.store = store or MemoryStore()
        self.outbox = outbox or FakeDispatcher()
        self.landings = FakeCompletions()
        self.gate = parts.get("gate") or OpenGate(self.clock)
        self.parts: dict[str, Any] = {
            "store": self.store,
            "gate": self.gate,
            "dispatcher": self.outbox,
            "clock": self.clock,
            "privileges": Privileges(registered=frozenset({"app.a", "app.b"})),
            "completions": self.landings if ends else None,
            "rules": RowRules(cron=cron),
            "limits": limits or Limits(),
            "code_jobs": code_jobs,
            **parts,
        }
        self.engine = Engine(Dependencies(**self.parts))

    def insert(self, job_id: str = "j", kind: str = "every", schedule: str = "1m", **columns: Any) -> None:
        columns.setdefault("overlap", "allow")
        self.store.insert(**{"id": job_id, "fn": "app.a", "schedule_kind": kind, "schedule": schedule, **columns})

    def tick(self) -> float:
        return self.engine.tick()

    def run(self, seconds: float) -> None:
        """Tick as Celery's loop would, for so long."""
        until = self.clock.monotonic() + seconds
        while True:
            pause = max(self.tick(), 0.001)
            left = until - self.clock.monotonic()
            if left <= pause:
                self.clock.advance(max(0.0, left))
                self.tick()
                return
            self.clock.advance(pause)

    def restart(self, *, down_for: float = 0.0) -> None:
        """The process ends at once and another one starts later."""
        self.clock.advance(down_for)
        self.store = self.store.session()
        self.gate = OpenGate(self.clock)
        self.parts |= {"store": self.store, "gate": self.gate}
        self.engine = Engine(Dependencies(**self.parts))

    def slots(self, job_id: str = "j") -> list[int]:
        return [slot for job, slot in self.outbox.slots if job == job_id]

    def verdicts(self, job_id: str = "j") -> list[str]:
        return [str(entry.verdict) for entry in self.store.database.ledger if entry.job_id == job_id]

    def entry(self, job_id: str = "j") -> Any:
        """The last line of the ledger for this job."""
        return [entry for entry in self.store.database.ledger if entry.job_id == job_id][-1]

    def state(self, job_id: str = "j") -> Any:
        return self.store.database.state[job_id]

    def sent_id(self, job_id: str = "j") -> str:
        """The task id of the job's last message."""
        return [shipment.run.task_id for shipment in self.outbox.sent if shipment.job.id == job_id][-1]
