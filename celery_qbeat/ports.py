"""What the engine needs of the world: protocols and the values that cross them.

Times are integer microseconds since the epoch, UTC, and are always arguments: nothing behind a port asks a
clock, except a gate, which asks for monotonic seconds. Every method may raise `Unavailable` (nothing was done);
those that write may raise `Doubt` (the server went away in the middle) and `Fenced` (a newer epoch exists).
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, Protocol

from celery_qbeat.core.jobs import Job, Run, State, Verdict, WorkerScope
from celery_qbeat.core.liveness import LEAST_SILENCE_US
from celery_qbeat.core.planning import Claim as Claim
from celery_qbeat.core.planning import Plan as Plan
from celery_qbeat.core.worker_answers import Answers

FOREVER = float("inf")

Row = Mapping[str, Any]
"""A row of `qbeat_jobs`: column to value, JSON columns as text."""

Steps = Generator[int, int | None, None]
"""Long work in steps: yields the rows done at each step, and may be sent the most rows of the next ones."""


class Clock(Protocol):
    def now_us(self) -> int:
        """Wall-clock time in microseconds since the epoch, UTC."""

    def monotonic(self) -> float:
        """Seconds on a clock that never steps."""


# ---------------------------------------------------------------- gate


@dataclass(frozen=True, slots=True)
class LockLease:
    """The right to try. `term` changes with every new acquisition, `trusted_until` is monotonic seconds."""

    term: str
    trusted_until: float = FOREVER


class Gate(Protocol):
    """Decides who tries to dispatch. It never decides who may: that is the epoch's and the ledger's part."""

    def bind(self, instance: str) -> None:
        """Guard this database: called with the store's instance before `hold`.

        With another instance than before, the old lock is given back and the next `hold` is a new acquisition, with a
        new term. Does not raise when the server is away.
        """

    def acquire_or_renew(self) -> LockLease | None:
        """Acquire or renew; None when another holds it or the server is away. Never raises for a lost lock.

        Raises NotBound before the first `bind`.
        """

    def reason(self) -> str:
        """For the log: why the last `hold` returned None, such as "another beat is the writer"."""

    def resign_until_replaced(self) -> None:
        """Give the lock back because a newer epoch exists, and do not take it again before another had it."""

    def step_aside(self) -> bool:
        """Give the lock back for others to try; whether it was held. `hold` may take it again. Never raises."""

    def release(self) -> None:
        """Give the lock back at the end, if it is still one's own. Never raises."""

    def describe(self) -> str:
        """For the log: the kind of gate and where it is, without a password."""


# ---------------------------------------------------------------- store


@dataclass(frozen=True, slots=True)
class Loaded:
    """A part of a full load: rows with their states, and states without a row (of entries in code, of deleted rows).

    `workers`: all scopes by name, in the first part.
    """

    rows: Sequence[tuple[Row, State | None]] = ()
    orphans: Sequence[State] = ()
    workers: Mapping[str, WorkerScope] | None = None


@dataclass(frozen=True, slots=True)
class Changes:
    """What the feed brought since the last call. `reload`: everything may have changed; the rest is then empty.

    `rows`: id -> the row as it is now with its state, or None where it is gone. `workers`: all scopes, when any changed
    (`rows` then also has the rows of the changed scopes). `asked`: somebody asked for a run by hand. `more`: the next
    call brings the rest at once.
    """

    reload: bool = False
    rows: Mapping[str, tuple[Row, State | None] | None] = field(default_factory=dict)
    workers: Mapping[str, WorkerScope] | None = None
    asked: bool = False
    more: bool = False


@dataclass(frozen=True, slots=True)
class ClaimRelease:
    """Runs that surely were not sent go back: their ledger rows vanish, next_run_us returns to `back_to_us`.

    Holds only if next_run_us is still `from_next_us`; last_run_us becomes `last_run_us` again. `back_to_us` None: a
    run by hand, the plan stays.
    """

    job_id: str
    task_ids: tuple[str, ...]
    back_to_us: int | None
    from_next_us: int | None
    last_run_us: int | None = None


@dataclass(frozen=True, slots=True)
class RunOutcome:
    """What is known of a run's end.

    `late_after_us`: when the job counts as late if nothing succeeds after this. `started_us` and `took_us`: when the
    worker started it by the worker's clock, and how long it took, in microseconds; None: the worker did not say.
    """

    task_id: str
    verdict: Verdict
    detail: str = ""
    late_after_us: int | None = None
    started_us: int | None = None
    took_us: int | None = None


@dataclass(frozen=True, slots=True)
class UnfinishedRun:
    """A run in the ledger without an end, claimed under `epoch`. `sent_us` None: claimed, perhaps sent."""

    task_id: str
    job_id: str
    slot_us: int
    lease_until_us: int
    batch_id: int | None = None
    epoch: int = 0
    claimed_us: int = 0
    sent_us: int | None = None
    by_hand: bool = False
    resend: bool = False


