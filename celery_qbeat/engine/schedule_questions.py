"""Schedules that decide by themselves, in code, whether a run is due: they are asked before anything is claimed."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from celery_qbeat.core.jobs import Job, State, Verdict
from celery_qbeat.core.planning import Claim
from celery_qbeat.engine import log_events

ASK_AGAIN_US = 300_000_000
"""Microseconds until a schedule that raised is asked again."""


def ask_schedule(claim: Claim, job: Job, state: State, now: int) -> Claim:
    """The claim if the schedule says that it is due, else one that only moves the next look."""
    if not any(run.verdict is Verdict.CLAIMED for run in claim.runs):
        return claim
    schedule: Any = job.schedule
    last_run = state.first_seen_us if state.last_run_us is None else state.last_run_us
    try:
        due, wait = schedule.ask(last_run)
    except Exception as error:
        # Anybody's code: it must not stop the others.
        log_events.schedule_raised(job.id, error, ASK_AGAIN_US)
        due, wait = False, ASK_AGAIN_US
    return replace(claim, next_us=now + wait, runs=claim.runs if due else ())
