"""SQLite: one file on one machine, one writer at a time, so the log's order is the order of commits."""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import sqlalchemy as sa
from sqlalchemy.dialects.sqlite import insert

from celery_qbeat.errors import SchemaError, Unavailable
from celery_qbeat.stores import fencing, tables
from celery_qbeat.stores.connection import Link
from celery_qbeat.stores.database import Audit, Database, Entry, Poll, audit_query, prune_numbered
from celery_qbeat.stores.driver_errors import Trouble

BUSY_TIMEOUT_S = 1.0
"""Seconds that SQLite waits for somebody else's transaction. No signal is handled meanwhile."""

BUSY_TRIES = 5
"""How often it is asked to."""


@dataclass(frozen=True, slots=True)
class Cursor:
    """The last log line seen; and the file with its counter of foreign commits, which saves most looks at the log."""

    last: int
    file: tuple[int, int] | None
    connection: object
    commits: int


class SQLite(Database):
    remote = False
    # FULL: with NORMAL a power cut may undo the last claims, and a slot would be sent twice.
    session = ("PRAGMA journal_mode = WAL", "PRAGMA synchronous = FULL", "PRAGMA recursive_triggers = OFF")

    def begin(self, _wait_s: float | None) -> str:
        return "BEGIN IMMEDIATE"

    def tries_to_begin(self, url: sa.URL) -> int:
        return 1 if "timeout" in url.query else BUSY_TRIES

    def url(self, url: sa.URL) -> sa.URL:
        """The path is made absolute: a later change of the working directory must not lead to another file."""
        path = _path(url)
        return url if path is None else url.set(database=str(path.absolute()))

    def absent(self, url: sa.URL) -> str:
        path = _path(url)
        if path is None:
            return ""
        try:
            return "" if path.exists() else self.homeless(url) or f"the SQLite file {path} does not exist"
        except OSError as error:
            return f"the SQLite file {path} cannot be reached ({error.strerror})"

    def homeless(self, url: sa.URL) -> str:
        path = _path(url)
        if path is None:
            return ""
        advice = "set qbeat_database_url"
        try:
            if not path.parent.is_dir():
                return f"the folder {path.parent} of the SQLite file does not exist: create it, or {advice}"
            there = path.exists()
        except OSError as error:
            return f"the SQLite file {path} cannot be reached ({error.strerror}): change that, or {advice}"
        return self._forbidden(path, there, advice)

    @staticmethod
    def _forbidden(path: Path, there: bool, advice: str) -> str:
        """What the operating system will refuse; empty when nothing is known."""
        if path.is_dir():
            return f"{path} is a folder, not a SQLite file: {advice}"
        if not os.access(path.parent, os.W_OK | os.X_OK):
            why = "this user may not write to the folder, where SQLite keeps files beside the database"
        elif there and not os.access(path, os.R_OK | os.W_OK):
            why = "this user may not read and write it"
        else:
            return ""
        return f"the SQLite file {path} cannot be used, because {why}: give this user the right, or {advice}"

    def connect_args(self, url: sa.URL) -> dict[str, object]:
        """The beat's thread may not be the one that made the store, but only one uses it."""
        options: dict[str, object] = {"check_same_thread": False, "factory": _Connection}
        return options if "timeout" in url.query else {**options, "timeout": BUSY_TIMEOUT_S}

    def judge(self, error: BaseException) -> Trouble:
        name = str(getattr(error, "sqlite_errorname", ""))
        if name.startswith(("SQLITE_BUSY", "SQLITE_LOCKED", "SQLITE_FULL", "SQLITE_INTERRUPT")):
            return Trouble.BUSY
        if name.startswith("SQLITE_READONLY"):
            return Trouble.READ_ONLY
        if name.startswith(("SQLITE_IOERR", "SQLITE_CANTOPEN", "SQLITE_PROTOCOL", "SQLITE_NOMEM")):
            return Trouble.LOST
        if name.startswith(("SQLITE_CORRUPT", "SQLITE_NOTADB", "SQLITE_SCHEMA")) or "no such" in str(error):
            return Trouble.SCHEMA
        if isinstance(error, sqlite3.ProgrammingError) and "closed" in str(error):
            return Trouble.LOST
        # SQLITE_ERROR is for everything else, from a function that refuses a value to a statement that is none.
        return Trouble.UNKNOWN if name in ("SQLITE_INTERNAL", "SQLITE_MISUSE", "SQLITE_AUTH") else Trouble.DATA

    def try_to_write(self, connection: sa.Connection) -> None:
        connection.exec_driver_sql("BEGIN IMMEDIATE")
        connection.exec_driver_sql("ROLLBACK")

    def read_only(self, url: sa.URL) -> str:
        return f"the SQLite file {url.database} is read-only"

    def prepare(self, url: sa.URL) -> None:
        """Make the file so that no other user can read it; SQLite gives its -wal and -shm the same mode."""
        path = _path(url)
        if path is not None:
            # Somebody else made it meanwhile: its mode is theirs.
            with suppress(FileExistsError):
                path.touch(mode=0o600, exist_ok=False)

    def unusable(self, url: sa.URL, error: Unavailable) -> str:
        if reason := self.homeless(url):
            return reason
        cause = error.__cause__
        name = str(getattr(getattr(cause, "orig", cause), "sqlite_errorname", ""))
        if name.startswith("SQLITE_READONLY"):
            return str(error)
        return f"the SQLite file {url.database} cannot be opened: {error}" if name.startswith("SQLITE_CANTOPEN") else ""

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
        if update:
            new = {name: statement.excluded[name] for name in update}
            statement = statement.on_conflict_do_update(index_elements=list(table.primary_key), set_=new)
        elif update is not None:
            statement = statement.on_conflict_do_nothing()
        connection.execute(statement, [dict(zip(columns, row, strict=True)) for row in rows])

    def record_heartbeat(self, link: Link, epoch: int, now_us: int) -> None:
        # In a transaction, whose beginning is what waits for others.
        link.write(lambda connection: fencing.record_heartbeat(connection, epoch, now_us))

    def cursor(self, connection: sa.Connection) -> Cursor:
        commits = self._commits(connection)
        last = connection.execute(sa.select(sa.func.max(tables.changes.c.version))).scalar_one()
        floor = connection.execute(sa.select(tables.meta.c.log_floor)).scalar_one()
        return Cursor(max(last or 0, floor), _file(connection), _token(connection), commits)

    def poll(self, connection: sa.Connection, cursor: Cursor) -> Poll:
        file = _file(connection)
        if file != cursor.file:
            # Somebody put another file in its place; the open one has no name any more.
            return Poll(None, reload=True)
        commits = self._commits(connection)
        token = _token(connection)
        if token is cursor.connection and commits == cursor.commits:
            return Poll(cursor)
        log, meta = tables.changes.c, tables.meta.c
        # The line at the cursor itself comes again: without it the log is not the one we know.
        query = (
            sa.select(meta.instance, meta.log_floor, log.version, log.op, log.job_id)
            .select_from(tables.meta.outerjoin(tables.changes, log.version >= cursor.last))
            .where(meta.id == 1)
            .order_by(log.version)
        )
        found = connection.execute(query).all()
        if not found:
            raise SchemaError("the row of qbeat_meta is gone")
        instance, floor = found[0].instance, found[0].log_floor
        versions = [row.version for row in found if row.version is not None]
        known = cursor.last <= floor or (versions and versions[0] == cursor.last)
        if floor > cursor.last or not known:
            return Poll(None, instance, reload=True)
        entries = [Entry(row.op, row.job_id) for row in found if row.version is not None and row.version > cursor.last]
        last = max(versions, default=cursor.last)
        return Poll(Cursor(last, file, token, commits), instance, entries)

    def audit(self, connection: sa.Connection, cursor: Cursor) -> Audit:
        unread = sa.exists().where(tables.changes.c.version > cursor.last)
        count, revs, more = connection.execute(audit_query(unread)).one()
        return Audit(count, int(revs), bool(more))

    def prune_log(self, connection: sa.Connection, cursor: Cursor, before_us: int, limit: int) -> int:
        return prune_numbered(connection, cursor.last, before_us, limit)

    @staticmethod
    def _commits(connection: sa.Connection) -> int:
        return int(connection.exec_driver_sql("PRAGMA data_version").scalar_one())


class _Connection(sqlite3.Connection):
    """SQLite stores any bytes as text. Those that are no UTF-8 are read as bytes: no row that wants text takes them."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.text_factory = _text


def _text(text: bytes) -> str | bytes:
    try:
        return text.decode()
    except UnicodeDecodeError:
        return text


def _token(connection: sa.Connection) -> object:
    """The same object for as long as the connection is the same: its counter means nothing to another one."""
    return connection.info.setdefault("qbeat", object())


def _path(url: sa.URL) -> Path | None:
    name = url.database
    return None if not name or name == ":memory:" or name.startswith("file:") else Path(name)


def _file(connection: sa.Connection) -> tuple[int, int] | None:
    path = _path(connection.engine.url)
    if path is None:
        return None
    try:
        found = path.stat()
    except FileNotFoundError:
        return None
    return found.st_dev, found.st_ino
