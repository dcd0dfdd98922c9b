"""A dispatcher that keeps what it was given, and fails when told to; and completions that a test reports."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence

from celery_qbeat.core.jobs import Job, Verdict
from celery_qbeat.core.worker_answers import Answers, Holder
from celery_qbeat.ports import OutgoingRun, PublishOutcome, PublishResult, RunOutcome, UnfinishedRun


class FakeDispatcher:
    """Records shipments in `sent`.

    `away`: surely nothing can be sent, and `ready` says so. `fails`: the same, but `ready` does not know.
    `doubt_next`: the next message arrives, but the broker does not say so. `silent`: messages arrive, but are
    confirmed only by `confirm`. `bad`: ids of jobs whose payload cannot be published. `declined`: ids of jobs
    whose own `apply_async` sends nothing. `full`: queues that refuse messages; `queue_of` says which queue a
    shipment goes to, by default one with the name of its job. `memory`: what `incarnation` says. `asked` counts
    the questions of `ready`.
    """

    def __init__(self) -> None:
        self.sent: list[OutgoingRun] = []
        self.away = False
        self.fails = False
        self.doubt_next = False
        self.silent = False
        self.bad: Collection[str] = ()
        self.declined: Collection[str] = ()
        self.full: Collection[str] = ()
        self.queue_of: Callable[[OutgoingRun], str] = lambda shipment: shipment.job.id
        self.memory = "1"
        self.asked = 0
        self._unconfirmed: list[str] = []
        self._late: list[PublishResult] = []

    def unavailable_reason(self) -> str:
        self.asked += 1
        if self.away:
            return "connection refused"
        return "messages wait for a confirm" if self._unconfirmed else ""

    def memory_id(self) -> str:
        return "" if self.away else self.memory

    def late_results(self) -> Sequence[PublishResult]:
        late, self._late = self._late, []
        return late

    def confirm(self, fate: PublishOutcome = PublishOutcome.SENT, detail: str = "") -> None:
        """The broker says what became of all messages that wait for its word."""
        self._late += [PublishResult(task_id, fate, detail) for task_id in self._unconfirmed]
        self._unconfirmed.clear()
        self.silent = False

    def send(self, shipments: Sequence[OutgoingRun], trusted: Callable[[], bool]) -> Sequence[PublishResult]:
        receipts: list[PublishResult] = []
        stopped = "connection refused" if self.away or self.fails else ""
        for shipment in shipments:
            receipt = self._one(shipment, stopped, trusted)
            if receipt.outcome is PublishOutcome.UNKNOWN:
                stopped = receipt.detail
            receipts.append(receipt)
        return receipts

    def _one(self, shipment: OutgoingRun, stopped: str, trusted: Callable[[], bool]) -> PublishResult:
        task, queue = shipment.run.task_id, self.queue_of(shipment)
        if stopped:
            return PublishResult(task, PublishOutcome.NOT_SENT, stopped)
        if not trusted():
            return PublishResult(task, PublishOutcome.NOT_SENT)
        if shipment.job.id in self.bad:
            return PublishResult(task, PublishOutcome.BAD, "cannot be encoded")
        if shipment.job.id in self.declined:
            return PublishResult(task, PublishOutcome.DECLINED, "it is queued already")
        if queue in self.full:
            return PublishResult(task, PublishOutcome.REFUSED, "it is full", queue)
        self.sent.append(shipment)
        if self.silent:
            self._unconfirmed.append(task)
            return PublishResult(task, PublishOutcome.UNCONFIRMED, "no confirm")
        if self.doubt_next:
            self.doubt_next = False
            return PublishResult(task, PublishOutcome.UNKNOWN, "connection reset")
        return PublishResult(task, PublishOutcome.SENT)

    @property
    def slots(self) -> list[tuple[str, int]]:
        """(job id, slot) of all that was sent, in order."""
        return [(shipment.job.id, shipment.run.slot_us) for shipment in self.sent]

    def close(self) -> None:
        pass

    def describe(self) -> str:
        return "outbox"


class FakeCompletions:
    """Ends that a test announces with `end`. `away`: nothing arrives, and no worker can be asked.

    `running`: task ids that a worker has. `reply` makes the answers to a question from its task ids; by default no
    worker answers but for the one that has `running`.
    """

    def __init__(self) -> None:
        self.away = False
        self.running: Collection[str] = ()
        self.reply: Callable[[Collection[str]], Answers] = self._running
        self.asked: list[frozenset[str]] = []
        self.backend: dict[str, RunOutcome] = {}
        self._waiting: list[RunOutcome] = []
        self._taken = 0

    def end(self, task_id: str, verdict: Verdict = Verdict.SUCCEEDED, detail: str = "") -> None:
        self._waiting.append(RunOutcome(task_id, verdict, detail))

    def receive(self, budget_s: float) -> Sequence[RunOutcome]:
        self._taken = 0 if self.away else len(self._waiting)
        return tuple(self._waiting[: self._taken])

    def unread_s(self) -> float:
        return 0.0

    def acknowledge(self) -> None:
        del self._waiting[: self._taken]

    def query_results(self, flights: Sequence[UnfinishedRun]) -> Sequence[RunOutcome]:
        return [self.backend[flight.task_id] for flight in flights if flight.task_id in self.backend]

    def ask_workers(self, runs: Mapping[str, Job | None]) -> bool:
        if not self.away:
            self.asked.append(frozenset(runs))
        return not self.away

    def worker_answers(self) -> Answers | None:
        return self.reply(self.asked[-1])

    def _running(self, asked: Collection[str]) -> Answers:
        holders = {task_id: Holder("worker@stand-in", "active") for task_id in asked if task_id in self.running}
        return Answers(holders=holders)

    def close(self) -> None:
        pass
