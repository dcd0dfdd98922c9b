"""What a beat works with (`Dependencies`) and what the writer keeps in memory (`LeaderState`)."""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

from celery_qbeat.core.agenda import Agenda, AgendaEntry
from celery_qbeat.core.identity import request_task_id
from celery_qbeat.core.in_flight import InFlightRun, InFlightRuns
from celery_qbeat.core.jobs import Job, RowRules, State, Verdict, WorkerScope
from celery_qbeat.core.liveness import LEAST_SILENCE_US
from celery_qbeat.core.planning import Claim, Moment
from celery_qbeat.core.privileges import Privileges
from celery_qbeat.engine.queue_refusals import QueueRefusals
from celery_qbeat.ports import (
    Clock,
    Completions,
    Dispatcher,
    Gate,
    Loaded,
    OutgoingRun,
    Request,
    Row,
    Steps,
    Store,
    UnfinishedRun,
)

Item = TypeVar("Item")

Effect = Callable[[int], object]
"""Something owed to the database, given the epoch. Doing it twice is harmless."""

Chore = Callable[[Store, int], Steps]
"""A built-in task that runs inside the beat, step by step: (store, now_us) -> its steps."""

ANSWERS_KEPT = 10_000
"""The number of answered requests that a beat remembers."""


@dataclass(frozen=True, slots=True)
class Limits:
    """Sizes and pauses. Seconds, but for the two counts and `silence_us`: see `liveness`."""

    poll_s: float = 1.0
    batch: int = 100
    chunk: int = 100
    drain_s: float = 0.2
    heartbeat_s: float = 5.0
    drift_s: float = 300.0
    look_up_s: float = 5.0
    lease_check_s: float = 15.0
    chore_s: float = 0.05
    ask_again_s: float = 10.0
    silent_s: float = 30.0
    warn_again_s: float = 600.0
    let_go_s: float = 5.0
    ending_s: float = 2.0
    closing_s: float = 1.0
    silence_us: int = LEAST_SILENCE_US


def batched(items: Sequence[Item], size: int) -> Iterator[Sequence[Item]]:
    """`items` in slices of at most `size`."""
    for start in range(0, len(items), size):
        yield items[start : start + size]


def _nothing(_name: str) -> None:
    return None


def _do_nothing() -> None:
    return None


def _never() -> bool:
    return False


@dataclass(frozen=True, slots=True)
class Dependencies:
    """The implementations behind the ports, and the rules.

    `run_code_entries`: whether requests may run jobs of `code_jobs`. `stopping` says that a signal waits for the end of
    the tick: then loading and publishing end early, and what was claimed and not sent is given back. `note_alive` is
    called between the steps of long work, and must be quick.
    """

    store: Store
    gate: Gate
    dispatcher: Dispatcher
    clock: Clock
    privileges: Privileges
    completions: Completions | None = None
    rules: RowRules = RowRules()
    limits: Limits = Limits()
    holder: str = "beat"
    code_jobs: Sequence[Job] = ()
    builtin_tasks: Mapping[str, Chore] = field(default_factory=dict)
    run_code_entries: bool = False
    fail_point: Callable[[str], None] = _nothing
    stopping: Callable[[], bool] = _never
    note_alive: Callable[[], None] = _do_nothing


@dataclass(slots=True)
class Blocked:
    """A job that waits for its own run. `skips`: its skipped slots in a row; `due_us`: since when a run is due instead;
    `warn_again`: monotonic seconds, when the next warning about it may be logged."""

    skips: int = 0
    due_us: int | None = None
    warn_again: float = float("-inf")


@dataclass(slots=True)
class Loading:
    """How far a full load is: the parts to come, and the rows of the last part that are not planned yet.

    `seen`: the ids of all rows so far. `code`: the jobs of `beat_schedule` that are not planned yet. `orphans`: states
    without a row, by job id. `count`: the rows that are planned.
    """

    parts: Iterator[Loaded]
    seen: set[str]
    code: Sequence[Job]
    orphans: dict[str, State] = field(default_factory=dict)
    rows: Sequence[tuple[Row, State | None]] = ()
    count: int = 0


