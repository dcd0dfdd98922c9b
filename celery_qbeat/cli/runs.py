"""`runs`: what became of slots."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import click

from celery_qbeat.cli import output, times
from celery_qbeat.cli.command import command
from celery_qbeat.cli.project import Project
from celery_qbeat.core.jobs import Verdict
from celery_qbeat.stores import reports
from celery_qbeat.stores.reports import Ran

INSTANTS = ("slot", "claimed", "sent", "started", "finished", "lease_until")


@command("runs")
@click.argument("job_id", metavar="[ID]", required=False)
@click.option(
    "--verdict",
    multiple=True,
    metavar="VERDICT",
    type=click.Choice([str(each) for each in Verdict]),
    help="Only these; may be repeated. One of " + ", ".join(Verdict) + ".",
)
@click.option("--since", metavar="TIME", help="Only slots since then: 1h, 7d, or an ISO time in UTC.")
@click.option("--limit", type=click.IntRange(1), default=50, show_default=True, help="At most so many, the newest.")
def runs_command(
    project: Project, job_id: str | None, verdict: tuple[str, ...], since: str | None, limit: int, as_json: bool
) -> None:
    """Show the ledger: each slot with its verdict, the newest first.

    \b
    Example:
      celery -A proj qbeat runs shop.cleanup --verdict failed --verdict lost --since 7d
    """
    now = project.clock.now_us()
    since_us = None if since is None else times.read_past(since, "UTC", now, "--since")
    found = project.read(lambda connection: reports.runs(connection, job_id, verdict, since_us, limit))
    if not found and job_id is not None and not _has_runs(project, job_id):
        # Raises for an id that nobody knows.
        project.found(job_id)
    if as_json:
        output.dump([as_data(run) for run in found])
    elif not found:
        output.say("no runs")
    else:
        show_runs(found, now, with_job=job_id is None)


def _has_runs(project: Project, job_id: str) -> bool:
    """Whether the ledger knows the job at all: rows are deleted, their runs stay."""
    return bool(project.read(lambda connection: reports.runs(connection, job_id, limit=1)))


def show_runs(runs: Sequence[Ran], now: int, *, with_job: bool) -> None:
    """As a table; slots in UTC."""
    columns = ["SLOT", "AGE", "LATE>", "TOOK>", "VERDICT", "DETAIL"]
    output.table(["ID", *columns] if with_job else columns, (_line(run, now, with_job) for run in runs))


def _line(run: Ran, now: int, with_job: bool) -> list[output.Cell]:
    slot = run["slot_us"]
    detail = run["detail"] or ("by hand" if run["by_hand"] else "")
    if run["collapsed"]:
        detail = f"+{run['collapsed']} older; {detail}" if detail else f"+{run['collapsed']} older"
    cells: list[output.Cell] = [
        times.clock(slot, "UTC"),
        times.relative(slot, now),
        times.lasting(run["late_us"]),
        duration_of(run),
        output.verdict(run["verdict"]),
        detail,
    ]
    return [run["job_id"], *cells] if with_job else cells


def duration_of(run: Ran) -> str:
    """How long a run took by its worker's clock; `~`: from being sent until the beat knew of the end."""
    if run["took_us"] is not None:
        return times.lasting(run["took_us"])
    return f"~{times.lasting(run['finished_us'] - run['sent_us'])}" if run["finished_us"] and run["sent_us"] else ""


def as_data(run: Ran) -> dict[str, Any]:
    """A run for JSON."""
    data: dict[str, Any] = {"task_id": run["task_id"], "job_id": run["job_id"], "verdict": run["verdict"]}
    for name in INSTANTS:
        data |= times.stamp(name, run[f"{name}_us"])
    names = ("late_us", "took_us", "collapsed", "detail", "batch_id")
    return {**data, **{name: run[name] for name in names}, "by_hand": bool(run["by_hand"])}
