"""Why a job waits for its own run, in words. Pure."""

from __future__ import annotations

from celery_qbeat.core.in_flight import InFlightRun
from celery_qbeat.core.jobs import Job
from celery_qbeat.core.plurals import quantity
from celery_qbeat.core.worker_answers import Answers, QueueSeen
from celery_qbeat.engine.leader_state import Blocked
from celery_qbeat.engine.log_events import duration


def skips_of(blocked: Blocked, job: Job | None, now: int) -> int:
    """How many slots in a row did not run. A job that stays due skips none: its periods since then count."""
    if blocked.due_us is None or job is None or blocked.due_us > now:
        return blocked.skips
    if not job.schedule.relative:
        return job.schedule.count(blocked.due_us - 1, now)
    following = job.schedule.after_run(blocked.due_us, blocked.due_us)
    period = following - blocked.due_us if following is not None else 0
    return 1 + ((now - blocked.due_us) // period if period > 0 else 0)


def causes(run: InFlightRun, answers: Answers, now: int) -> str:
    """What keeps `run`, the oldest one of its job, in flight."""
    since = f"since {duration(now - run.sent_us)}"
    name, queue = f"run {run.task_id}", answers.queue_of.get(run.task_id)
    holder, seen = answers.holders.get(run.task_id), answers.queues.get(queue or "")
    if holder is not None:
        states = {"active": "is on", "scheduled": "waits for its retry or countdown on"}
        return f"{name} {states.get(holder.state, 'waits its turn on')} worker {holder.worker} {since}"
    if queue is None or seen is None:
        return f"{name} is in flight {since}, and no worker says that it has it"
    silent = answers.silent(queue)
    if not answers.readers(queue) and not silent:
        return f"queue {queue!r} has no worker"
    if run.task_id in seen.delivered:
        where = f"was taken out of queue {queue!r} and is not acknowledged, sent {duration(now - run.sent_us)} ago"
    elif run.task_id in seen.ready or (seen.waiting and not silent and not seen.searched):
        where = f"waits in queue {queue!r} ({quantity(seen.waiting or 0, 'message')} there) {since}"
    else:
        where = f"is in flight {since}"
    return f"{name} {where}" + (f"; {quantity(silent, 'worker')} did not answer" if silent else _nobody(run, seen))


def _nobody(run: InFlightRun, seen: QueueSeen) -> str:
    return "" if seen.holds(run.task_id) or not seen.searched else "; every worker says that it has not got it"
