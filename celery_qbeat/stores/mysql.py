"""MariaDB and MySQL: numbers of the log commit in any order, and nothing says which are still on their way.

The cursor is the highest number seen and the gaps below it. A gap is a transaction in flight or one that was rolled
back: after a grace, a locking read that waits for nobody tells them apart, and a dead gap is filled with tombstones,
so that a writer who would still use such a number gets an error instead of being missed.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import sqlalchemy as sa
from sqlalchemy.dialects.mysql import insert
from sqlalchemy.exc import DBAPIError

from celery_qbeat.errors import SchemaError
from celery_qbeat.stores import tables
from celery_qbeat.stores.claiming import chunks
from celery_qbeat.stores.database import RELOAD_ABOVE, Audit, Database, Entry, Poll, audit_query, prune_numbered
from celery_qbeat.stores.driver_errors import Trouble

GRACE_US = 500_000
TOMBSTONE = "-"
TOMBSTONES_A_POLL = 10_000
RANGES_A_QUERY = 100
MOST_LINES = 2 * RELOAD_ABOVE

_LOST = {1053, 1927, 2002, 2003, 2006, 2013, 2014, 2055, 4031}
_BUSY = {1020, 1021, 1040, 1041, 1114, 1192, 1203, 1205, 1206, 1317, 1969, 3024, 3572, 4020}
_READ_ONLY = {1036, 1290, 1792, 1836}
_SCHEMA = {1044, 1045, 1049, 1054, 1103, 1142, 1143, 1146, 1227, 1356, 1370, 1419, 1449, 1665}
# Values, keys, checks, triggers of somebody else; by number where the driver's class does not say it.
_DATA = {1048, 1062, 1264, 1265, 1292, 1364, 1366, 1406, 1411, 1451, 1452, 1644, 1690, 3140, 3819, 3988, 4025}
_SQL_MODE = "STRICT_TRANS_TABLES,ERROR_FOR_DIVISION_BY_ZERO,NO_ENGINE_SUBSTITUTION"
_NOWAIT = {1205, 3572}


@dataclass(frozen=True, slots=True)
class Gap:
    """Numbers `first`..`last` are missing since `since_us`, by the database's clock."""

    first: int
    last: int
    since_us: int


@dataclass(frozen=True, slots=True)
class Cursor:
    """All numbers up to `high` were seen or are known never to come, except the gaps."""

    high: int
    gaps: tuple[Gap, ...] = ()

    @property
    def low(self) -> int:
        """Up to here nothing is open."""
        return self.gaps[0].first - 1 if self.gaps else self.high


