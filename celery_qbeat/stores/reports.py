"""What the machine wrote, read for people: the writer, the ledger, the history of definitions."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any

import sqlalchemy as sa

from celery_qbeat.core.audit import Line, Record
from celery_qbeat.core.planning import OVERTAKEN_DETAIL
from celery_qbeat.stores import tables
from celery_qbeat.stores.claiming import chunks

JOBS_A_PART = 20

Ran = dict[str, Any]
"""A row of `qbeat_runs`."""


@dataclass(frozen=True, slots=True)
class Leader:
    """The writer: the last beat that took an epoch. `seen_us` 0: none ever did. `silence_us`: see `liveness`."""

    epoch: int
    holder: str
    taken_us: int
    seen_us: int
    silence_us: int


@dataclass(frozen=True, slots=True)
class Open:
    """What waits for an end: batches not marked sent with the oldest one's time, runs in flight, runs asked for."""

    batches: int
    oldest_us: int | None
    flights: int
    requests: int


def leader(connection: sa.Connection) -> Leader:
    """The row of `qbeat_leader`."""
    lead = tables.leader.c
    query = sa.select(lead.epoch, lead.holder, lead.taken_us, lead.seen_us, lead.silence_us).where(lead.id == 1)
    found = connection.execute(query).first()
    return Leader(*found) if found is not None else Leader(0, "", 0, 0, 0)


def last_sign(connection: sa.Connection) -> int:
    """When a beat last wrote to these tables: the newest heartbeat or claim; 0 when none ever did."""
    newest = connection.execute(sa.select(sa.func.max(tables.batches.c.claimed_us))).scalar_one()
    return max(leader(connection).seen_us, newest or 0)


def open_work(connection: sa.Connection) -> Open:
    """What is under way."""
    batches, runs = tables.batches.c, tables.runs.c
    query = sa.select(sa.func.count(), sa.func.min(batches.claimed_us)).where(batches.sent_us.is_(None))
    count, oldest = connection.execute(query).one()
    flights = connection.execute(sa.select(sa.func.count()).where(runs.lease_until_us.is_not(None))).scalar_one()
    requests = connection.execute(sa.select(sa.func.count()).select_from(tables.requests)).scalar_one()
    return Open(count, oldest, flights, requests)


def busy_jobs(connection: sa.Connection) -> frozenset[str]:
    """The jobs that have a run in flight."""
    runs = tables.runs.c
    return frozenset(connection.execute(sa.select(runs.job_id).where(runs.lease_until_us.is_not(None))).scalars())


def runs(
    connection: sa.Connection,
    job_id: str | None = None,
    verdicts: Sequence[str] = (),
    since_us: int | None = None,
    limit: int = 50,
) -> list[Ran]:
    """Lines of the ledger, the newest slot first."""
    ran = tables.runs.c
    query = sa.select(tables.runs).order_by(ran.slot_us.desc(), ran.job_id).limit(limit)
    if job_id is not None:
        query = query.where(ran.job_id == job_id)
    if verdicts:
        query = query.where(ran.verdict.in_(verdicts))
    if since_us is not None:
        query = query.where(ran.slot_us >= since_us)
    return [dict(row) for row in connection.execute(query).mappings()]


def by_task_id(connection: sa.Connection, task_ids: Sequence[str]) -> dict[str, Ran]:
    """The lines of these runs."""
    ran = tables.runs.c
    found: dict[str, Ran] = {}
    for some in chunks(task_ids):
        query = sa.select(tables.runs).where(ran.task_id.in_(some))
        found.update((row["task_id"], dict(row)) for row in connection.execute(query).mappings())
    return found


def in_flight(connection: sa.Connection, job_id: str) -> list[Ran]:
    """The runs of this job without an end, the oldest first."""
    ran = tables.runs.c
    query = sa.select(tables.runs).where(ran.job_id == job_id, ran.lease_until_us.is_not(None)).order_by(ran.slot_us)
    return [dict(row) for row in connection.execute(query).mappings()]


