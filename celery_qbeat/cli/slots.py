"""`preview`: the next slots of a row, or of a schedule given on the command line; and what `show` says of them."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

import click

from celery_qbeat.cli import output, times, values
from celery_qbeat.cli.command import command
from celery_qbeat.cli.project import Project
from celery_qbeat.core.jobs import Job, read_row
from celery_qbeat.core.planning import decides_itself
from celery_qbeat.core.schedules import Firing, Schedule, parse, preview
from celery_qbeat.core.schedules.preview import Noted
from celery_qbeat.core.schedules.time_zones import MAX_US, zone_named
from celery_qbeat.errors import JobError
from celery_qbeat.stores import reading
from celery_qbeat.stores.rows import Found

YEAR_US = 366 * 86_400 * times.SECOND
AROUND_US = 4 * 3_600 * times.SECOND
MOST = 100_000


@command("preview")
@click.argument("job_id", metavar="[ID]", required=False)
@values.schedule_options
@values.filter_options
@click.option("--from", "from_", metavar="TIME", default="now", help="After this; local to the zone. Default: now.")
@click.option("--until", metavar="TIME", help="Not after this.")
@click.option("--count", type=click.IntRange(1, MOST), default=10, show_default=True, help="At most so many.")
def preview_command(
    project: Project, job_id: str | None, from_: str, until: str | None, count: int, as_json: bool, **options: Any
) -> None:
    """Show the next slots of a row, or of a schedule, and what changes of the clocks do to them.

    The slots of an interval are counted from the row's next run, or else from --from.

    \b
    Examples:
      celery -A proj qbeat preview shop.cleanup --count 5
      celery -A proj qbeat preview --daily 02:30 --timezone Europe/Berlin --from 2026-03-28 --json
    """
    given = {**values.schedule_given(options), **{name: text for name, text in options.items() if text is not None}}
    if (job_id is None) == (not given):
        raise click.UsageError("name a row, or a schedule such as --daily 02:00 --timezone Europe/Berlin")
    found = None if job_id is None else project.found(job_id)
    job = _of_row(project, found) if found is not None else _of_options(given, project)
    now = project.clock.now_us()
    zone = job.schedule.zone
    after = times.read_instant(from_, zone, now, "--from")
    until_us = None if until is None else times.read_instant(until, zone, now, "--until")
    planned = (found.state or {}).get("next_run_us") if found is not None else None
    firings = slots(job, after, planned, count=count, until_us=until_us)
    if as_json:
        output.dump([as_data(firing) for firing in firings])
    elif not firings:
        output.say("no slots")
    else:
        show(firings, zone, now)


def slots(job: Job, after_us: int, planned_us: int | None, *, count: int, until_us: int | None = None) -> list[Firing]:
    """The next slots of a job. `planned_us`: its next run as it stands, from which an interval is counted."""
    start_us = job.start_us
    if job.schedule.relative and planned_us is not None and planned_us > after_us:
        start_us = planned_us
    return preview(job.schedule, after_us, count=count, until_us=until_us, start_us=start_us, end_us=job.end_us)


def show(firings: list[Firing], zone: str, now: int) -> None:
    """As a table; the local column is left out where it says the same."""
    noted = any(firing.note for firing in firings)
    columns = ["UTC"] if zone == "UTC" else [zone, "UTC"]
    columns.append("")
    lines = []
    for firing in firings:
        cells = [times.clock(firing.us, "UTC")]
        if zone != "UTC":
            cells.insert(0, times.clock(firing.us, zone))
        lines.append(
            [*cells, firing.note or times.relative(firing.us, now) if noted else times.relative(firing.us, now)]
        )
    output.table(columns, lines)


def as_data(firing: Firing) -> dict[str, Any]:
    """A slot for JSON; a note only where there is one."""
    data = asdict(firing)
    return {name: data[name] for name in ("utc", "local", "us", "note") if data[name] != ""}


def clock_changes(job: Job, now: int) -> list[Firing]:
    """The slots of the next year that a change of the clocks moves or doubles."""
    schedule = job.schedule
    if not isinstance(schedule, Noted):
        return []
    found: dict[int, Firing] = {}
    for at in _changes(schedule, now):
        near = preview(
            schedule,
            max(now, at - AROUND_US),
            count=MOST,
            until_us=at + AROUND_US,
            start_us=job.start_us,
            end_us=job.end_us,
        )
        found.update((firing.us, firing) for firing in near if firing.note)
    return list(found.values())


def _changes(schedule: Schedule, now: int) -> list[int]:
    zone = zone_named(schedule.zone)
    found = []
    span = zone.span(now)
    while span.end <= min(now + YEAR_US, MAX_US):
        following = zone.span(span.end)
        if following.offset != span.offset:
            found.append(span.end)
        span = following
    return found


def _of_row(project: Project, found: Found) -> Job:
    if not found.row:
        job = project.code_jobs[found.id]
        if decides_itself(job):
            raise JobError(f"{found.id!r} has no slots ahead of time: its schedule decides in is_due when it runs")
        return job
    reading_ = read_row(found.row, project.rules, project.read(reading.workers))
    if reading_.job is None:
        raise JobError(f"{found.id!r} has no slots: {reading_.problem}")
    return reading_.job


def _of_options(given: dict[str, str], project: Project) -> Job:
    if "schedule_kind" not in given or "schedule" not in given:
        raise click.UsageError("say which schedule, e.g. --daily 02:00, or --kind daily --schedule 02:00")
    kind, text = given.pop("schedule_kind"), given.pop("schedule")
    schedule = parse(kind, text, min_interval_us=project.rules.min_interval_us, **given)
    return Job("", "", schedule, "")
