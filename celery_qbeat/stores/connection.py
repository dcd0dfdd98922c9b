"""One connection to a database, made when it is needed and again when it was lost; and the one place where the
errors of drivers become ours.

A transaction that breaks before its COMMIT was surely not done: it is tried again once on a new connection, so that a
server's idle timeout or restart is not seen by anybody. What breaks in its COMMIT is `Doubt`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from enum import Enum
from typing import TypeVar

import sqlalchemy as sa
from sqlalchemy.exc import DBAPIError, SQLAlchemyError
from sqlalchemy.pool import NullPool

from celery_qbeat.errors import Doubt, QbeatError, SchemaError, SettingsError, Unavailable

T = TypeVar("T")
Work = Callable[[sa.Connection], T]

DEADLOCKS = 5
"""How often a transaction that lost a deadlock is tried again; each time somebody else's went through."""


class Trouble(Enum):
    """What a driver's error means for the statement that met it."""

    LOST = "the connection is gone"
    BUSY = "not now: locked, full, shutting down, read-only"
    DEADLOCK = "rolled back for another transaction's sake"
    SCHEMA = "a table is missing, or the right to use it"
    DATA = "the statement cannot work with these values"


class BadData(QbeatError):
    """The database refused a value."""


class _Lost(Exception):
    pass


class _Deadlock(Exception):
    pass


class Link:
    """The connection. It belongs to one thread at a time; every method raises `Unavailable` when nothing was done."""

    def __init__(
        self,
        url: sa.URL,
        judge: Callable[[BaseException], Trouble],
        session: Sequence[str],
        begin: str,
        connect_args: dict[str, object],
        absent: Callable[[], str] = str,
    ) -> None:
        """Connects to nothing. Raises SettingsError when the driver is not installed.

        `absent`: why there is nothing to connect to, empty when there is; a connection shall not create it.
        """
        try:
            self.engine = sa.create_engine(
                url, poolclass=NullPool, isolation_level="AUTOCOMMIT", connect_args=connect_args
            )
        except ImportError as error:
            raise SettingsError(_no_driver(url, error)) from error
        except (SQLAlchemyError, ValueError) as error:
            raise SettingsError(f"qbeat_database_url: {error}") from error
        self._judge = judge
        self._session = session
        self._begin = begin
        self._absent = absent
        self._connection: sa.Connection | None = None
        self.may_create = False

    def read(self, work: Work[T]) -> T:
        """`work` in autocommit; it is repeated once if the connection is lost, so it must change nothing."""
        try:
            return self._run(work)
        except _Lost:
            return self._last(lambda: self._run(work))

    def write(self, work: Work[T]) -> T:
        """`work` in a transaction. It may run again, so it must only look at its arguments. Raises Doubt."""
        lost = deadlocks = 0
        while True:
            try:
                return self._transaction(work)
            except _Lost as error:
                lost += 1
                if lost > 1:
                    raise Unavailable(str(error)) from error
            except _Deadlock as error:
                deadlocks += 1
                if deadlocks > DEADLOCKS:
                    raise Unavailable(str(error)) from error

    def statement(self, work: Work[T], *, before: str, after: str) -> T:
        """`work` is one statement that commits itself, between two settings of the session. Raises Doubt."""
        deadlocks = 0
        while True:
            # A connection that died while idle is found here, where it leaves no doubt.
            self.read(lambda connection: connection.exec_driver_sql(before).close())
            try:
                result = self._run(work)
                break
            except _Lost as error:
                raise Doubt(str(error)) from error
            except _Deadlock as error:
                deadlocks += 1
                if deadlocks > DEADLOCKS:
                    raise Unavailable(str(error)) from error
            finally:
                self._set(after)
        return result

    def _set(self, setting: str) -> None:
        if self._connection is not None:
            try:
                self._connection.exec_driver_sql(setting).close()
            except SQLAlchemyError:
                # The next connection begins with the usual settings.
                self.close()

    def close(self) -> None:
        """Give the connection back. Never raises."""
        connection, self._connection = self._connection, None
        if connection is not None:
            # A connection that cannot be closed is closed.
            with suppress(SQLAlchemyError, OSError):
                connection.invalidate()
            with suppress(SQLAlchemyError, OSError):
                connection.close()

    def _connect(self) -> sa.Connection:
        if self._connection is None:
            absent = "" if self.may_create else self._absent()
            if absent:
                raise Unavailable(absent)
            try:
                connection = self.engine.connect()
            except (SQLAlchemyError, OSError) as error:
                raise Unavailable(told(error)) from error
            except (TypeError, ValueError) as error:
                # What the driver says of an option in the URL that it does not know or cannot read.
                raise SettingsError(f"qbeat_database_url: {told(error)}") from error
            self._connection = connection
            try:
                for statement in self._session:
                    connection.exec_driver_sql(statement)
            except BaseException as error:
                raise self._verdict(error, connection) from error
        return self._connection

    def _run(self, work: Work[T]) -> T:
        connection = self._connect()
        try:
            return work(connection)
        except BaseException as error:
            raise self._verdict(error, connection) from error

    def _last(self, again: Callable[[], T]) -> T:
        try:
            return again()
        except _Lost as error:
            raise Unavailable(str(error)) from error

    def _transaction(self, work: Work[T]) -> T:
        connection = self._connect()
        try:
            connection.exec_driver_sql(self._begin)
            result = work(connection)
        except BaseException as error:
            raise self._verdict(error, connection, rollback=True) from error
        try:
            connection.exec_driver_sql("COMMIT")
        except BaseException as error:
            verdict = self._verdict(error, connection, rollback=True)
            raise (Doubt(str(verdict)) if isinstance(verdict, _Lost) else verdict) from error
        return result

    def _verdict(self, error: BaseException, connection: sa.Connection, *, rollback: bool = False) -> BaseException:
        """What to raise for `error`; the connection is cleaned up or dropped."""
        trouble = None
        if isinstance(error, QbeatError):
            raised: BaseException = error
        elif isinstance(error, DBAPIError | UnicodeError | OverflowError | OSError):
            trouble = self._judge(error.orig if isinstance(error, DBAPIError) and error.orig else error)
            raised = _KINDS[trouble](told(error))
        else:
            # An interrupt or a bug: nobody knows what the connection is in the middle of.
            raised, trouble = error, Trouble.LOST
        if trouble is Trouble.LOST:
            self.close()
        elif rollback:
            self._roll_back(connection)
        return raised

    def _roll_back(self, connection: sa.Connection) -> None:
        try:
            connection.exec_driver_sql("ROLLBACK")
        except SQLAlchemyError:
            # The server rolls back what a vanished connection began.
            self.close()


_KINDS: dict[Trouble, type[Exception]] = {
    Trouble.LOST: _Lost,
    Trouble.DEADLOCK: _Deadlock,
    Trouble.BUSY: Unavailable,
    Trouble.SCHEMA: SchemaError,
    Trouble.DATA: BadData,
}


def told(error: BaseException) -> str:
    """The database's own words, on one line."""
    cause = error.orig if isinstance(error, DBAPIError) and error.orig is not None else error
    words = cause.args[1] if len(cause.args) > 1 and isinstance(cause.args[0], int) else cause
    return str(words).strip().split("\n")[0] or type(cause).__name__


def _no_driver(url: sa.URL, error: ImportError) -> str:
    extra = {"postgresql": "postgresql", "mysql": "mysql", "mariadb": "mysql"}.get(url.get_backend_name())
    advice = f"pip install celery_qbeat[{extra}]" if extra else "install its driver"
    return f"qbeat_database_url: {url.drivername} needs a driver that is not installed ({error}): {advice}"