def asked(connection: sa.Connection, job_id: str, asked_us: int) -> bool:
    """Whether something asked for by hand still waits for its answer."""
    requests = tables.requests.c
    query = sa.select(requests.id).where(requests.job_id == job_id, requests.asked_us == asked_us)
    return connection.execute(query).first() is not None


def waits(connection: sa.Connection, request_id: int) -> bool:
    """Whether a request still waits for its answer."""
    requests = tables.requests.c
    return connection.execute(sa.select(requests.id).where(requests.id == request_id)).first() is not None


def verdicts(connection: sa.Connection, from_us: int, until_us: int) -> dict[str, int]:
    """How many slots in [from_us, until_us] have which verdict."""
    ran = tables.runs.c
    query = sa.select(ran.verdict, sa.func.count()).where(ran.slot_us.between(from_us, until_us)).group_by(ran.verdict)
    return {str(verdict): count for verdict, count in connection.execute(query)}


# ---------------------------------------------------------------- for the audit


def known_jobs(connection: sa.Connection, after: str | None, until_us: int) -> list[str]:
    """The next jobs that had a definition until then, in the order of their ids."""
    history = tables.history.c
    query = sa.select(history.job_id).where(history.since_us <= until_us).distinct().order_by(history.job_id)
    if after is not None:
        query = query.where(history.job_id > after)
    return list(connection.execute(query.limit(JOBS_A_PART)).scalars())


def records(connection: sa.Connection, job_ids: Sequence[str]) -> dict[str, list[Record]]:
    """The definitions of these jobs, the oldest first."""
    history = tables.history.c
    found: dict[str, list[Record]] = {job_id: [] for job_id in job_ids}
    for some in chunks(job_ids):
        query = sa.select(history.job_id, history.since_us, history.spec).where(history.job_id.in_(some))
        for job_id, since_us, spec in connection.execute(query.order_by(history.job_id, history.id)):
            found[job_id].append(Record(since_us, spec))
    return found


def states(connection: sa.Connection, job_ids: Sequence[str]) -> dict[str, tuple[int, int | None]]:
    """When these jobs were first seen, and their next slot."""
    state = tables.state.c
    query = sa.select(state.job_id, state.first_seen_us, state.next_run_us).where(state.job_id.in_(job_ids))
    return {job_id: (first_seen_us, next_run_us) for job_id, first_seen_us, next_run_us in connection.execute(query)}


def lines(
    connection: sa.Connection, job_ids: Sequence[str], from_us: int
) -> Iterator[tuple[str, list[Line], frozenset[int]]]:
    """For each of these jobs that has any: its slots from then on, in order, and the slots of its runs by hand."""
    ran = tables.runs.c
    query = (
        sa.select(ran.job_id, *_LINE)
        .where(ran.job_id.in_(job_ids), ran.slot_us >= from_us)
        .order_by(ran.job_id, ran.slot_us)
    )
    for job_id, rows in groupby(connection.execute(query), lambda row: str(row[0])):
        planned: list[Line] = []
        by_hand: set[int] = set()
        for row in rows:
            if row.by_hand:
                by_hand.add(row.slot_us)
            else:
                planned.append(_line(row))
        yield job_id, planned, frozenset(by_hand)


def line_before(connection: sa.Connection, job_id: str, from_us: int) -> Line | None:
    """The last slot before then, runs by hand aside."""
    ran = tables.runs.c
    query = sa.select(ran.job_id, *_LINE).where(
        ran.job_id == job_id, ran.slot_us < from_us, ran.by_hand.is_(sa.false())
    )
    row = connection.execute(query.order_by(ran.slot_us.desc()).limit(1)).first()
    return None if row is None else _line(row)


_LINE = (
    tables.runs.c.slot_us,
    tables.runs.c.claimed_us,
    tables.runs.c.collapsed,
    tables.runs.c.by_hand,
    tables.runs.c.detail.like(f"%{OVERTAKEN_DETAIL}").label("overtaken"),
    tables.runs.c.id,
)


def _line(row: sa.Row[Any]) -> Line:
    return Line(row.slot_us, row.claimed_us, row.collapsed, bool(row.overtaken), row.id)
