"""One connection to a database, made when it is needed and again when it was lost; and the one place where the
errors of drivers become ours.

A transaction that breaks before its COMMIT was surely not done: it is tried again once on a new connection, so that a
server's idle timeout or restart is not seen by anybody. What breaks in its COMMIT is `Doubt`.

The policy for errors: one that is known to pass keeps the connection; one that is unknown, that repeats itself, or
that says that this session cannot write, drops it.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any, Protocol, TypeVar

import sqlalchemy as sa
from sqlalchemy.exc import DBAPIError, SQLAlchemyError
from sqlalchemy.pool import NullPool

from celery_qbeat.errors import Doubt, QbeatError, SettingsError, Unavailable
from celery_qbeat.stores import driver_options
from celery_qbeat.stores.driver_errors import DROPS, MAY_STICK, OF_DRIVERS, RAISED, Deadlock, Lost, Trouble, told
from celery_qbeat.stores.watchdog import ANSWER_S, NoAnswer, Watchdog, has_news

T = TypeVar("T")
Work = Callable[[sa.Connection], T]

DEADLOCKS = 5
"""How often a transaction that lost a deadlock is tried again; each time somebody else's went through."""

FRESH_S = 5.0
"""Seconds after its last answer for which a connection is taken to be alive, unless something arrived on it."""


class Rules(Protocol):
    """What a kind of database tells the link about itself; see `Database`."""

    session: Sequence[str]
    remote: bool

    def begin(self, wait_s: float | None) -> str: ...
    def engine_options(self, url: sa.URL) -> Mapping[str, Any]: ...
    def connect_args(self, url: sa.URL) -> Mapping[str, object]: ...
    def tries_to_begin(self, url: sa.URL) -> int: ...
    def absent(self, url: sa.URL) -> str: ...
    def judge(self, error: BaseException) -> Trouble: ...
    def try_to_write(self, connection: sa.Connection) -> None: ...
    def read_only(self, url: sa.URL) -> str: ...


def _nothing() -> None:
    return None


