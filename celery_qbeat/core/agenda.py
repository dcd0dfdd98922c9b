"""The writer's memory: every job with its next slot, in a heap; and the runs in flight with their leases. Pure.

An idle look costs the same with a hundred jobs and with a million: only the top of the heap is read.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

from celery_qbeat.core.jobs import Job, Reading, State
from celery_qbeat.core.lost_slots import moved_into_past
from celery_qbeat.core.planning import Plan, first_slot, kept_slot, late_after, slot_from_now

UNPLANNED = "-"
"""The plan key of a job that is disabled or has become bad: when that is over, it is planned from now."""

STALE = 1_000
"""So many stale items may be in the heap, beside as many as there are jobs, before it is cleared of them."""


GONE_KEPT = 10_000
"""The number of jobs that are gone and whose last slots are remembered, beside those that are there."""


@dataclass(slots=True)
class AgendaEntry:
    """A job that the scheduler knows, runnable or not, and its state as last read or written.

    `behind`: still due after its last decision (`catch_up=all`).
    """

    id: str
    job: Job | None
    state: State
    problem: str = ""
    refusal: str = ""
    next_us: int | None = None
    fresh: bool = False
    excused: bool = False
    waiting: bool = False
    behind: bool = False
    queued_us: int | None = None

    @property
    def runnable(self) -> bool:
        return self.job is not None and not self.problem and not self.job.paused


@dataclass(frozen=True, slots=True)
class RememberedSlots:
    """What a beat remembers of a job whatever the database says: its newest slot with a verdict, and its last run."""

    last_slot_us: int | None
    last_run_us: int | None


class Agenda:
    """All entries by id, and a heap of those that have a next slot. Stale items of the heap are passed over.

    A job that is still due after it was decided (`catch_up=all`) goes into a queue of its own: what is due now does not
    wait for the past of others. `remembered`: of an agenda before this one, see `successor`.
    """

    def __init__(self, remembered: Mapping[str, RememberedSlots] | None = None) -> None:
        self.entries: dict[str, AgendaEntry] = {}
        self._heap: list[tuple[int, str]] = []
        self._backlog: dict[str, int] = {}
        self._remembered = dict(remembered or {})

    def successor(self) -> Agenda:
        """An empty agenda that remembers which slots were decided: a restored database does not know it."""
        known = {
            entry.id: RememberedSlots(entry.state.last_slot_us, entry.state.last_run_us)
            for entry in self.entries.values()
            if entry.state.last_slot_us is not None
        }
        return Agenda({**self._remembered, **known})

    def __len__(self) -> int:
        return len(self.entries)

    def add_or_replace(self, reading: Reading, state: State | None, now: int, refusal: str = "") -> Plan | None:
        """Take in a row as it is now, with its state; the plan to be stored, or None when the stored one is right."""
        old = self.entries.get(reading.id)
        entry = _entry(reading, self._recall(reading.id, state, now), now, refusal)
        if old is not None:
            # Not `waiting`: it is decided anew, for the row may allow overlap now.
            same = entry.next_us == old.next_us
            entry.excused = old.excused and same
            entry.fresh = entry.fresh or (old.fresh and same)
            entry.behind = old.behind and same
            entry.queued_us = old.queued_us
        self.entries[reading.id] = entry
        self._queue(entry)
        return _plan(entry, state, now)

    def _recall(self, job_id: str, state: State | None, now: int) -> State | None:
        """The state with the newest slot and run that are remembered: the database may be an older copy."""
        old = self.entries.get(job_id)
        known = (
            self._remembered.get(job_id)
            if old is None
            else RememberedSlots(old.state.last_slot_us, old.state.last_run_us)
        )
        if known is None or known.last_slot_us is None:
            return state
        state = state or State(job_id, first_seen_us=now)
        if known.last_slot_us <= (state.last_slot_us or 0):
            return state
        run = max(filter(None, (known.last_run_us, state.last_run_us)), default=None)
        return replace(state, last_slot_us=known.last_slot_us, last_run_us=run)

    def remove(self, job_id: str) -> State | None:
        """Forget a job; its state, when it was known."""
        self._backlog.pop(job_id, None)
        entry = self.entries.pop(job_id, None)
        if entry is None:
            return None
        # A restored database may bring the row back.
        self._remembered[job_id] = RememberedSlots(entry.state.last_slot_us, entry.state.last_run_us)
        if len(self._remembered) > len(self.entries) + GONE_KEPT:
            del self._remembered[next(iter(self._remembered))]
        return entry.state

    def record_claim(
        self, job_id: str, next_us: int | None, now: int, *, last_run_us: int | None, last_slot_us: int | None
    ) -> None:
        """A claim was won at `now`: the job's next slot, and what it ran."""
        entry = self.entries.get(job_id)
        if entry is None:
            return
        state = entry.state
        entry.state = replace(
            state,
            next_run_us=next_us,
            last_run_us=state.last_run_us if last_run_us is None else last_run_us,
            last_slot_us=max(filter(None, (state.last_slot_us, last_slot_us)), default=None),
        )
        entry.next_us = next_us
        entry.fresh = entry.excused = entry.waiting = False
        entry.behind = next_us is not None and next_us <= now
        self._queue(entry)

    def undo_claim(self, before: AgendaEntry, next_us: int, last_run_us: int | None, last_slot_us: int | None) -> None:
        """A claim was released: the entry is as it was `before`, and `next_us` is due again.

        `last_slot_us`: the last slot of the claim that keeps its verdict, if any.
        """
        entry = self.entries.get(before.id)
        if entry is not None:
            last = before.state.last_slot_us if last_slot_us is None else last_slot_us
            entry.state = replace(before.state, next_run_us=next_us, last_run_us=last_run_us, last_slot_us=last)
            entry.next_us, entry.fresh, entry.excused = next_us, before.fresh, before.excused
            entry.behind = before.behind
            self._queue(entry)

    def record_success(self, job_id: str, now: int, late_after_us: int | None) -> None:
        """A run of this job succeeded."""
        entry = self.entries.get(job_id)
        if entry is not None:
            entry.state = replace(entry.state, last_succeeded_us=now, late_after_us=late_after_us)

    def pop_due(self, now: int, limit: int) -> list[AgendaEntry]:
        """Up to `limit` entries whose slot has come. They leave the agenda until `moved` or `again`.

        Earliest first, and then those that are still due after their last decision, in turn; a quarter of `limit` is
        theirs when there are many.
        """
        late = min(len(self._backlog), max(1, limit // 4))
        found: list[AgendaEntry] = []
        while self._heap and self._heap[0][0] <= now and len(found) < max(1, limit - late):
            slot, job_id = heapq.heappop(self._heap)
            if job_id not in self._backlog:
                self._take(job_id, slot, found)
        while self._backlog and len(found) < limit:
            job_id, slot = next(iter(self._backlog.items()))
            del self._backlog[job_id]
            self._take(job_id, slot, found)
        return found

    def _take(self, job_id: str, slot: int, found: list[AgendaEntry]) -> None:
        """Add the entry to `found` if it is queued for this slot and due; what became of it since is queued anew."""
        entry = self.entries.get(job_id)
        if entry is not None and entry.queued_us == slot:
            entry.queued_us = None
            if entry.next_us == slot and not entry.waiting:
                found.append(entry)
            else:
                self._queue(entry)

    def return_due(self, job_id: str) -> None:
        """Its slot was not decided: it stays due."""
        entry = self.entries.get(job_id)
        if entry is not None:
            self._queue(entry)

    def block_until_finished(self, entry: AgendaEntry) -> None:
        """It is due, but a run of its own is in flight: it leaves the heap until `wake`."""
        entry.waiting = entry.excused = True

    def block_until_accepted(self, entry: AgendaEntry) -> None:
        """It is due, but its queue refuses messages: it leaves the heap until `wake`, and its grace goes on."""
        entry.waiting = True

    def unblock(self, job_id: str) -> None:
        """What this job waited for is over."""
        entry = self.entries.get(job_id)
        if entry is not None and entry.waiting:
            entry.waiting = False
            self._queue(entry)

    def next_us(self) -> int | None:
        """The earliest slot; None when nothing is planned."""
        if self._backlog:
            return next(iter(self._backlog.values()))
        while self._heap:
            slot, job_id = self._heap[0]
            entry = self.entries.get(job_id)
            if entry is not None and entry.queued_us == slot and entry.next_us == slot and not entry.waiting:
                return slot
            heapq.heappop(self._heap)
            if entry is not None and entry.queued_us == slot:
                entry.queued_us = None
                self._queue(entry)
        return None

    def beyond_schedule(self, now: int) -> Iterator[AgendaEntry]:
        """After the clock stepped back: the entries whose slot is further away than their schedule could ask for."""
        for entry in self.entries.values():
            ahead = entry.next_us is not None and entry.next_us > now
            if ahead and entry.job is not None and kept_slot(entry.job, entry.state, now) != entry.next_us:
                yield entry

    def _queue(self, entry: AgendaEntry) -> None:
        if entry.next_us is None or entry.waiting or entry.queued_us == entry.next_us:
            return
        self._backlog.pop(entry.id, None)
        entry.queued_us = entry.next_us
        if entry.behind:
            self._backlog[entry.id] = entry.next_us
            return
        heapq.heappush(self._heap, (entry.next_us, entry.id))
        if len(self._heap) > 2 * len(self.entries) + STALE:
            queued = ((entry.queued_us, entry.id) for entry in self.entries.values() if entry.id not in self._backlog)
            self._heap = [(slot, job_id) for slot, job_id in queued if slot is not None]
            heapq.heapify(self._heap)


def _entry(reading: Reading, state: State | None, now: int, refusal: str) -> AgendaEntry:
    job = reading.job
    known = state if state is not None else State(reading.id, first_seen_us=now)
    entry = AgendaEntry(reading.id, job, known, problem=reading.problem, refusal=refusal)
    if job is None or not entry.runnable:
        return entry
    if known.plan_key == "":
        entry.next_us, entry.fresh = first_slot(job, now), True
    elif known.plan_key == job.plan_key and known.next_run_us is not None:
        entry.next_us = kept_slot(job, known, now)
    else:
        entry.next_us = slot_from_now(job, known.last_run_us, now)
    return entry


def _plan(entry: AgendaEntry, state: State | None, now: int) -> Plan | None:
    job = entry.job
    known = entry.state
    runnable = entry.runnable
    if job is not None and runnable:
        key = job.plan_key
    else:
        key = UNPLANNED if known.plan_key or (job is not None and job.paused) else ""
    replanned = state is None or known.plan_key != key or known.next_run_us != entry.next_us
    late = known.late_after_us
    if not runnable or entry.refusal:
        late = None
    elif job is not None and (replanned or late is None) and entry.next_us is not None:
        late = late_after(job, now)
    problem = entry.problem or entry.refusal
    if not replanned and known.problem == problem and known.late_after_us == late:
        return None
    due = known.next_run_us is not None and known.next_run_us <= now
    overtaken = known.next_run_us if due and known.next_run_us != entry.next_us else None
    moved = moved_into_past(job, known, entry.next_us, now) if job is not None and runnable else None
    entry.state = replace(
        known,
        next_run_us=entry.next_us,
        last_slot_us=max(filter(None, (known.last_slot_us, overtaken, moved)), default=None),
        late_after_us=late,
        plan_key=key,
        problem=problem,
    )
    return Plan(
        job_id=entry.id,
        first_seen_us=known.first_seen_us,
        next_run_us=entry.next_us,
        plan_key=key,
        problem=problem,
        late_after_us=late,
        spec=job.spec if job is not None and runnable else None,
        record=state is None or known.plan_key != key,
        overtaken_us=overtaken,
        planned_us=known.next_run_us,
        moved_us=moved,
    )
