"""Queues that refuse messages while the broker serves others, and the jobs that wait for them. Pure."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from celery_qbeat.core.jobs import Job, Verdict
from celery_qbeat.core.planning import Claim

FIRST_PAUSE_US = 1_000_000
"""The pause after the first refusal, in microseconds; each refusal in a row doubles it."""

LONGEST_PAUSE_US = 30_000_000

QUIET_US = 30_000_000
"""A queue is all right again when it took a message and has refused none for this long, in microseconds."""

FORGET_US = 3_600_000_000
"""A queue for which no job waits is forgotten when its last refusal is this old, in microseconds."""

RECHECK_US = 1_000_000
"""The shortest time until a waiting job is decided again because its grace may be over."""

_Route = tuple[int | None, str | None, str | None]


@dataclass(slots=True)
class _Queue:
    """`jobs`: those that wait, and when the grace of each is over."""

    reason: str
    pause_us: int
    until_us: int
    refused_us: int
    takes: bool = False
    jobs: dict[str, int | None] = field(default_factory=dict)


class QueueRefusals:
    """What is known of queues that refused something. One job a pause tries, the others wait for its luck."""

    def __init__(self) -> None:
        self._queues: dict[str, _Queue] = {}
        self._queue_of: dict[str, tuple[str, _Route]] = {}

    def __len__(self) -> int:
        return len(self._queues)

    def refused(self, job: Job, queue: str, reason: str, now: int) -> bool:
        """Note that `queue` refused a message of `job`; whether this is news."""
        known = self._queues.get(queue)
        self._queue_of[job.id] = (queue, _route(job))
        if known is None:
            self._queues[queue] = _Queue(reason, FIRST_PAUSE_US, now + FIRST_PAUSE_US, now)
            return True
        if now > known.refused_us:
            # Once an attempt, however many messages it had.
            known.pause_us = min(2 * known.pause_us, LONGEST_PAUSE_US)
        known.reason, known.until_us, known.refused_us, known.takes = reason, now + known.pause_us, now, False
        return False

    def accepted(self, job: Job) -> list[str]:
        """A message of `job` was sent: the jobs that waited for its queue, which may try now."""
        known = self._of(job)
        if known is None or known.takes:
            return []
        known.takes = True
        waiting, known.jobs = list(known.jobs), {}
        return waiting

    def admits(self, job: Job, now: int) -> bool:
        """Whether `job` may try now. Whoever is admitted to a queue that refuses uses up the attempt of this pause."""
        known = self._of(job)
        if known is None or known.takes:
            return True
        if now < known.until_us:
            return False
        known.until_us = now + known.pause_us
        return True

    def wait(self, job: Job, claim: Claim, now: int) -> None:
        """`job` was not admitted: `due` names it when it is its turn, or when the grace of its slot is over."""
        known = self._of(job)
        if known is not None:
            late = max((run.late_us for run in claim.runs if run.verdict is Verdict.CLAIMED), default=0)
            grace = job.grace_us
            known.jobs[job.id] = None if grace is None else now + max(RECHECK_US, grace - late + 1)

    def due(self, now: int) -> list[str]:
        """The jobs to decide again; they do not wait any more."""
        found: list[str] = []
        for known in self._queues.values():
            over = [job_id for job_id, at in known.jobs.items() if at is not None and at <= now]
            if now >= known.until_us and known.jobs and not over:
                over = [next(iter(known.jobs))]
            for job_id in over:
                del known.jobs[job_id]
            found.extend(over)
        return found

    def ended(self, now: int) -> list[str]:
        """The queues that are all right again; nothing is remembered of them from now on."""
        quiet = [name for name, known in self._queues.items() if known.takes and now - known.refused_us >= QUIET_US]
        idle = [name for name, q in self._queues.items() if not q.jobs and now - q.refused_us >= FORGET_US]
        for name in {*quiet, *idle}:
            del self._queues[name]
            self._queue_of = {job_id: of for job_id, of in self._queue_of.items() if of[0] != name}
        return quiet

    def explain(self, job: Job, claim: Claim) -> Claim:
        """`claim` with the reason beside each slot that was missed while the job's queue refused it."""
        known = self._of(job)
        if known is None:
            return claim
        why = f"; queue {self._queue_of[job.id][0]!r} refused it: {known.reason}"
        runs = (replace(r, detail=r.detail + why) if r.verdict is Verdict.MISSED else r for r in claim.runs)
        return replace(claim, runs=tuple(runs))

    def _of(self, job: Job) -> _Queue | None:
        queue, route = self._queue_of.get(job.id, ("", None))
        return self._queues.get(queue) if route == _route(job) else None


def _route(job: Job) -> _Route:
    """What of a row leads to its queue: an edit may lead to another one."""
    return job.rev, job.queue, job.scope.queue
