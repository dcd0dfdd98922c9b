"""PostgreSQL: snapshots say exactly which transactions a reader has seen, and one statement can hold a whole claim."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import sqlalchemy as sa

from celery_qbeat.errors import SchemaError
from celery_qbeat.jobs import Verdict
from celery_qbeat.ports import Claim
from celery_qbeat.stores import tables
from celery_qbeat.stores.claiming import RUN_COLUMNS, Batch, run_row
from celery_qbeat.stores.connection import Link, Trouble
from celery_qbeat.stores.database import RELOAD_ABOVE, Audit, Database, Entry, Poll, audit_query, raise_floor
from celery_qbeat.stores.leader import fenced
from celery_qbeat.stores.ledger import Sent

MOST_LINES = 2 * RELOAD_ABOVE


@dataclass(frozen=True, slots=True)
class Cursor:
    """Everything visible in `snapshot` (text of a pg_snapshot) has been seen."""

    snapshot: str

    @property
    def oldest(self) -> int:
        """All transactions below this are seen."""
        return int(self.snapshot.split(":")[0])

    @property
    def newest(self) -> int:
        return int(self.snapshot.split(":")[1])


class PostgreSQL(Database):
    session = (
        "SET lock_timeout = '500ms'",
        "SET idle_in_transaction_session_timeout = '10s'",
        "SET statement_timeout = '60s'",
        # The claim's joins are small; a plan for an average array, or compiling it, costs more than it saves.
        "SET jit = off",
        "SET plan_cache_mode = force_custom_plan",
    )

    def url(self, url: sa.URL) -> sa.URL:
        return url if "+" in url.drivername else url.set(drivername="postgresql+psycopg")

    def connect_args(self, url: sa.URL) -> dict[str, object]:
        wanted: dict[str, object] = {
            "connect_timeout": 5,
            "keepalives_idle": 5,
            "keepalives_interval": 2,
            "keepalives_count": 3,
            "tcp_user_timeout": 10_000,
            "application_name": "celery_qbeat",
        }
        return {name: value for name, value in wanted.items() if name not in url.query}

    def judge(self, error: BaseException) -> Trouble:
        state = getattr(error, "sqlstate", None) or getattr(error, "pgcode", None)
        if state is None:
            # Drivers have no state for a connection that broke; the values they refuse are data errors.
            broken = type(error).__name__ in ("OperationalError", "InterfaceError") or isinstance(error, OSError)
            return Trouble.LOST if broken else Trouble.DATA
        if state[:2] == "08" or state in ("57P01", "57P02", "57P03", "57P05", "25P03"):
            return Trouble.LOST
        if state in ("40P01", "40001"):
            return Trouble.DEADLOCK
        if state[:2] in ("53", "55", "57", "58", "25"):
            return Trouble.BUSY
        if state[:2] in ("28", "3D", "3F") or state in ("42501", "42P01", "42703", "42883"):
            return Trouble.SCHEMA
        return Trouble.DATA

    def put(
        self,
        connection: sa.Connection,
        table: sa.Table,
        columns: Sequence[str],
        rows: Sequence[tuple[Any, ...]],
        update: Sequence[str] | None,
    ) -> None:
        if rows:
            statement = _put_statement(table.name, tuple(columns), None if update is None else tuple(update))
            arrays = {f"c{n}": list(values) for n, values in enumerate(zip(*rows, strict=True))}
            connection.execute(statement, arrays)

    def claim(self, link: Link, batch: Batch) -> frozenset[str]:
        """In one statement that commits itself: a beat frozen in the middle of it holds no lock."""
        arguments = _claim_arguments(batch)
        leads, lost, taken = link.statement(
            lambda connection: connection.execute(_CLAIM, arguments).one(), before=_NO_LOOPS, after=_LOOPS
        )
        if not leads:
            raise link.read(fenced)
        return frozenset(lost) | frozenset(taken) | _without_a_run(batch.claims, frozenset(taken))

    def sent(self, link: Link, mark: Sent) -> None:
        """In one statement, as `claim`."""
        arguments = {
            "epoch": mark.epoch,
            "batch": mark.batch_id,
            "ids": list(mark.task_ids),
            "now": mark.now_us,
            "closes": mark.closes,
        }
        leads = link.statement(
            lambda connection: connection.execute(_SENT, arguments).scalar_one(), before=_NO_LOOPS, after=_LOOPS
        )
        if not leads:
            raise link.read(fenced)

    def clock_us(self, connection: sa.Connection) -> int:
        return int(connection.execute(_CLOCK).scalar_one())

    def cursor(self, connection: sa.Connection) -> Cursor:
        return Cursor(connection.execute(_SNAPSHOT).scalar_one())

    def poll(self, connection: sa.Connection, cursor: Cursor) -> Poll:
        found = connection.execute(_POLL, {"previous": cursor.snapshot, "limit": MOST_LINES}).all()
        if not found:
            raise SchemaError("the row of qbeat_meta is gone")
        snapshot, instance, floor = found[0][:3]
        now = Cursor(snapshot)
        # A server that knows fewer transactions than we do is a restored one, or another.
        if floor > cursor.oldest or now.newest < cursor.newest or len(found) == MOST_LINES:
            return Poll(None, instance, reload=True)
        return Poll(now, instance, [Entry(row.op, row.job_id) for row in found if row.op is not None])

    def audit(self, connection: sa.Connection, cursor: Cursor) -> Audit:
        unread = sa.exists().where(_unseen(cursor))
        count, revs, more = connection.execute(audit_query(unread)).one()
        return Audit(count, int(revs), bool(more))

    @contextmanager
    def whole_tables(self, connection: sa.Connection) -> Iterator[None]:
        connection.exec_driver_sql(_NO_LOOPS)
        yield
        connection.exec_driver_sql(_LOOPS)

    def prune_log(self, connection: sa.Connection, cursor: Cursor, before_us: int, limit: int) -> int:
        gone = connection.execute(_PRUNE, {"before": before_us, "limit": limit}).one()
        if gone.n:
            raise_floor(connection, gone.newest + 1)
        return int(gone.n)


def _unseen(cursor: Cursor) -> sa.ColumnElement[bool]:
    condition = (
        "qbeat_changes.txid >= :oldest "
        "AND NOT pg_visible_in_snapshot(CAST(CAST(qbeat_changes.txid AS text) AS xid8), CAST(:previous AS pg_snapshot))"
    )
    return sa.and_(
        tables.changes.c.version.is_not(None),
        sa.text(condition).bindparams(oldest=cursor.oldest, previous=cursor.snapshot),
    )


# A table that was analyzed while it was empty is taken to have one row for a while: joined by a nested loop, a thousand
# due jobs then take half a minute. Hashed, they do not depend on what the planner believes.
_NO_LOOPS = "SET enable_nestloop = off"
_LOOPS = "SET enable_nestloop = on"

_CLOCK = sa.text("SELECT CAST(extract(epoch FROM clock_timestamp()) * 1000000 AS bigint)")
_SNAPSHOT = sa.text("SELECT CAST(pg_current_snapshot() AS text)")

_POLL = sa.text("""
SELECT CAST(pg_current_snapshot() AS text), m.instance, m.log_floor, c.op, c.job_id
FROM qbeat_meta m
LEFT JOIN qbeat_changes c
  ON c.txid >= CAST(CAST(pg_snapshot_xmin(CAST(:previous AS pg_snapshot)) AS text) AS bigint)
 AND NOT pg_visible_in_snapshot(CAST(CAST(c.txid AS text) AS xid8), CAST(:previous AS pg_snapshot))