class MySQL(Database):
    # READ COMMITTED: at REPEATABLE READ the reading of an absent id blocks the insertion of others.
    # The waits: a person's LOCK TABLES would otherwise stop the beat for a day. wait_timeout: the locks of a frozen
    # beat are freed.
    session = (
        "SET SESSION TRANSACTION ISOLATION LEVEL READ COMMITTED",
        f"SET SESSION innodb_lock_wait_timeout = 1, lock_wait_timeout = 1, wait_timeout = 10, sql_mode = '{_SQL_MODE}'",
    )

    def url(self, url: sa.URL) -> sa.URL:
        if "+" in url.drivername:
            return url
        try:
            import MySQLdb  # noqa: F401
        except ImportError:
            return url.set(drivername=f"{url.drivername}+pymysql")
        return url.set(drivername=f"{url.drivername}+mysqldb")

    def connect_args(self, url: sa.URL) -> dict[str, object]:
        if url.get_driver_name() not in ("pymysql", "mysqldb"):
            return {"charset": "utf8mb4"}
        # The watchdog is earlier than the last two, which end a connection that nobody waits for any more.
        common: dict[str, object] = {
            "charset": "utf8mb4",
            "connect_timeout": 5,
            "read_timeout": 60,
            "write_timeout": 60,
        }
        return common | {"autocommit": True} if url.get_driver_name() == "pymysql" else common

    def judge(self, error: BaseException) -> Trouble:
        code = error.args[0] if error.args and isinstance(error.args[0], int) else None
        kind = type(error).__name__
        if code in _LOST or kind == "InterfaceError" or isinstance(error, OSError):
            return Trouble.LOST
        if code == 1213:
            return Trouble.DEADLOCK
        if code in _BUSY:
            return Trouble.BUSY
        if code in _READ_ONLY:
            return Trouble.READ_ONLY
        if code in _SCHEMA:
            return Trouble.SCHEMA
        values = kind in ("DataError", "IntegrityError") or isinstance(error, UnicodeError | OverflowError)
        return Trouble.DATA if values or code in _DATA else Trouble.UNKNOWN

    def try_to_write(self, connection: sa.Connection) -> None:
        # The variables do not tell: an account with SUPER or READ ONLY ADMIN may write.
        connection.exec_driver_sql("UPDATE qbeat_leader SET epoch = epoch WHERE 1 = 0").close()

    def put(
        self,
        connection: sa.Connection,
        table: sa.Table,
        columns: Sequence[str],
        rows: Sequence[tuple[Any, ...]],
        update: Sequence[str] | None,
    ) -> None:
        if not rows:
            return
        statement = insert(table)
        if update is not None:
            # VALUES(): of the forms that both servers know, the one that PyMySQL sends as one statement for many rows.
            new: dict[str, Any] = {name: sa.literal_column(f"VALUES({name})") for name in update}
            statement = statement.on_duplicate_key_update(new or {columns[0]: table.c[columns[0]]})
        for part in chunks(rows):
            connection.execute(statement, [dict(zip(columns, row, strict=True)) for row in part])

    def clock_us(self, connection: sa.Connection) -> int:
        return int(connection.execute(sa.select(_now())).scalar_one())

    def cursor(self, connection: sa.Connection) -> Cursor:
        floor, now_us = connection.execute(sa.select(tables.meta.c.log_floor, _now())).one()
        log = tables.changes.c
        # One look at the whole log for its holes: they may be edits that are not committed yet.
        before = sa.func.coalesce(sa.func.lag(log.version).over(order_by=log.version), floor)
        steps = sa.select(before.label("before"), log.version).where(log.version > floor).subquery()
        holes = sa.select(steps).where(steps.c.version - steps.c.before > 1).order_by(steps.c.version)
        high = sa.select(sa.func.coalesce(sa.func.max(log.version), floor))
        top = connection.execute(high).scalar_one()
        gaps = [Gap(before + 1, version - 1, now_us) for before, version in connection.execute(holes) if version <= top]
        return Cursor(top, tuple(gaps))

    def poll(self, connection: sa.Connection, cursor: Cursor) -> Poll:
        log, meta = tables.changes.c, tables.meta.c
        # The line at `high` comes again: without it the log is not the one we know.
        query = (
            sa.select(meta.instance, meta.log_floor, _now(), log.version, log.op, log.job_id)
            .select_from(tables.meta.outerjoin(tables.changes, log.version >= cursor.high))
            .where(meta.id == 1)
            .order_by(log.version)
            .limit(MOST_LINES)
        )
        found = connection.execute(query).all()
        if not found:
            raise SchemaError("the row of qbeat_meta is gone")
        instance, floor, now_us = found[0][:3]
        lines = [tuple(row[3:]) for row in found if row.version is not None]
        known = cursor.high <= floor or (lines and lines[0][0] == cursor.high)
        if floor > cursor.low or not known or len(found) == MOST_LINES:
            return Poll(None, instance, reload=True)
        new = [line for line in lines if line[0] > cursor.high]
        late = _late(connection, cursor.gaps)
        gaps = [*_left(cursor.gaps, [line[0] for line in late]), *_between(cursor.high, new, now_us)]
        after = Cursor(max([cursor.high, *(line[0] for line in new)]), tuple(_settle(connection, gaps, now_us)))
        entries = [Entry(op, job_id) for _, op, job_id in (*late, *new) if op != TOMBSTONE]
        return Poll(after, instance, entries)

    def audit(self, connection: sa.Connection, cursor: Cursor) -> Audit:
        log = tables.changes.c
        unread = sa.select(sa.func.count()).where(log.version > cursor.low).scalar_subquery()
        count, revs, lines = connection.execute(audit_query(unread)).one()
        seen = cursor.high - cursor.low - sum(gap.last - gap.first + 1 for gap in cursor.gaps)
        return Audit(count, int(revs), lines != seen)

    def prune_log(self, connection: sa.Connection, cursor: Cursor, before_us: int, limit: int) -> int:
        # The line at `high` stays: the next poll looks for it.
        return prune_numbered(connection, cursor.low - 1, before_us, limit)

    def trouble_ahead(self, connection: sa.Connection) -> str:
        shown = connection.exec_driver_sql("SHOW VARIABLES WHERE Variable_name IN ('log_bin', 'binlog_format')")
        found = {name: value.upper() for name, value in shown}
        if found.get("log_bin") == "ON" and found.get("binlog_format") == "STATEMENT":
            return (
                "this server has binlog_format=STATEMENT, which cannot log what a beat does at READ COMMITTED: "
                "set binlog_format to MIXED or ROW"
            )
        return ""


