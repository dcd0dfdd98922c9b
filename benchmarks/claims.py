"""The claim of a batch, on each database: one transaction, whatever the number of slots."""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Sequence
from typing import Any

from benchmarks import places
from benchmarks.beats import ShiftedClock, make_app
from benchmarks.child import fresh
from benchmarks.measure import Stopwatch
from benchmarks.places import TASK, Options, Places
from benchmarks.tables import Table
from celery_qbeat.core.identity import task_id
from celery_qbeat.core.jobs import Run, Verdict
from celery_qbeat.ports import Claim, Plan
from celery_qbeat.stores import SqlStore, open_store
from tests.servers import ServerMissing

DATABASES = ("sqlite", "postgresql", "mariadb")
ROWS = 2_000
SIZES = (1, 100, 1_000)
ROUNDS = 7
STEP_US = 1_000_000


def claims(url: str) -> dict[str, Any]:
    """Median milliseconds of a claim and of the mark after it, by batch size."""
    now = ShiftedClock().now_us()
    places.fill(url, places.due_at(ROWS, now))
    store = open_store(url)
    store.open()
    epoch = store.take_epoch("bench", now)
    revs = {row["id"]: row["rev"] for part in store.load() for row, _ in part.rows}
    store.write_plans(epoch, [Plan(job_id, now, now, "key") for job_id in revs], now)
    slots = dict.fromkeys(revs, now)
    batch = epoch << 20
    found: dict[str, Any] = {}
    for size in SIZES:
        took: list[tuple[float, float]] = []
        for round_ in range(ROUNDS):
            batch += 1
            chosen = list(revs)[round_ * 131 % (ROWS - size) :][:size]
            took.append(_one(store, epoch, batch, chosen, revs, slots, now))
        found[str(size)] = [1_000 * statistics.median(times) for times in zip(*took, strict=True)]
    store.close()
    return found


def _one(
    store: SqlStore,
    epoch: int,
    batch: int,
    chosen: Sequence[str],
    revs: dict[str, int],
    slots: dict[str, int],
    now: int,
) -> tuple[float, float]:
    made = []
    for job_id in chosen:
        slot = slots[job_id]
        slots[job_id] = slot + STEP_US
        task = task_id(store.instance, job_id, slot)
        run = Run(job_id, slot, task, Verdict.CLAIMED, lease_until_us=slot + places.HOUR_US)
        made.append(Claim(job_id, revs[job_id], slot, slot + STEP_US, (run,)))
    watch = Stopwatch()
    lost = store.claim(epoch, batch, made, now)
    claimed = watch.wall
    assert not lost
    store.mark_sent(epoch, batch, [claim.runs[0].task_id for claim in made], now, closes=True)
    return claimed, watch.wall - claimed


def loop(broker: str, count: int) -> dict[str, Any]:
    """Milliseconds of so many `app.send_task`."""
    app = make_app(broker)
    app.send_task(TASK)
    watch = Stopwatch()
    for number in range(count):
        app.send_task(TASK, args=[number])
    return {"ms": watch.wall * 1_000}


def run(where: Places, _options: Options) -> Iterator[Table]:
    """The table `claim`."""
    most = max(SIZES)
    lines: list[dict[str, Any]] = []
    notes = ["A claim checks epoch, slot, row and ledger and writes them, in one transaction.", ""]
    for kind in DATABASES:
        try:
            url = where.database(kind)
        except ServerMissing as missing:
            notes.append(f"{kind}: {missing}")
            continue
        plain = fresh(loop, broker=where.redis.url, count=most)["ms"]
        found = fresh(claims, url=url)
        where.redis.client().delete("celery")
        for size in SIZES:
            claim, mark = found[str(size)]
            one = found["1"][0]
            lines.append(
                {
                    "database": kind,
                    "slots": size,
                    "claim ms": claim,
                    "mark ms": mark,
                    "one by one to it": one * size / claim if size > 1 else None,
                    f"{most} send_task to both": plain / (claim + mark) if size == most else None,
                }
            )
    columns = {
        "database": "",
        "slots": ",",
        "claim ms": ".2f",
        "mark ms": ".2f",
        "one by one to it": ".1fx",
        f"{most} send_task to both": ".1fx",
    }
    yield Table("claim", "Claim and mark", columns, lines, [note for note in notes if note])