WHERE m.id = 1
LIMIT :limit
""")

_PRUNE = sa.text("""
WITH gone AS (
  DELETE FROM qbeat_changes WHERE version IN (
    SELECT version FROM (
      SELECT version, at_us FROM qbeat_changes
      WHERE txid < CAST(CAST(pg_snapshot_xmin(pg_current_snapshot()) AS text) AS bigint)
      ORDER BY txid LIMIT :limit) AS oldest
    WHERE at_us < :before)
  RETURNING txid)
SELECT count(*) AS n, max(txid) AS newest FROM gone
""")

_TYPES: dict[type[Any], str] = {sa.BigInteger: "bigint", sa.Integer: "bigint", sa.Boolean: "boolean"}


@lru_cache(maxsize=64)
def _put_statement(name: str, columns: tuple[str, ...], update: tuple[str, ...] | None) -> sa.TextClause:
    table = tables.metadata.tables[name]
    arrays = [f"CAST(:c{n} AS {_array(table.c[column])})" for n, column in enumerate(columns)]
    words = ["INSERT INTO", name, "(", ", ".join(columns), ") SELECT * FROM unnest(", ", ".join(arrays), ")"]
    if update:
        keys = ", ".join(column.name for column in table.primary_key)
        words += [f"ON CONFLICT ({keys}) DO UPDATE SET", ", ".join(f"{name} = EXCLUDED.{name}" for name in update)]
    elif update is not None:
        words.append("ON CONFLICT DO NOTHING")
    return sa.text(" ".join(words))


def _array(column: sa.Column[Any]) -> str:
    return _TYPES.get(type(column.type), "text") + "[]"


_RUN_TYPES = [f"CAST(:{name} AS {_array(tables.runs.c[name])})" for name in RUN_COLUMNS]

_CLAIM = sa.text(
    """
WITH lead AS MATERIALIZED (
  SELECT 1 FROM qbeat_leader WHERE id = 1 AND epoch = :epoch FOR SHARE),
due AS MATERIALIZED (
  SELECT * FROM unnest(CAST(:ids AS text[]), CAST(:expected AS bigint[]), CAST(:nexts AS bigint[]),
                       CAST(:revs AS bigint[]), CAST(:newest AS bigint[])) AS d(id, expected, nxt, rev, newest)),
run AS MATERIALIZED (
  SELECT * FROM unnest({arrays}) AS r({columns})),
