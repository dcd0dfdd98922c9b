"""Deletion of rows that have been kept long enough: in steps, each of them a short transaction of its own.

Each generator yields how many rows a step deleted, and may be sent the most rows that its next steps delete.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any, Protocol

import sqlalchemy as sa

from celery_qbeat.core.jobs import IN_FLIGHT, Verdict
from celery_qbeat.ports import Steps
from celery_qbeat.stores import tables
from celery_qbeat.stores.claiming import chunks, column_in
from celery_qbeat.stores.connection import Link
from celery_qbeat.stores.watchdog import PRUNE_S

ROWS_A_STEP = 200
"""The most rows that a step deletes, until the generator is sent another number."""

MOST_READ = 5_000
"""The most rows that a step looks at to find old ones."""


class Delete(Protocol):
    """Deletes the rows for which the condition holds, and returns their number."""

    def __call__(self, connection: sa.Connection, *, condition: sa.ColumnElement[bool]) -> int: ...


def ledger(link: Link, before_us: Mapping[Verdict, int]) -> Steps:
    """Runs that ended before their verdict's time."""
    times = {verdict: time for verdict, time in before_us.items() if verdict not in IN_FLIGHT}
    if not times:
        return
    runs = tables.runs.c
    ended = sa.or_(*(sa.and_(runs.verdict == verdict.value, runs.finished_us < us) for verdict, us in times.items()))
    old = sa.and_(runs.lease_until_us.is_(None), ended)
    yield from _steps(link, runs.id, runs.claimed_us, old, max(times.values()), partial(_delete, table=tables.runs))


def batches(link: Link, before_us: int) -> Steps:
    """Batches that were closed and claimed before then, and none of whose runs is in flight."""
    rows, runs = tables.batches.c, tables.runs.c
    flying = sa.exists().where(runs.batch_id == rows.batch_id, runs.lease_until_us.is_not(None))
    old = sa.and_(rows.sent_us.is_not(None), rows.claimed_us < before_us, ~flying)
    yield from _steps(link, rows.batch_id, rows.claimed_us, old, before_us, partial(_delete, table=tables.batches))


def history(link: Link, before_us: int) -> Steps:
    """Definitions that were replaced before then, and the ends of jobs that were gone before then."""
    rows = tables.history.c
    newer = tables.history.alias("newer").c
    replaced = sa.exists().where(newer.job_id == rows.job_id, newer.id > rows.id, newer.since_us <= before_us)
    old = sa.and_(rows.since_us < before_us, sa.or_(replaced, rows.spec.is_(None)))
    yield from _steps(link, rows.id, rows.since_us, old, before_us, _delete_definitions)


def _steps(link: Link, key: Any, time: Any, old: sa.ColumnElement[bool], horizon: int, delete: Delete) -> Steps:
    """Delete rows that are `old`, in the order of `key`, which grows with `time`, until none is before `horizon`.

    Where few rows are old, a step looks at more of them.
    """
    first, most, look = -1, ROWS_A_STEP, ROWS_A_STEP
    while True:
        part = (
            sa.select(key.label("key"), time.label("time"), sa.case((old, 1), else_=0).label("old"))
            .where(key > first)
            .order_by(key)
            .limit(look)
            .subquery()
        )
        ends = sa.select(sa.func.max(part.c.key), sa.func.min(part.c.time), sa.func.sum(part.c.old))
        last, oldest, count = link.read(partial(_window, query=ends))
        if last is None or oldest >= horizon:
            return
        if count > most:
            look = max(most, look // 2)
            continue
        window = sa.and_(key > first, key <= last, old)
        gone = link.write(partial(delete, condition=window), wait_s=PRUNE_S) if count else 0
        first = last
        most = (yield gone) or most
        look = max(most, min(MOST_READ, 2 * look) if 3 * count <= most else look)


def _window(connection: sa.Connection, query: sa.Select[Any]) -> tuple[int | None, int, int]:
    last, oldest, count = connection.execute(query).one()
    return last, oldest, int(count or 0)


def _delete(connection: sa.Connection, *, condition: sa.ColumnElement[bool], table: sa.Table) -> int:
    return connection.execute(sa.delete(table).where(condition)).rowcount


def _delete_definitions(connection: sa.Connection, *, condition: sa.ColumnElement[bool]) -> int:
    # In two steps: MySQL does not delete from a table that the condition reads.
    rows = tables.history
    keys = connection.execute(sa.select(rows.c.id).where(condition).order_by(rows.c.id)).scalars().all()
    parts = [sa.delete(rows).where(column_in(connection, rows.c.id, part)) for part in chunks(keys)]
    return sum(connection.execute(part).rowcount for part in parts)
