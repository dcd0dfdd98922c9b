"""The condition of a job: whether it runs, and if not, why. Pure; reading and gate are those of the scheduler."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from celery_qbeat.core.agenda import UNPLANNED
from celery_qbeat.core.jobs import (
    DEFAULT_SCOPE,
    RESERVED_PREFIX,
    Job,
    Reading,
    RowRules,
    State,
    Verdict,
    WorkerScope,
    read_row,
)
from celery_qbeat.core.privileges import Privileges


class Condition(StrEnum):
    """The one that applies: the last of the list goes before all others. A disabled row is disabled, however bad."""

    READY = "ready"
    STOPPED = "stopped"
    FINISHED = "finished"
    RUNNING = "running"
    LATE = "late"
    BLOCKED = "blocked"
    REFUSED = "refused"
    BAD = "bad"
    RESERVED = "reserved"
    PAUSED = "paused"
    DISABLED = "disabled"


AILING = frozenset({Condition.LATE, Condition.REFUSED, Condition.BAD})
"""What somebody has to see to."""

IDLE = frozenset(
    {
        Condition.FINISHED,
        Condition.REFUSED,
        Condition.BAD,
        Condition.RESERVED,
        Condition.PAUSED,
        Condition.DISABLED,
    }
)
"""What will not run as it is."""

NO_RUN = frozenset({Verdict.SKIPPED, Verdict.MISSED, Verdict.REFUSED})
"""The verdicts of slots for which nothing was sent."""

NO_BEAT = "no beat is at work"


@dataclass(frozen=True, slots=True)
class InFlight:
    """The oldest run of a job that has no end yet; `since_us`: when it was sent, or claimed if it was not sent yet."""

    task_id: str
    slot_us: int
    since_us: int


@dataclass(frozen=True, slots=True)
class LastRun:
    """The newest run of a job. `at_us`: when it was sent, or claimed if it was not sent. `task_id`: '' if unknown."""

    at_us: int
    verdict: str
    task_id: str = ""


def last_run(state: Mapping[str, Any] | None, newest: LastRun | None) -> LastRun | None:
    """The last run of a job. `newest`: its newest run in the ledger; what was pruned there is known to the state only.

    The state alone does not tell: its `last_verdict` is that of the last slot, which may have been skipped after the
    run that its `last_run_us` is of.
    """
    if newest is not None or state is None or state["last_run_us"] is None:
        return newest
    verdict = state["last_verdict"]
    return LastRun(state["last_run_us"], "" if verdict in NO_RUN else verdict)


@dataclass(frozen=True, slots=True)
class Facts:
    """What the condition of a job follows from. The view `qbeat_status` has the same facts in its tables.

    `problem`: `Condition.BAD`, `RESERVED` or `REFUSED`, or None. `planned`: the next slot is that of this schedule.
    `waits`: the job has `overlap` skip. `beat_alive`: see `liveness.is_alive`.
    """

    enabled: bool = True
    scope_enabled: bool = True
    problem: Condition | None = None
    planned: bool = False
    next_run_us: int | None = None
    last_slot_us: int | None = None
    late_after_us: int | None = None
    waits: bool = True
    run: InFlight | None = None
    beat_alive: bool = True


def condition_of(facts: Facts, now_us: int) -> Condition:
    """The condition of a job. `stores.status_view` has the same rule in SQL."""
    if not facts.enabled:
        return Condition.DISABLED
    if not facts.scope_enabled:
        return Condition.PAUSED
    if facts.problem is not None:
        return facts.problem
    if _is_blocked(facts, now_us):
        return Condition.BLOCKED
    if _is_late(facts, now_us):
        return Condition.LATE
    if facts.run is not None:
        return Condition.RUNNING
    if facts.planned and facts.next_run_us is None:
        return Condition.FINISHED
    return Condition.READY if facts.beat_alive else Condition.STOPPED


def problem_of(state: State) -> Condition | None:
    """What kind of problem a beat has written into the state of a job."""
    if state.problem.startswith(RESERVED_PREFIX):
        return Condition.RESERVED
    if not state.problem:
        return None
    return Condition.REFUSED if is_planned(state) else Condition.BAD


def is_planned(state: State) -> bool:
    """Whether a beat has read a schedule for this state, by which the job would run."""
    return state.plan_key not in ("", UNPLANNED)


def _is_blocked(facts: Facts, now_us: int) -> bool:
    """Whether a slot has come since the run in flight, and could not start for it."""
    if facts.run is None or not facts.waits:
        return False
    due = facts.next_run_us is not None and facts.next_run_us <= now_us
    return due or (facts.last_slot_us is not None and facts.last_slot_us > facts.run.slot_us)


def _is_late(facts: Facts, now_us: int) -> bool:
    return facts.late_after_us is not None and facts.late_after_us < now_us


@dataclass(frozen=True, slots=True)
class JobHealth:
    """`reading`: the row as the scheduler understands it; `reason` is '' for a row that simply runs.

    `run`: its oldest run in flight. `late`: no run has succeeded for two periods, whatever the condition is.
    """

    condition: Condition
    reason: str
    reading: Reading
    run: InFlight | None = None
    late: bool = False

    @property
    def ailing(self) -> bool:
        """Whether somebody has to see to it. A blocked job has only to wait, unless it does so for too long."""
        return self.condition in AILING or (self.late and self.condition is Condition.BLOCKED)


@dataclass(frozen=True, slots=True)
class HealthRules:
    """What rows are judged by.

    `privileges` None: the app is not known, so of names only the privileged ones are, and the last word of a beat
    decides on the others. `heard`: a beat is alive, so what it says of a row holds.
    """

    rules: RowRules
    workers: Mapping[str, WorkerScope]
    privileges: Privileges | None
    now_us: int
    heard: bool = True

    def row_health(self, row: Mapping[str, Any], state: State | None, run: InFlight | None = None) -> JobHealth:
        """How this row stands, with the state that the machine keeps of it and its oldest run in flight."""
        reading = read_row(row, self.rules, self.workers)
        scope = self.workers.get(row.get("worker", ""), DEFAULT_SCOPE) if reading.job is None else reading.job.scope
        problem, why = self._problem(reading, state)
        facts = self._facts(reading.job, state, run, problem, scope.enabled)
        if row.get("enabled") in (False, 0):
            return JobHealth(Condition.DISABLED, reading.problem, reading, run)
        return self._standing(facts, reading, why, scope)

    def code_health(self, job: Job, state: State | None, run: InFlight | None = None) -> JobHealth:
        """How an entry of `app.conf.beat_schedule` stands."""
        problem, why = self._told(state)
        return self._standing(self._facts(job, state, run, problem, True), Reading(job.id, job), why, job.scope)

    def refusal(self, job: Job) -> str:
        """Why this job may not run; empty when it may."""
        if self.privileges is not None:
            return self.privileges.refusal(job)
        return "" if (job.id, job.fn) in Privileges().trusted else privileged(job.fn, Privileges())

    def _facts(
        self, job: Job | None, state: State | None, run: InFlight | None, problem: Condition | None, scope_enabled: bool
    ) -> Facts:
        known = state if state is not None else State("", 0)
        return Facts(
            scope_enabled=scope_enabled,
            problem=problem,
            planned=job is not None and known.plan_key == job.plan_key,
            next_run_us=known.next_run_us,
            last_slot_us=known.last_slot_us,
            late_after_us=known.late_after_us,
            waits=job is None or job.overlap == "skip",
            run=run,
            beat_alive=self.heard,
        )

    def _standing(self, facts: Facts, reading: Reading, why: str, scope: WorkerScope) -> JobHealth:
        found = condition_of(facts, self.now_us)
        reasons = {
            Condition.PAUSED: f"worker {scope.name!r} is disabled",
            Condition.FINISHED: "its schedule has no slot left",
            Condition.LATE: "no run has succeeded for two periods",
            Condition.STOPPED: NO_BEAT,
        }
        if found in (Condition.BLOCKED, Condition.RUNNING) and facts.run is not None:
            reasons[found] = f"run {facts.run.task_id} is in flight"
        late = found is not Condition.PAUSED and facts.problem is None and _is_late(facts, self.now_us)
        if late and found is Condition.BLOCKED:
            reasons[found] += ", and no run has succeeded for two periods"
        return JobHealth(found, reasons.get(found, why), reading, facts.run, late)

    def _problem(self, reading: Reading, state: State | None) -> tuple[Condition | None, str]:
        """What is wrong with a row, by our own reading, then by that of the beat; and a remark when nothing is."""
        if reading.job is None:
            return Condition.BAD, reading.problem
        if reading.problem:
            return Condition.RESERVED, reading.problem
        if refusal := self.refusal(reading.job):
            return Condition.REFUSED, refusal
        return self._told(state)

    def _told(self, state: State | None) -> tuple[Condition | None, str]:
        if state is None:
            return None, "no beat has seen it yet"
        if state.problem and (self.heard or self.privileges is None):
            return problem_of(state), f"the beat says: {state.problem}"
        return None, ""


def privileged(fn: str, privileges: Privileges) -> str:
    """Why no row may ever run `fn`, whatever gets registered; empty when it is not privileged."""
    known = Privileges(
        registered=frozenset({fn}),
        functions=privileges.functions,
        namespaces=privileges.namespaces,
        denied=privileges.denied,
    )
    return known.refused_name(fn, WorkerScope())
