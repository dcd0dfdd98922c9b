"""Queries that change nothing: rows, states, scopes, and the sorting of what the feed brought."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from sys import intern
from typing import Any

import sqlalchemy as sa

from celery_qbeat.core.jobs import State, WorkerScope, read_worker
from celery_qbeat.stores import tables
from celery_qbeat.stores.bounded import worker_columns
from celery_qbeat.stores.claiming import chunks, column_in
from celery_qbeat.stores.database import RELOAD_ABOVE, Entry

ROWS_A_PART = 2_000

_WORKER = ("name", "enabled", "queue", "queues", "functions")

# In the order of the fields of State.
_STATE = [
    tables.state.c[name]
    for name in (
        "job_id",
        "first_seen_us",
        "next_run_us",
        "last_run_us",
        "last_slot_us",
        "last_succeeded_us",
        "late_after_us",
        "plan_key",
        "problem",
    )
]


def workers(connection: sa.Connection) -> Mapping[str, WorkerScope]:
    """All scopes by name."""
    found = connection.execute(sa.select(*worker_columns(_WORKER)))
    return {str(row[0]): read_worker(dict(zip(_WORKER, row, strict=True))) for row in found}


def states(connection: sa.Connection, job_ids: Sequence[str]) -> dict[str, State]:
    """The states of these jobs, by id."""
    found: dict[str, State] = {}
    for part in chunks(job_ids):
        query = sa.select(*_STATE).where(column_in(connection, tables.state.c.job_id, part))
        names: dict[Any, str] = {job_id: job_id for job_id in part}
        found.update((row[0], _state(row, names)) for row in connection.execute(query).all())
    return found


def _state(row: Sequence[Any], names: Mapping[Any, str]) -> State:
    """One of many states: its id is the very text of its row, its plan key that of its job."""
    plan_key = intern(row[7]) if type(row[7]) is str else row[7]
    values = (names.get(row[0], row[0]), *row[1:7], plan_key, row[8])
    return State(*values)


def orphans(connection: sa.Connection, after: str | None) -> list[State]:
    """The next part of the states that have no row."""
    state, jobs = tables.state, tables.jobs
    query = (
        sa.select(*_STATE)
        .select_from(state.outerjoin(jobs, jobs.c.id == state.c.job_id))
        .where(jobs.c.id.is_(None))
        .order_by(state.c.job_id)
        .limit(ROWS_A_PART)
    )
    if after is not None:
        query = query.where(state.c.job_id > after)
    return [State(*row) for row in connection.execute(query).all()]


def jobs_of(connection: sa.Connection, scopes: Sequence[str]) -> list[Any]:
    """The ids of the rows of these scopes, or a few more than anybody wants to read one by one."""
    jobs = tables.jobs.c
    query = sa.select(jobs.id).where(column_in(connection, jobs.worker, scopes)).limit(RELOAD_ABOVE + 1)
    return list(connection.execute(query).scalars())


def sift(entries: Sequence[Entry]) -> tuple[list[Any], list[str], bool]:
    """The ids of changed rows, the names of changed scopes, and whether everything may have changed."""
    touched = dict.fromkeys(entry.job_id for entry in entries if entry.op in "IUD")
    scopes = dict.fromkeys(entry.job_id for entry in entries if entry.op == "W" and entry.job_id is not None)
    everything = any(entry.op == "T" or (entry.job_id is None and entry.op != "R") for entry in entries)
    return list(touched), list(scopes), everything


def key(row_id: Any) -> str:
    """The id of a row as a text; SQLite lets people store something else."""
    return row_id if isinstance(row_id, str) else repr(row_id)
