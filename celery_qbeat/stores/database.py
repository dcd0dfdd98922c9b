"""What each kind of database does in its own way; the rest of the store is the same for all."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote_plus

import sqlalchemy as sa

from celery_qbeat.core.safe_text import HIDDEN, is_secret
from celery_qbeat.errors import Unavailable
from celery_qbeat.stores import claiming, fencing, ledger, tables
from celery_qbeat.stores.claiming import Batch
from celery_qbeat.stores.connection import Link
from celery_qbeat.stores.driver_errors import Trouble
from celery_qbeat.stores.ledger import SentMark

RELOAD_ABOVE = 50_000
"""When more rows than this changed between two polls, all are read again, in parts."""

LOG_KEPT_US = 3_600_000_000
"""The change log keeps an hour, for readers that were away."""


@dataclass(frozen=True, slots=True)
class Entry:
    """A line of the change log; the op is a hint, see `triggers.py`."""

    op: str
    job_id: str | None


@dataclass(frozen=True, slots=True)
class Poll:
    """What the log says since `cursor`; `cursor` is to be kept when the entries have been dealt with.

    `reload`: nobody can tell what changed. `instance`: of the tables, as it is now.
    """

    cursor: Any
    instance: str = ""
    entries: Sequence[Entry] = ()
    reload: bool = False


@dataclass(frozen=True, slots=True)
class Audit:
    """The table of jobs counted, and whether the log has lines that the cursor has not seen, all at one instant."""

    count: int
    revs: int
    unread: bool


class Database(ABC):
    """One subclass for each kind, found by the name of SQLAlchemy's dialect."""

    session: Sequence[str] = ()
    """Statements for each new connection. Only for databases whose connections nobody else gets."""

    remote: bool = True
    """Whether a network is between us: then the server may never answer."""

    def begin(self, _wait_s: float | None) -> str:
        """Begin a transaction, each of whose statements may take this long; in one message. None: a migration."""
        return "BEGIN"

    def tries_to_begin(self, _url: sa.URL) -> int:
        """How often a transaction is tried that could not begin because of somebody else's."""
        return 1

    def url(self, url: sa.URL) -> sa.URL:
        """The URL with a driver of ours where it names none."""
        return url

    def homeless(self, _url: sa.URL) -> str:
        """Why no tables can be made there; empty when they can."""
        return ""

    def absent(self, _url: sa.URL) -> str:
        """Why there is nothing to connect to; empty when there may be."""
        return ""

    def engine_options(self, _url: sa.URL) -> dict[str, Any]:
        """Arguments of SQLAlchemy's `create_engine`."""
        return {}

    def connect_args(self, _url: sa.URL) -> dict[str, object]:
        """Driver options, such as timeouts, for those that the URL does not set."""
        return {}

    @abstractmethod
    def try_to_write(self, connection: sa.Connection) -> None:
        """Change nothing, in a way that a session without the right to write is refused with its usual error."""

    def read_only(self, url: sa.URL) -> str:
        """The beginning of the sentence about such a session."""
        return f"the database {shown(url)} is read-only (a standby?)"

    @abstractmethod
    def judge(self, error: BaseException) -> Trouble:
        """What this driver's error means."""

    @abstractmethod
    def put(
        self,
        connection: sa.Connection,
        table: sa.Table,
        columns: Sequence[str],
        rows: Sequence[tuple[Any, ...]],
        update: Sequence[str] | None,
    ) -> None:
        """See `claiming.Put`."""

    def claim(self, link: Link, batch: Batch) -> frozenset[str]:
        """See `Store.claim`; each job at most once."""
        return link.write(lambda connection: claiming.claim(connection, self.put, batch))

    def mark_sent(self, link: Link, mark: SentMark) -> None:
        """See `Store.sent`."""
        link.write(lambda connection: ledger.mark_sent(connection, mark))

    def record_heartbeat(self, link: Link, epoch: int, now_us: int) -> None:
        """See `Store.beat`."""
        link.message(lambda connection: fencing.record_heartbeat(connection, epoch, now_us))

    @abstractmethod
    def cursor(self, connection: sa.Connection) -> Any:
        """The end of the change log. What commits after this call is found by `poll`."""

    @abstractmethod
    def poll(self, connection: sa.Connection, cursor: Any) -> Poll:
        """What committed since `cursor`: nothing twice, nothing missed, in whatever order transactions commit."""

    @abstractmethod
    def audit(self, connection: sa.Connection, cursor: Any) -> Audit:
        """Count the jobs, in one statement with the look at the log."""

    @abstractmethod
    def prune_log(self, connection: sa.Connection, cursor: Any, before_us: int, limit: int) -> int:
        """Delete up to `limit` log lines, older and settled, and raise `log_floor`; how many. In a transaction."""

    def clock_us(self, _connection: sa.Connection) -> int | None:
        """The server's clock in microseconds since the epoch; None: it is this machine's."""
        return None

    def prepare(self, _url: sa.URL) -> None:
        """Make the place of the tables, where no server does."""
        return

    def unusable(self, _url: sa.URL, _error: Unavailable) -> str:
        """Why waiting does not help after this error of `open`; empty when it may."""
        return ""

    def trouble_ahead(self, _connection: sa.Connection) -> str:
        """A reason why this server cannot be used, found at open; empty: none."""
        return ""

    def whole_tables(self, _connection: sa.Connection) -> AbstractContextManager[None]:
        """Around a query that joins tables as a whole."""
        return nullcontext()


def shown(url: sa.URL) -> str:
    """A URL for people: without its password, and without what follows a secret option, which may be a part of it."""
    query: dict[str, Any] = {}
    for name, value in url.query.items():
        query[name] = HIDDEN if is_secret(name) else value
        if is_secret(name):
            break
    hidden = url.set(query=query).render_as_string(hide_password=True)
    return hidden.replace(quote_plus(HIDDEN), HIDDEN)


def raise_floor(connection: sa.Connection, floor: int) -> None:
    """Readers whose cursor is below this must load everything again."""
    meta = tables.meta
    connection.execute(sa.update(meta).where(meta.c.id == 1, meta.c.log_floor < floor).values(log_floor=floor))


def audit_query(unread: sa.ColumnElement[bool] | sa.ColumnElement[int]) -> sa.Select[Any]:
    """Count and sum of rev beside `unread`, from one snapshot."""
    jobs = tables.jobs.c
    counts = sa.select(sa.func.count().label("n"), sa.func.coalesce(sa.func.sum(jobs.rev), 0).label("revs"))
    found = counts.select_from(tables.jobs).subquery()
    return sa.select(found.c.n, found.c.revs, unread)


def prune_numbered(connection: sa.Connection, settled: int, before_us: int, limit: int) -> int:
    """`prune_log` where the floor is a number of the log. Looks at the oldest `limit` lines only."""
    log = tables.changes.c
    oldest = (
        sa.select(log.version, log.at_us).where(log.version <= settled).order_by(log.version).limit(limit).subquery()
    )
    last = connection.execute(sa.select(sa.func.max(oldest.c.version)).where(oldest.c.at_us < before_us)).scalar_one()
    if last is None:
        return 0
    gone = connection.execute(sa.delete(tables.changes).where(log.version <= last)).rowcount
    raise_floor(connection, last)
    return gone
