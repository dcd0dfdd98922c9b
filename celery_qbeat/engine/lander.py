"""How runs end: messages from workers, the result backend, leases; and the chores that run inside the beat."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from celery_qbeat.engine import report
from celery_qbeat.engine.desk import Desk, Parts
from celery_qbeat.flights import Airborne
from celery_qbeat.jobs import Verdict
from celery_qbeat.planning import late_after
from celery_qbeat.ports import Completions, End, Flight

SILENT_US = 3_000_000
"""Runs that have been silent for this long are looked up in the result backend."""

UNASKED_US = 60_000_000
"""The respite when a lease ends while the broker is away: after its return, workers need a while to connect."""

LEASES_A_CHECK = 1_000

BACKLOG_S = 1.0
"""The pause after a check of leases that did not get to the end of them."""

HEARING_S = 60.0
"""So long ends that have arrived and were not taken yet keep leases from being ended: they may be of those runs."""


class Lander:
    """Ends the runs in flight, and lets their jobs run again."""

    def __init__(self, parts: Parts, desk: Desk) -> None:
        self._parts = parts
        self._desk = desk
        self._next_look = 0.0
        self._next_lease_check = 0.0
        self._heard_all = parts.clock.monotonic()

    def land(self, now: int) -> bool:
        """Take what arrived, look up what is silent, end what outlived its lease, go on with chores.

        True: there was no time to take all that arrived.
        """
        self._step_chores(now)
        completions = self._parts.completions
        waiting = False
        if completions is not None:
            waiting = self._take(completions, now)
            self._look_up(completions, now)
        at = self._parts.clock.monotonic()
        if not waiting:
            self._heard_all = at
        if not waiting or at - self._heard_all >= HEARING_S:
            self._end_leases(now)
        return waiting

    def _take(self, completions: Completions, now: int) -> bool:
        clock, budget = self._parts.clock, self._parts.limits.drain_s
        start = clock.monotonic()
        ends = completions.take(budget)
        waiting = clock.monotonic() - start >= budget
        if not ends:
            return False
        self._conclude(ends, now)
        completions.ack()
        return waiting

    def _look_up(self, completions: Completions, now: int) -> None:
        at = self._parts.clock.monotonic()
        if at < self._next_look or not self._desk.flights:
            return
        self._next_look = at + self._parts.limits.look_up_s
        silent = self._desk.flights.silent(now - SILENT_US)
        if silent:
            self._conclude(completions.look_up([_flight(run) for run in silent]), now)

    def _end_leases(self, now: int) -> None:
        at = self._parts.clock.monotonic()
        if at < self._next_lease_check:
            return
        overdue = self._desk.flights.overdue(now, LEASES_A_CHECK)
        if not overdue:
            return
        full = len(overdue) == LEASES_A_CHECK
        self._next_lease_check = at + (BACKLOG_S if full else self._parts.limits.lease_check_s)
        here = self._at_hand()
        for run in overdue:
            if run.task_id in here:
                self._desk.flights.add(replace(run, lease_until_us=now + SILENT_US))
        self._judge([run for run in overdue if run.task_id not in here], now)

    def _at_hand(self) -> set[str]:
        """What no worker has: chores are done here, what is sent again gets a new lease then, and a message without a
        confirm may not have arrived."""
        desk = self._desk
        return {task_id for task_id, _, _ in desk.chores} | desk.resends.keys() | desk.unconfirmed.keys()

    def _judge(self, overdue: Sequence[Airborne], now: int) -> None:
        """Their leases are over: ask the result backend, then the workers; what nobody knows of is lost."""
        known: Sequence[End] = ()
        running: frozenset[str] | None = frozenset()
        completions = self._parts.completions
        if completions is not None:
            known = completions.look_up([_flight(run) for run in overdue])
        found = {end.task_id for end in known}
        left = [run for run in overdue if run.task_id not in found]
        if completions is not None and left:
            running = completions.still_running([run.task_id for run in left])
        ends = list(known)
        for run in left:
            if running is None:
                self._desk.flights.add(replace(run, lease_until_us=now + UNASKED_US))
            elif run.task_id in running:
                self._extend(run, now)
            else:
                ends.append(End(run.task_id, Verdict.LOST, "its lease ended and nobody reported an end"))
        self._conclude(ends, now)

    def _extend(self, run: Airborne, now: int) -> None:
        entry = self._desk.agenda.entries.get(run.job_id)
        lease = entry.job.max_run_us if entry is not None and entry.job is not None else now - run.sent_us
        report.still_running(run.job_id, run.task_id)
        self._desk.flights.add(replace(run, lease_until_us=now + max(lease, 1_000_000)))

    def _conclude(self, ends: Sequence[End], now: int) -> None:
        if not ends:
            return
        desk, store = self._desk, self._parts.store
        told = [self._with_lateness(end, now) for end in ends]
        late = {end.task_id for end in ends if end.task_id not in desk.flights and end.verdict is Verdict.SUCCEEDED}

        def conclude(epoch: int) -> None:
            changed = store.conclude(epoch, told, now)
            # Given up before, and a success after all: only the database knows whose, so lateness is reckoned then.
            desk.suspects.update(changed[task_id] for task_id in late & changed.keys())

        desk.owed.append(conclude)
        # Before it is paid: what is owed is paid before anything else is done, but nobody would land these runs again.
        for end in told:
            run = desk.land(end.task_id)
            if run is not None:
                report.ended(run.job_id, end.task_id, end.verdict, end.detail)
        desk.pay()

    def _with_lateness(self, end: End, now: int) -> End:
        run = self._desk.flights.get(end.task_id)
        entry = self._desk.agenda.entries.get(run.job_id) if run is not None else None
        if end.verdict is not Verdict.SUCCEEDED or entry is None or entry.job is None or not entry.runnable:
            return end
        late = late_after(entry.job, now)
        self._desk.agenda.succeeded(entry.id, now, late)
        return End(end.task_id, end.verdict, end.detail, late)

    def _step_chores(self, now: int) -> None:
        desk, clock = self._desk, self._parts.clock
        until = clock.monotonic() + self._parts.limits.chore_s
        for item in list(desk.chores):
            task, job_id, steps = item
            try:
                done = next(steps, None)
                while done is not None and clock.monotonic() < until:
                    done = next(steps, None)
            except Exception as error:
                desk.chores.remove(item)
                report.chore_failed(job_id, error)
                self._conclude([End(task, Verdict.FAILED, _first_line(error))], now)
                continue
            if done is None:
                desk.chores.remove(item)
                self._conclude([End(task, Verdict.SUCCEEDED)], now)


def _first_line(error: Exception) -> str:
    return f"{type(error).__name__}: {error}".splitlines()[0].removesuffix(": ")


def _flight(run: Airborne) -> Flight:
    return Flight(run.task_id, run.job_id, run.slot_us, run.lease_until_us, sent_us=run.sent_us)
