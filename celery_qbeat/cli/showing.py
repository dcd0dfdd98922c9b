"""`show`: one job, all that is known of it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

import click

from celery_qbeat.cli import output, slots, times
from celery_qbeat.cli.command import command
from celery_qbeat.cli.listing import PROBLEMS, as_data, schedule_of, status_of
from celery_qbeat.cli.project import Project
from celery_qbeat.cli.runs import as_data as run_data
from celery_qbeat.cli.runs import show_runs
from celery_qbeat.core.health import IDLE, Condition, JobHealth
from celery_qbeat.core.jobs import Job, Verdict
from celery_qbeat.core.schedules import Firing
from celery_qbeat.stores import reports
from celery_qbeat.stores.reports import Ran
from celery_qbeat.stores.rows import Found

COUNTED = 100
SHOWN = 6
ENDED = frozenset(
    {Verdict.SUCCEEDED, Verdict.FAILED, Verdict.REVOKED, Verdict.EXPIRED, Verdict.UNKNOWN_TASK, Verdict.LOST}
)
"""The ends of runs that were sent, of which only the first is a success."""

HIDDEN = ("id", "rev", "schedule_kind", "schedule", "enabled", "timezone")


@dataclass(frozen=True, slots=True)
class Statistics:
    """Of the last runs that ended: how many, how many of them well, and how long those took.

    `exact`: all durations are the workers' own; else some count from being sent until the beat knew of the end.
    """

    ended: int
    succeeded: int
    median_us: int | None
    longest_us: int | None
    exact: bool


def statistics(runs: Sequence[Ran]) -> Statistics:
    """Count what ended."""
    ended = [run for run in runs if run["verdict"] in ENDED]
    well = [run for run in ended if run["verdict"] == Verdict.SUCCEEDED]
    told = [run["took_us"] for run in well]
    known = [
        run["finished_us"] - run["sent_us"] if took is None else took for run, took in zip(well, told, strict=True)
    ]
    usual = round(median(known)) if known else None
    return Statistics(len(ended), len(well), usual, max(known, default=None), exact=None not in told)


@command("show")
@click.argument("job_id", metavar="ID")
def show_command(project: Project, job_id: str, as_json: bool) -> None:
    """Show a job: its row, its state, its last runs and next slots, and what changes of the clocks will do to it.

    \b
    Example:
      celery -A proj qbeat show shop.cleanup
    """
    [found] = project.with_runs([project.found(job_id)])
    judge = project.health_rules()
    code = project.code_jobs.get(job_id)
    standing = (
        judge.code_health(code, found.memory, found.run)
        if code is not None and not found.row
        else judge.row_health(found.row, found.memory, found.run)
    )
    runs = project.read(lambda connection: reports.runs(connection, job_id, limit=COUNTED))
    now = project.clock.now_us()
    job = standing.reading.job
    idle = job is None or standing.condition in IDLE
    planned = (found.state or {}).get("next_run_us")
    following = [] if idle or job is None else _following(job, planned, now)
    changes = [] if idle or job is None else slots.clock_changes(job, now)
    if as_json:
        data = as_data(found, standing, project)
        data |= {"row": dict(found.row), "state": dict(found.state or {}), "statistics": _data(statistics(runs))}
        data["last_runs"] = [run_data(run) for run in runs[:SHOWN]]
        data["next_slots"] = [slots.as_data(firing) for firing in following]
        data["clock_changes"] = [slots.as_data(firing) for firing in changes]
        output.dump(data)
        return
    _show(project, found, standing, runs, now)
    if job is not None:
        _show_slots(job, following, changes, now)


def _following(job: Job, planned: int | None, now: int) -> list[Firing]:
    after = now if planned is None else min(now, planned - 1)
    return slots.slots(job, after, planned, count=5)


def _show(project: Project, found: Found, standing: JobHealth, runs: Sequence[Ran], now: int) -> None:
    zone = str(found.row.get("timezone", "UTC"))
    status = status_of(standing)
    if standing.reason and standing.condition not in (*PROBLEMS, Condition.BLOCKED, Condition.RUNNING):
        status = output.named(standing.condition, standing.reason)
    facts: list[tuple[str, output.Cell]] = [("id", found.id), ("status", status)]
    facts.append(("schedule", schedule_of(found, project)))
    facts.extend(
        (name, str(value)) for name, value in found.row.items() if name not in HIDDEN and value not in (None, "")
    )
    output.facts(_told(name, value, zone) for name, value in facts)
    state = found.state
    if state is not None:
        output.title("State")
        output.facts(_state(found, state, zone, now))
    if runs:
        output.title("Last runs")
        show_runs(runs[:SHOWN], now, with_job=False)
        output.say(_sentence(statistics(runs)))


def _told(name: str, value: output.Cell, zone: str) -> tuple[str, output.Cell]:
    if name in ("start_us", "end_us"):
        return name, times.clock(int(str(value)), zone)
    return name, value


def _state(found: Found, state: Any, zone: str, now: int) -> list[tuple[str, output.Cell]]:
    facts: list[tuple[str, output.Cell]] = []
    run = found.last_run
    last = ("last run", None if run is None else run.at_us, "" if run is None else f": {run.verdict}")
    named = (("next run", "next_run_us"), ("last succeeded", "last_succeeded_us"), ("first seen", "first_seen_us"))
    for name, us, more in (last, *((name, state[column], "") for name, column in named)):
        if us:
            facts.append((name, f"{times.clock(us, zone)} ({times.relative(us, now)}){more}"))
    facts.append(("runs", str(state["runs"])))
    if state["failures_in_a_row"]:
        facts.append(("failures in a row", str(state["failures_in_a_row"])))
    if state["last_error"]:
        facts.append(("last error", state["last_error"]))
    return facts


def _sentence(counted: Statistics) -> str:
    if not counted.ended:
        return "no run has reported an end yet"
    share = round(100 * counted.succeeded / counted.ended)
    took = ""
    if counted.median_us is not None and counted.longest_us is not None:
        usual, longest = times.lasting(counted.median_us), times.lasting(counted.longest_us)
        measure = "they took" if counted.exact else "from sent to ended about"
        took = f"; {measure} {usual} (median), {longest} (longest)"
    return f"of the last {counted.ended} that ended {share} % succeeded{took}"


def _data(counted: Statistics) -> dict[str, Any]:
    rate = counted.succeeded / counted.ended if counted.ended else None
    return {
        "ended": counted.ended,
        "succeeded": counted.succeeded,
        "success_rate": rate,
        "median_us": counted.median_us,
        "longest_us": counted.longest_us,
        "durations_are_exact": counted.exact,
    }


def _show_slots(job: Job, following: list[Firing], changes: list[Firing], now: int) -> None:
    if following:
        output.title("Next slots")
        slots.show(following, job.schedule.zone, now)
    if changes:
        output.title("Changes of the clocks within a year")
        slots.show(changes[:SHOWN], job.schedule.zone, now)
        if len(changes) > SHOWN:
            output.say(f"and {len(changes) - SHOWN} more")
