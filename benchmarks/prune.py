"""Jobs of every second while the beat prunes an old ledger. How late are they meanwhile, and how long does it take?"""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

import sqlalchemy as sa

from benchmarks import places
from benchmarks.beats import make_app
from benchmarks.child import fresh
from benchmarks.measure import quantile
from benchmarks.places import TASK, Options, Places
from benchmarks.tables import Table
from celery_qbeat.process.clock import SystemClock
from celery_qbeat.settings import read_settings
from celery_qbeat.stores import tables
from celery_qbeat.wiring import DAY_US, build

OLD_RUNS = 200_000
RUNS_A_BATCH = 20
JOBS = 20
START_S = 10.0
"""Seconds until the prune is due: that long the jobs run without it."""
PATIENCE_S = 300.0
LEFT = "SELECT COUNT(*) FROM qbeat_runs WHERE job_id LIKE 'old%'"


def ours(url: str, broker: str) -> dict[str, Any]:
    """How late the jobs were before the prune and during it, and the seconds that it took."""
    _fill(url)
    app = make_app(broker, qbeat_database_url=url, qbeat_redis_url=broker)
    engine = build(app, read_settings(app.conf))
    engine.open()
    until, ended = time.monotonic() + START_S + PATIENCE_S, False
    while not ended and time.monotonic() < until:
        chores = bool(engine.leader.chores)
        time.sleep(engine.tick())
        ended = chores and not engine.leader.chores
    engine.close()
    run = "FROM qbeat_runs WHERE job_id = '_builtin.prune'"
    began, end = places.scalar(url, f"SELECT sent_us {run}"), places.scalar(url, f"SELECT finished_us {run}")
    late = "SELECT late_us FROM qbeat_runs WHERE job_id LIKE 'bench%' AND late_us < 60000000"
    before = places.scalars(url, f"{late} AND slot_us < {began - 1_000_000} AND slot_us > {began - 8_000_000}")
    during = places.scalars(url, f"{late} AND slot_us BETWEEN {began - 1_000_000} AND {end}")
    return {
        "seconds": (end - began) / 1e6,
        "left": places.scalar(url, LEFT),
        **{f"before {name}": value for name, value in _lateness(before).items()},
        **_lateness(during),
    }


def _lateness(late_us: list[int]) -> dict[str, float]:
    late = [us / 1_000 for us in late_us]
    return {"median": quantile(late, 0.5), "p99": quantile(late, 0.99), "max": max(late)}


def _fill(url: str) -> None:
    """The old ledger; jobs of every second at even distances; and a row that prunes soon."""
    clock = SystemClock()
    old = clock.now_us() - 60 * DAY_US
    runs = [
        {
            "task_id": f"old-{number}",
            "job_id": f"old{number % 500}",
            "slot_us": old + number,
            "batch_id": 1 + number // RUNS_A_BATCH,
            "verdict": "succeeded",
            "claimed_us": old + number,
            "sent_us": old + number,
            "finished_us": old + number,
        }
        for number in range(OLD_RUNS)
    ]
    batches = [
        {"batch_id": number + 1, "epoch": 1, "claimed_us": old + number, "n": RUNS_A_BATCH, "sent_us": old + number}
        for number in range(OLD_RUNS // RUNS_A_BATCH)
    ]
    engine = sa.create_engine(url, poolclass=sa.NullPool)
    with engine.begin() as connection:
        connection.execute(sa.insert(tables.batches), batches)
        for start in range(0, len(runs), 10_000):
            connection.execute(sa.insert(tables.runs), runs[start : start + 10_000])
    now_us = clock.now_us()
    jobs = [
        {"id": f"bench-{n}", "fn": TASK, "schedule_kind": "interval", "schedule": "1", "overlap": "allow"}
        | {"start_us": now_us + n * 1_000_000 // JOBS}
        for n in range(JOBS)
    ]
    prune = {"id": "_builtin.prune", "fn": "_builtin.prune", "schedule_kind": "interval", "schedule": "86400"}
    prune |= {"overlap": "skip", "start_us": now_us + round(START_S * 1_000_000) + 24_000}
    with engine.begin() as connection:
        connection.execute(sa.insert(tables.jobs), [*jobs, prune])


def run(where: Places, options: Options) -> Iterator[Table]:
    """The table `prune`."""
    lines = []
    for kind in ("postgresql", "mariadb", "sqlite"):
        answer = fresh(ours, url=where.database(kind), broker=where.redis.url)
        lines.append({"database": kind, **answer})
    names = ("median", "p99", "max")
    columns = {"database": "", **{f"before {name}": ",.0f" for name in names}, **dict.fromkeys(names, ",.0f")}
    columns |= {"seconds": ".1f", "left": ","}
    notes = (f"Lateness in ms of {JOBS} jobs of every second, while {OLD_RUNS:,} old runs are deleted in `seconds`.",)
    yield Table("prune", "Jobs while an old ledger is pruned", columns, lines, notes)
