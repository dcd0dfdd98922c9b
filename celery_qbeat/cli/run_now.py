"""`run-now`: one run, asked of the beat; and `tick`: the work of a beat, once."""

from __future__ import annotations

import getpass
import logging
import socket
import time
from types import FrameType
from typing import TYPE_CHECKING

import click
import sqlalchemy as sa

from celery_qbeat.cli import output
from celery_qbeat.cli.command import command, finish
from celery_qbeat.cli.last_beat import read_last_beat
from celery_qbeat.cli.project import Project
from celery_qbeat.cli.runs import as_data
from celery_qbeat.core.identity import request_task_id
from celery_qbeat.core.jobs import Verdict
from celery_qbeat.core.liveness import TICK_PREFIX
from celery_qbeat.errors import Unavailable
from celery_qbeat.process.safe_logging import get_logger
from celery_qbeat.process.shutdown_signals import ShutdownSignals
from celery_qbeat.stores import reports, rows, tables
from celery_qbeat.stores.reports import Ran
from celery_qbeat.wiring import build, heartbeat_file, holder_name

if TYPE_CHECKING:
    from celery_qbeat.engine import Engine

ASK_AGAIN_S = 0.2
NOT_SENT = frozenset({Verdict.CLAIMED, Verdict.IN_DOUBT, Verdict.REFUSED, Verdict.SKIPPED, Verdict.MISSED})
DRAIN_S = 30.0
"""So long a tick goes on reading ends that have arrived, for nobody else does before the next one."""


@command("run-now")
@click.argument("job_id", metavar="ID")
@click.option(
    "--wait", metavar="SECONDS", type=click.FloatRange(0), default=10.0, show_default=True, help="For the beat."
)
def run_now_command(project: Project, job_id: str, wait: float, as_json: bool) -> None:
    """Ask the beat to run a job now, beside its schedule.

    The run has a slot of its own and obeys the gate and the row's overlap. Ends with 1 when it was not sent, or when no
    beat answered in time; then the request waits for one.

    \b
    Example:
      celery -A proj qbeat run-now shop.cleanup
    """
    project.found(job_id)
    asked_us = project.clock.now_us()
    request_id = project.write(lambda connection: rows.ask(connection, job_id, asked_us, me()))
    name = request_task_id(project.instance(), job_id, request_id, asked_us)
    run, answered = _answer(project, request_id, name, wait)
    if as_json:
        output.dump({"answered": answered, "asked_us": asked_us, "run": None if run is None else as_data(run)})
    elif run is not None:
        output.say(f"{_outcome(run)}; task id {run['task_id']}")
    elif answered:
        output.say(f"the beat does not know {job_id!r}")
    elif wait == 0:
        output.say("asked; the beat will run it")
    else:
        output.say(f"no beat has answered within {wait:g} s; the request waits for one")
        output.say(f"beat: {read_last_beat(project).sentence}")
    finish(wait == 0 or (run is not None and _was_sent(run)))


def _was_sent(run: Ran) -> bool:
    # A message that no broker takes is a failure, too.
    return run["verdict"] not in NOT_SENT and not (run["verdict"] == Verdict.FAILED and run["sent_us"] is None)


def _outcome(run: Ran) -> str:
    if run["verdict"] == Verdict.CLAIMED:
        return "claimed, and not sent yet: the beat goes on trying"
    return str(run["verdict"]) if _was_sent(run) else f"{run['verdict']}: {run['detail']}"


def me() -> str:
    """Who asks: the user and the machine."""
    try:
        user = getpass.getuser()
    except (KeyError, OSError):
        user = "unknown"
    return f"{user}@{socket.gethostname()}"


def _answer(project: Project, request_id: int, name: str, wait: float) -> tuple[Ran | None, bool]:
    """The run when it has a verdict (or was claimed at least), and whether the beat has answered."""
    until = project.clock.monotonic() + wait
    run: Ran | None = None
    waiting = True
    while project.clock.monotonic() < until:
        waiting = project.read(lambda connection: reports.waits(connection, request_id))
        run = project.read(lambda connection: reports.by_task_id(connection, [name])).get(name)
        if (run is not None and run["verdict"] != Verdict.CLAIMED) or (run is None and not waiting):
            break
        time.sleep(ASK_AGAIN_S)
    return run, run is not None or not waiting


