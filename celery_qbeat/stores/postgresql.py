"""PostgreSQL: snapshots say exactly which transactions a reader has seen, and one statement can hold a whole claim."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any

import sqlalchemy as sa
from sqlalchemy.exc import SQLAlchemyError

from celery_qbeat.errors import SchemaError
from celery_qbeat.stores import driver_options, tables
from celery_qbeat.stores import postgresql_statements as statements
from celery_qbeat.stores.claiming import Batch
from celery_qbeat.stores.connection import Link
from celery_qbeat.stores.database import RELOAD_ABOVE, Audit, Database, Entry, Poll, audit_query, raise_floor
from celery_qbeat.stores.driver_errors import Trouble
from celery_qbeat.stores.fencing import fenced
from celery_qbeat.stores.ledger import SentMark
from celery_qbeat.stores.watchdog import ANSWER_S

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
    # No setting of the session is ever changed: behind a pooler other clients get the same session.

    def begin(self, wait_s: float | None) -> str:
        return "BEGIN" if wait_s is None else f"BEGIN; {_settings(wait_s)}"

    def url(self, url: sa.URL) -> sa.URL:
        return url if "+" in url.drivername else url.set(drivername="postgresql+psycopg")

    def engine_options(self, url: sa.URL) -> dict[str, Any]:
        # Looking for the type hstore would cost a round trip.
        return {"use_native_hstore": False} if url.get_driver_name() in driver_options.LIBPQ else {}

    def connect_args(self, url: sa.URL) -> dict[str, object]:
        driver = url.get_driver_name()
        if driver not in driver_options.LIBPQ:
            return {}
        hosts = _hosts(url)
        wanted: dict[str, object] = {
            # For each host: all of them have their turn before the watchdog ends the attempt.
            "connect_timeout": 15 if hosts < 2 else max(2, int(ANSWER_S / hosts)),
            "keepalives_idle": 5,
            "keepalives_interval": 2,
            "keepalives_count": 3,
            "tcp_user_timeout": 10_000,
            "application_name": "celery_qbeat",
        }
        # Behind a pooler a statement that was prepared is another session's.
        return wanted | {"prepare_threshold": None} if driver == "psycopg" else wanted

    def judge(self, error: BaseException) -> Trouble:
        state = _state(error)
        kind = type(error).__name__
        if state is None:
            # Drivers have no state for a connection that broke, and for the values that they refuse.
            if kind in ("OperationalError", "InterfaceError", "ConnectionTimeout") or isinstance(error, OSError):
                return Trouble.LOST
            values = kind in ("DataError", "ProgrammingError", "UnicodeEncodeError", "OverflowError")
            return Trouble.DATA if values else Trouble.UNKNOWN
        return _STATES.get(state) or _CLASSES.get(state[:2], Trouble.UNKNOWN)

    def try_to_write(self, connection: sa.Connection) -> None:
        connection.exec_driver_sql("UPDATE qbeat_leader SET epoch = epoch WHERE false").close()

    def put(
        self,
        connection: sa.Connection,
        table: sa.Table,
        columns: Sequence[str],
        rows: Sequence[tuple[Any, ...]],
        update: Sequence[str] | None,
    ) -> None:
        if rows:
            statement = statements.put_statement(table.name, tuple(columns), None if update is None else tuple(update))
            arrays = {f"c{n}": list(values) for n, values in enumerate(zip(*rows, strict=True))}
            connection.execute(statement, arrays)

    def claim(self, link: Link, batch: Batch) -> frozenset[str]:
        """In one message that commits itself: a beat frozen in the middle of it holds no lock."""
        leads, lost, taken = _commit(link, statements.CLAIM, statements.claim_arguments(batch))
        if not leads:
            raise link.read(fenced)
        return frozenset(lost) | frozenset(taken) | statements.without_a_run(batch.claims, frozenset(taken))

    def mark_sent(self, link: Link, mark: SentMark) -> None:
        """In one message, as `claim`."""
        (leads,) = _commit(link, statements.SENT, statements.sent_arguments(mark))
        if not leads:
            raise link.read(fenced)

    def clock_us(self, connection: sa.Connection) -> int:
        return int(connection.execute(_CLOCK).scalar_one())

    def record_heartbeat(self, link: Link, epoch: int, now_us: int) -> None:
        if not _commit(link, _BEAT, {"epoch": epoch, "now": now_us}):
            raise link.read(fenced)

    def cursor(self, connection: sa.Connection) -> Cursor:
        return Cursor(connection.execute(_SNAPSHOT).scalar_one())

    def poll(self, connection: sa.Connection, cursor: Cursor) -> Poll:
        found = _poll(connection, {"previous": cursor.snapshot, "limit": MOST_LINES})
        if not found:
            raise SchemaError("the row of qbeat_meta is gone")
        snapshot, instance, floor = found[0][:3]
        now = Cursor(snapshot)
        # A server that knows fewer transactions than we do is a restored one, or another.
        if floor > cursor.oldest or now.newest < cursor.newest or len(found) == MOST_LINES:
            return Poll(None, instance, reload=True)
        return Poll(now, instance, [Entry(op, job_id) for *_, op, job_id in found if op is not None])

    def audit(self, connection: sa.Connection, cursor: Cursor) -> Audit:
        unread = sa.exists().where(_unseen(cursor))
        count, revs, more = connection.execute(audit_query(unread)).one()
        return Audit(count, int(revs), bool(more))

    @contextmanager
    def whole_tables(self, connection: sa.Connection) -> Iterator[None]:
        connection.exec_driver_sql(f"{self.begin(ANSWER_S)}; {_NO_LOOPS}")
        try:
            yield
        except BaseException:
            with suppress(SQLAlchemyError):
                connection.exec_driver_sql("ROLLBACK")
            raise
        connection.exec_driver_sql("COMMIT")

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


_STATES = {
    **dict.fromkeys(("57P01", "57P02", "57P03", "57P05", "25P03"), Trouble.LOST),
    **dict.fromkeys(("40P01", "40001"), Trouble.DEADLOCK),
    "25006": Trouble.READ_ONLY,
    **dict.fromkeys(("42501", "42P01", "42703", "42883"), Trouble.SCHEMA),
}
_CLASSES = {
    "08": Trouble.LOST,
    **dict.fromkeys(("53", "55", "57", "58"), Trouble.BUSY),
    **dict.fromkeys(("28", "3D", "3F"), Trouble.SCHEMA),
    # P0: a trigger of somebody else refuses the row.
    **dict.fromkeys(("21", "22", "23", "44", "54", "P0"), Trouble.DATA),
}


def _state(error: BaseException) -> str | None:
    found = getattr(error, "sqlstate", None) or getattr(error, "pgcode", None)
    if found is None and error.args and isinstance(error.args[0], Mapping):
        found = error.args[0].get("C")
    return found


def _hosts(url: sa.URL) -> int:
    named = url.query.get("host", ())
    return len(named.split(",")) if isinstance(named, str) else len(named)


def _settings(wait_s: float) -> str:
    """For one transaction. The server ends a statement a little earlier than the watchdog does."""
    milliseconds = int(wait_s * 800)
    return (
        "SET LOCAL lock_timeout = '500ms'; SET LOCAL idle_in_transaction_session_timeout = '10s'; "
        f"SET LOCAL statement_timeout = '{milliseconds}ms'; SET LOCAL jit = off"
    )


# A table that was analyzed while it was empty is taken to have one row for a while: joined by a nested loop, a thousand
# due jobs then take half a minute. Hashed, they do not depend on what the planner believes.
_NO_LOOPS = "SET LOCAL enable_nestloop = off"


def _commit(link: Link, statement: sa.TextClause, arguments: Mapping[str, Any]) -> Sequence[Any]:
    """The first row of a statement that writes and is committed; empty when there is none. Raises Doubt.

    Several statements in one message are one transaction, which is committed before the answer to the last of them;
    so nothing is sent after the locks are taken.
    """
    if link.engine.url.get_driver_name() in driver_options.LIBPQ:
        text = f"{_settings(ANSWER_S)}; {_NO_LOOPS}; {statements.as_text(statement)}"
        literals = {
            name: statements.array(value) if isinstance(value, list) else value for name, value in arguments.items()
        }
        found = link.message(lambda connection: _last_rows(connection, text, literals))
        return found[0] if found else ()

    def in_parts(connection: sa.Connection) -> Sequence[Any]:
        connection.exec_driver_sql(_NO_LOOPS)
        return connection.execute(statement, dict(arguments)).first() or ()

    return link.write(in_parts)


def _poll(connection: sa.Connection, arguments: Mapping[str, Any]) -> Sequence[Sequence[Any]]:
    if connection.dialect.driver in driver_options.LIBPQ:
        # A long log looks expensive, and compiling the query anew each time would be what costs.
        return _last_rows(connection, f"SET LOCAL jit = off; {statements.as_text(_POLL)}", arguments)
    return connection.execute(_POLL, dict(arguments)).all()


def _last_rows(connection: sa.Connection, text: str, arguments: Mapping[str, Any]) -> Sequence[Sequence[Any]]:
    """Send one message with the arguments written into it; the rows of its last statement."""
    raw: Any = connection.connection.driver_connection
    if connection.dialect.driver == "psycopg":
        from psycopg import ClientCursor

        with ClientCursor(raw) as cursor:
            cursor.execute(text, arguments)
            while cursor.nextset():
                pass
            rows: Sequence[Sequence[Any]] = cursor.fetchall()
    else:
        with raw.cursor() as cursor:
            cursor.execute(text, arguments)
            rows = cursor.fetchall()
    return rows


_BEAT = sa.text("UPDATE qbeat_leader SET seen_us = :now WHERE id = 1 AND epoch = :epoch RETURNING epoch")

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
