"""A claim that the database granted."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from celery_qbeat.core.agenda import AgendaEntry
from celery_qbeat.core.jobs import Job, Run, Verdict
from celery_qbeat.core.planning import Claim
from celery_qbeat.ports import ClaimRelease, OutgoingRun


@dataclass(frozen=True, slots=True)
class GrantedClaim:
    """A claim that the database granted, and what the job's entry was before; a run by hand leaves that alone."""

    claim: Claim
    job: Job | None
    before: AgendaEntry | None

    def without(self, lost: frozenset[str]) -> GrantedClaim:
        """What is left when the ledger already had some of the runs."""
        if not lost:
            return self
        return replace(self, claim=replace(self.claim, runs=tuple(r for r in self.claim.runs if r.task_id not in lost)))

    @property
    def claimed(self) -> list[Run]:
        return [run for run in self.claim.runs if run.verdict is Verdict.CLAIMED]

    def shipments(self) -> list[OutgoingRun]:
        if self.job is None:
            return []
        hand = self.claim.expected_us is None
        return [OutgoingRun(self.job, run, hand) for run in self.claimed]

    def release(self, unsent: Sequence[Run], now: int) -> ClaimRelease:
        """`unsent`: the last ones of what was claimed, oldest first."""
        ids = tuple(run.task_id for run in unsent)
        if self.before is None:
            return ClaimRelease(self.claim.job_id, ids, None, None)
        ran = self.before.state.last_run_us if len(unsent) == len(self.claimed) else now
        return ClaimRelease(self.claim.job_id, ids, self._back_to(unsent[0]), self.claim.next_us, ran)

    def _back_to(self, first: Run) -> int | None:
        """The oldest slot that has no verdict when `first` and all after it have none."""
        if self.job is not None and self.job.schedule.relative:
            return first.slot_us
        decided = self.decided_before(first)
        return self.claim.expected_us if decided is None or self.job is None else self.job.schedule.next_after(decided)

    def decided_before(self, first: Run) -> int | None:
        """The newest slot of this claim that keeps its verdict when `first` and all after it lose theirs."""
        return max((run.slot_us for run in self.claim.runs if run.slot_us < first.slot_us), default=None)
