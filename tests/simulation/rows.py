"""What the rows of a history are, and what was in flight before it began."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

from celery_qbeat.core.jobs import Job, Verdict
from celery_qbeat.core.schedules import Every
from celery_qbeat.ports import Store
from celery_qbeat.testing.database import Batch, Database, Entry
from tests.simulation.observer import SECOND
from tests.simulation.stand_ins import Broker, Message
from tests.simulation.world import World

START = datetime(2026, 6, 1, 11, 58, 0, tzinfo=UTC)
START_US = round(START.timestamp()) * SECOND

LEASE_US = 170 * SECOND
"""How long the runs that were in flight before stay so: each takeover has to read them."""


def random_row(rng: Any, world: World) -> dict[str, Any]:
    """The columns of a row but its id."""
    kind, schedule = rng.choice(
        (
            ("interval", str(rng.randint(3, 25))),
            ("interval", str(rng.randint(3, 25))),
            ("every", rng.choice(("1m", "2m"))),
            ("cron", rng.choice(("* * * * *", "*/2 * * * *"))),
            ("daily", "11:59,12:00,12:01,12:03"),
            ("once", (START + timedelta(seconds=int(world.now) + rng.randint(-70, 90))).strftime("%Y-%m-%dT%H:%M:%S")),
        )
    )
    bound = world.base_us + round(world.now + rng.randint(0, 100)) * SECOND
    return {
        "fn": rng.choice(("app.a", "app.a", "app.a", "app.a", "os.system")),
        "schedule_kind": kind,
        "schedule": schedule,
        "overlap": rng.choice(("skip", "allow")),
        "catch_up": rng.choice(("once", "skip", "all")),
        "grace_seconds": rng.choice((None, None, 5, 30)),
        "on_doubt": rng.choice(("drop", "resend")),
        "max_run_seconds": rng.choice((10, 30)),
        "worker": rng.choice(("", "", "", "shop")),
        "enabled": rng.random() < 0.9,
        "start_us": bound if rng.random() < 0.1 else None,
        "end_us": bound + 60 * SECOND if rng.random() < 0.1 else None,
    }


def random_code_jobs(rng: Any) -> list[Job]:
    """An entry of the beat schedule."""
    period = rng.choice((7, 20)) * SECOND
    spec = f'["code","{period}","UTC","","","",null,null,0]'
    policy = {"overlap": rng.choice(("skip", "allow")), "catch_up": rng.choice(("once", "skip", "all"))}
    return [Job("code:x", "any.task", Every(period), plan_key=spec, spec=spec, max_run_us=20 * SECOND, **policy)]


def three_steps(store: Store, now_us: int) -> Iterator[int]:
    """A built-in task."""
    yield 1
    yield 2
    yield 3


def insert_in_flight(database: Database, broker: Broker, count: int) -> None:
    """Runs of a row that is gone; an earlier beat sent them, and nobody will report their ends."""
    database.batches[1] = Batch(0, START_US, count, sent_us=START_US)
    for number in range(count):
        task, slot = f"gone-{number}", START_US - SECOND - number
        entry = Entry("gone", slot, task, Verdict.SENT, START_US, batch_id=1, epoch=0)
        entry.sent_us, entry.lease_until_us = START_US, START_US + LEASE_US
        database.ledger.append(entry)
        database.by_task[task] = database.by_slot[slot, "gone"] = entry
        broker.messages.append(Message(0.0, "b0", "gone", slot, task, "drop", "app.a"))
