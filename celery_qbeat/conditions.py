"""How a row stands: whether it runs, and if not, why. Pure; the same reading and the same gate as the scheduler's."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from celery_qbeat.jobs import Job, Reading, RowRules, State, Worker, read_row
from celery_qbeat.privileges import Privileges


class Condition(StrEnum):
    """The first that applies, from below: a disabled row is disabled, however bad it is."""

    READY = "ready"
    FINISHED = "finished"
    LATE = "late"
    REFUSED = "refused"
    BAD = "bad"
    RESERVED = "reserved"
    PAUSED = "paused"
    DISABLED = "disabled"


AILING = frozenset({Condition.LATE, Condition.REFUSED, Condition.BAD})
"""What somebody has to see to."""

IDLE = frozenset(Condition) - {Condition.READY, Condition.LATE}
"""What will not run as it is."""


@dataclass(frozen=True, slots=True)
class Standing:
    """`reading`: the row as the scheduler understands it; `reason` is '' for a row that simply runs."""

    condition: Condition
    reason: str
    reading: Reading


@dataclass(frozen=True, slots=True)
class Judge:
    """What rows are judged by.

    `privileges` None: the app is not known, so of names only the privileged ones are, and the last word of a beat
    decides on the others. `heard`: a beat is alive, so what it says of a row holds.
    """

    rules: RowRules
    workers: Mapping[str, Worker]
    privileges: Privileges | None
    now_us: int
    heard: bool = True

    def standing(self, row: Mapping[str, Any], state: State | None) -> Standing:
        """How this row stands, with the state that the machine keeps of it."""
        reading = read_row(row, self.rules, self.workers)
        condition, reason = self._row(row, reading) or self._state(reading.job, state)
        return Standing(condition, reason, reading)

    def code(self, job: Job, state: State | None) -> Standing:
        """How an entry of `app.conf.beat_schedule` stands."""
        condition, reason = self._state(job, state)
        return Standing(condition, reason, Reading(job.id, job))

    def refusal(self, job: Job) -> str:
        """Why this job may not run; empty when it may."""
        if self.privileges is not None:
            return self.privileges.refusal(job)
        return "" if (job.id, job.fn) in Privileges().trusted else privileged(job.fn, Privileges())

    def _row(self, row: Mapping[str, Any], reading: Reading) -> tuple[Condition, str] | None:
        job = reading.job
        if row.get("enabled") in (False, 0):
            return Condition.DISABLED, reading.problem
        if job is None:
            return Condition.BAD, reading.problem
        if not job.scope.enabled:
            return Condition.PAUSED, f"worker {job.scope.name!r} is disabled"
        if reading.problem:
            return Condition.RESERVED, reading.problem
        if refusal := self.refusal(job):
            return Condition.REFUSED, refusal
        return None

    def _state(self, job: Job | None, state: State | None) -> tuple[Condition, str]:
        if state is None:
            return Condition.READY, "no beat has seen it yet"
        if state.problem and (self.heard or self.privileges is None):
            return Condition.REFUSED, f"the beat says: {state.problem}"
        if state.late_after_us is not None and state.late_after_us < self.now_us:
            return Condition.LATE, "no run has succeeded for two periods"
        if job is not None and state.plan_key == job.plan_key and state.next_run_us is None:
            return Condition.FINISHED, "its schedule has no slot left"
        return Condition.READY, ""


def privileged(fn: str, privileges: Privileges) -> str:
    """Why no row may ever run `fn`, whatever gets registered; empty when it is not privileged."""
    known = Privileges(
        registered=frozenset({fn}),
        functions=privileges.functions,
        namespaces=privileges.namespaces,
        denied=privileges.denied,
    )
    return known.refused_name(fn, Worker())
