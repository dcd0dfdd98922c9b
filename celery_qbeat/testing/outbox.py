"""A dispatcher that keeps what it was given, and fails when told to; and a source of ends."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence

from celery_qbeat.answers import Answers, Holder
from celery_qbeat.jobs import Job, Verdict
from celery_qbeat.ports import End, Fate, Flight, Receipt, Shipment


class Outbox:
    """Records shipments in `sent`. `away`: surely nothing can be sent. `doubt_next`: the next message arrives, but
    the broker does not say so. `bad`: ids of jobs whose payload cannot be published."""

    def __init__(self) -> None:
        self.sent: list[Shipment] = []
        self.away = False
        self.doubt_next = False
        self.bad: Collection[str] = ()

    def send(self, shipments: Sequence[Shipment], trusted: Callable[[], bool]) -> Sequence[Receipt]:
        receipts: list[Receipt] = []
        stopped = ""
        for shipment in shipments:
            task = shipment.run.task_id
            if self.away or stopped:
                receipts.append(Receipt(task, Fate.NOT_SENT, stopped or "connection refused"))
            elif not trusted():
                receipts.append(Receipt(task, Fate.NOT_SENT))
            elif shipment.job.id in self.bad:
                receipts.append(Receipt(task, Fate.BAD, "cannot be encoded"))
            else:
                self.sent.append(shipment)
                if self.doubt_next:
                    self.doubt_next, stopped = False, "connection reset"
                    receipts.append(Receipt(task, Fate.DOUBT, stopped))
                else:
                    receipts.append(Receipt(task, Fate.SENT))
        return receipts

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
