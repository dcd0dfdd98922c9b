"""The steps in which old rows are deleted, on every database."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import sqlalchemy as sa

from celery_qbeat.core.jobs import Verdict
from celery_qbeat.ports import Steps
from celery_qbeat.stores import tables
from celery_qbeat.stores.pruning import ROWS_A_STEP
from tests.contract.store_rigs import T0, SqlRig

BEFORE = dict.fromkeys(Verdict, T0)


def insert_runs(rig: SqlRig, ends: Sequence[int]) -> None:
    """Runs that ended at these times."""
    runs = [
        {"task_id": f"task-{n}", "job_id": "a", "slot_us": n, "verdict": "succeeded", "claimed_us": n}
        | {"sent_us": n, "finished_us": end}
        for n, end in enumerate(ends)
    ]
    rig.connection.execute(sa.insert(tables.runs), runs)


def deleted(steps: Steps, sizes: Callable[[int], int | None]) -> list[int]:
    """The rows that each step deleted; `sizes` gives the number that is sent after a step."""
    found: list[int] = []
    try:
        while True:
            found.append(steps.send(sizes(len(found)) if found else None))
    except StopIteration:
        return found


def test_a_step_deletes_no_more_rows_than_it_is_told(sql_rig: SqlRig) -> None:
    insert_runs(sql_rig, [T0 - 1] * 1_000)
    counts = deleted(sql_rig.store.prune(BEFORE, T0), {1: 50, 2: 300, 3: None}.get)
    assert counts[:4] == [ROWS_A_STEP, 50, 300, 300]
    assert sum(counts) == 1_000
    assert sql_rig.runs() == []


def test_old_runs_are_found_among_many_that_are_kept(sql_rig: SqlRig) -> None:
    ends = [T0 - 1 if n % 700 == 0 or 4_000 <= n < 5_000 else T0 + 1 for n in range(6_000)]
    insert_runs(sql_rig, ends)
    steps = sql_rig.store.prune(BEFORE, T0)
    counts = deleted(steps, lambda _: 100)
    assert max(counts) <= ROWS_A_STEP
    assert sum(counts) == sum(end < T0 for end in ends)
    assert len(counts) < 40
    kept = sql_rig.sql("SELECT COUNT(*), MIN(finished_us) FROM qbeat_runs").one()
    assert tuple(kept) == (sum(end > T0 for end in ends), T0 + 1)
