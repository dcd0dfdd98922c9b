"""The runs in flight, as the writer remembers them. Pure."""

from __future__ import annotations

import heapq
from bisect import bisect_right
from dataclasses import dataclass

STALE = 1_000
"""So many leases of runs that ended may be kept, beside as many as there are runs, before they are cleared away."""


@dataclass(frozen=True, slots=True)
class Airborne:
    """A run that was sent, or may have been, and has not ended."""

    task_id: str
    job_id: str
    slot_us: int
    sent_us: int
    lease_until_us: int


class Flights:
    """Runs by task id, their number by job, and their leases by time."""

    def __init__(self) -> None:
        self._runs: dict[str, Airborne] = {}
        self._by_job: dict[str, set[str]] = {}
        self._leases: list[tuple[int, str]] = []
        self._asked: tuple[int, str] = (0, "")

    def __len__(self) -> int:
        return len(self._runs)

    def __contains__(self, task_id: str) -> bool:
        return task_id in self._runs

    def busy(self, job_id: str) -> bool:
        """Whether a run of this job is in flight; queued counts."""
        return job_id in self._by_job

    def of(self, job_id: str) -> list[Airborne]:
        """The runs of this job that are in flight."""
        return [self._runs[task_id] for task_id in self._by_job.get(job_id, ())]

    def task_ids(self) -> list[str]:
        """Of every run in flight, in the order in which they were added."""
        return list(self._runs)

    def get(self, task_id: str) -> Airborne | None:
        return self._runs.get(task_id)

    def add(self, run: Airborne) -> None:
        """Take off, or extend the lease of a run that is known."""
        known = self._runs.get(run.task_id)
        self._runs[run.task_id] = run
        self._by_job.setdefault(run.job_id, set()).add(run.task_id)
        if known is None or known.lease_until_us != run.lease_until_us:
            heapq.heappush(self._leases, (run.lease_until_us, run.task_id))
            if len(self._leases) > 2 * len(self._runs) + STALE:
                self._leases = [(run.lease_until_us, run.task_id) for run in self._runs.values()]
                heapq.heapify(self._leases)

    def land(self, task_id: str) -> Airborne | None:
        """The run ended; None when it was not known. `busy` says whether another run of its job is in flight."""
        run = self._runs.pop(task_id, None)
        if run is None:
            return None
        others = self._by_job[run.job_id]
        others.discard(task_id)
        if not others:
            del self._by_job[run.job_id]
        return run

    def overdue(self, now: int, limit: int = 1_000) -> list[Airborne]:
        """Runs whose lease is over; they stay overdue until they are landed, or added again with a longer lease."""
        found: dict[str, Airborne] = {}
        while self._leases and self._leases[0][0] <= now and len(found) < limit:
            until, task_id = heapq.heappop(self._leases)
            run = self._runs.get(task_id)
            if run is not None and run.lease_until_us == until:
                found[task_id] = run
        for run in found.values():
            heapq.heappush(self._leases, (run.lease_until_us, run.task_id))
        return list(found.values())

    def silent(self, sent_before: int, limit: int = 1_000) -> list[Airborne]:
        """Runs sent before this and still without an end, in the order in which they were sent.

        Each call goes on after the last run of the one before, and begins anew at the end: all have their turn.
        """
        quiet = sorted((run.sent_us, run.task_id) for run in self._runs.values() if run.sent_us <= sent_before)
        start = bisect_right(quiet, self._asked)
        turn = [*quiet[start:], *quiet[:start]][:limit]
        if turn:
            self._asked = turn[-1]
        return [self._runs[task_id] for _, task_id in turn]