@dataclass(slots=True)
class LeaderState:
    """A writer's memory. `owed` survives a lost connection: it is paid, in order, before anything else is done.

    `changed`: rows that the change feed brought and that are not planned yet. `answered`: the last requests that were
    answered, by the task id of their run. `hand_slots`: the last slot of a run by hand, by job. `requests_after`: the
    id after which requests are read next; `requests_left`: whether one before it must wait. `recheck`: runs
    that are checked again because the broker may have lost them, with the rounds so far; `unverified`: the same before
    their first round, and some that ended.
    """

    agenda: Agenda = field(default_factory=Agenda)
    in_flight: InFlightRuns = field(default_factory=InFlightRuns)
    workers: Mapping[str, WorkerScope] = field(default_factory=dict)
    reported: dict[str, str] = field(default_factory=dict)
    changed: dict[str, tuple[Row, State | None] | None] = field(default_factory=dict)
    pending_writes: deque[Effect] = field(default_factory=deque)
    stale_job_ids: set[str] = field(default_factory=set)
    resends: dict[str, tuple[int, OutgoingRun]] = field(default_factory=dict)
    unconfirmed: dict[str, tuple[int, OutgoingRun]] = field(default_factory=dict)
    refusals: QueueRefusals = field(default_factory=QueueRefusals)
    chores: list[tuple[str, str, Steps]] = field(default_factory=list)
    blocked: OrderedDict[str, Blocked] = field(default_factory=OrderedDict)
    recheck: dict[str, int] = field(default_factory=dict)
    unverified: deque[str] = field(default_factory=deque)
    moved: set[str] = field(default_factory=set)
    asking: bool = False
    epoch: int = 0
    term: str = ""
    loading: Loading | None = None
    loaded: bool = False
    settling: Iterator[Sequence[UnfinishedRun]] | None = None
    settled: bool = False
    asked: bool = False
    answered: dict[str, None] = field(default_factory=dict)
    hand_slots: dict[str, int] = field(default_factory=dict)
    requests_after: int = 0
    requests_left: bool = False
    broker_away: bool = False
    broker_memory: str = ""
    batches: int = 0
    serving_since_us: int = 0
    instance: str = ""

    @property
    def ready(self) -> bool:
        """Whether the take-over is done: all rows are read, and what the last writer left open is settled."""
        return self.loaded and self.settled

    @property
    def idle(self) -> bool:
        """Whether nothing is under way that only this memory knows."""
        return not (self.pending_writes or self.chores or self.resends or self.unconfirmed)

    def counts(self) -> dict[str, int]:
        """How many rows there are, and how many of them run, are disabled, refused or bad."""
        entries = self.agenda.entries.values()
        rows = [entry for entry in entries if entry.job is None or not entry.job.from_code]
        bad = sum(1 for entry in rows if entry.problem)
        refused = sum(1 for entry in rows if entry.refusal)
        disabled = sum(1 for entry in rows if entry.job is not None and entry.job.paused and not entry.problem)
        running = sum(1 for entry in rows if entry.runnable and not entry.refusal)
        return {
            "rows": len(rows),
            "running": running,
            "disabled": disabled,
            "refused": refused,
            "bad": bad,
            "code": len(entries) - len(rows),
        }

    def moment(self, now: int) -> Moment:
        return Moment(now_us=now, serving_since_us=self.serving_since_us, instance=self.instance)

    def next_batch(self) -> int:
        """A batch id that no other writer can make: it carries the epoch."""
        self.batches += 1
        return self.epoch << 20 | self.batches

    def remove_in_flight(self, task_id: str) -> InFlightRun | None:
        """A run ended; None when it was not known. Its job may run again when it was the last one in flight.

        An end also proves that a doubtful run was sent.
        """
        self.resends.pop(task_id, None)
        self.unconfirmed.pop(task_id, None)
        self.recheck.pop(task_id, None)
        self.moved.discard(task_id)
        run = self.in_flight.remove(task_id)
        if run is not None and not self.in_flight.has_run_of(run.job_id):
            self.blocked.pop(run.job_id, None)
            self.agenda.unblock(run.job_id)
        return run

    def recheck_all_runs(self) -> None:
        """The broker may have lost messages: check soon that somebody still has each run in flight."""
        self.recheck, self.unverified = {}, deque(self.in_flight)

    def wait(self, entry: AgendaEntry) -> None:
        """A run of this job is due and waits for the one in flight to end."""
        self.blocked.setdefault(entry.id, Blocked()).due_us = entry.next_us
        self.agenda.block_until_finished(entry)

    def skipped(self, claim: Claim) -> None:
        """Count the slots of a claim that were skipped because of a run in flight."""
        skips = sum(1 + run.collapsed for run in claim.runs if run.verdict is Verdict.SKIPPED)
        if skips and self.in_flight.has_run_of(claim.job_id):
            self.blocked.setdefault(claim.job_id, Blocked()).skips += skips

    def request_name(self, request: Request) -> str:
        """The task id of the run that a request asks for."""
        return request_task_id(self.instance, request.job_id, request.id, request.asked_us)

    def remember_answer(self, request: Request) -> None:
        """A restored database brings answered requests again; they are not answered twice."""
        self.answered[self.request_name(request)] = None
        if len(self.answered) > ANSWERS_KEPT:
            del self.answered[next(iter(self.answered))]

    def flush_pending_writes(self) -> None:
        """Do what is owed to the database. What fails stays owed; the error goes on."""
        while self.pending_writes:
            self.pending_writes[0](self.epoch)
            self.pending_writes.popleft()
