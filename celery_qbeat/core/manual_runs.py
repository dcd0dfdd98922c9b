"""Runs that somebody asks for: their slots and their verdicts. Pure."""

from __future__ import annotations

from celery_qbeat.core.jobs import Job, Run, Verdict
from celery_qbeat.core.planning import IN_FLIGHT_DETAIL, REMEMBERED_DETAIL, Claim, Moment, lease_until

SECOND_US = 1_000_000


def slot_by_hand(now_us: int, last_us: int, next_us: int | None) -> int:
    """The slot of a run that somebody asked for: now, but never the instant of a planned slot.

    Args:
        now_us: the beat's own clock. What the request says of the time is not believed.
        last_us: the slot of the job's last run by hand; two in one tick have two slots.
        next_us: the next planned slot. Most are whole seconds, and this one never is.
    """
    slot = last_us + 1 if now_us <= last_us < now_us + SECOND_US else now_us
    while slot % SECOND_US == 0 or slot == next_us:
        slot += 1
    return slot


def by_hand(
    job_id: str,
    job: Job | None,
    slot_us: int,
    name: str,
    *,
    busy: bool,
    refusal: str,
    moment: Moment,
    remembered: bool = False,
) -> Claim:
    """The claim of a run that somebody asked for; it leaves the plan alone.

    Args:
        job_id: the job that was asked for.
        job: None when the row is bad; then `refusal` says why.
        slot_us: see `slot_by_hand`.
        name: the task id, which is the request's own: the ledger takes it once.
        busy: whether a run of the job is in flight.
        refusal: why it must not run; empty when it may.
        moment: when and where.
        remembered: the request was answered before; it is here again because the database is an older copy.
    """
    lease_until_us, resend = None, False
    if remembered:
        verdict, detail = Verdict.IN_DOUBT, REMEMBERED_DETAIL
    elif job is None or refusal:
        verdict, detail = Verdict.REFUSED, refusal
    elif busy and job.overlap == "skip":
        verdict, detail = Verdict.SKIPPED, IN_FLIGHT_DETAIL
    else:
        verdict, detail = Verdict.CLAIMED, ""
        lease_until_us, resend = lease_until(job, moment.now_us), job.on_doubt == "resend"
    run = Run(
        job_id=job_id,
        slot_us=slot_us,
        task_id=name,
        verdict=verdict,
        detail=f"by hand: {detail}" if detail else "by hand",
        lease_until_us=lease_until_us,
        resend=resend,
    )
    rev = None if job is None or remembered else job.rev
    return Claim(job_id, rev, None, None, (run,))
