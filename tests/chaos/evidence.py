"""What is left of a run: messages, the ledger, what the beats noted."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import sqlalchemy as sa

NEVER_US = 1 << 62

IN_FLIGHT = "in-flight-"
"""Begin of the ids of runs that were in flight before the first beat started; they are no evidence."""

MACHINE = "machine"
"""Target of an incident that nobody made: this machine did not let the driver run for a while."""


@dataclass(frozen=True, slots=True)
class Breach:
    """A law that was broken."""

    law: str
    job: str
    text: str

    def __str__(self) -> str:
        return f"{self.law}: {self.job}: {self.text}"


@dataclass(frozen=True, slots=True)
class Traits:
    """A job as it was inserted. `instants`: all its slots, ascending, where it has a list of them."""

    kind: str
    on_doubt: str = "drop"
    overlap: str = "allow"
    catch_up: str = "once"
    instants: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Message:
    """A message that arrived, in order of arrival. `tag` is its own: two sendings have two tags."""

    job: str
    slot_us: int
    task_id: str
    tag: str
    seen_us: int


@dataclass(frozen=True, slots=True)
class Entry:
    """A line of the ledger."""

    id: int
    job: str
    slot_us: int
    task_id: str
    batch_id: int | None
    verdict: str
    claimed_us: int
    sent_us: int | None
    finished_us: int | None
    collapsed: int
    detail: str
    by_hand: bool

    @property
    def epoch(self) -> int | None:
        """The epoch under which it was claimed; None when it was never to be sent."""
        return None if self.batch_id is None else self.batch_id >> 20


@dataclass(frozen=True, slots=True)
class Definition:
    """From `since_us` on, the beats took the job to be so; None: it did not run."""

    since_us: int
    spec: str | None

    @property
    def period_us(self) -> int:
        """Of an interval."""
        return int(json.loads(self.spec or "")[1]) * 1_000_000


@dataclass(frozen=True, slots=True)
class Incident:
    """A fault as it happened."""

    kind: str
    target: str
    began_us: int
    ended_us: int


@dataclass(frozen=True, slots=True)
class Evidence:
    """Everything that is left of a run.

    Attributes:
        epochs: as anybody could read them, in order.
        ends_s: seconds from SIGTERM to the end, of each beat that was ended so.
        started_us: when the first beats were started.
        disabled_us: when the rows were disabled at the end; from then on nothing is dispatched.
    """

    traits: Mapping[str, Traits]
    messages: Sequence[Message]
    ledger: Sequence[Entry]
    history: Mapping[str, Sequence[Definition]]
    first_seen_us: Mapping[str, int] = field(default_factory=dict)
    open_batches: int = 0
    epochs: Sequence[int] = ()
    incidents: Sequence[Incident] = ()
    complaints: Sequence[str] = ()
    ends_s: Sequence[float] = ()
    started_us: int = 0
    disabled_us: int = NEVER_US

    def save(self, file: Path) -> None:
        """As JSON, to be looked at."""
        file.write_text(json.dumps(asdict(self), indent=1))

    @classmethod
    def load(cls, file: Path) -> Evidence:
        """What `save` wrote."""
        data: dict[str, Any] = json.loads(file.read_text())
        parts = {
            "traits": {
                job: Traits(**{**each, "instants": tuple(each["instants"])}) for job, each in data["traits"].items()
            },
            "messages": [Message(**each) for each in data["messages"]],
            "ledger": [Entry(**each) for each in data["ledger"]],
            "history": {job: [Definition(**each) for each in found] for job, found in data["history"].items()},
            "incidents": [Incident(**each) for each in data["incidents"]],
        }
        return cls(**{**data, **parts})


def read_database(url: str) -> dict[str, Any]:
    """The parts of an `Evidence` that the database has."""
    engine = sa.create_engine(url, poolclass=sa.NullPool)
    with engine.connect() as connection:

        def rows(query: str) -> Sequence[Any]:
            return connection.execute(sa.text(query)).all()

        history: dict[str, list[Definition]] = {}
        for job, since_us, spec in rows("SELECT job_id, since_us, spec FROM qbeat_history ORDER BY id"):
            history.setdefault(job, []).append(Definition(since_us, spec))
        ledger = rows(
            "SELECT id, job_id, slot_us, task_id, batch_id, verdict, claimed_us, sent_us, finished_us, collapsed, "
            f"detail, by_hand FROM qbeat_runs WHERE job_id NOT LIKE '{IN_FLIGHT}%' ORDER BY id"
        )
        return {
            "ledger": [Entry(*row[:-1], by_hand=bool(row[-1])) for row in ledger],
            "history": history,
            "first_seen_us": dict(tuple(row) for row in rows("SELECT job_id, first_seen_us FROM qbeat_state")),
            "open_batches": rows("SELECT count(*) FROM qbeat_batches WHERE sent_us IS NULL")[0][0],
        }
