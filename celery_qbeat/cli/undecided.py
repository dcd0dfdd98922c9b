"""`audit --since-last-beat`: slots that are due and undecided in these tables, before a beat is started on them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from celery_qbeat.cli import output, times
from celery_qbeat.cli.listing import standings
from celery_qbeat.cli.project import Project
from celery_qbeat.core.health import IDLE, Condition, JobHealth
from celery_qbeat.core.jobs import Job
from celery_qbeat.core.planning import SERVING_GAP_US, within_end
from celery_qbeat.core.plurals import quantity
from celery_qbeat.errors import QbeatError
from celery_qbeat.stores import reports

COUNT_LIMIT = 100_000
"""Slots of one relative schedule that are counted; it has no formula for them."""

RUNS = frozenset(Condition) - IDLE

MEANING = (
    "In a restored copy, the database that it replaces may have sent them: nobody can know. A beat takes them for not "
    "sent, and does what the last column says. Where a second run does harm, set catch_up=skip before you start one."
)


@dataclass(frozen=True, slots=True)
class Undecided:
    """The undecided slots of a job: the first and last of them, how many, and what a beat that starts now does."""

    job_id: str
    first_us: int
    last_us: int
    count: int
    next_beat: str


def show_undecided(project: Project, as_json: bool) -> None:
    """Print what is undecided since the last sign of life. Raises QbeatError when there never was one."""
    seen_us = project.read(reports.last_sign)
    if not seen_us:
        raise QbeatError("no beat has ever run on these tables, so nothing was sent from them")
    now = project.clock.now_us()
    found = [one for plan in _plans(project) if (one := _of(*plan, now)) is not None]
    if as_json:
        output.dump(_data(found, seen_us, now))
        return
    if found:
        output.table(("ID", "SLOTS>", "FIRST", "LAST", "NEXT BEAT"), [_line(one) for one in found])
        output.say("")
    slots = sum(one.count for one in found)
    output.say(f"last sign of life of a beat: {times.clock(seen_us, 'UTC')}, {times.relative(seen_us, now)}")
    output.say(f"{quantity(slots, 'slot')} due and undecided until now")
    if found:
        output.say(MEANING)


def undecided_slots(job: Job, planned_us: int, until_us: int) -> tuple[int, int]:
    """How many slots from `planned_us` on until then, and the last one. A relative schedule counts as if each was
    dispatched in time; beyond `COUNT_LIMIT` its slots are not counted."""
    until_us = until_us if job.end_us is None else min(until_us, job.end_us)
    if not job.schedule.relative:
        last_us = job.schedule.latest(until_us)
        count = job.schedule.count(planned_us - 1, until_us)
        return (count, last_us) if count and last_us is not None else (0, planned_us)
    count, last_us, slot = 0, planned_us, within_end(job, planned_us)
    while slot is not None and slot <= until_us and count < COUNT_LIMIT:
        count, last_us = count + 1, slot
        slot = within_end(job, job.schedule.after_run(slot, slot))
    return count, last_us


def _plans(project: Project) -> list[tuple[str, Job, int, JobHealth]]:
    return [
        (found.id, standing.reading.job, found.state["next_run_us"], standing)
        for found, standing in standings(project)
        if standing.reading.job is not None and found.state is not None and found.state["next_run_us"] is not None
    ]


def _of(job_id: str, job: Job, planned_us: int, standing: JobHealth, now: int) -> Undecided | None:
    count, last_us = undecided_slots(job, planned_us, now) if planned_us <= now else (0, planned_us)
    return Undecided(job_id, planned_us, last_us, count, _next_beat(job, last_us, standing, now)) if count else None


def _next_beat(job: Job, last_us: int, standing: JobHealth, now: int) -> str:
    if standing.condition not in RUNS:
        return f"no run: {standing.condition}"
    if job.catch_up == "skip" and now - last_us > SERVING_GAP_US:
        return "no run: catch_up=skip"
    if job.grace_us is not None and now - last_us > job.grace_us:
        return "no run: grace is over"
    if job.catch_up != "all" or job.schedule.relative:
        return "one run"
    return "a run for each" if job.grace_us is None else "a run for each within grace"


def _line(one: Undecided) -> list[output.Cell]:
    count = f"{one.count} or more" if one.count == COUNT_LIMIT else str(one.count)
    return [one.job_id, count, times.clock(one.first_us, "UTC"), times.clock(one.last_us, "UTC"), one.next_beat]


def _data(found: list[Undecided], seen_us: int, now: int) -> dict[str, Any]:
    jobs = [
        {
            "job_id": one.job_id,
            "count": one.count,
            **times.stamp("first", one.first_us),
            **times.stamp("last", one.last_us),
            "next_beat": one.next_beat,
        }
        for one in found
    ]
    return {**times.stamp("last_sign", seen_us), **times.stamp("until", now), "jobs": jobs, "meaning": MEANING}