REQUESTS_A_READ = 50
"""The most requests that are read at once."""


@dataclass(frozen=True, slots=True)
class Request:
    """Somebody asked for something by hand. Whoever may write requests can write anything into one.

    `asked_us` says when, by the clock of whoever asked. `action` `run`: a run. `release`: the run `task_id` ends,
    or every run of the job that is in flight when `task_id` is empty.
    """

    id: int
    job_id: str
    asked_us: int
    asked_by: str = ""
    action: str = "run"
    task_id: str = ""


class Store(Protocol):
    """The database, written by one beat at a time under its epoch. The writer makes batch ids: `epoch << 20 | n`."""

    def open(self) -> None:
        """Connect and check: tables there, schema version right, triggers alive. Raises SchemaError with what to do."""

    def close(self) -> None:
        """Give connections back. Never raises."""

    def between_round_trips(self, call: Callable[[], None]) -> None:
        """Make `call` between the round trips of each method from now on, where the server is not on this machine.

        It renews the leader lock in the middle of long work, so it must be quick and must not raise.
        """

    def limit_waits(self, seconds: float) -> None:
        """From now on no call waits longer than this for the server: the process is ending.

        A signal handler may call it in the middle of another call, which is shortened, too. Once a call has waited in
        vain, the server is not asked for a new connection any more.

        Args:
            seconds: how long a call may wait; of a call in progress, from now on. `FOREVER`: the process goes on after
                all, and everything is as before the first call.
        """

    def describe(self) -> str:
        """For the log: the database URL with its password hidden."""

    @property
    def instance(self) -> str:
        """The UUID of this set of tables, made at their creation."""

    def clock_us(self) -> int | None:
        """The database's own clock, in microseconds since the epoch; None where it is this machine's clock."""

    def take_epoch(
        self, holder: str, now_us: int, known: int = 0, above: int = 0, silence_us: int = LEAST_SILENCE_US
    ) -> int:
        """Become the writer: claims under older epochs fail from now on. `silence_us`: see `liveness`.

        Returns the new epoch: the last one + 1, or more when a batch or `above` has a higher one already. Raises Fenced
        when the last one is below `known`: an older copy of the database was restored.
        """

    def record_heartbeat(self, epoch: int, now_us: int) -> None:
        """Note that this writer lives. Raises Fenced."""

    def load(self) -> Iterator[Loaded]:
        """Everything, in parts; the feed's cursor is taken before the first, so that no change falls between.

        No part takes long, and the caller may pause between two of them.
        """

    def read_changes(self) -> Changes:
        """What committed since the last call (or load); exact, whatever order transactions commit in.

        A call reads a bounded number of rows.
        """

    def read_states(self, job_ids: Sequence[str]) -> Mapping[str, State]:
        """The states as they are now."""

    def write_plans(self, epoch: int, plans: Sequence[Plan], now_us: int) -> None:
        """Write states and history, in one transaction."""

    def delete_states(self, epoch: int, job_ids: Sequence[str], now_us: int) -> None:
        """Drop the states of jobs that are gone, and note their end in the history. The ledger stays."""

    def claim(self, epoch: int, batch_id: int, claims: Sequence[Claim], now_us: int) -> frozenset[str]:
        """One transaction under the epoch: what was LOST, by job id (the claim) or by task id (one run of a claim).

        A claim is lost when its slot or its row is not what it expects, and when all its `CLAIMED` runs are in the
        ledger already; then the plan moves on to `next_us` all the same. A task id means: the ledger has that slot.
        A batch row is written (open, `sent_us` NULL) when a `CLAIMED` run was won. A job that comes twice, or a value
        that the database refuses, splits the batch into several transactions.
        """

    def mark_sent(self, epoch: int, batch_id: int, task_ids: Sequence[str], now_us: int, *, closes: bool) -> None:
        """Mark these runs sent; `closes`: nothing of the batch is left to send."""

    def release_claims(self, epoch: int, batch_id: int, releases: Sequence[ClaimRelease]) -> None:
        """Undo claims that surely were not sent."""

    def shorten_leases(self, epoch: int, leases: Mapping[str, int]) -> None:
        """End the leases of these runs (task id to instant) then, where they are in flight and end later now."""

    def record_outcomes(self, epoch: int, ends: Sequence[RunOutcome], now_us: int) -> Mapping[str, str]:
        """Write ends; the runs that changed, task id to job id.

        The first end stands, but a failure corrects a success, and any other end corrects a run that was given up
        (`LOST`, `IN_DOUBT`): those were guesses. A correction also takes the place of the detail, and of a failure
        that was counted.
        """

    def unfinished_runs(self) -> Iterator[Sequence[UnfinishedRun]]:
        """All runs without an end, in parts."""

    def close_batches(self, epoch: int, now_us: int) -> None:
        """Close the open batches of older epochs, after each of their runs was settled."""

    def pending_requests(self, after_id: int = 0) -> Sequence[Request]:
        """What was asked for by hand and is not answered yet: the next `REQUESTS_A_READ` above this id, by id."""

    def delete_requests(self, epoch: int, request_ids: Sequence[int]) -> None:
        """These requests are dealt with."""

    def has_drifted(self) -> bool:
        """Whether the table differs from what was read (count and sum of rev); then a reload is due. Not quite free."""

    def prune(self, before_us: Mapping[Verdict, int], now_us: int) -> Steps:
        """Delete old ledger, history and change rows, in a short transaction for each step."""


