"""`list`: the rows, each with how it stands."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import click

from celery_qbeat.cli import output, times
from celery_qbeat.cli.command import command
from celery_qbeat.cli.last_beat import read_last_beat
from celery_qbeat.cli.project import Project
from celery_qbeat.core.health import IDLE, NO_BEAT, Condition, JobHealth
from celery_qbeat.core.jobs import CODE_PREFIX
from celery_qbeat.stores import rows
from celery_qbeat.stores.rows import Found

PROBLEMS = frozenset({Condition.BAD, Condition.REFUSED, Condition.RESERVED})
OFF = frozenset({Condition.DISABLED, Condition.PAUSED})


@command("list")
@click.argument("pattern", required=False)
@click.option("--late", is_flag=True, help="Only jobs without a success for two periods.")
@click.option("--problem", is_flag=True, help="Only rows that are bad, refused or reserved.")
@click.option("--disabled", is_flag=True, help="Only rows that are switched off, or whose worker is.")
@click.option("--worker", metavar="NAME", help="Only rows of this app scope; '' is the default scope.")
def list_command(
    project: Project, pattern: str | None, late: bool, problem: bool, disabled: bool, worker: str | None, as_json: bool
) -> None:
    """List the jobs: rows, and entries of beat_schedule (their ids begin with 'code:').

    PATTERN is an id with * and ?. Several of the options --late, --problem and --disabled show what fits any of them.

    \b
    Example:
      celery -A proj qbeat list 'shop.*' --problem --late
    """
    wanted: set[Condition] = set()
    wanted |= {Condition.LATE} if late else set()
    wanted |= PROBLEMS if problem else set()
    wanted |= OFF if disabled else set()
    found = standings(project, pattern, worker)
    shown = [
        (job, standing)
        for job, standing in found
        if not wanted or standing.condition in wanted or (late and standing.late)
    ]
    if as_json:
        output.dump([as_data(job, standing, project) for job, standing in shown])
        return
    if not shown:
        output.say("no jobs" if not wanted and pattern is None else "no such jobs")
        return
    now = project.clock.now_us()
    output.table(
        ("ID", "SCHEDULE", "NEXT", "LAST", "STATUS"), (_line(job, standing, project, now) for job, standing in shown)
    )
    if any(standing.condition is Condition.STOPPED for _, standing in shown):
        output.warn(f"{NO_BEAT}: {read_last_beat(project).sentence}")


def standings(
    project: Project, pattern: str | None = None, worker: str | None = None
) -> Iterator[tuple[Found, JobHealth]]:
    """Every job, entries in code first, with how it stands."""
    judge = project.health_rules()
    if not worker:
        entries = [found for job_id, found in project.entries().items() if job_id in project.code_jobs]
        for found in project.with_runs(entries):
            if pattern is None or rows.matches(found.id, pattern):
                yield found, judge.code_health(project.code_jobs[found.id], found.memory, found.run)
    for found in project.all_rows(pattern, worker):
        yield found, judge.row_health(found.row, found.memory, found.run)


def status_of(standing: JobHealth) -> output.Styled:
    """The condition, and what is to be said of it in a list."""
    run, rest = standing.run, ""
    if standing.condition is Condition.BLOCKED and run is not None:
        rest = f" by run {run.task_id} since {times.clock(run.since_us, 'UTC')}" + (", late" if standing.late else "")
    elif standing.condition is Condition.RUNNING and run is not None:
        rest = f" since {times.clock(run.since_us, 'UTC')}"
    elif standing.condition in PROBLEMS:
        rest = f": {standing.reason}"
    return replace(output.named(standing.condition), rest=rest)


def schedule_of(found: Found, project: Project) -> str:
    """`every 15m`; for an entry in code what the code says."""
    if found.row:
        zone = found.row["timezone"]
        return f"{found.row['schedule_kind']} {found.row['schedule']}" + ("" if zone == "UTC" else f" {zone}")
    job = project.code_jobs.get(found.id)
    return "" if job is None else f"{job.schedule.kind} (in code)"


def _line(found: Found, standing: JobHealth, project: Project, now: int) -> list[output.Cell]:
    state = found.state or {}
    run = found.last_run
    last = "-" if run is None else f"{run.verdict} {times.relative(run.at_us, now)}".strip()
    following = "-"
    if standing.condition not in IDLE:
        following = "unseen" if found.state is None else times.relative(state["next_run_us"], now)
    return [found.id, schedule_of(found, project), following, last, status_of(standing)]


def as_data(found: Found, standing: JobHealth, project: Project) -> dict[str, Any]:
    """A job for JSON."""
    state = found.state or {}
    row = found.row
    job = project.code_jobs.get(found.id)
    last, run = found.last_run, standing.run
    return {
        "id": found.id,
        "fn": row.get("fn", job.fn if job else None),
        "schedule_kind": row.get("schedule_kind", job.schedule.kind if job else None),
        "schedule": row.get("schedule"),
        "timezone": row.get("timezone", job.schedule.zone if job else None),
        "worker": row.get("worker", ""),
        "enabled": bool(row.get("enabled", True)),
        "in_code": found.id.startswith(CODE_PREFIX),
        "condition": standing.condition.value,
        "reason": standing.reason,
        "late": standing.late,
        "running_task_id": None if run is None else run.task_id,
        **times.stamp("running_since", None if run is None else run.since_us),
        **times.stamp("next_run", state.get("next_run_us")),
        **times.stamp("last_run", None if last is None else last.at_us),
        **times.stamp("last_succeeded", state.get("last_succeeded_us")),
        "last_verdict": "" if last is None else last.verdict,
        "last_error": state.get("last_error", ""),
        "runs": state.get("runs", 0),
        "failures_in_a_row": state.get("failures_in_a_row", 0),
    }
