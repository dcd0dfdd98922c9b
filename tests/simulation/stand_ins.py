"""Gate, broker and ends of runs, shared by the beats of a world; every call is a place to freeze, die or fail."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from celery_qbeat.core.jobs import Job, Verdict
from celery_qbeat.core.worker_answers import Answers, Holder
from celery_qbeat.gates import StandaloneGate
from celery_qbeat.ports import FOREVER, LockLease, OutgoingRun, PublishOutcome, PublishResult, RunOutcome, UnfinishedRun
from tests.simulation.world import Beat, World

# ---------------------------------------------------------------- gate


@dataclass(slots=True)
class Lock:
    value: str = ""
    since: float = 0.0
    until: float = 0.0


@dataclass(slots=True)
class LockServer:
    """A key with an expiry. While `split`, every other beat talks to a replica that knows nothing of the first."""

    split: bool = False
    away_for: set[str] = field(default_factory=set)
    locks: list[Lock] = field(default_factory=lambda: [Lock(), Lock()])

    def flush(self) -> None:
        self.locks = [Lock(), Lock()]

    def of(self, beat: Beat) -> Lock:
        number = int(beat.name[1:]) % 2 if self.split else 0
        return self.locks[number]


class SimGate:
    """What the gate in Redis does, on a LockServer."""

    def __init__(self, beat: Beat, server: LockServer, ttl_s: float) -> None:
        self._beat = beat
        self._server = server
        self._ttl_s = ttl_s
        self._calls = 0
        self._lease: LockLease | None = None
        self._yielded_until = 0.0

    def bind(self, instance: str) -> None:
        """All beats of a world have one database."""

    def acquire_or_renew(self) -> LockLease | None:
        world, started = self._beat.world, self._beat.monotonic()
        world.step(self._beat, "asks for the lock")
        if self._beat.name in self._server.away_for:
            world.disturb()
            if self._lease is not None and world.now >= self._lease.trusted_until:
                self._lease = None
            return self._lease
        lock = self._server.of(self._beat)
        if lock.until <= world.now:
            lock.value = ""
        self._calls += 1
        if not lock.value and started >= self._yielded_until:
            lock.value, lock.since = f"{self._beat.name}:{self._calls}", world.now
            world.say(f"    {self._beat.name} has the lock now")
        if not lock.value.startswith(f"{self._beat.name}:"):
            self._lease = None
            self._yielded_until = 0.0 if lock.value else self._yielded_until
            return None
        lock.until = world.now + self._ttl_s
        self._lease = LockLease(lock.value, started + self._ttl_s * 0.9)
        return self._lease

    @property
    def trusted_until(self) -> float:
        return 0.0 if self._lease is None else self._lease.trusted_until

    def resign_until_replaced(self) -> None:
        self._beat.world.step(self._beat, "yields the lock")
        self._yielded_until = self._beat.monotonic() + self._ttl_s
        self.step_aside()

    def step_aside(self) -> bool:
        self._beat.world.step(self._beat, "gives the lock back")
        held, self._lease = self._lease is not None, None
        self.release()
        return held

    def release(self) -> None:
        lock = self._server.of(self._beat)
        if lock.value.startswith(f"{self._beat.name}:"):
            lock.value = ""

    def reason(self) -> str:
        return "another beat is the writer"

    def describe(self) -> str:
        return "simulated lock"


class SimStandalone(StandaloneGate):
    """The real one, with a turn before each call."""

    def __init__(self, beat: Beat) -> None:
        super().__init__()
        self._beat = beat

    def acquire_or_renew(self) -> LockLease | None:
        self._beat.world.step(self._beat, "looks whether it stands by")
        return super().acquire_or_renew()

    @property
    def trusted_until(self) -> float:
        return FOREVER


# ---------------------------------------------------------------- broker and workers


@dataclass(frozen=True, slots=True)
class Message:
    """What a worker got, and how the dispatcher's job stood to doubt when it was published."""

    at: float
    by: str
    job_id: str
    slot_us: int
    task_id: str
    on_doubt: str
    fn: str


