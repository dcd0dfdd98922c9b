"""Deletion of what has been kept long enough: 5,000 rows a step, each a short transaction of its own."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import partial
from typing import Any

import sqlalchemy as sa

from celery_qbeat.jobs import IN_FLIGHT, Verdict
from celery_qbeat.stores import tables
from celery_qbeat.stores.claiming import among, chunks
from celery_qbeat.stores.connection import Link
from celery_qbeat.stores.watchdog import PRUNE_S

STEP = 5_000


def ledger(link: Link, before_us: Mapping[Verdict, int]) -> Iterator[int]:
    """Runs that ended before their verdict's time."""
    times = {verdict: time for verdict, time in before_us.items() if verdict not in IN_FLIGHT}
    if not times:
        return
    runs = tables.runs.c
    old = sa.or_(*(sa.and_(runs.verdict == verdict.value, runs.finished_us < us) for verdict, us in times.items()))
    for window in _windows(link, runs.id, runs.claimed_us, max(times.values())):
        yield link.write(
            partial(_delete, statement=sa.delete(tables.runs).where(window, runs.lease_until_us.is_(None), old)),
            wait_s=PRUNE_S,
        )


def batches(link: Link, before_us: int) -> Iterator[int]:
    """Batches that were closed and claimed before then, and none of whose runs is in flight."""
    rows, runs = tables.batches.c, tables.runs.c
    flying = sa.exists().where(runs.batch_id == rows.batch_id, runs.lease_until_us.is_not(None))
    old = sa.and_(rows.sent_us.is_not(None), rows.claimed_us < before_us, ~flying)
    for window in _windows(link, rows.batch_id, rows.claimed_us, before_us):
        yield link.write(partial(_delete, statement=sa.delete(tables.batches).where(window, old)), wait_s=PRUNE_S)


def history(link: Link, before_us: int) -> Iterator[int]:
    """Definitions that were replaced before then, and the ends of jobs that were gone before then."""
    rows = tables.history.c
    newer = tables.history.alias("newer").c
    replaced = sa.exists().where(newer.job_id == rows.job_id, newer.id > rows.id, newer.since_us <= before_us)
    old = sa.and_(rows.since_us < before_us, sa.or_(replaced, rows.spec.is_(None)))
    for window in _windows(link, rows.id, rows.since_us, before_us):
        yield link.write(
            partial(_forget, query=sa.select(rows.id).where(window, old).order_by(rows.id)), wait_s=PRUNE_S
        )


def _windows(link: Link, key: Any, time: Any, horizon: int) -> Iterator[sa.ColumnElement[bool]]:
    """Conditions for the rows in slices of 5,000 by `key`, which grows with `time`, as long as any is older."""
    first = -1
    while True:
        part = sa.select(key.label("key"), time.label("time")).where(key > first).order_by(key).limit(STEP).subquery()
        ends = sa.select(sa.func.max(part.c.key), sa.func.min(part.c.time))
        last, oldest = link.read(partial(_ends, query=ends))
        if last is None or oldest >= horizon:
            return
        yield sa.and_(key > first, key <= last)
        first = last


def _ends(connection: sa.Connection, query: sa.Select[Any]) -> tuple[int | None, int]:
    last, oldest = connection.execute(query).one()
    return last, oldest


def _delete(connection: sa.Connection, statement: sa.Delete) -> int:
    return connection.execute(statement).rowcount


def _forget(connection: sa.Connection, query: sa.Select[Any]) -> int:
    # In two steps: MySQL does not delete from a table that the condition reads.
    rows = tables.history
    keys = connection.execute(query).scalars().all()
    parts = [sa.delete(rows).where(among(connection, rows.c.id, part)) for part in chunks(keys)]
    return sum(connection.execute(part).rowcount for part in parts)
