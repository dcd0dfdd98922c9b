"""How runs end: messages from workers, the result backend, leases."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from celery_qbeat.engine import report
from celery_qbeat.engine.checks import RunChecks
from celery_qbeat.engine.desk import Desk, Parts
from celery_qbeat.flights import Airborne
from celery_qbeat.jobs import Verdict
from celery_qbeat.planning import late_after
from celery_qbeat.ports import Completions, End, Flight

SILENT_US = 3_000_000
"""Runs that have been silent for this long are looked up in the result backend."""

LONGEST_S = 1e9
"""More seconds than any run lasts."""


class Lander:
    """Ends the runs in flight, and lets their jobs run again."""

    def __init__(self, parts: Parts, desk: Desk) -> None:
        self._parts = parts
        self._desk = desk
        self._next_look = 0.0
        self._checks = RunChecks(parts, desk, self.conclude)

    def land(self, now: int) -> bool:
        """Take what arrived, look up what is silent, end what outlived its lease.

        True: there was no time to take all that arrived.
        """
        completions = self._parts.completions
        waiting, heard_us = False, now
        if completions is not None:
            waiting = self._take(completions, now)
            if self._parts.stopping():
                return waiting
            self._look_up(completions, now)
            heard_us = now - round(min(completions.unread_s(), LONGEST_S) * 1_000_000)
        self._checks.step(now, heard_us)
        return waiting

    def _take(self, completions: Completions, now: int) -> bool:
        clock, budget = self._parts.clock, self._parts.limits.drain_s
        start = clock.monotonic()
        ends = completions.take(budget)
        waiting = clock.monotonic() - start >= budget and completions.unread_s() > 0
        if ends:
            self.conclude(ends, now)
            completions.ack()
        return waiting

    def _look_up(self, completions: Completions, now: int) -> None:
        at = self._parts.clock.monotonic()
        if at < self._next_look or not self._desk.flights:
            return
        self._next_look = at + self._parts.limits.look_up_s
        silent = self._desk.flights.silent(now - SILENT_US)
        if silent:
            self.conclude(completions.look_up([_flight(run) for run in silent]), now)

    def conclude(self, ends: Sequence[End], now: int) -> None:
        """Write ends of runs, and let their jobs run again."""
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
        return replace(end, late_after_us=late)


def _flight(run: Airborne) -> Flight:
    return Flight(run.task_id, run.job_id, run.slot_us, run.lease_until_us, sent_us=run.sent_us)
