"""How the ends of runs come back from unmodified workers: messages first, the result backend where links are silent."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from celery_qbeat.core.jobs import Job, Verdict
from celery_qbeat.core.plurals import quantity
from celery_qbeat.core.worker_answers import Answers
from celery_qbeat.dispatchers.celery import broker
from celery_qbeat.dispatchers.celery.completion_message import read_completion
from celery_qbeat.dispatchers.celery.completion_queue import CompletionQueue, Taken
from celery_qbeat.dispatchers.celery.legacy_completion_queue import LegacyCompletionQueue
from celery_qbeat.dispatchers.celery.messages import resolve_queue_name
from celery_qbeat.dispatchers.celery.publishers.publisher import text
from celery_qbeat.dispatchers.celery.raw_message import ForeignMessage
from celery_qbeat.dispatchers.celery.redis_completion_queue import inbox_of
from celery_qbeat.dispatchers.celery.result_backend import ResultBackendReader
from celery_qbeat.dispatchers.celery.worker_inspection import WorkerInspection
from celery_qbeat.ports import RunOutcome, UnfinishedRun
from celery_qbeat.process.safe_logging import get_logger

log = get_logger()

PAUSE_S = 2.0
PAUSES_PER_WAIT = 4
TELL_S = 60.0
UNREADABLE_S = 60.0
"""How long ends are waited for while their queue cannot be read, in seconds."""

DECLARE_S = 5.0
"""What workers report while the queue is gone is gone, too: somebody emptied the broker, or it evicted a key."""

NO_REASON = "no reason was reported: import celery_qbeat.worker in the workers, or keep results in a result backend"
"""What the ledger says of a failure that came by a callback alone."""


class CeleryCompletions:
    """Reads the queue of ends of one database, only when asked, and what older versions left in theirs.

    Not a consumer: to one that froze, the broker would go on to deliver messages that its successor waits for.
    `namespace` and `instance` name the queue, see `broker.done_address`; `instance` is a function because the store
    knows it only once it is open. Connects on first use.
    """

    def __init__(self, app: Any, *, namespace: str, instance: Callable[[], str]) -> None:
        self._app = app
        self._namespace = namespace
        self._instance = instance
        self._results = ResultBackendReader(app)
        self._inquiry = WorkerInspection(app)
        self._connection: Any = None
        self._queue: Any = None
        self._queue_name = ""
        self._inbox: CompletionQueue | None = None
        self._old: LegacyCompletionQueue | None = None
        self._old_refused = False
        self._reads_for = ""
        self._unacked: list[Taken] = []
        self._away = False
        self._mute = False
        self._asked = time.monotonic()
        self._connect_again = self._declare_again = float("-inf")
        self._emptied = False
        self._told_unmeasured = False
        self._dropped: Counter[str] = Counter()
        self._tell_dropped_again = float("-inf")

    def receive(self, budget_s: float) -> Sequence[RunOutcome]:
        """Ends that arrived. Empty while the broker is away, which is logged once, as is its return.

        A message that is not ours is dropped: it must be small JSON of the exact form and know the secret of its run.
        What is dropped is counted, and said once a minute.
        A failure has the error's type and first line as detail where the result backend knows them.
        """
        until = time.monotonic() + budget_s
        ends: list[RunOutcome] = []
        self._emptied = False
        inbox = self._ready()
        if inbox is None:
            return ends
        self._inquiry.listen()
        try:
            inbox.begin()
            self._emptied = self._read_until(until, inbox, ends)
            inbox.end()
            inbox.count(emptied=self._emptied)
            self._tell_unmeasured(inbox)
            ends += self._take_old(until)
        except (*broker.lost(self._connection), *self._connection.channel_errors) as error:
            self._lose(error)
        self._tell_dropped()
        return self._with_reasons(ends)

    def unread_s(self) -> float:
        """See `ports.Completions`. While the queue cannot be read, `UNREADABLE_S`."""
        if self._mute or self._emptied:
            return 0.0
        if self._inbox is None:
            return UNREADABLE_S
        return time.monotonic() - self._inbox.backlog.read_up_to

    def acknowledge(self) -> None:
        """All that `take` gave is safe in the database. What cannot be acknowledged comes again, which is harmless."""
        waiting, self._unacked = self._unacked, []
        self._asked = time.monotonic()
        if self._inbox is None:
            return
        try:
            if waiting:
                self._inbox.ack(waiting)
            if self._old is not None:
                self._old.ack()
        except (*broker.lost(self._connection), *self._connection.channel_errors) as error:
            self._lose(error)

    def query_results(self, flights: Sequence[UnfinishedRun]) -> Sequence[RunOutcome]:
        """What the result backend knows of these runs: succeeded, failed, revoked, expired, unknown task.

        Asks Redis, memcached and files (one question for all) and SQL databases (one SELECT), and no other backend.
        """
        return list(self._results.ends([flight.task_id for flight in flights]).values())

    def ask_workers(self, runs: Mapping[str, Job | None]) -> bool:
        """See `ports.Completions`. Costs a few round trips, and one more for each queue."""
        jobs = {job.id: job for job in runs.values() if job is not None}
        names = {job_id: resolve_queue_name(self._app, job) for job_id, job in jobs.items()}
        found = {task_id: names[job.id] for task_id, job in runs.items() if job is not None}
        return self._inquiry.ask(runs, {task_id: name for task_id, name in found.items() if name is not None})

    def worker_answers(self) -> Answers | None:
        return self._inquiry.answers()

    def close(self) -> None:
        """Give connections back. Never raises. What was taken and not acknowledged comes again."""
        self._disconnect()
        self._inquiry.close()
        self._results.close()

    # ------------------------------------------------------------------

    def _disconnect(self) -> None:
        self._unacked.clear()
        self._queue = self._inbox = self._old = None
        if self._connection is not None:
            connection, self._connection = self._connection, None
            try:
                connection.release()
            except (*broker.lost(connection), *connection.channel_errors):
                broker.drop(connection)

    def _ready(self) -> CompletionQueue | None:
        """The open queue, or None; connects and declares it when that is due."""
        now = self._asked = time.monotonic()
        if self._mute or (self._queue is None and now < self._connect_again):
            return None
        if self._reads_for != self._instance():
            # At the start, and when a backup with another identity was restored.
            self._disconnect()
            self._reads_for = self._instance()
        if self._connection is None:
            self._connection = broker.connect(self._app.connection_for_read)
        try:
            if self._queue is None:
                self._open()
            if self._queue is not None and now >= self._declare_again:
                broker.declare_again(self._queue)
                self._declare_again = now + DECLARE_S
        except (*broker.lost(self._connection), *self._connection.channel_errors) as error:
            self._lose(error)
        self._say_back()
        return self._inbox

    def _open(self) -> None:
        address = broker.done_address(self._connection, self._namespace, self._reads_for)
        if address is None:
            self._mute = True
            log.warning(
                "completions: %s cannot carry the ends of runs; without a result backend a run counts as "
                "running until its max_run_seconds are over",
                broker.describe(self._connection),
            )
            return
        broker.open_(self._connection)
        self._queue_name = address.key
        self._queue = broker.done_queue(address)(self._connection.default_channel)
        self._inbox = inbox_of(self._connection, self._queue)
        self._declare_again = float("-inf")
        old = broker.old_done_address(self._connection, self._namespace)
        self._old = None if old is None or self._old_refused else LegacyCompletionQueue(self._connection, old)

    def _take_old(self, until: float) -> Sequence[RunOutcome]:
        """Ends in the queue of older versions. What goes wrong there must not stop the reading of our own queue."""
        try:
            return self._old.take(self._reads_for, until) if self._old is not None else ()
        except self._connection.channel_errors as error:
            log.warning("completions: the queue of older versions is not read any more: %s", text(error))
            self._old, self._old_refused = None, True
            return ()

    def _read_until(self, until: float, inbox: CompletionQueue, ends: list[RunOutcome]) -> bool:
        """Add ends to `ends` until then, at least one message; whether the queue is empty now."""
        while True:
            try:
                taken = inbox.get()
                if taken is None:
                    return True
                end = self._read(inbox, taken)
            except ForeignMessage as reason:
                self._dropped[str(reason)] += 1
            else:
                ends.append(end)
            if time.monotonic() >= until and not inbox.pending:
                return False

    def _read(self, inbox: CompletionQueue, taken: Taken) -> RunOutcome:
        try:
            end = read_completion(taken.message, self._reads_for)
        except ForeignMessage:
            inbox.reject(taken)
            raise
        self._unacked.append(taken)
        return end

    def _with_reasons(self, ends: list[RunOutcome]) -> Sequence[RunOutcome]:
        silent = [end.task_id for end in ends if end.verdict is Verdict.FAILED and not end.detail]
        known = self._results.ends(silent) if silent else {}
        return [_explained(end, known.get(end.task_id)) if end.task_id in silent else end for end in ends]

    def _tell_unmeasured(self, inbox: CompletionQueue) -> None:
        if inbox.unmeasured and not self._told_unmeasured:
            self._told_unmeasured = True
            log.warning(
                "completions: %s (ACL: +eval), so a large message of a stranger is fetched before it is dropped",
                inbox.unmeasured,
            )

    def _tell_dropped(self) -> None:
        now = time.monotonic()
        if self._dropped and now >= self._tell_dropped_again:
            log.warning(
                "completions: dropped %s in %s that did not come from a run of ours (%s)",
                quantity(self._dropped.total(), "message"),
                self._queue_name,
                ", ".join(f"{count} {reason}" for reason, count in sorted(self._dropped.items())),
            )
            self._dropped.clear()
            self._tell_dropped_again = now + TELL_S

    def _lose(self, error: BaseException) -> None:
        self._unacked.clear()
        if self._queue is not None:
            # kombu would try to put back what is unacknowledged, and wait for the same dead server once more.
            self._queue.channel.do_restore = False
            self._queue = self._inbox = self._old = None
        now = time.monotonic()
        # A broker that hangs costs every attempt its time limit: then the pauses are longer.
        self._connect_again = now + PAUSE_S + PAUSES_PER_WAIT * (now - self._asked)
        broker.drop(self._connection)
        if not self._away:
            self._away = True
            log.warning("completions: the broker is away, ends of runs are not read (%s)", text(error))

    def _say_back(self) -> None:
        if self._away and self._queue is not None:
            self._away = False
            log.warning("completions: the broker is back")


def _explained(end: RunOutcome, known: RunOutcome | None) -> RunOutcome:
    """A reported failure with the reason that the backend has; `known` may be of another delivery of the same run."""
    if known is not None and known.verdict in (Verdict.FAILED, Verdict.UNKNOWN_TASK) and known.detail:
        # A worker that calls our callback knows the task: what is not registered is something that it asked for.
        return replace(end, detail=known.detail)
    return replace(end, detail=NO_REASON)
