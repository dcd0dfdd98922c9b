"""What people do to runs in flight: a release by hand, and a shorter `max_run_seconds`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from celery_qbeat.core.jobs import Job, Verdict
from celery_qbeat.core.planning import lease_until
from celery_qbeat.engine import log_events
from celery_qbeat.engine.leader_state import Dependencies, LeaderState
from celery_qbeat.ports import Request, RunOutcome


def answer_request(parts: Dependencies, desk: LeaderState, request: Request, now: int) -> None:
    """End the runs that somebody released; their job runs again. What cannot be done is logged, and nothing else."""
    if request.action == "run":
        log_events.unknown_request(request)
        return
    if request.action != "release":
        log_events.unknown_action(request)
        return
    run = desk.in_flight.get(request.task_id)
    runs = desk.in_flight.runs_of(request.job_id) if not request.task_id else [run] if run is not None else []
    detail = f"released by {request.asked_by or 'nobody named'}"
    ends = [RunOutcome(run.task_id, Verdict.LOST, detail) for run in runs]
    if not ends:
        log_events.nothing_to_release(request)
        return
    desk.pending_writes.append(lambda epoch: parts.store.record_outcomes(epoch, ends, now))
    for run in runs:
        desk.remove_in_flight(run.task_id)
        log_events.ended(run.job_id, run.task_id, Verdict.LOST, detail)
    # Before the request is answered: whoever asked reads the ledger then.
    desk.flush_pending_writes()


def apply_new_rows(parts: Dependencies, desk: LeaderState, before: Mapping[str, Job | None]) -> None:
    """The rows of these jobs changed: their open leases become no longer than a new run's would be.

    Only if the new row asks for less than the one before: a lease that was extended because a worker still has the run
    is not cut by an edit of something else. Of a run whose job changed its queue nobody knows which queue has it.
    """
    leases: dict[str, int] = {}
    for job_id, old in before.items():
        entry = desk.agenda.entries.get(job_id)
        new = entry.job if entry is not None else None
        if old is None or new is None:
            continue
        if (old.queue, old.scope.queue, old.fn) != (new.queue, new.scope.queue, new.fn):
            desk.moved.update(run.task_id for run in desk.in_flight.runs_of(job_id))
        if lease_until(new, 0) < lease_until(old, 0):
            leases |= _shortened(desk, new)
    if leases:
        desk.pending_writes.append(lambda epoch: parts.store.shorten_leases(epoch, leases))


def _shortened(desk: LeaderState, job: Job) -> dict[str, int]:
    found: dict[str, int] = {}
    for run in desk.in_flight.runs_of(job.id):
        until = lease_until(job, run.sent_us)
        if until < run.lease_until_us:
            desk.in_flight.add(replace(run, lease_until_us=until))
            found[run.task_id] = until
    return found
