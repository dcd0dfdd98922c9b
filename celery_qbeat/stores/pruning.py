"""Deletion of what has been kept long enough: 5,000 rows a step, each step a short transaction of its own."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import Any

import sqlalchemy as sa

from celery_qbeat.jobs import IN_FLIGHT, Verdict
from celery_qbeat.stores import tables
from celery_qbeat.stores.claiming import among, chunks
from celery_qbeat.stores.connection import Link

STEP = 5_000


def ledger(link: Link, before_us: Mapping[Verdict, int]) -> Iterator[int]:
    """Runs that ended before their verdict's time. The walk goes by number and stops where everything is younger."""
    times = {verdict: time for verdict, time in before_us.items() if verdict not in IN_FLIGHT}
    if not times:
        return
    runs = tables.runs
    old = sa.or_(*(sa.and_(runs.c.verdict == verdict.value, runs.c.finished_us < us) for verdict, us in times.items()))
    horizon = max(times.values())
    first = -1
    while (last := link.read(partial(_next_id, after=first, horizon=horizon))) is not None:
        part = sa.delete(runs).where(runs.c.id > first, runs.c.id <= last, runs.c.lease_until_us.is_(None), old)
        yield link.write(partial(_count, statement=part))
        first = last


def _count(connection: sa.Connection, statement: sa.Delete) -> int:
    return connection.execute(statement).rowcount


def _next_id(connection: sa.Connection, after: int, horizon: int) -> int | None:
    runs = tables.runs.c
    part = sa.select(runs.id, runs.claimed_us).where(runs.id > after).order_by(runs.id).limit(STEP).subquery()
    found = connection.execute(sa.select(sa.func.max(part.c.id), sa.func.min(part.c.claimed_us))).one()
    return found[0] if found[0] is not None and found[1] < horizon else None


def batches(link: Link, before_us: int) -> Iterator[int]:
    """Batches that were closed and claimed before then, and none of whose runs is in flight."""
    rows, runs = tables.batches, tables.runs
    flying = sa.exists().where(runs.c.batch_id == rows.c.batch_id, runs.c.lease_until_us.is_not(None))
    old = sa.select(rows.c.batch_id).where(rows.c.sent_us.is_not(None), rows.c.claimed_us < before_us, ~flying)
    yield from _by_key(link, rows.c.batch_id, old)


def history(link: Link, before_us: int) -> Iterator[int]:
    """Definitions that were replaced before then, and the ends of jobs that were gone before then."""
    rows = tables.history
    newer = rows.alias("newer")
    replaced = sa.exists().where(newer.c.job_id == rows.c.job_id, newer.c.id > rows.c.id, newer.c.since_us <= before_us)
    old = sa.select(rows.c.id).where(rows.c.since_us < before_us, sa.or_(replaced, rows.c.spec.is_(None)))
    yield from _by_key(link, rows.c.id, old)


def _by_key(link: Link, key: sa.Column[Any], old: sa.Select[Any]) -> Iterator[int]:
    table = key.table
    if not isinstance(table, sa.Table):
        raise TypeError(f"{key} is not a column of a table")
    last = -1
    while True:
        query = old.where(key > last).order_by(key).limit(STEP)
        keys = link.read(partial(_keys, query=query))
        if not keys:
            return
        last = keys[-1]
        yield link.write(partial(_delete, table=table, key=key, keys=keys))


def _keys(connection: sa.Connection, query: sa.Select[Any]) -> Sequence[int]:
    return connection.execute(query).scalars().all()


def _delete(connection: sa.Connection, table: sa.Table, key: sa.Column[Any], keys: Sequence[int]) -> int:
    return sum(
        connection.execute(sa.delete(table).where(among(connection, key, part))).rowcount for part in chunks(keys)
    )
