"""Slots that a changed definition loses: their verdict is written before the new plan. Pure."""

from __future__ import annotations

from celery_qbeat.core.identity import task_id
from celery_qbeat.core.jobs import Job, Run, State, Verdict
from celery_qbeat.core.planning import Claim, Moment, Plan, verdict_for_replaced_definition


def lost_slot(plan: Plan, moment: Moment) -> Claim | None:
    """The verdict that must be written before this plan; None: no slot is lost by it."""
    if plan.overtaken_us is not None:
        return verdict_for_replaced_definition(plan.job_id, plan.overtaken_us, plan.next_run_us, moment)
    slot, planned = plan.moved_us, plan.planned_us
    if slot is None or planned is None:
        return None
    ahead = (planned - moment.now_us) / 1_000_000
    detail = f"the start changed its schedule: the slot planned in {ahead:.0f} s moved to this time, which had passed"
    late = max(0, moment.now_us - slot)
    run = Run(plan.job_id, slot, task_id(moment.instance, plan.job_id, slot), Verdict.MISSED, late, detail=detail)
    return Claim(plan.job_id, None, planned, plan.next_run_us, (run,))


def moved_into_past(job: Job, state: State, next_us: int | None, now: int) -> int | None:
    """The past slot of an entry in code to which its new definition moved the planned one; None: nothing is lost.

    The planned slot became that slot of the new definition which is nearest to it.
    """
    planned = state.next_run_us
    if not job.from_code or planned is None or planned <= now or state.plan_key in ("", job.plan_key):
        return None
    newest = job.schedule.latest(now)
    if newest is None or newest <= max(state.first_seen_us, state.last_slot_us or 0):
        return None
    nearer = next_us is None or planned - newest < next_us - planned
    return newest if nearer else None
