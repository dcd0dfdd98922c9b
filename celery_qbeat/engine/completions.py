"""How runs end: messages from workers, the result backend, leases."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from celery_qbeat.core.in_flight import InFlightRun
from celery_qbeat.core.jobs import Verdict
from celery_qbeat.core.planning import late_after
from celery_qbeat.engine import log_events
from celery_qbeat.engine.leader_state import Dependencies, LeaderState
from celery_qbeat.engine.run_checks import RunChecks
from celery_qbeat.ports import Completions, RunOutcome, UnfinishedRun

SILENT_US = 3_000_000
"""Runs that have been silent for this long are looked up in the result backend."""

LONGEST_S = 1e9
"""More seconds than any run lasts."""


class CompletionHandler:
    """Ends the runs in flight, and lets their jobs run again."""

    def __init__(self, parts: Dependencies, desk: LeaderState) -> None:
        self._deps = parts
        self._leader = desk
        self._next_look = 0.0
        self._checks = RunChecks(parts, desk, self.record_outcomes)

    def process_completions(self, now: int) -> bool:
        """Take what arrived, look up what is silent, end what outlived its lease.

        True: there was no time to take all that arrived.
        """
        completions = self._deps.completions
        waiting, heard_us = False, now
        if completions is not None:
            waiting = self._take(completions, now)
            if self._deps.stopping():
                return waiting
            self._look_up(completions, now)
            heard_us = now - round(min(completions.unread_s(), LONGEST_S) * 1_000_000)
        self._checks.step(now, heard_us)
        return waiting

    def _take(self, completions: Completions, now: int) -> bool:
        clock, budget = self._deps.clock, self._deps.limits.drain_s
        start = clock.monotonic()
        ends = completions.receive(budget)
        waiting = clock.monotonic() - start >= budget and completions.unread_s() > 0
        if ends:
            self.record_outcomes(ends, now)
            completions.acknowledge()
        return waiting

    def _look_up(self, completions: Completions, now: int) -> None:
        at = self._deps.clock.monotonic()
        if at < self._next_look or not self._leader.in_flight:
            return
        self._next_look = at + self._deps.limits.look_up_s
        silent = self._leader.in_flight.silent(now - SILENT_US)
        if silent:
            self.record_outcomes(completions.query_results([_flight(run) for run in silent]), now)

    def record_outcomes(self, ends: Sequence[RunOutcome], now: int) -> None:
        """Write ends of runs, and let their jobs run again."""
        if not ends:
            return
        desk, store = self._leader, self._deps.store
        told = [self._with_lateness(end, now) for end in ends]
        late = {end.task_id for end in ends if end.task_id not in desk.in_flight and end.verdict is Verdict.SUCCEEDED}

        def conclude(epoch: int) -> None:
            changed = store.record_outcomes(epoch, told, now)
            # Given up before, and a success after all: only the database knows whose, so lateness is reckoned then.
            desk.stale_job_ids.update(changed[task_id] for task_id in late & changed.keys())

        desk.pending_writes.append(conclude)
        # Before it is paid: what is owed is paid before anything else is done, but nobody would land these runs again.
        for end in told:
            run = desk.remove_in_flight(end.task_id)
            if run is not None:
                log_events.ended(run.job_id, end.task_id, end.verdict, end.detail)
        desk.flush_pending_writes()

    def _with_lateness(self, end: RunOutcome, now: int) -> RunOutcome:
        run = self._leader.in_flight.get(end.task_id)
        entry = self._leader.agenda.entries.get(run.job_id) if run is not None else None
        if end.verdict is not Verdict.SUCCEEDED or entry is None or entry.job is None or not entry.runnable:
            return end
        late = late_after(entry.job, now)
        self._leader.agenda.record_success(entry.id, now, late)
        return replace(end, late_after_us=late)


def _flight(run: InFlightRun) -> UnfinishedRun:
    return UnfinishedRun(run.task_id, run.job_id, run.slot_us, run.lease_until_us, sent_us=run.sent_us)