@command("tick")
@click.option(
    "--every",
    metavar="SECONDS",
    type=click.FloatRange(1, 7 * 86_400),
    default=60.0,
    show_default=True,
    help="How often you run this; after three times as long without one, `check` says that no beat lives.",
)
def tick_command(project: Project, every: float, as_json: bool) -> None:
    """Run what is due, once, and end: for cron, Kubernetes CronJobs and tests. Needs the broker.

    Does nothing while a beat is at work.

    \b
    Example:
      celery -A proj qbeat tick
    """
    if project.app is None:
        raise click.UsageError("tick sends tasks: name the Celery app with -A proj")
    logging.basicConfig(level=logging.WARNING, format="%(message)s")
    get_logger().setLevel(logging.INFO)
    other = "" if project.settings.redis_url else _standalone_beat(project)
    before = 0 if other else _last_line(project)
    if not other:
        other = _ticked(project, every)
        file = heartbeat_file(project.settings, every)
        if file is not None and not other:
            file.touch()
    counted = {} if other else _counted(project, before)
    if as_json:
        output.dump({"ran": not other, "reason": other, "verdicts": counted})
    elif other:
        output.say(other)
    else:
        output.say(
            "nothing was due" if not counted else ", ".join(f"{count} {name}" for name, count in counted.items())
        )


def _standalone_beat(project: Project) -> str:
    """Without a lock only the tables know of another beat, which would stand by for good if this one took its epoch."""
    last = read_last_beat(project)
    if last.leader.holder.removeprefix(TICK_PREFIX) == holder_name() or not last.at_work:
        return ""
    return f"a beat is at work ({last.sentence}): nothing done"


def _ticked(project: Project, every: float) -> str:
    """Passes until nothing is due that was due at the first. What came in between: another beat. Raises Unavailable."""
    signals = ShutdownSignals(lambda seconds: engine.limit_waits(seconds))
    engine = build(project.app, project.settings, stopping=signals.pending, tick_every_s=every)
    signals.add_missing(_end)
    try:
        with signals.deferred():
            engine.open()
            pause = engine.tick()
        until_us, enough = project.clock.now_us(), project.clock.monotonic() + DRAIN_S
        while engine.writing and (_due(engine, until_us) or (pause == 0.0 and project.clock.monotonic() < enough)):
            if engine.leader.broker_away:
                raise Unavailable("the broker is away: what is due waits for the next tick, or for a beat")
            time.sleep(min(0.05, pause))
            with signals.deferred():
                pause = engine.tick()
        if engine.writing:
            return ""
    finally:
        with signals.deferred():
            engine.close()
        signals.remove_added()
    if project.settings.redis_url is None:
        raise Unavailable(f"the database {project.store.describe()} went away, or another beat took over")
    return "another beat holds the lock, or its Redis is away: nothing done"


def _end(number: int, _frame: FrameType | None) -> None:
    raise SystemExit(128 + number)


def _due(engine: Engine, until_us: int) -> bool:
    desk = engine.leader
    slot = desk.agenda.next_us()
    return bool(desk.chores or desk.resends or desk.pending_writes or desk.asking) or (
        slot is not None and slot <= until_us
    )


def _last_line(project: Project) -> int:
    def last(connection: sa.Connection) -> int:
        return connection.execute(sa.select(sa.func.max(tables.runs.c.id))).scalar_one() or 0

    return project.read(last)


def _counted(project: Project, after: int) -> dict[str, int]:
    runs = tables.runs.c
    query = sa.select(runs.verdict, sa.func.count()).where(runs.id > after).group_by(runs.verdict)
    return {str(name): count for name, count in project.read(lambda connection: connection.execute(query).all())}