def _now() -> sa.ColumnElement[int]:
    return sa.literal_column("CAST(UNIX_TIMESTAMP(SYSDATE(6)) * 1000000 AS SIGNED)", sa.BigInteger)


def _late(connection: sa.Connection, gaps: Sequence[Gap]) -> list[tuple[Any, ...]]:
    """Lines that turned up in the gaps, by number."""
    log = tables.changes.c
    found: list[tuple[Any, ...]] = []
    for part in chunks(gaps, RANGES_A_QUERY):
        within = sa.or_(*(log.version.between(gap.first, gap.last) for gap in part))
        query = sa.select(log.version, log.op, log.job_id).where(within).order_by(log.version)
        found.extend(tuple(row) for row in connection.execute(query).all())
    return found


def _left(gaps: Sequence[Gap], late: Sequence[int]) -> Iterator[Gap]:
    """The gaps without the numbers that turned up."""
    for gap in gaps:
        first = gap.first
        for version in late[bisect_left(late, gap.first) : bisect_right(late, gap.last)]:
            if version > first:
                yield Gap(first, version - 1, gap.since_us)
            first = version + 1
        if first <= gap.last:
            yield Gap(first, gap.last, gap.since_us)


def _between(high: int, new: Sequence[tuple[Any, ...]], now_us: int) -> Iterator[Gap]:
    for version, *_ in new:
        if version > high + 1:
            yield Gap(high + 1, version - 1, now_us)
        high = version


def _settle(connection: sa.Connection, gaps: Sequence[Gap], now_us: int) -> Iterator[Gap]:
    """Bury the dead gaps; what is left."""
    buried = 0
    for gap in gaps:
        if now_us - gap.since_us < GRACE_US or buried >= TOMBSTONES_A_POLL:
            yield gap
        elif _in_flight(connection, gap):
            # Looked at again after another grace, not at every poll.
            yield Gap(gap.first, gap.last, now_us)
        elif gap.last - gap.first < TOMBSTONES_A_POLL:
            _bury(connection, gap.first, gap.last, now_us)
            buried += gap.last - gap.first + 1
            # Kept until the next poll reads the numbers as tombstones, or as what came in the last moment.
            yield gap
        # A larger one was a bulk edit, or is what somebody deleted from the log: it is dropped without a tombstone,
        # since a number that was taken half a second ago and has no line is not on its way.


def _in_flight(connection: sa.Connection, gap: Gap) -> bool:
    """Whether an open transaction holds one of these numbers. Waits for nobody and keeps no lock."""
    log = tables.changes.c
    query = sa.select(log.version).where(log.version.between(gap.first, gap.last)).with_for_update(nowait=True)
    try:
        connection.execute(query).all()
    except DBAPIError as error:
        if error.orig is not None and error.orig.args[0] in _NOWAIT:
            return True
        raise
    return False


def _bury(connection: sa.Connection, first: int, last: int, now_us: int) -> None:
    for part in chunks(range(first, last + 1)):
        statement = insert(tables.changes).prefix_with("IGNORE")
        connection.execute(statement, [{"version": v, "op": TOMBSTONE, "at_us": now_us} for v in part])