class Broker:
    """All messages ever taken, and workers that end their runs in time, late, twice or never."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.away = False
        self.bad: set[str] = set()
        self.refused: set[str] = set()
        self.messages: list[Message] = []
        self.acknowledged: set[str] = set()
        self.reports: list[RunOutcome] = []
        self.backend: dict[str, RunOutcome] = {}
        self.running: set[str] = set()
        self.longest_run_s = 20.0
        self.on_message: Callable[[Message], None] = lambda message: None

    def take(self, beat: Beat, shipment: OutgoingRun) -> None:
        job, run = shipment.job, shipment.run
        message = Message(self.world.now, beat.name, job.id, run.slot_us, run.task_id, job.on_doubt, job.fn)
        self.messages.append(message)
        self.world.say(f"    the broker takes {job.id}@{run.slot_us} from {beat.name}")
        self.on_message(message)
        self._work(run.task_id)

    def _work(self, task: str) -> None:
        rng, world = self.world.rng, self.world
        self.running.add(task)
        took = rng.choice((0.01, 0.5, 3.0, self.longest_run_s, 90.0))
        verdict = rng.choice((Verdict.SUCCEEDED, Verdict.SUCCEEDED, Verdict.FAILED))
        fate = rng.random()
        if fate < 0.8:
            world.at(world.now + took, lambda: self.report(task, verdict))
        if fate < 0.1:
            world.at(world.now + took * 1.5, lambda: self.report(task, rng.choice((verdict, Verdict.FAILED))))
        if 0.8 <= fate < 0.9:
            world.at(world.now + took, lambda: self._only_in_backend(task))
        if fate >= 0.9:
            world.at(world.now + took, lambda: self.running.discard(task))

    def report(self, task: str, verdict: Verdict) -> None:
        self.running.discard(task)
        self.reports.append(RunOutcome(task, verdict, "KeyError: 'x'" if verdict is Verdict.FAILED else ""))
        self.world.say(f"    a worker reports {task}: {verdict}")

    def _only_in_backend(self, task: str) -> None:
        self.running.discard(task)
        self.backend[task] = RunOutcome(task, Verdict.REVOKED)


REFUSED: PublishOutcome = getattr(PublishOutcome, "REFUSED", PublishOutcome.NOT_SENT)
"""One message was refused, and the broker takes others."""


class SimDispatcher:
    """One beat's connection to the broker."""

    def __init__(self, beat: Beat, broker: Broker, gate: SimGate | SimStandalone) -> None:
        self._beat = beat
        self._broker = broker
        self._gate = gate

    def unavailable_reason(self) -> str:
        self._beat.world.step(self._beat, "asks the broker")
        return "connection refused" if self._broker.away else ""

    def memory_id(self) -> str:
        return "" if self._broker.away else "1"

    def late_results(self) -> Sequence[PublishResult]:
        return ()

    def send(self, shipments: Sequence[OutgoingRun], trusted: Callable[[], bool]) -> Sequence[PublishResult]:
        receipts: list[PublishResult] = []
        stopped: str | None = None
        for shipment in shipments:
            receipt = self._one(shipment, trusted) if stopped is None else None
            if receipt is None:
                receipts.append(PublishResult(shipment.run.task_id, PublishOutcome.NOT_SENT, stopped or ""))
                continue
            receipts.append(receipt)
            alone = receipt.outcome is REFUSED and shipment.job.id in self._broker.refused
            if receipt.outcome in (PublishOutcome.NOT_SENT, PublishOutcome.UNKNOWN) and not alone:
                stopped = receipt.detail
        return receipts

    def _one(self, shipment: OutgoingRun, trusted: Callable[[], bool]) -> PublishResult:
        beat, broker, world = self._beat, self._broker, self._beat.world
        task = shipment.run.task_id
        world.step(beat, f"is about to publish {shipment.job.id}@{shipment.run.slot_us}")
        if not trusted():
            return PublishResult(task, PublishOutcome.NOT_SENT)
        if world.now > self._gate.trusted_until:
            world.broken(f"{beat.name} publishes {shipment.job.id}@{shipment.run.slot_us} without trust in its lock")
        if shipment.job.id in broker.bad:
            return PublishResult(task, PublishOutcome.BAD, "cannot be encoded")
        # A beat may freeze here: its trust was checked, and the message goes out after it ended.
        world.step(beat, f"publishes {shipment.job.id}@{shipment.run.slot_us}")
        if broker.away:
            return PublishResult(task, PublishOutcome.NOT_SENT, "connection refused")
        if shipment.job.id in broker.refused:
            return PublishResult(task, REFUSED, "the queue is full")
        if world.rng.random() < world.rates.publish:
            arrived = world.rng.random() < 0.5
            world.say(f"--- nobody tells {beat.name} whether it arrived ({arrived})")
            if arrived:
                broker.take(beat, shipment)
            return PublishResult(task, PublishOutcome.UNKNOWN, "connection reset")
        broker.take(beat, shipment)
        broker.acknowledged.add(task)
        return PublishResult(task, PublishOutcome.SENT)

    def close(self) -> None:
        pass

    def describe(self) -> str:
        return "simulated broker"


class SimCompletions:
    """Reports as a queue that is read by whoever is the writer; what was not acknowledged is read again.

    Now and then there is time for a part of them only.
    """

    def __init__(self, beat: Beat, broker: Broker) -> None:
        self._beat = beat
        self._broker = broker
        self._taken: list[RunOutcome] = []
        self._unread_s = float("inf")
        self._asked: Sequence[str] = ()

    def receive(self, budget_s: float) -> Sequence[RunOutcome]:
        self._beat.world.step(self._beat, "reads reports")
        reports = [] if self._broker.away else list(self._broker.reports)
        some = bool(reports) and self._beat.world.rng.random() < 0.1
        self._taken = reports[: len(reports) // 2] if some else reports
        self._unread_s = float("inf") if some else 0.0
        return tuple(self._taken)

    def unread_s(self) -> float:
        return self._unread_s

    def acknowledge(self) -> None:
        self._beat.world.step(self._beat, "acknowledges reports")
        for end in self._taken:
            if end in self._broker.reports:
                self._broker.reports.remove(end)

    def query_results(self, flights: Sequence[UnfinishedRun]) -> Sequence[RunOutcome]:
        self._beat.world.step(self._beat, "asks the result backend")
        return [self._broker.backend[flight.task_id] for flight in flights if flight.task_id in self._broker.backend]

    def ask_workers(self, runs: Mapping[str, Job | None]) -> bool:
        self._beat.world.step(self._beat, "asks the workers")
        self._asked = () if self._broker.away else tuple(runs)
        return not self._broker.away

    def worker_answers(self) -> Answers | None:
        self._beat.world.step(self._beat, "reads the answers of the workers")
        chance = self._beat.world.rng.random
        found = [task for task in self._asked if task in self._broker.running and chance() < 0.8]
        return Answers(holders={task: Holder("worker", "active") for task in found})

    def close(self) -> None:
        pass
