"""`add` and `set`: rows written by a person, refused by the reasons the scheduler would have."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import click
import sqlalchemy as sa

from celery_qbeat.cli import output, times, values
from celery_qbeat.cli.command import command
from celery_qbeat.cli.project import Project
from celery_qbeat.core.health import Condition, HealthRules
from celery_qbeat.core.jobs import Job
from celery_qbeat.core.planning import first_slot
from celery_qbeat.core.privileges import Privileges
from celery_qbeat.errors import JobError, QbeatError
from celery_qbeat.stores import rows, tables

DEFAULTS: Mapping[str, Any] = {
    "worker": "",
    "args": "[]",
    "kwargs": "{}",
    "enabled": True,
    "timezone": "UTC",
}


@command("add")
@click.argument("job_id", metavar="ID")
@click.argument("fn", metavar="FN")
@values.schedule_options
@values.column_options
def add_command(project: Project, job_id: str, fn: str, as_json: bool, **options: Any) -> None:
    """Add a job that runs the task FN.

    The row is refused when the scheduler could not use it, or when FN is privileged; it is stored with a warning
    when FN is not registered (yet).

    \b
    Example:
      celery -A proj qbeat add shop.cleanup proj.tasks.cleanup --daily 02:00 --timezone Europe/Berlin
    """
    schedule = values.schedule_given(options)
    if len(schedule) < 2:
        raise click.UsageError("say when it runs, e.g. --every 15m, --daily 02:00 or --interval 3600")
    now = project.clock.now_us()
    given = {"id": job_id, "fn": fn, **schedule, **values.changes(options, (), "UTC", now)}

    def insert(connection: sa.Connection) -> None:
        if rows.get(connection, [job_id]):
            raise QbeatError(f"id: there is a row {job_id!r} already; change it with `qbeat set`")
        rows.insert(connection, given)

    project.write(_nothing)
    warning = _examined(project, {**DEFAULTS, **given}, None)
    project.write(insert)
    _tell(project, job_id, "added", warning, as_json)


@command("set")
@click.argument("job_id", metavar="ID")
@click.argument("pairs", metavar="[COLUMN=VALUE]...", nargs=-1)
@click.option("--fn", metavar="NAME", help="The task to run.")
@values.schedule_options
@values.column_options
def set_command(project: Project, job_id: str, pairs: tuple[str, ...], as_json: bool, **options: Any) -> None:
    """Change columns of a row, and no others.

    An empty value is NULL where the column has that: queue= takes the queue away.

    \b
    Example:
      celery -A proj qbeat set shop.cleanup --every 30m max_run_seconds=600
    """
    schedule = values.schedule_given(options)
    old = project.found(job_id).row
    if not old:
        raise QbeatError(f"{job_id!r} is an entry of beat_schedule: change it in the code")
    zone = str(old["timezone"])
    changes = schedule | values.changes(options, pairs, zone, project.clock.now_us())
    if not changes:
        raise click.UsageError("say what to change, e.g. schedule=3600 or --every 15m")
    warning = _examined(project, {**old, **changes}, old)
    if not project.write(lambda connection: rows.update(connection, job_id, changes)):
        raise project.unknown(job_id)
    _tell(project, job_id, "changed", warning, as_json)


def _nothing(_connection: sa.Connection) -> None:
    """For its side effect: missing tables are made."""


def _examined(project: Project, row: Mapping[str, Any], old: Mapping[str, Any] | None) -> str:
    """Why the scheduler will not run this row, if that is no reason to refuse it. Raises QbeatError if it is.

    What was wrong with the row before (`old`) is no reason: it may be repaired step by step.
    """
    _fits(row)
    judge = project.health_rules()
    reading = judge.row_health(row, None).reading
    before = None if old is None else judge.row_health(old, None).reading
    if reading.job is None:
        if before is None or before.problem != reading.problem:
            raise JobError(reading.problem)
        return reading.problem
    forbidden = _privileged(project, reading.job)
    decisive = ("id", "fn", "worker")
    if forbidden and (old is None or any(old[name] != row[name] for name in decisive)):
        raise JobError(forbidden)
    return forbidden or reading.problem or _refusal(judge, reading.job)


def _refusal(judge: HealthRules, job: Job) -> str:
    if not job.scope.enabled:
        return f"worker {job.scope.name!r} is disabled"
    return judge.refusal(job)


def _privileged(project: Project, job: Job) -> str:
    return (project.privileges or Privileges()).forbidden(job)


def _fits(row: Mapping[str, Any]) -> None:
    """SQLite stores any length; the other databases would refuse it in words of their own."""
    for name, text in row.items():
        length = getattr(tables.jobs.c[name].type, "length", None)
        if isinstance(text, str) and length is not None and len(text) > length:
            raise JobError(f"{name}: {text[:40]!r}... is {len(text)} characters long; at most {length} fit", field=name)


def _tell(project: Project, job_id: str, done: str, warning: str, as_json: bool) -> None:
    found = project.found(job_id)
    standing = project.health_rules().row_health(found.row, None)
    if as_json:
        output.dump({"id": job_id, "done": done, "warning": warning, "row": dict(found.row)})
        return
    row = found.row
    output.say(f"{done} {job_id!r}: {row['schedule_kind']} {row['schedule']}, {row['timezone']}")
    if standing.condition is Condition.DISABLED:
        output.say("it is disabled: switch it on with `qbeat enable`")
    elif warning:
        output.warn(f"{job_id!r} will not run: {warning}")
    elif done == "added" and standing.reading.job is not None:
        now = project.clock.now_us()
        first = first_slot(standing.reading.job, now)
        when = (
            "never: its schedule has no slot left" if first is None else f"{_soon(first, now)}, as soon as a beat runs"
        )
        output.say(f"first run: {when}")


def _soon(us: int, now: int) -> str:
    return "at once" if us <= now else times.relative(us, now)