got AS MATERIALIZED (
  SELECT s.job_id, d.expected, d.nxt, d.newest
  FROM due d JOIN qbeat_state s ON s.job_id = d.id AND (d.expected IS NULL OR s.next_run_us = d.expected)
  LEFT JOIN (SELECT id, rev, enabled FROM qbeat_jobs WHERE id = ANY(CAST(:ids AS text[]))) j ON j.id = d.id
  WHERE EXISTS (SELECT 1 FROM lead) AND s.job_id = ANY(CAST(:ids AS text[]))
    AND (d.rev IS NULL OR (j.rev = d.rev AND (d.expected IS NULL OR j.enabled)))
  ORDER BY s.job_id
  FOR UPDATE OF s SKIP LOCKED),
ins AS (
  INSERT INTO qbeat_runs ({columns})
  SELECT {columns} FROM run WHERE (run.job_id IN (SELECT job_id FROM got)) IS TRUE ORDER BY slot_us, job_id
  ON CONFLICT DO NOTHING RETURNING job_id, task_id, verdict, slot_us),
won AS (
  SELECT job_id, count(*) FILTER (WHERE verdict = 'claimed') AS n,
         (array_agg(verdict ORDER BY slot_us DESC))[1] AS verdict FROM ins GROUP BY job_id),
upd AS (
  UPDATE qbeat_state s SET
    next_run_us = CASE WHEN g.expected IS NULL THEN s.next_run_us ELSE g.nxt END,
    last_slot_us = CASE WHEN g.expected IS NULL THEN s.last_slot_us ELSE GREATEST(g.newest, s.last_slot_us) END,
    last_run_us = CASE WHEN g.expected IS NULL OR COALESCE(w.n, 0) = 0 THEN s.last_run_us ELSE :now END,
    claim_epoch = CASE WHEN g.expected IS NULL THEN s.claim_epoch ELSE :epoch END,
    runs = s.runs + COALESCE(w.n, 0),
    last_verdict = COALESCE(w.verdict, s.last_verdict)
  FROM got g LEFT JOIN won w ON w.job_id = g.job_id
  WHERE s.job_id = g.job_id AND s.job_id = ANY(CAST(:ids AS text[]))),
bat AS (
  INSERT INTO qbeat_batches (batch_id, epoch, claimed_us, n)
  SELECT :batch, :epoch, :now, count(*) FROM ins WHERE verdict = 'claimed' HAVING count(*) > 0
  ON CONFLICT (batch_id) DO UPDATE SET n = qbeat_batches.n + EXCLUDED.n)
SELECT (SELECT count(*) FROM lead),
       ARRAY(SELECT id FROM due WHERE (id IN (SELECT job_id FROM got)) IS NOT TRUE),
       ARRAY(SELECT task_id FROM run WHERE verdict = 'claimed' AND (job_id IN (SELECT job_id FROM got)) IS TRUE
             AND (task_id IN (SELECT task_id FROM ins)) IS NOT TRUE)
""".replace("{arrays}", ", ".join(_RUN_TYPES)).replace("{columns}", ", ".join(RUN_COLUMNS))
)


# An array, not a join: the states are found by their index, however many there are.
_SENT = sa.text("""
WITH lead AS MATERIALIZED (
  SELECT 1 FROM qbeat_leader WHERE id = 1 AND epoch = :epoch FOR SHARE),
run AS (
  UPDATE qbeat_runs SET sent_us = :now, verdict = CASE verdict WHEN 'claimed' THEN 'sent' ELSE verdict END
  WHERE EXISTS (SELECT 1 FROM lead) AND task_id = ANY(CAST(:ids AS text[])) AND batch_id = :batch
  RETURNING job_id),
upd AS (
  UPDATE qbeat_state SET last_verdict = 'sent'
  WHERE last_verdict = 'claimed' AND job_id = ANY(ARRAY(SELECT job_id FROM run))),
bat AS (
  UPDATE qbeat_batches SET sent_us = :now
  WHERE EXISTS (SELECT 1 FROM lead) AND CAST(:closes AS boolean) AND batch_id = :batch AND sent_us IS NULL)
SELECT count(*) FROM lead
""")


def _claim_arguments(batch: Batch) -> dict[str, Any]:
    claims = batch.claims
    rows = [run_row(run, claim, batch) for claim in claims for run in claim.runs]
    columns = list(zip(*rows, strict=True)) if rows else [()] * len(RUN_COLUMNS)
    return {
        "epoch": batch.epoch,
        "batch": batch.batch_id,
        "now": batch.now_us,
        "ids": [claim.job_id for claim in claims],
        "expected": [claim.expected_us for claim in claims],
        "nexts": [claim.next_us for claim in claims],
        "revs": [claim.rev for claim in claims],
        "newest": [max((run.slot_us for run in claim.runs), default=None) for claim in claims],
        **{name: list(values) for name, values in zip(RUN_COLUMNS, columns, strict=True)},
    }


def _without_a_run(claims: Sequence[Claim], taken: frozenset[str]) -> frozenset[str]:
    """The jobs all of whose runs to be sent are taken."""
    lost = set()
    for claim in claims:
        wanted = {run.task_id for run in claim.runs if run.verdict is Verdict.CLAIMED}
        if wanted and wanted <= taken:
            lost.add(claim.job_id)
    return frozenset(lost)
