"""The runs in flight, as the writer remembers them. Pure.

No call costs more with the number of runs in flight, but for what it returns.
"""

from __future__ import annotations

import heapq
from collections import OrderedDict
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice

SECOND_US = 1_000_000

STALE = 1_000
"""So many empty seconds may be kept, beside as many as there are others, before they are cleared away."""

MOST_LOOKED_AT = 20_000
"""The most runs that one search for silent ones looks at."""


@dataclass(frozen=True, slots=True)
class InFlightRun:
    """A run that was sent, or may have been, and has not ended."""

    task_id: str
    job_id: str
    slot_us: int
    sent_us: int
    lease_until_us: int


class _Leases:
    """Runs by the second in which their lease ends."""

    def __init__(self) -> None:
        self._by_second: dict[int, dict[str, InFlightRun]] = {}
        self._seconds: list[int] = []
        self._known: set[int] = set()

    def add(self, run: InFlightRun) -> None:
        second = run.lease_until_us // SECOND_US
        self._by_second.setdefault(second, {})[run.task_id] = run
        if second not in self._known:
            self._known.add(second)
            heapq.heappush(self._seconds, second)
            if len(self._seconds) > 2 * len(self._by_second) + STALE:
                self._seconds = list(self._by_second)
                self._known = set(self._seconds)
                heapq.heapify(self._seconds)

    def remove(self, run: InFlightRun) -> None:
        second = run.lease_until_us // SECOND_US
        runs = self._by_second[second]
        del runs[run.task_id]
        if not runs:
            del self._by_second[second]

    def over(self, now: int) -> Iterator[InFlightRun]:
        """Runs whose lease is over, by the second of its end. Nothing may be added or removed meanwhile."""
        passed: list[int] = []
        try:
            while self._seconds and self._seconds[0] * SECOND_US <= now:
                passed.append(heapq.heappop(self._seconds))
                runs = self._by_second.get(passed[-1], {})
                yield from (run for run in runs.values() if run.lease_until_us <= now)
        finally:
            for second in passed:
                if second in self._by_second:
                    heapq.heappush(self._seconds, second)
                else:
                    self._known.discard(second)


class InFlightRuns:
    """Runs by task id and by job, in turns for those that are silent, and by the end of their leases."""

    def __init__(self) -> None:
        self._runs: OrderedDict[str, InFlightRun] = OrderedDict()
        self._by_job: dict[str, set[str]] = {}
        self._leases = _Leases()

    def __len__(self) -> int:
        return len(self._runs)

    def __contains__(self, task_id: str) -> bool:
        return task_id in self._runs

    def __iter__(self) -> Iterator[str]:
        """The task ids of all runs in flight."""
        return iter(self._runs)

    def has_run_of(self, job_id: str) -> bool:
        """Whether a run of this job is in flight; queued counts."""
        return job_id in self._by_job

    def runs_of(self, job_id: str) -> list[InFlightRun]:
        """The runs of this job that are in flight."""
        return [self._runs[task_id] for task_id in self._by_job.get(job_id, ())]

    def get(self, task_id: str) -> InFlightRun | None:
        return self._runs.get(task_id)

    def add(self, run: InFlightRun) -> None:
        """Take off, or extend the lease of a run that is known."""
        known = self._runs.get(run.task_id)
        if known is not None:
            self._leases.remove(known)
        self._runs[run.task_id] = run
        self._leases.add(run)
        self._by_job.setdefault(run.job_id, set()).add(run.task_id)

    def remove(self, task_id: str) -> InFlightRun | None:
        """The run ended; None when it was not known. `busy` says whether another run of its job is in flight."""
        run = self._runs.pop(task_id, None)
        if run is None:
            return None
        self._leases.remove(run)
        others = self._by_job[run.job_id]
        others.discard(task_id)
        if not others:
            del self._by_job[run.job_id]
        return run

    def expired(self, now: int, limit: int = 1_000) -> list[InFlightRun]:
        """Runs whose lease is over; they stay overdue until they are landed, or added again with a longer lease."""
        return list(islice(self._leases.over(now), limit))

    def silent(self, sent_before: int, limit: int = 1_000) -> list[InFlightRun]:
        """Runs sent before this and still without an end; who was not asked for longest comes first.

        A call looks at `MOST_LOOKED_AT` runs at most, so it may pass over some while very many are younger.
        """
        looked_at = islice(self._runs.values(), MOST_LOOKED_AT)
        found = list(islice((run for run in looked_at if run.sent_us <= sent_before), limit))
        for run in found:
            self._runs.move_to_end(run.task_id)
        return found
