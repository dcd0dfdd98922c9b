"""What workers and queues answer to the question who has a run. Values only, and pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class Holder:
    """A worker that has a run. `state`: `active`, `reserved`, `scheduled` (waits for its time), or another word."""

    worker: str
    state: str


@dataclass(frozen=True, slots=True)
class WorkerSeen:
    """A worker that answered every question. `up_s`: for how many seconds it has been running; None: unknown."""

    queues: frozenset[str] = frozenset()
    up_s: float | None = None


@dataclass(frozen=True, slots=True)
class QueueSeen:
    """A queue as it was just before the workers were asked.

    `waiting`: messages ready in it; None: unknown. `readers`: its consumers, where the broker counts them. `ready`:
    task ids that were found in it; `delivered`: those that were taken out of it and not acknowledged. `searched`: it
    holds no other id that was asked for.
    """

    waiting: int | None = None
    readers: int | None = None
    ready: frozenset[str] = frozenset()
    delivered: frozenset[str] = frozenset()
    searched: bool = False

    def holds(self, task_id: str) -> bool:
        return task_id in self.ready or task_id in self.delivered


@dataclass(frozen=True, slots=True)
class Answers:
    """The end of one round of questions.

    `queue_of`: the queue to which each run was sent; absent: unknown. `listeners`: how many workers received the
    question, where the broker counts them. `goodbyes`: seconds since a worker announced its shutdown, by name.
    `listening_s`: for how long such announcements have been received.
    """

    holders: Mapping[str, Holder] = field(default_factory=dict)
    workers: Mapping[str, WorkerSeen] = field(default_factory=dict)
    queues: Mapping[str, QueueSeen] = field(default_factory=dict)
    queue_of: Mapping[str, str] = field(default_factory=dict)
    listeners: int | None = None
    goodbyes: Mapping[str, float] = field(default_factory=dict)
    listening_s: float = 0.0

    def readers(self, queue: str) -> list[str]:
        """The workers that answered and read this queue."""
        return [name for name, worker in self.workers.items() if queue in worker.queues]

    def silent(self, queue: str) -> int | None:
        """How many living workers that may have runs of this queue did not answer; None: the broker cannot tell."""
        if self.listeners is not None:
            return max(0, self.listeners - len(self.workers))
        seen = self.queues.get(queue)
        if seen is None or seen.readers is None:
            return None
        return max(0, seen.readers - len(self.readers(queue)))

    def nobody_has(self, task_id: str) -> bool:
        """Whether every worker that may have the run said that it has not, and its queue does not hold it.

        A queue that no answering worker reads proves nothing: its workers may run without remote control, and without
        a reader the next run of the job could not run either.
        """
        queue = self.queue_of.get(task_id)
        seen = self.queues.get(queue) if queue is not None else None
        if queue is None or seen is None or task_id in self.holders:
            return False
        return seen.searched and not seen.holds(task_id) and self.silent(queue) == 0 and self.readers(queue) != []
