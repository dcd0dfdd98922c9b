"""A dispatcher that keeps what it was given, and fails when told to; and a source of ends."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence

from celery_qbeat.answers import Answers, Holder
from celery_qbeat.jobs import Job, Verdict
from celery_qbeat.ports import End, Fate, Flight, Receipt, Shipment


class Outbox:
    """Records shipments in `sent`.

    `away`: surely nothing can be sent, and `ready` says so. `fails`: the same, but `ready` does not know.
    `doubt_next`: the next message arrives, but the broker does not say so. `silent`: messages arrive, but are
    confirmed only by `confirm`. `bad`: ids of jobs whose payload cannot be published. `declined`: ids of jobs
    whose own `apply_async` sends nothing. `full`: queues that refuse messages; `queue_of` says which queue a
    shipment goes to, by default one with the name of its job. `memory`: what `incarnation` says. `asked` counts
    the questions of `ready`.
    """

    def __init__(self) -> None:
        self.sent: list[Shipment] = []
        self.away = False
        self.fails = False
        self.doubt_next = False
        self.silent = False
        self.bad: Collection[str] = ()
        self.declined: Collection[str] = ()
        self.full: Collection[str] = ()
        self.queue_of: Callable[[Shipment], str] = lambda shipment: shipment.job.id
        self.memory = "1"
        self.asked = 0
        self._unconfirmed: list[str] = []
        self._late: list[Receipt] = []

    def ready(self) -> str:
        self.asked += 1
        if self.away:
            return "connection refused"
        return "messages wait for a confirm" if self._unconfirmed else ""

    def incarnation(self) -> str:
        return "" if self.away else self.memory

    def late(self) -> Sequence[Receipt]:
        late, self._late = self._late, []
        return late

    def confirm(self, fate: Fate = Fate.SENT, detail: str = "") -> None:
        """The broker says what became of all messages that wait for its word."""
        self._late += [Receipt(task_id, fate, detail) for task_id in self._unconfirmed]
        self._unconfirmed.clear()
        self.silent = False

    def send(self, shipments: Sequence[Shipment], trusted: Callable[[], bool]) -> Sequence[Receipt]:
        receipts: list[Receipt] = []
        stopped = "connection refused" if self.away or self.fails else ""
        for shipment in shipments:
            receipt = self._one(shipment, stopped, trusted)
            if receipt.fate is Fate.DOUBT:
                stopped = receipt.detail
            receipts.append(receipt)
        return receipts

    def _one(self, shipment: Shipment, stopped: str, trusted: Callable[[], bool]) -> Receipt:
        task, queue = shipment.run.task_id, self.queue_of(shipment)
        if stopped:
            return Receipt(task, Fate.NOT_SENT, stopped)
        if not trusted():
            return Receipt(task, Fate.NOT_SENT)
        if shipment.job.id in self.bad:
            return Receipt(task, Fate.BAD, "cannot be encoded")
        if shipment.job.id in self.declined:
            return Receipt(task, Fate.DECLINED, "it is queued already")
        if queue in self.full:
            return Receipt(task, Fate.REFUSED, "it is full", queue)
        self.sent.append(shipment)
        if self.silent:
            self._unconfirmed.append(task)
            return Receipt(task, Fate.UNCONFIRMED, "no confirm")
        if self.doubt_next:
            self.doubt_next = False
            return Receipt(task, Fate.DOUBT, "connection reset")
        return Receipt(task, Fate.SENT)

    @property
    def slots(self) -> list[tuple[str, int]]:
        """(job id, slot) of all that was sent, in order."""
        return [(shipment.job.id, shipment.run.slot_us) for shipment in self.sent]

    def close(self) -> None:
        pass

    def describe(self) -> str:
        return "outbox"


class Landings:
    """Ends that a test announces with `end`. `away`: nothing arrives, and no worker can be asked.

    `running`: task ids that a worker has. `reply` makes the answers to a question from its task ids; by default no
    worker answers but for the one that has `running`.
    """

    def __init__(self) -> None:
        self.away = False
        self.running: Collection[str] = ()
        self.reply: Callable[[Collection[str]], Answers] = self._running
        self.asked: list[frozenset[str]] = []
        self.backend: dict[str, End] = {}
        self._waiting: list[End] = []
        self._taken = 0

    def end(self, task_id: str, verdict: Verdict = Verdict.SUCCEEDED, detail: str = "") -> None:
        self._waiting.append(End(task_id, verdict, detail))

    def take(self, budget_s: float) -> Sequence[End]:
        self._taken = 0 if self.away else len(self._waiting)
        return tuple(self._waiting[: self._taken])

    def unread_s(self) -> float:
        return 0.0

    def ack(self) -> None:
        del self._waiting[: self._taken]

    def look_up(self, flights: Sequence[Flight]) -> Sequence[End]:
        return [self.backend[flight.task_id] for flight in flights if flight.task_id in self.backend]

    def ask(self, runs: Mapping[str, Job | None]) -> bool:
        if not self.away:
            self.asked.append(frozenset(runs))
        return not self.away

    def answers(self) -> Answers | None:
        return self.reply(self.asked[-1])

    def _running(self, asked: Collection[str]) -> Answers:
        holders = {task_id: Holder("worker@stand-in", "active") for task_id in asked if task_id in self.running}
        return Answers(holders=holders)

    def close(self) -> None:
        pass