class Link:
    """The connection. It belongs to one thread at a time; every method raises `Unavailable` when nothing was done."""

    def __init__(self, url: sa.URL, rules: Rules) -> None:
        """Connects to nothing. Raises SettingsError when the driver is not installed, or for a bad option."""
        self._options = driver_options.read(url)
        try:
            self.engine = sa.create_engine(
                url, poolclass=NullPool, isolation_level="AUTOCOMMIT", **rules.engine_options(url)
            )
        except ImportError as error:
            raise SettingsError(driver_options.missing_driver(url, error)) from error
        except (SQLAlchemyError, ValueError) as error:
            raise SettingsError(f"qbeat_database_url: {error}") from error
        self._rules = rules
        self._connection: sa.Connection | None = None
        self._watchdog = Watchdog(always=rules.remote)
        self._answered = 0.0
        self._last_trouble: Trouble | None = None
        self._read_only = False
        self._patient = False
        self.may_create = False
        self.between_round_trips: Callable[[], None] = _nothing
        sa.event.listen(self.engine, "do_connect", self._connect_driver)
        sa.event.listen(self.engine, "before_cursor_execute", self._next_statement)

    def limit_waits(self, seconds: float) -> None:
        """See `Store.limit_waits`."""
        self._watchdog.limit_waits(seconds)

    def read(self, work: Work[T]) -> T:
        """`work` in autocommit; it is repeated once if the connection is lost, so it must change nothing."""
        self._watchdog.call_begins()
        return self._read(work)

    def write(self, work: Work[T], *, wait_s: float | None = None) -> T:
        """`work` in a transaction. It may run again, so it must only look at its arguments. Raises Doubt.

        `wait_s`: how long each of its statements may take; ANSWER_S unless it is given, and never less.
        """
        return self._write(work, wait_s or ANSWER_S)

    def migrate(self, work: Work[T]) -> T:
        """`write` for work of any length, on a connection of its own without time limits."""
        self.close()
        self._patient = True
        try:
            return self._write(work, None)
        finally:
            self._patient = False
            self.close()

    def message(self, send: Work[T]) -> T:
        """`send` is one message to the server, which commits itself. Raises Doubt."""
        self._watchdog.call_begins()
        deadlocks = 0
        while True:
            self._freshen()
            try:
                return self._run(send)
            except Lost as error:
                raise Doubt(str(error)) from error
            except Deadlock as error:
                deadlocks += 1
                if deadlocks > DEADLOCKS:
                    raise Unavailable(str(error)) from error

    def close(self) -> None:
        """Give the connection back. Never raises."""
        connection, self._connection = self._connection, None
        if connection is not None:
            self._watchdog.watch(None)
            # A connection that cannot be closed is closed.
            with suppress(SQLAlchemyError, OSError):
                connection.invalidate()
            with suppress(SQLAlchemyError, OSError):
                connection.close()

    # ------------------------------------------------------------ connecting

    def _connect(self) -> sa.Connection:
        if self._connection is None:
            absent = "" if self.may_create else self._rules.absent(self.engine.url)
            if absent:
                raise Unavailable(absent)
            connection = self._connection = self._opened()
            self._watchdog.watch(connection.connection.driver_connection)
            self._watchdog.statements_begin(ANSWER_S)
            try:
                for statement in self._rules.session:
                    connection.exec_driver_sql(statement)
                if self._read_only:
                    self._check_writes(connection)
            except BaseException as error:
                raise self._verdict(error, connection) from error
            finally:
                self._watchdog.statements_end()
        return self._connection

    def _check_writes(self, connection: sa.Connection) -> None:
        try:
            self._rules.try_to_write(connection)
        except DBAPIError as error:
            # Another refusal, such as of a table that is not there, is for the call that meets it.
            if self._judged(error) in DROPS:
                raise
        self._read_only = False

    def _opened(self) -> sa.Connection:
        if self._watchdog.gave_up:
            raise Unavailable("the database did not answer, and this process is ending")
        try:
            if self._rules.remote:
                return self._watchdog.bounded(self.engine.connect, _discard)
            return self.engine.connect()
        except NoAnswer as error:
            raise Unavailable("no answer to a new connection in time") from error
        except (SQLAlchemyError, OSError, TypeError, ValueError) as error:
            # Of a driver, the last two are about an option that it does not know or cannot read.
            refused = driver_options.refusal(self.engine.url, error)
            raise (SettingsError(refused) if refused else Unavailable(told(error))) from error

    def _connect_driver(
        self, dialect: sa.Dialect, _record: object, arguments: Sequence[Any], options: dict[str, Any]
    ) -> Any:
        """Give the driver its options: those of the URL as it wants them, and ours where the URL is silent."""
        options.update(self._options)
        for name, value in self._rules.connect_args(self.engine.url).items():
            options.setdefault(name, value)
        if self._patient:
            driver_options.wait_for_ever(self.engine.url, options)
        made = dialect.connect(*arguments, **options)
        self._watchdog.half_connected()
        return made

    def _freshen(self) -> None:
        """Find a connection that died while idle here, where that leaves no doubt."""
        connection = self._connection
        if connection is not None and not self._rules.remote:
            return
        fresh = connection is not None and time.monotonic() - self._answered < FRESH_S
        if connection is None or not fresh or has_news(connection.connection.driver_connection):
            self._read(lambda connection: connection.exec_driver_sql("SELECT 1").close())

    # ------------------------------------------------------------ running

    def _next_statement(self, connection: sa.Connection, *_: object) -> None:
        if self._rules.remote:
            self.between_round_trips()
        if connection is self._connection:
            self._watchdog.next_statement()

    def _run(self, work: Work[T]) -> T:
        connection = self._connect()
        self._watchdog.statements_begin(ANSWER_S)
        try:
            result = work(connection)
        except BaseException as error:
            raise self._verdict(error, connection) from error
        finally:
            self._watchdog.statements_end()
        self._succeeded()
        return result

    def _write(self, work: Work[T], wait_s: float | None) -> T:
        self._watchdog.call_begins()
        lost = deadlocks = 0
        while True:
            try:
                return self._transaction(work, wait_s)
            except Lost as error:
                self._no_second_try(error)
                lost += 1
                if lost > 1:
                    raise Unavailable(str(error)) from error
            except Deadlock as error:
                deadlocks += 1
                if deadlocks > DEADLOCKS:
                    raise Unavailable(str(error)) from error

    def _transaction(self, work: Work[T], wait_s: float | None) -> T:
        connection = self._connect()
        self._watchdog.statements_begin(wait_s)
        try:
            try:
                self._begin(connection, wait_s)
                result = work(connection)
            except BaseException as error:
                raise self._verdict(error, connection, rollback=True) from error
            try:
                connection.exec_driver_sql("COMMIT")
            except BaseException as error:
                verdict = self._verdict(error, connection, rollback=True)
                raise (Doubt(str(verdict)) if isinstance(verdict, Lost) else verdict) from error
        finally:
            self._watchdog.statements_end()
        self._succeeded()
        return result

    def _begin(self, connection: sa.Connection, wait_s: float | None) -> None:
        tries = self._rules.tries_to_begin(self.engine.url)
        for left in reversed(range(tries)):
            try:
                connection.exec_driver_sql(self._rules.begin(wait_s))
                return
            except DBAPIError as error:
                # Between two tries Python handles signals.
                if left == 0 or self._watchdog.is_ending or self._judged(error) is not Trouble.BUSY:
                    raise

    def _read(self, work: Work[T]) -> T:
        try:
            return self._run(work)
        except Lost as error:
            self._no_second_try(error)
        try:
            return self._run(work)
        except Lost as error:
            raise Unavailable(str(error)) from error

    def _no_second_try(self, error: Lost) -> None:
        """A call that has waited for an answer to the end does not wait for another one."""
        if self._watchdog.cut:
            raise Unavailable(str(error)) from error

    def _succeeded(self) -> None:
        self._answered = time.monotonic()
        self._last_trouble = None

    # ------------------------------------------------------------ errors

    def _verdict(self, error: BaseException, connection: sa.Connection, *, rollback: bool = False) -> BaseException:
        """What to raise for `error`; the connection is cleaned up or dropped."""
        trouble = None
        if isinstance(error, QbeatError):
            raised: BaseException = error
            self._succeeded()
        elif isinstance(error, DBAPIError | self.engine.dialect.loaded_dbapi.Error | OF_DRIVERS):
            trouble = self._judged(error)
            raised = RAISED[trouble](self._words(trouble, error))
        else:
            # An interrupt or a bug: nobody knows what the connection is in the middle of.
            raised, trouble = error, Trouble.LOST
        repeated = trouble in MAY_STICK and trouble is self._last_trouble
        if trouble in DROPS or repeated:
            self.close()
        elif rollback:
            self._roll_back(connection)
        self._last_trouble = trouble
        self._read_only = self._read_only or trouble is Trouble.READ_ONLY
        return raised

    def _judged(self, error: BaseException) -> Trouble:
        if self._watchdog.cut and self._rules.remote:
            return Trouble.LOST
        return self._rules.judge(error.orig if isinstance(error, DBAPIError) and error.orig else error)

    def _words(self, trouble: Trouble, error: BaseException) -> str:
        if self._watchdog.cut:
            return "no answer in time: the connection was given up"
        if trouble is Trouble.READ_ONLY:
            return f"{self._rules.read_only(self.engine.url)}: {told(error)}"
        return told(error)

    def _roll_back(self, connection: sa.Connection) -> None:
        try:
            connection.exec_driver_sql("ROLLBACK")
        except SQLAlchemyError:
            # The server rolls back what a vanished connection began.
            self.close()


def _discard(connection: sa.Connection) -> None:
    """Close a connection that came too late."""
    with suppress(SQLAlchemyError, OSError):
        connection.invalidate()
    with suppress(SQLAlchemyError, OSError):
        connection.close()
