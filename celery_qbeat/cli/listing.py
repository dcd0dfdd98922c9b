"""`list`: the rows, each with how it stands."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import click

from celery_qbeat.cli import output, times
from celery_qbeat.cli.command import command
from celery_qbeat.cli.project import Project
from celery_qbeat.conditions import Condition, Standing
from celery_qbeat.jobs import CODE_PREFIX
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
    shown = [(job, standing) for job, standing in found if not wanted or standing.condition in wanted]
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


def standings(
    project: Project, pattern: str | None = None, worker: str | None = None
) -> Iterator[tuple[Found, Standing]]:
    """Every job, entries in code first, with how it stands."""
    judge = project.judge()
    if not worker:
        for job_id, found in project.entries().items():
            job = project.code_jobs.get(job_id)
            if job is not None and (pattern is None or rows.matches(job_id, pattern)):
                yield found, judge.code(job, found.memory)
    for found in project.all_rows(pattern, worker):
        yield found, judge.standing(found.row, found.memory)


def schedule_of(found: Found, project: Project) -> str:
    """`every 15m`; for an entry in code what the code says."""
    if found.row:
        zone = found.row["timezone"]
        return f"{found.row['schedule_kind']} {found.row['schedule']}" + ("" if zone == "UTC" else f" {zone}")
    job = project.code_jobs.get(found.id)
    return "" if job is None else f"{job.schedule.kind} (in code)"


def _line(found: Found, standing: Standing, project: Project, now: int) -> list[output.Cell]:
    state = found.state or {}
    last = times.relative(state.get("last_run_us"), now)
    if state.get("last_verdict"):
        last = f"{state['last_verdict']} {last}" if state.get("last_run_us") else str(state["last_verdict"])
    status = output.named(standing.condition, standing.reason if standing.condition in PROBLEMS else "")
    following = "-"
    if standing.condition in (Condition.READY, Condition.LATE):
        following = "unseen" if found.state is None else times.relative(state["next_run_us"], now)
    return [found.id, schedule_of(found, project), following, last, status]


def as_data(found: Found, standing: Standing, project: Project) -> dict[str, Any]:
    """A job for JSON."""
    state = found.state or {}
    row = found.row
    job = project.code_jobs.get(found.id)
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
        **times.stamp("next_run", state.get("next_run_us")),
        **times.stamp("last_run", state.get("last_run_us")),
        **times.stamp("last_succeeded", state.get("last_succeeded_us")),
        "last_verdict": state.get("last_verdict", ""),
        "last_error": state.get("last_error", ""),
        "runs": state.get("runs", 0),
        "failures_in_a_row": state.get("failures_in_a_row", 0),
    }
