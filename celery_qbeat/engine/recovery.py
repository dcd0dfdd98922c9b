"""What the last writer left open: claimed slots of which nobody knows whether they were sent."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from celery_qbeat.core.in_flight import InFlightRun
from celery_qbeat.core.jobs import Job, Run, Verdict
from celery_qbeat.engine import log_events
from celery_qbeat.engine.leader_state import Dependencies, LeaderState
from celery_qbeat.engine.leadership import LockLost
from celery_qbeat.engine.progress import Progress
from celery_qbeat.ports import OutgoingRun, RunOutcome, UnfinishedRun

DIED_DETAIL = "the beat that claimed it died before it could say whether it was sent"


class Recovery:
    """Reads the runs in flight, and ends or takes over what an older epoch left open.

    `keep_lock` renews the leader lock by time, and raises LockLost.
    """

    def __init__(self, parts: Dependencies, desk: LeaderState, keep_lock: Callable[[], None]) -> None:
        self._deps = parts
        self._leader = desk
        self._keep_lock = keep_lock

    def resolve_unfinished_runs(self, now: int) -> None:
        """Settle all runs, once for each desk: part by part, each part for good.

        When the lock is lost on the way, the next call goes on where this one stopped; after any other error it
        begins anew, which repeats nothing that is in the database.
        """
        desk, store = self._leader, self._deps.store
        if desk.settled:
            return
        if desk.settling is None:
            desk.settling = store.unfinished_runs()
        progress, count = Progress(self._deps.clock, log_events.settle_progress), 0
        try:
            while (part := next(desk.settling, None)) is not None:
                self._settle_part(part, now)
                count += len(part)
                progress.note(count)
                self._keep_lock()
        except LockLost:
            raise
        except Exception:
            desk.settling = None
            raise
        store.close_batches(desk.epoch, now)
        desk.settling, desk.settled = None, True

    def _settle_part(self, part: Sequence[UnfinishedRun], now: int) -> None:
        """Runs of older epochs that were never marked sent are dropped or sent again."""
        parts, desk = self._deps, self._leader
        ends: list[RunOutcome] = []
        dropped: list[UnfinishedRun] = []
        own = {task for task, _, _ in desk.chores} | set(desk.resends) | set(desk.unconfirmed)
        for flight in part:
            if flight.task_id in own:
                continue
            if flight.sent_us is not None and _is_chore(parts, desk, flight.job_id):
                ends.append(RunOutcome(flight.task_id, Verdict.LOST, "the beat that ran it is gone"))
            elif flight.sent_us is not None or flight.epoch >= desk.epoch:
                _take_off(desk, flight)
            elif flight.resend and (job := resendable(parts, desk, flight.job_id, by_hand=flight.by_hand)) is not None:
                log_events.in_doubt(flight.job_id, flight.slot_us, flight.task_id, True)
                _take_off(desk, flight)
                desk.resends[flight.task_id] = (flight.batch_id or 0, OutgoingRun(job, _run(flight), flight.by_hand))
            else:
                ends.append(RunOutcome(flight.task_id, Verdict.IN_DOUBT, DIED_DETAIL))
                dropped.append(flight)
        if ends:
            parts.store.record_outcomes(desk.epoch, ends, now)
        for end in ends:
            desk.remove_in_flight(end.task_id)
        for flight in dropped:
            log_events.in_doubt(flight.job_id, flight.slot_us, flight.task_id, False)


def resendable(parts: Dependencies, desk: LeaderState, job_id: str, *, by_hand: bool) -> Job | None:
    """The job as it is now, if a doubtful run of it is to be sent again: wanted by its row, and allowed."""
    entry = desk.agenda.entries.get(job_id)
    job = entry.job if entry is not None else None
    if entry is None or job is None or job.on_doubt != "resend" or _is_chore(parts, desk, job_id):
        return None
    may = entry.runnable or (by_hand and job.scope.enabled)
    return job if may and not parts.privileges.refusal(job) else None


def _is_chore(parts: Dependencies, desk: LeaderState, job_id: str) -> bool:
    entry = desk.agenda.entries.get(job_id)
    return (
        entry is not None and entry.job is not None and not entry.job.from_code and entry.job.fn in parts.builtin_tasks
    )


def _run(flight: UnfinishedRun) -> Run:
    late = max(0, flight.claimed_us - flight.slot_us)
    return Run(flight.job_id, flight.slot_us, flight.task_id, Verdict.CLAIMED, late, resend=True)


def _take_off(desk: LeaderState, flight: UnfinishedRun) -> None:
    sent = flight.sent_us if flight.sent_us is not None else flight.claimed_us
    desk.in_flight.add(InFlightRun(flight.task_id, flight.job_id, flight.slot_us, sent, flight.lease_until_us))
