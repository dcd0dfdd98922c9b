"""What becomes of claimed runs: sent, given back, ended. Each function is a part of one transaction."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import sqlalchemy as sa

from celery_qbeat.core.jobs import FAILURES, IN_FLIGHT, Verdict, may_end
from celery_qbeat.ports import ClaimRelease, RunOutcome, UnfinishedRun
from celery_qbeat.stores import tables
from celery_qbeat.stores.claiming import InsertRows, chunks, column_in, storable_text
from celery_qbeat.stores.fencing import fence

RUNS_PER_PART = 5_000


@dataclass(frozen=True, slots=True)
class SentMark:
    """The arguments of `Store.sent`."""

    epoch: int
    batch_id: int
    task_ids: Sequence[str]
    now_us: int
    closes: bool


def mark_sent(connection: sa.Connection, mark: SentMark) -> None:
    """See `Store.sent`."""
    fence(connection, mark.epoch)
    runs, state, batches = tables.runs, tables.state, tables.batches
    for part in chunks(mark.task_ids):
        of_batch = sa.and_(column_in(connection, runs.c.task_id, part), runs.c.batch_id == mark.batch_id)
        verdict = sa.case((runs.c.verdict == Verdict.CLAIMED, Verdict.SENT.value), else_=runs.c.verdict)
        connection.execute(sa.update(runs).where(of_batch).values(sent_us=mark.now_us, verdict=verdict))
        # Two statements: MariaDB would look through all states for a subquery in an UPDATE.
        jobs = connection.execute(sa.select(runs.c.job_id).where(of_batch).order_by(runs.c.job_id)).scalars().all()
        claimed = sa.and_(column_in(connection, state.c.job_id, jobs), state.c.last_verdict == Verdict.CLAIMED)
        connection.execute(sa.update(state).where(claimed).values(last_verdict=Verdict.SENT.value))
    if mark.closes:
        is_open = sa.and_(batches.c.batch_id == mark.batch_id, batches.c.sent_us.is_(None))
        connection.execute(sa.update(batches).where(is_open).values(sent_us=mark.now_us))


# ---------------------------------------------------------------- release


def release_claims(connection: sa.Connection, epoch: int, batch_id: int, releases: Sequence[ClaimRelease]) -> None:
    """See `Store.release`."""
    fence(connection, epoch)
    state, runs, batches = tables.state, tables.runs, tables.batches
    for item in sorted(releases, key=lambda item: item.job_id):
        query = sa.select(state.c.next_run_us).where(state.c.job_id == item.job_id).with_for_update()
        found = connection.execute(query).first()
        if item.back_to_us is not None and (found is None or found[0] != item.from_next_us):
            continue
        gone = 0
        for part in chunks(item.task_ids):
            unsent = (
                column_in(connection, runs.c.task_id, part),
                runs.c.batch_id == batch_id,
                runs.c.verdict == Verdict.CLAIMED,
            )
            gone += connection.execute(sa.delete(runs).where(*unsent)).rowcount
        if gone:
            _back(connection, item, gone)
    left = connection.execute(sa.select(sa.func.count()).where(runs.c.batch_id == batch_id)).scalar_one()
    batch = batches.c.batch_id == batch_id
    connection.execute(sa.update(batches).where(batch).values(n=left) if left else sa.delete(batches).where(batch))


def _back(connection: sa.Connection, item: ClaimRelease, gone: int) -> None:
    runs, state = tables.runs.c, tables.state
    newest = sa.select(runs.slot_us, runs.verdict).where(runs.job_id == item.job_id).order_by(runs.slot_us.desc())
    last = connection.execute(newest.limit(1)).first()
    values: dict[str, Any] = {"runs": state.c.runs - gone, "last_verdict": last.verdict if last else ""}
    if item.back_to_us is not None:
        planned = connection.execute(newest.where(runs.by_hand.is_(sa.false())).limit(1)).first()
        values |= {
            "next_run_us": item.back_to_us,
            "last_run_us": item.last_run_us,
            "last_slot_us": planned.slot_us if planned else None,
        }
    connection.execute(sa.update(state).where(state.c.job_id == item.job_id).values(values))


# ---------------------------------------------------------------- ends

_END_COLUMNS = (
    "job_id",
    "last_finished_us",
    "last_succeeded_us",
    "late_after_us",
    "last_verdict",
    "last_error",
    "failures_in_a_row",
)


@dataclass(frozen=True, slots=True)
class _Ended:
    """An end that stands; `before`: the verdict that it replaces."""

    end: RunOutcome
    before: Verdict
    run: sa.Row[Any]


def record_outcomes(
    connection: sa.Connection, put: InsertRows, epoch: int, ends: Sequence[RunOutcome], now_us: int
) -> Mapping[str, str]:
    """See `Store.conclude`."""
    fence(connection, epoch)
    found = _lock_runs(connection, [end.task_id for end in ends])
    verdicts = {task_id: Verdict(row.verdict) for task_id, row in found.items()}
    accepted: list[_Ended] = []
    for end in ends:
        if end.task_id in verdicts and may_end(verdicts[end.task_id], end.verdict):
            accepted.append(_Ended(end, verdicts[end.task_id], found[end.task_id]))
            verdicts[end.task_id] = end.verdict
    _end_runs(connection, accepted, now_us)
    states = _lock_states(connection, sorted({item.run.job_id for item in accepted}))
    for item in accepted:
        if (job_id := item.run.job_id) in states:
            states[job_id] = _ended(states[job_id], item, now_us)
    put(connection, tables.state, _END_COLUMNS, list(states.values()), _END_COLUMNS[1:])
    return {item.end.task_id: item.run.job_id for item in accepted}


def _lock_runs(connection: sa.Connection, task_ids: Sequence[str]) -> dict[str, sa.Row[Any]]:
    runs = tables.runs.c
    found: dict[str, sa.Row[Any]] = {}
    for part in chunks(sorted(set(task_ids))):
        query = sa.select(runs.task_id, runs.id, runs.job_id, runs.verdict).where(
            column_in(connection, runs.task_id, part)
        )
        found |= {row.task_id: row for row in connection.execute(query.order_by(runs.task_id).with_for_update())}
    return found


def _lock_states(connection: sa.Connection, job_ids: Sequence[str]) -> dict[str, tuple[Any, ...]]:
    state = tables.state.c
    columns = [state[name] for name in _END_COLUMNS]
    found: dict[str, tuple[Any, ...]] = {}
    for part in chunks(job_ids):
        query = (
            sa.select(*columns)
            .where(column_in(connection, state.job_id, part))
            .order_by(state.job_id)
            .with_for_update()
        )
        found |= {row[0]: tuple(row) for row in connection.execute(query)}
    return found


def _end_runs(connection: sa.Connection, ended: Sequence[_Ended], now_us: int) -> None:
    """One statement for all runs that ended alike: most succeed, and say nothing."""
    runs = tables.runs
    alike: dict[tuple[Verdict, str | None], list[int]] = {}
    timed: list[dict[str, int | None]] = []
    for item in {item.end.task_id: item for item in ended}.values():
        # What was said when the run was claimed stays; what a corrected end said does not.
        said = item.end.detail or None if item.before in IN_FLIGHT else item.end.detail
        alike.setdefault((item.end.verdict, None if said is None else storable_text(said)), []).append(item.run.id)
        if item.end.took_us is not None:
            timed.append({"run": item.run.id, "started": item.end.started_us, "took": item.end.took_us})
    for (verdict, detail), ids in alike.items():
        values: dict[str, Any] = {"verdict": verdict.value, "finished_us": now_us, "lease_until_us": None}
        if detail is not None:
            values["detail"] = detail
        for part in chunks(ids):
            connection.execute(sa.update(runs).where(column_in(connection, runs.c.id, part)).values(values))
    if timed:
        times: dict[str, Any] = {"started_us": sa.bindparam("started"), "took_us": sa.bindparam("took")}
        connection.execute(sa.update(runs).where(runs.c.id == sa.bindparam("run")).values(times), timed)


def _ended(state: tuple[Any, ...], item: _Ended, now_us: int) -> tuple[Any, ...]:
    job_id, _, succeeded, late, _, error, failures = state
    end = item.end
    if end.verdict is Verdict.SUCCEEDED:
        succeeded, late, error, failures = now_us, end.late_after_us, "", 0
    elif end.verdict in FAILURES:
        error, failures = storable_text(end.detail) or end.verdict.value, failures + (item.before not in FAILURES)
    elif item.before in FAILURES:
        failures = max(0, failures - 1)
        error = error if failures else ""
    return job_id, now_us, succeeded, late, end.verdict.value, error, failures


# ---------------------------------------------------------------- in flight


def shorten_leases(connection: sa.Connection, epoch: int, leases: Mapping[str, int]) -> None:
    """See `Store.shorten`."""
    fence(connection, epoch)
    runs = tables.runs
    by_instant: dict[int, list[str]] = {}
    for task_id, until_us in leases.items():
        by_instant.setdefault(until_us, []).append(task_id)
    for until_us, task_ids in sorted(by_instant.items()):
        for part in chunks(sorted(task_ids)):
            # A run that ended has no lease, and NULL is not later.
            longer = sa.and_(column_in(connection, runs.c.task_id, part), runs.c.lease_until_us > until_us)
            connection.execute(sa.update(runs).where(longer).values(lease_until_us=until_us))


def unfinished_runs(
    connection: sa.Connection, after: UnfinishedRun | None, after_id: int
) -> Sequence[tuple[int, UnfinishedRun]]:
    """The next part of the runs without an end, by lease, each with its number."""
    runs, batches = tables.runs.c, tables.batches.c
    # The batch in the same statement: on a slow way to the database, each part costs one round trip.
    query = (
        sa.select(*_FLIGHT)
        .select_from(tables.runs.outerjoin(tables.batches, batches.batch_id == runs.batch_id))
        .order_by(runs.lease_until_us, runs.id)
        .limit(RUNS_PER_PART)
    )
    if after is None:
        query = query.where(runs.lease_until_us.is_not(None))
    else:
        query = query.where(_behind(connection, after.lease_until_us, after_id))
    return [(number, UnfinishedRun(*fields)) for number, *fields in connection.execute(query)]


def _behind(connection: sa.Connection, lease_us: int, run_id: int) -> sa.ColumnElement[bool]:
    """What comes after this place in the index of leases, however many runs have the same lease."""
    runs = tables.runs.c
    if connection.dialect.name in ("mysql", "mariadb"):
        # They look through the whole index for a comparison of pairs.
        same = sa.and_(runs.lease_until_us == lease_us, runs.id > run_id)
        return sa.or_(same, runs.lease_until_us > lease_us)
    return sa.tuple_(runs.lease_until_us, runs.id) > sa.tuple_(lease_us, run_id)


# The number, and the fields of Flight in their order.
_FLIGHT: tuple[sa.ColumnElement[Any], ...] = (
    tables.runs.c.id,
    tables.runs.c.task_id,
    tables.runs.c.job_id,
    tables.runs.c.slot_us,
    tables.runs.c.lease_until_us,
    tables.runs.c.batch_id,
    sa.func.coalesce(tables.batches.c.epoch, 0),
    tables.runs.c.claimed_us,
    tables.runs.c.sent_us,
    tables.runs.c.by_hand,
    tables.runs.c.resend,
)


def close_batches(connection: sa.Connection, epoch: int, now_us: int) -> None:
    """See `Store.close_batches`."""
    fence(connection, epoch)
    batches = tables.batches
    is_open = sa.and_(batches.c.sent_us.is_(None), batches.c.epoch < epoch)
    connection.execute(sa.update(batches).where(is_open).values(sent_us=now_us))
