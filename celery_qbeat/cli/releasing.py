"""`release`: end runs in flight by hand, so that their jobs run again."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass

import click
import sqlalchemy as sa

from celery_qbeat.cli import output
from celery_qbeat.cli.command import command, finish
from celery_qbeat.cli.last_beat import read_last_beat
from celery_qbeat.cli.project import Project
from celery_qbeat.cli.run_now import ASK_AGAIN_S, me
from celery_qbeat.cli.runs import as_data
from celery_qbeat.core.jobs import IN_FLIGHT
from celery_qbeat.stores import reports, rows
from celery_qbeat.stores.reports import Ran


@command("release")
@click.argument("names", metavar="JOB_OR_TASK_ID", nargs=-1, required=True)
@click.option(
    "--wait", metavar="SECONDS", type=click.FloatRange(0), default=10.0, show_default=True, help="For the beat."
)
def release_command(project: Project, names: tuple[str, ...], wait: float, as_json: bool) -> None:
    """End runs in flight: one by its task id, or all of a job. Its job runs again at its next slot.

    The runs get the verdict lost; an end that is reported later corrects it. A task that a worker is running goes on:
    release a run only if you know that it is gone, or that the next one may run beside it. Ends with 1 when a run was
    not released, or when no beat answered in time; then the request waits for one.

    \b
    Example:
      celery -A proj qbeat release shop.cleanup
    """
    # All of them first: a wrong name among them releases nothing.
    wanted = [_found(project, name) for name in dict.fromkeys(names)]
    task_ids = list(dict.fromkeys(task_id for found in wanted for task_id in found.task_ids))
    asked_us = project.clock.now_us()

    def ask(connection: sa.Connection) -> None:
        for found in wanted:
            rows.ask_release(connection, found.job_id, found.task_id, asked_us, me())

    project.write(ask)
    answered = _answered(project, {found.job_id for found in wanted}, asked_us, wait)
    runs = list(project.read(lambda connection: reports.by_task_id(connection, task_ids)).values())
    _tell(project, runs, answered=answered, wait=wait, as_json=as_json)
    finish(wait == 0 or (answered and not any(run["verdict"] in IN_FLIGHT for run in runs)))


@dataclass(frozen=True, slots=True)
class _Found:
    """What a name stands for: one run, or with an empty `task_id` all of a job."""

    job_id: str
    task_id: str
    task_ids: Sequence[str]


def _found(project: Project, name: str) -> _Found:
    """Raises ClickException when it stands for no run in flight."""
    runs = project.read(lambda connection: reports.in_flight(connection, name))
    if runs:
        return _Found(name, "", [run["task_id"] for run in runs])
    run = project.read(lambda connection: reports.by_task_id(connection, [name])).get(name)
    if run is not None and run["verdict"] in IN_FLIGHT:
        return _Found(run["job_id"], name, [name])
    if run is not None:
        raise click.ClickException(f"run {name} has ended already ({run['verdict']}): only a run in flight is released")
    if project.read(lambda connection: rows.get(connection, [name])):
        raise click.ClickException(f"{name!r} has no run in flight: there is nothing to release")
    raise click.ClickException(
        f"{name!r} is neither a job nor the task id of a run: `qbeat list` names the jobs, "
        "`qbeat runs --verdict sent --json` the runs in flight"
    )


def _answered(project: Project, job_ids: set[str], asked_us: int, wait: float) -> bool:
    until = project.clock.monotonic() + wait

    def waits(connection: sa.Connection) -> bool:
        return any(reports.asked(connection, job_id, asked_us) for job_id in job_ids)

    while waiting := project.read(waits):
        if project.clock.monotonic() >= until:
            break
        time.sleep(ASK_AGAIN_S)
    return not waiting


def _tell(project: Project, runs: Sequence[Ran], *, answered: bool, wait: float, as_json: bool) -> None:
    if as_json:
        output.dump({"answered": answered, "runs": [as_data(run) for run in runs]})
        return
    if not answered and wait == 0:
        output.say("asked; the beat will end the runs")
        return
    if not answered:
        output.say(f"no beat has answered within {wait:g} s; the request waits for one")
        output.say(f"beat: {read_last_beat(project).sentence}")
        return
    for run in runs:
        held = run["verdict"] in IN_FLIGHT
        outcome = "not released: the beat does not have it in flight" if held else f"{run['verdict']}: {run['detail']}"
        output.say(f"{run['job_id']} {run['task_id']}: {outcome}")
