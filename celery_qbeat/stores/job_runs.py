"""The runs that the condition of a job is told by: its newest one, and its oldest one in flight."""

from __future__ import annotations

from collections.abc import Sequence

import sqlalchemy as sa

from celery_qbeat.core.health import InFlight, LastRun
from celery_qbeat.stores import tables
from celery_qbeat.stores.claiming import chunks


def last(connection: sa.Connection, job_ids: Sequence[str]) -> dict[str, LastRun]:
    """The newest run of each of these jobs, by its slot; a slot that was skipped, missed or refused is no run."""
    state, runs, newer = tables.state.c, tables.runs.c, tables.runs.alias("newer")
    # For each job a few steps back in its index; a maximum over all of its runs would read every one of them.
    newest = sa.select(newer.c.slot_us).where(newer.c.job_id == state.job_id, newer.c.batch_id.is_not(None))
    slot = newest.order_by(newer.c.slot_us.desc()).limit(1).correlate(tables.state).scalar_subquery()
    found: dict[str, LastRun] = {}
    for some in chunks(job_ids):
        query = sa.select(runs.job_id, runs.task_id, runs.verdict, sa.func.coalesce(runs.sent_us, runs.claimed_us))
        query = query.select_from(
            tables.state.join(tables.runs, sa.and_(runs.job_id == state.job_id, runs.slot_us == slot))
        )
        for job_id, task_id, verdict, at_us in connection.execute(query.where(state.job_id.in_(some))):
            found[job_id] = LastRun(at_us, verdict, task_id)
    return found


def oldest_in_flight(connection: sa.Connection, job_ids: Sequence[str]) -> dict[str, InFlight]:
    """The oldest run in flight of each of these jobs, by its slot."""
    runs = tables.runs.c
    since = sa.func.coalesce(runs.sent_us, runs.claimed_us)
    found: dict[str, InFlight] = {}
    for some in chunks(job_ids):
        query = sa.select(runs.job_id, runs.task_id, runs.slot_us, since)
        flying = query.where(runs.lease_until_us > 0, runs.job_id.in_(some)).order_by(runs.slot_us.desc())
        found.update((row[0], InFlight(*row[1:])) for row in connection.execute(flying))
    return found
