"""What the last writer left open: claimed slots of which nobody knows whether they were sent."""

from __future__ import annotations

from celery_qbeat.engine import report
from celery_qbeat.engine.desk import Desk, Parts
from celery_qbeat.flights import Airborne
from celery_qbeat.jobs import Job, Run, Verdict
from celery_qbeat.ports import End, Flight, Shipment


def settle(parts: Parts, desk: Desk, now: int) -> None:
    """Read the runs in flight; those claimed under an older epoch and never marked sent are dropped or sent again."""
    ends: list[End] = []
    own = {task for task, _, _ in desk.chores} | {shipment.run.task_id for _, shipment in desk.resends}
    for part in parts.store.flights():
        for flight in part:
            if flight.task_id in own:
                continue
            if flight.sent_us is not None and _is_chore(parts, desk, flight):
                ends.append(End(flight.task_id, Verdict.LOST, "the beat that ran it is gone"))
                continue
            if flight.sent_us is not None or flight.epoch >= desk.epoch:
                _take_off(desk, flight)
                continue
            job = _resendable(parts, desk, flight)
            report.in_doubt(flight.job_id, flight.slot_us, flight.task_id, job is not None)
            if job is None:
                ends.append(End(flight.task_id, Verdict.IN_DOUBT, "the beat that claimed it died before it could say whether it was sent"))
            else:
                _take_off(desk, flight)
                desk.resends.append((flight.batch_id or 0, Shipment(job, _run(flight), flight.by_hand)))
    if ends:
        parts.store.conclude(desk.epoch, ends, now)
    parts.store.close_batches(desk.epoch, now)


def _resendable(parts: Parts, desk: Desk, flight: Flight) -> Job | None:
    entry = desk.agenda.entries.get(flight.job_id)
    if entry is None or entry.job is None or not entry.runnable or entry.job.on_doubt != "resend":
        return None
    if _is_chore(parts, desk, flight) or parts.privileges.refusal(entry.job):
        return None
    return entry.job


def _is_chore(parts: Parts, desk: Desk, flight: Flight) -> bool:
    entry = desk.agenda.entries.get(flight.job_id)
    return entry is not None and entry.job is not None and not entry.job.from_code and entry.job.fn in parts.chores


def _run(flight: Flight) -> Run:
    return Run(flight.job_id, flight.slot_us, flight.task_id, Verdict.CLAIMED, lease_until_us=flight.lease_until_us)


def _take_off(desk: Desk, flight: Flight) -> None:
    sent = flight.sent_us if flight.sent_us is not None else flight.claimed_us
    desk.flights.add(Airborne(flight.task_id, flight.job_id, flight.slot_us, sent, flight.lease_until_us))
