"""The claim as steps of one transaction, for databases that have no single statement for it.

Leader row, then state rows in the order of their ids, then the ledger in a fixed order: two claims cannot wait for each
other in a circle. A state row that somebody holds is passed over (SKIP LOCKED): it is lost for now.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

import sqlalchemy as sa
from sqlalchemy.dialects import mysql, postgresql, sqlite

from celery_qbeat.core.jobs import DEFAULT_MAX_RUN_US, Run, Verdict
from celery_qbeat.ports import Claim
from celery_qbeat.stores import tables
from celery_qbeat.stores.fencing import fence

T = TypeVar("T")

CHUNK = 1_000
"""The most values of one IN list."""

LONGEST_TEXT = 2_000


@dataclass(frozen=True, slots=True)
class Batch:
    """The arguments of `Store.claim`."""

    epoch: int
    batch_id: int
    claims: Sequence[Claim]
    now_us: int


class InsertRows(Protocol):
    """Insert many rows. `update`: columns that an existing row takes over; empty: it stays; None: there is none."""

    def __call__(
        self,
        connection: sa.Connection,
        table: sa.Table,
        columns: Sequence[str],
        rows: Sequence[tuple[Any, ...]],
        update: Sequence[str] | None,
    ) -> None: ...


def chunks(items: Sequence[T], size: int = CHUNK) -> Iterator[Sequence[T]]:
    """`items` in slices of at most `size`."""
    for start in range(0, len(items), size):
        yield items[start : start + size]


def column_in(connection: sa.Connection, column: sa.ColumnElement[T], values: Sequence[T]) -> sa.ColumnElement[bool]:
    """`column IN (values)`; as one array on PostgreSQL, whose driver is slow with a thousand parameters."""
    if connection.dialect.name != "postgresql":
        # With the column's type: SQLite lets people use a blob as an id, or a text that is no UTF-8 and read as bytes.
        found = column.in_(sa.bindparam(None, list(values), type_=column.type, expanding=True))
        raw = [sa.cast(sa.literal(value, sa.LargeBinary), sa.Text) for value in values if isinstance(value, bytes)]
        return sa.or_(found, column.in_(raw)) if raw else found
    kind = sa.BigInteger if isinstance(column.type, sa.Integer) else sa.Text
    return column == sa.any_(sa.bindparam(None, list(values), type_=postgresql.ARRAY(kind)))


def storable_text(text: str) -> str:
    """Text that every database takes: no NUL, no half characters, not too long."""
    return text[:LONGEST_TEXT].replace("\0", "\ufffd").encode(errors="replace").decode()


RUN_COLUMNS = (
    "task_id",
    "job_id",
    "slot_us",
    "batch_id",
    "verdict",
    "claimed_us",
    "finished_us",
    "lease_until_us",
    "late_us",
    "collapsed",
    "detail",
    "by_hand",
    "resend",
)
_STATE_COLUMNS = (
    "job_id",
    "next_run_us",
    "last_run_us",
    "last_slot_us",
    "runs",
    "last_verdict",
    "claim_epoch",
)


def run_row(run: Run, claim: Claim, batch: Batch) -> tuple[Any, ...]:
    """A row of the ledger, in the order of RUN_COLUMNS."""
    claimed = run.verdict is Verdict.CLAIMED
    lease = run.lease_until_us if run.lease_until_us is not None else batch.now_us + DEFAULT_MAX_RUN_US
    return (
        run.task_id,
        run.job_id,
        run.slot_us,
        batch.batch_id if claimed else None,
        run.verdict.value,
        batch.now_us,
        None if claimed else batch.now_us,
        lease if claimed else None,
        run.late_us,
        run.collapsed,
        storable_text(run.detail),
        claim.expected_us is None,
        run.resend,
    )


def claim(connection: sa.Connection, put: InsertRows, batch: Batch) -> frozenset[str]:
    """What was lost: job ids of whole claims, task ids of single runs. Raises Fenced."""
    fence(connection, batch.epoch)
    before = _lock_states(connection, sorted(claim.job_id for claim in batch.claims))
    revs = _revs(connection, [claim.job_id for claim in batch.claims if claim.rev is not None])
    won = [claim for claim in batch.claims if _holds(claim, before.get(claim.job_id), revs.get(claim.job_id))]
    new = _enter(connection, put, won, batch)
    states = [_moved(claim, before[claim.job_id], new[claim.job_id], batch) for claim in won]
    put(connection, tables.state, _STATE_COLUMNS, states, _STATE_COLUMNS[1:])
    sendable = sum(run.verdict is Verdict.CLAIMED for runs in new.values() for run in runs)
    if sendable:
        _open_batch(connection, batch, sendable)
    return _lost(batch.claims, new)


def _lock_states(connection: sa.Connection, job_ids: Sequence[str]) -> dict[str, sa.Row[Any]]:
    state = tables.state.c
    columns = [state[name] for name in _STATE_COLUMNS]
    found: dict[str, sa.Row[Any]] = {}
    for part in chunks(job_ids):
        query = sa.select(*columns).where(column_in(connection, state.job_id, part)).order_by(state.job_id)
        found |= {row[0]: row for row in connection.execute(query.with_for_update(skip_locked=True))}
    return found


def _revs(connection: sa.Connection, job_ids: Sequence[str]) -> dict[str, tuple[int, bool]]:
    jobs = tables.jobs.c
    found: dict[str, tuple[int, bool]] = {}
    for part in chunks(job_ids):
        query = sa.select(jobs.id, jobs.rev, jobs.enabled).where(column_in(connection, jobs.id, part))
        found |= {row[0]: (row[1], bool(row[2])) for row in connection.execute(query)}
    return found


def _holds(claim: Claim, state: sa.Row[Any] | None, row: tuple[int, bool] | None) -> bool:
    if state is None or (claim.rev is not None and (row is None or row[0] != claim.rev)):
        return False
    if claim.expected_us is None:
        return True
    return state.next_run_us == claim.expected_us and (row is None or claim.rev is None or row[1])


def _enter(
    connection: sa.Connection, put: InsertRows, won: Sequence[Claim], batch: Batch
) -> Mapping[str, Sequence[Run]]:
    """The runs that are new in the ledger, by job."""
    wanted = [(run, claim) for claim in won for run in claim.runs]
    there = _task_ids(connection, [run.task_id for run, _ in wanted])
    fresh = [pair for pair in wanted if pair[0].task_id not in there]
    rows = sorted((run_row(run, claim, batch) for run, claim in fresh), key=lambda row: (row[2], row[1]))
    put(connection, tables.runs, RUN_COLUMNS, rows, ())
    # A slot may be taken under another task id: what stands in the ledger now is the truth.
    entered = _task_ids(connection, [run.task_id for run, _ in fresh])
    return {claim.job_id: [run for run in claim.runs if run.task_id in entered] for claim in won}


def _task_ids(connection: sa.Connection, ids: Sequence[str]) -> set[str]:
    runs = tables.runs.c
    found: set[str] = set()
    for part in chunks(ids):
        query = sa.select(runs.task_id).where(column_in(connection, runs.task_id, part))
        found.update(connection.execute(query).scalars())
    return found


def _moved(claim: Claim, before: sa.Row[Any], new: Sequence[Run], batch: Batch) -> tuple[Any, ...]:
    won = sum(run.verdict is Verdict.CLAIMED for run in new)
    verdict = new[-1].verdict.value if new else before.last_verdict
    if claim.expected_us is None:
        return (*before[:4], before.runs + won, verdict, before.claim_epoch)
    slot_before = () if before.last_slot_us is None else (before.last_slot_us,)
    return (
        claim.job_id,
        claim.next_us,
        batch.now_us if won else before.last_run_us,
        max((*(run.slot_us for run in claim.runs), *slot_before), default=None),
        before.runs + won,
        verdict,
        batch.epoch,
    )


def _open_batch(connection: sa.Connection, batch: Batch, n: int) -> None:
    batches = tables.batches
    row = {"batch_id": batch.batch_id, "epoch": batch.epoch, "claimed_us": batch.now_us, "n": n}
    more = batches.c.n + n
    if connection.dialect.name in ("mysql", "mariadb"):
        connection.execute(mysql.insert(batches).values(row).on_duplicate_key_update(n=more))
    else:
        upsert = sqlite.insert if connection.dialect.name == "sqlite" else postgresql.insert
        statement = upsert(batches).values(row)
        connection.execute(statement.on_conflict_do_update(index_elements=[batches.c.batch_id], set_={"n": more}))


def _lost(claims: Sequence[Claim], new: Mapping[str, Sequence[Run]]) -> frozenset[str]:
    lost: set[str] = set()
    for claim in claims:
        if claim.job_id not in new:
            lost.add(claim.job_id)
            continue
        entered = {run.task_id for run in new[claim.job_id]}
        wanted = {run.task_id for run in claim.runs if run.verdict is Verdict.CLAIMED}
        lost |= wanted - entered
        if wanted and not wanted & entered:
            lost.add(claim.job_id)
    return frozenset(lost)
