"""What people do to runs in flight: a release by hand, and a shorter `max_run_seconds`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from celery_qbeat.engine import report
from celery_qbeat.engine.desk import Desk, Parts
from celery_qbeat.jobs import Job, Verdict
from celery_qbeat.planning import lease_until
from celery_qbeat.ports import End, Request


def answer_request(parts: Parts, desk: Desk, request: Request, now: int) -> None:
    """End the runs that somebody released; their job runs again. What cannot be done is logged, and nothing else."""
    if request.action == "run":
        report.unknown_request(request)
        return
    if request.action != "release":
        report.unknown_action(request)
        return
    run = desk.flights.get(request.task_id)
    runs = desk.flights.of(request.job_id) if not request.task_id else [run] if run is not None else []
    detail = f"released by {request.asked_by or 'nobody named'}"
    ends = [End(run.task_id, Verdict.LOST, detail) for run in runs]
    if not ends:
        report.nothing_to_release(request)
        return
    desk.owed.append(lambda epoch: parts.store.conclude(epoch, ends, now))
    for run in runs:
        desk.land(run.task_id)
        report.ended(run.job_id, run.task_id, Verdict.LOST, detail)
    # Before the request is answered: whoever asked reads the ledger then.
    desk.pay()


def apply_new_rows(parts: Parts, desk: Desk, before: Mapping[str, Job | None]) -> None:
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
            desk.moved.update(run.task_id for run in desk.flights.of(job_id))
        if lease_until(new, 0) < lease_until(old, 0):
            leases |= _shortened(desk, new)
    if leases:
        desk.owed.append(lambda epoch: parts.store.shorten(epoch, leases))


def _shortened(desk: Desk, job: Job) -> dict[str, int]:
    found: dict[str, int] = {}
    for run in desk.flights.of(job.id):
        until = lease_until(job, run.sent_us)
        if until < run.lease_until_us:
            desk.flights.add(replace(run, lease_until_us=until))
            found[run.task_id] = until
    return found
