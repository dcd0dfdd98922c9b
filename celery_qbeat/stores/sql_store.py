"""The store on a SQL database: what is the same for all of them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, TypeVar

import sqlalchemy as sa

from celery_qbeat.core.jobs import State, Verdict, WorkerScope
from celery_qbeat.core.liveness import LEAST_SILENCE_US
from celery_qbeat.errors import SchemaError, Unavailable
from celery_qbeat.ports import (
    Changes,
    Claim,
    ClaimRelease,
    Loaded,
    Plan,
    Request,
    Row,
    RunOutcome,
    Steps,
    UnfinishedRun,
)
from celery_qbeat.process.safe_logging import get_logger
from celery_qbeat.stores import fencing, ledger, pruning, reading, schema, tables
from celery_qbeat.stores.bounded import REQUESTS, job_columns
from celery_qbeat.stores.claiming import Batch, chunks, column_in, storable_text
from celery_qbeat.stores.connection import Link
from celery_qbeat.stores.database import LOG_KEPT_US, RELOAD_ABOVE, Database, shown
from celery_qbeat.stores.driver_errors import BadData
from celery_qbeat.stores.reading import key
from celery_qbeat.stores.watchdog import PRUNE_S

log = get_logger("celery_qbeat.store")

T = TypeVar("T")

ROW_COLUMNS = tuple(column.name for column in tables.jobs.columns if column.name != "description")
CHANGES_A_CALL = 1_000
"""The most changed rows that one call of `changes` reads: the leader lock is renewed between two calls."""

_PLAN_COLUMNS = ("job_id", "first_seen_us", "next_run_us", "plan_key", "problem", "late_after_us")
_PLANNED = _PLAN_COLUMNS[2:]


class SqlStore:
    """See `ports.Store`. Nothing is connected before `open`."""

    def __init__(self, url: sa.URL, database: Database, *, create_tables: bool = False) -> None:
        """`create_tables`: `open` makes the tables, or brings them up to date."""
        self._url = database.url(url)
        self._database = database
        self._create_tables = create_tables
        self._instance = ""
        self._cursor: Any = None
        self._known: dict[str, int] = {}
        self._touched: list[Any] = []
        """Ids of changed rows that no call of `changes` has brought yet."""
        self._scopes: Mapping[str, WorkerScope] = {}
        self._link = Link(self._url, database)
        self._row_columns = job_columns(ROW_COLUMNS)

    @property
    def link(self) -> Link:
        """The connection, for the command line and the migrations."""
        return self._link

    def open(self) -> None:
        try:
            self._open()
        except Unavailable as error:
            # What is away comes back; what is forbidden does not.
            if reason := self._database.unusable(self._url, error):
                raise SchemaError(reason) from error
            raise

    def _open(self) -> None:
        absent = self._database.absent(self._url)
        if absent and not self._create_tables:
            homeless = self._database.homeless(self._url)
            raise SchemaError(homeless or f"{absent}: run {schema.MIGRATE['alembic']}")
        if self._create_tables and (absent or not self._link.read(schema.is_current)):
            self.migrate()
        trouble = self._link.read(self._database.trouble_ahead)
        self._instance = schema.check(self._link, trouble=trouble).instance

    def migrate(self) -> None:
        """Make the tables, or bring them up to date. Raises SchemaError; see `schema.migrate`."""
        if reason := self._database.homeless(self._url):
            raise SchemaError(reason)
        self._database.prepare(self._url)
        self._link.may_create = True
        try:
            schema.migrate(self._link)
        finally:
            self._link.may_create = False

    def close(self) -> None:
        self._link.close()

    def between_round_trips(self, call: Callable[[], None]) -> None:
        self._link.between_round_trips = call

    def limit_waits(self, seconds: float) -> None:
        self._link.limit_waits(seconds)

    def describe(self) -> str:
        return shown(self._url)

    @property
    def instance(self) -> str:
        return self._instance

    # ------------------------------------------------------------ the writer

    def clock_us(self) -> int | None:
        return self._link.read(self._database.clock_us)

    def take_epoch(
        self, holder: str, now_us: int, known: int = 0, above: int = 0, silence_us: int = LEAST_SILENCE_US
    ) -> int:
        values = {
            "holder": storable_text(holder)[:255],
            "taken_us": now_us,
            "seen_us": now_us,
            "silence_us": silence_us,
        }
        return self._link.write(partial(fencing.take_epoch, values=values, known=known, above=above))

    def record_heartbeat(self, epoch: int, now_us: int) -> None:
        self._database.record_heartbeat(self._link, epoch, now_us)

    # ------------------------------------------------------------ rows

    def workers(self) -> Mapping[str, WorkerScope]:
        return self._link.read(reading.workers)

    def load(self) -> Iterator[Loaded]:
        # Without a cursor until the end: a load that was given up must be begun again.
        self._cursor, self._known, self._touched = None, {}, []
        cursor = self._link.read(self._database.cursor)
        # After the cursor, so that the feed brings every scope that changes from here on.
        self._scopes = self.workers()
        yield Loaded(workers=self._scopes)
        last: Any = None
        while rows := self._link.read(partial(self._part, after=last)):
            yield Loaded(rows=rows)
            if rows[-1][0]["id"] == last:
                break
            last = rows[-1][0]["id"]
        after: str | None = None
        while orphans := self._link.read(partial(self._orphans, after=after)):
            yield Loaded(orphans=orphans)
            after = orphans[-1].job_id
        self._cursor = cursor

    def read_changes(self) -> Changes:
        if self._cursor is None:
            return Changes(reload=True)
        cursor = self._cursor
        poll = self._link.read(lambda connection: self._database.poll(connection, cursor))
        restored = poll.instance not in ("", self._instance)
        self._instance = poll.instance or self._instance
        touched, scopes, everything = reading.sift(poll.entries)
        self._touched = list(dict.fromkeys([*self._touched, *touched]))
        if poll.reload or restored or everything or len(self._touched) > RELOAD_ABOVE:
            return self._reload()
        if scopes:
            found = self._link.read(partial(reading.jobs_of, scopes=scopes))
            self._touched = list(dict.fromkeys([*self._touched, *found]))
            if len(self._touched) > RELOAD_ABOVE:
                return self._reload()
        now, later = self._touched[:CHANGES_A_CALL], self._touched[CHANGES_A_CALL:]
        rows = self._rows(now)
        workers = self.workers() if scopes else None
        self._scopes = self._scopes if workers is None else workers
        self._cursor, self._touched = poll.cursor, later
        asked = any(entry.op == "R" for entry in poll.entries)
        return Changes(rows=rows, workers=workers, asked=asked, more=bool(later))

    def read_states(self, job_ids: Sequence[str]) -> Mapping[str, State]:
        return self._link.read(lambda connection: reading.states(connection, job_ids))

    def has_drifted(self) -> bool:
        if self._cursor is None or self._touched:
            return False
        scopes = self.workers()
        cursor = self._cursor
        audit = self._link.read(lambda connection: self._database.audit(connection, cursor))
        if audit.unread:
            return False
        counted = (audit.count, audit.revs) == (len(self._known), sum(self._known.values()))
        return not counted or scopes != self._scopes

    def _reload(self) -> Changes:
        # A new connection, too: the old one may lead to a file that was replaced.
        self._cursor, self._touched = None, []
        self._link.close()
        return Changes(reload=True)

    def _part(self, connection: sa.Connection, after: Any) -> list[tuple[Row, State | None]]:
        jobs = tables.jobs.c
        query = sa.select(*self._row_columns).order_by(jobs.id).limit(reading.ROWS_A_PART)
        return self._joined(
            connection, query if after is None else query.where(jobs.id > sa.literal(after, jobs.id.type))
        )

    def _orphans(self, connection: sa.Connection, after: str | None) -> list[State]:
        with self._database.whole_tables(connection):
            return reading.orphans(connection, after)

    def _rows(self, job_ids: Sequence[Any]) -> dict[str, tuple[Row, State | None] | None]:
        found: dict[str, tuple[Row, State | None] | None] = dict.fromkeys(map(key, job_ids))
        for job_id in found:
            self._known.pop(job_id, None)
        for part in chunks(job_ids):
            pairs = self._link.read(partial(self._named, job_ids=part))
            found.update((key(row["id"]), (row, state)) for row, state in pairs)
        return found

    def _named(self, connection: sa.Connection, job_ids: Sequence[Any]) -> list[tuple[Row, State | None]]:
        return self._joined(
            connection, sa.select(*self._row_columns).where(column_in(connection, tables.jobs.c.id, job_ids))
        )

    def _joined(self, connection: sa.Connection, query: sa.Select[Any]) -> list[tuple[Row, State | None]]:
        rows = [dict(zip(ROW_COLUMNS, row, strict=True)) for row in connection.execute(query)]
        states = reading.states(connection, [row["id"] for row in rows])
        self._known.update((key(row["id"]), row["rev"]) for row in rows)
        return [(row, states.get(row["id"])) for row in rows]

    # ------------------------------------------------------------ plans

    def write_plans(self, epoch: int, plans: Sequence[Plan], now_us: int) -> None:
        self._each(plans, lambda part: self._link.write(lambda connection: self._plan(connection, epoch, part, now_us)))

    def _plan(self, connection: sa.Connection, epoch: int, plans: Sequence[Plan], now_us: int) -> None:
        fencing.fence(connection, epoch)
        rows = sorted(
            (
                plan.job_id,
                plan.first_seen_us,
                plan.next_run_us,
                plan.plan_key,
                storable_text(plan.problem),
                plan.late_after_us,
            )
            for plan in {plan.job_id: plan for plan in plans}.values()
        )
        self._database.put(connection, tables.state, _PLAN_COLUMNS, rows, _PLANNED)
        self._remember(connection, [(plan.job_id, now_us, plan.spec) for plan in plans if plan.record])

    def delete_states(self, epoch: int, job_ids: Sequence[str], now_us: int) -> None:
        def forget(connection: sa.Connection) -> None:
            fencing.fence(connection, epoch)
            state = tables.state
            for part in chunks(job_ids):
                there = (
                    sa.select(state.c.job_id)
                    .where(column_in(connection, state.c.job_id, part))
                    .order_by(state.c.job_id)
                )
                gone = connection.execute(there.with_for_update()).scalars().all()
                connection.execute(sa.delete(state).where(column_in(connection, state.c.job_id, gone)))
                self._remember(connection, [(job_id, now_us, None) for job_id in gone])

        self._link.write(forget)

    def _remember(self, connection: sa.Connection, rows: Sequence[tuple[Any, ...]]) -> None:
        self._database.put(connection, tables.history, ("job_id", "since_us", "spec"), rows, None)

    # ------------------------------------------------------------ the ledger

    def claim(self, epoch: int, batch_id: int, claims: Sequence[Claim], now_us: int) -> frozenset[str]:
        def claim(part: Sequence[Claim]) -> frozenset[str]:
            return self._database.claim(self._link, Batch(epoch, batch_id, part, now_us))

        lost: set[str] = set()
        for round_ in _rounds(claims):
            for part, answer in self._each(round_, claim):
                lost |= _everything(part) if answer is None else answer
        return frozenset(lost)

    def mark_sent(self, epoch: int, batch_id: int, task_ids: Sequence[str], now_us: int, *, closes: bool) -> None:
        self._database.mark_sent(self._link, ledger.SentMark(epoch, batch_id, task_ids, now_us, closes))

    def release_claims(self, epoch: int, batch_id: int, releases: Sequence[ClaimRelease]) -> None:
        self._link.write(lambda connection: ledger.release_claims(connection, epoch, batch_id, releases))

    def shorten_leases(self, epoch: int, leases: Mapping[str, int]) -> None:
        self._link.write(lambda connection: ledger.shorten_leases(connection, epoch, leases))

    def record_outcomes(self, epoch: int, ends: Sequence[RunOutcome], now_us: int) -> Mapping[str, str]:
        def conclude(part: Sequence[RunOutcome]) -> Mapping[str, str]:
            put = self._database.put
            return self._link.write(lambda connection: ledger.record_outcomes(connection, put, epoch, part, now_us))

        return {task_id: job_id for _, part in self._each(ends, conclude) for task_id, job_id in (part or {}).items()}

    def unfinished_runs(self) -> Iterator[Sequence[UnfinishedRun]]:
        after, number = None, -1
        while found := self._link.read(partial(ledger.unfinished_runs, after=after, after_id=number)):
            yield [flight for _, flight in found]
            number, after = found[-1]

    def close_batches(self, epoch: int, now_us: int) -> None:
        self._link.write(lambda connection: ledger.close_batches(connection, epoch, now_us))

    def pending_requests(self, after_id: int = 0) -> Sequence[Request]:
        after = {"after": after_id}
        return self._link.read(lambda connection: [Request(*row) for row in connection.execute(REQUESTS, after).all()])

    def delete_requests(self, epoch: int, request_ids: Sequence[int]) -> None:
        def answer(connection: sa.Connection) -> None:
            fencing.fence(connection, epoch)
            for part in chunks(request_ids):
                connection.execute(sa.delete(tables.requests).where(column_in(connection, tables.requests.c.id, part)))

        self._link.write(answer)

    def prune(self, before_us: Mapping[Verdict, int], now_us: int) -> Steps:
        oldest = min(before_us.values(), default=now_us)
        yield from pruning.ledger(self._link, before_us)
        yield from pruning.batches(self._link, oldest)
        yield from pruning.history(self._link, oldest)
        most = pruning.ROWS_A_STEP
        while (cursor := self._cursor) is not None:
            before = now_us - LOG_KEPT_US
            step = partial(self._database.prune_log, cursor=cursor, before_us=before, limit=most)
            gone = self._link.write(step, wait_s=PRUNE_S)
            full = gone >= most
            most = (yield gone) or most
            if not full:
                return

    def _each(self, items: Sequence[Any], work: Callable[[Any], T]) -> list[tuple[Any, T | None]]:
        """`work(items)` and its answer; halved again and again where the database refuses a value of some item."""
        if not items:
            return []
        try:
            return [(items, work(items))]
        except BadData as error:
            if len(items) == 1:
                log.error("%s: the database refuses it, it is left out: %s", _name(items[0]), error)
                return [(items, None)]
            middle = len(items) // 2
            return [*self._each(items[:middle], work), *self._each(items[middle:], work)]


def _rounds(claims: Sequence[Claim]) -> list[list[Claim]]:
    """Each round has a job at most once: beside its slot, a run by hand may be wanted."""
    rounds: list[list[Claim]] = []
    turn: Counter[str] = Counter()
    for claim in claims:
        if turn[claim.job_id] == len(rounds):
            rounds.append([])
        rounds[turn[claim.job_id]].append(claim)
        turn[claim.job_id] += 1
    return rounds


def _everything(claims: Sequence[Claim]) -> set[str]:
    runs = {run.task_id for claim in claims for run in claim.runs if run.verdict is Verdict.CLAIMED}
    return runs | {claim.job_id for claim in claims}


def _name(item: Any) -> str:
    return str(getattr(item, "job_id", None) or getattr(item, "task_id", item))