# ---------------------------------------------------------------- dispatcher


@dataclass(frozen=True, slots=True)
class OutgoingRun:
    """A claimed run and its job, on the way to a broker."""

    job: Job
    run: Run
    by_hand: bool = False


class PublishOutcome(Enum):
    """What happened to a shipment. Only `NOT_SENT` and `REFUSED` may be sent again without harm.

    `NOT_SENT`: the broker as a whole took nothing more. `REFUSED`: its queue refused it and the broker serves other
    queues. `UNCONFIRMED`: written, and the broker may still confirm it; `Dispatcher.late` tells. `BAD`: this payload
    can never be published. `DECLINED`: the task's own `apply_async` sent nothing, on purpose.
    """

    SENT = "sent"
    NOT_SENT = "not sent"
    REFUSED = "refused"
    UNCONFIRMED = "unconfirmed"
    UNKNOWN = "doubt"
    BAD = "bad"
    DECLINED = "declined"


@dataclass(frozen=True, slots=True)
class PublishResult:
    """What happened to one shipment, and why. `queue`: the queue that refused it, for `REFUSED` only."""

    task_id: str
    outcome: PublishOutcome
    detail: str = ""
    queue: str = ""


class Dispatcher(Protocol):
    """Publishes. It never raises for one bad payload and never sends anything twice."""

    def unavailable_reason(self) -> str:
        """Why nothing can be sent now; empty when the broker answers.

        Connects if needed and asks the broker: one round trip, plus those of a new connection. Returns within the time
        limits of a connection, about four seconds for each address of the broker.
        """

    def memory_id(self) -> str:
        """Which memory the broker has: a text that changes when the broker may have lost messages.

        Asks the broker like `ready`. Compare it only with earlier answers of the same dispatcher, and skip empty ones:
        the broker is away, or a kind of broker that cannot tell. A change does not prove a loss: a run is lost when
        no worker and no queue has it.
        """

    def send(self, shipments: Sequence[OutgoingRun], trusted: Callable[[], bool]) -> Sequence[PublishResult]:
        """Publish each shipment and return one receipt for each, in order.

        Publishing stops at the first lost connection and when `trusted()` turns false; what follows is `NOT_SENT`.
        `detail` is empty only for `SENT` and where trust ended.
        """

    def late_results(self) -> Sequence[PublishResult]:
        """What became of `UNCONFIRMED` shipments since the last call. Never waits for the broker.

        `SENT`, or `REFUSED` and `NOT_SENT` (the broker did not take it), or `DOUBT` (the connection was lost).
        """

    def close(self) -> None:
        """Give connections back. Never raises."""

    def describe(self) -> str:
        """For the log: the broker's URL with its password hidden."""


class Completions(Protocol):
    """Where the ends of runs come from. Only the writer calls it."""

    def receive(self, budget_s: float) -> Sequence[RunOutcome]:
        """Ends that arrived, within about `budget_s` seconds. Empty when the broker is away (it says so once)."""

    def unread_s(self) -> float:
        """How old an end may be that has arrived and was not taken, in seconds. 0.0: there is none.

        Whatever arrives beside the ends does not matter. Infinite while nothing is known.
        """

    def acknowledge(self) -> None:
        """All that `take` gave is safe in the database."""

    def query_results(self, flights: Sequence[UnfinishedRun]) -> Sequence[RunOutcome]:
        """Ask about runs that have been silent (result backend): the ends that are known there."""

    def ask_workers(self, runs: Mapping[str, Job | None]) -> bool:
        """Ask all workers, and the queues, which of these runs they have: task id to its job, None if it is unknown.

        Returns without waiting for answers; a round that is under way is given up. False: the broker is away, so
        nobody can be asked.
        """

    def worker_answers(self) -> Answers | None:
        """The end of that round, about two seconds after `ask`; None until then. Never waits."""

    def close(self) -> None:
        """Give connections back. Never raises."""
