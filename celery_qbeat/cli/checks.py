"""`check`: what keeps jobs from running, as a health check; and `migrate`."""

from __future__ import annotations

import os
from collections import Counter
from dataclasses import dataclass, field
from typing import Any, NoReturn

import click

from celery_qbeat.cli import output
from celery_qbeat.cli.command import command, finish
from celery_qbeat.cli.last_beat import read_last_beat
from celery_qbeat.cli.listing import standings
from celery_qbeat.cli.lock import read_lock
from celery_qbeat.cli.project import Project
from celery_qbeat.cli.status import ask_broker, broker_data, broker_sentence
from celery_qbeat.core.health import AILING, Condition
from celery_qbeat.core.jobs import CRON_RESERVED
from celery_qbeat.errors import SchemaError
from celery_qbeat.process import heartbeat
from celery_qbeat.stores import schema

LISTED = frozenset({Condition.LATE, Condition.REFUSED, Condition.BAD, Condition.RESERVED, Condition.PAUSED})
"""Somebody switched the disabled ones off himself, and they are many; they are counted only."""


@command("check")
@click.option("--strict", is_flag=True, help="End with 1 for what it only warns of, too.")
@click.option("--liveness", is_flag=True, help="Look at the heartbeat file only: no database, no broker.")
@click.option("--heartbeat-file", metavar="FILE", help="The file, where qbeat_heartbeat_file does not name it.")
def check_command(project: Project, strict: bool, liveness: bool, heartbeat_file: str | None, as_json: bool) -> None:
    """Check the tables, their triggers, and every row: which will not run, and why.

    Ends with 1 when a job is late, refused or bad, when no beat lives, when the broker takes no messages, when the
    lock's Redis is away or something that is no beat holds the lock, or when the tables are wrong: usable as a health
    check. It reads the rows itself, not what a beat says of them.

    For a probe that runs often: `python -m celery_qbeat check --liveness`, which imports neither the app nor Celery.

    \b
    Example:
      celery -A proj qbeat check
    """
    if liveness:
        _check_liveness(project, heartbeat_file, as_json)
    wrong = _schema(project)
    if wrong:
        if as_json:
            output.dump({"ok": False, "database": project.store.describe(), "schema": wrong})
        else:
            output.say(f"tables: {wrong}")
        finish(False)
    found = _look_at_jobs(project)
    broker, last = ask_broker(project), read_last_beat(project)
    lock = read_lock(project, last.leader.holder)
    reserved = found.counts[Condition.RESERVED]
    well = last.alive and not lock.trouble and (broker is None or not broker.trouble)
    unmatched = project.privileges.unmatched() if project.privileges else []
    ok = well and not found.ailing and not (strict and (reserved or unmatched))
    if as_json:
        data = {"ok": ok, "database": project.store.describe(), "schema": "", "beat": last.data, "warnings": unmatched}
        data |= {"broker": broker_data(broker), **lock.data}
        output.dump(
            {**data, "counts": {str(each): found.counts[each] for each in Condition}, "problems": found.problems}
        )
    else:
        facts = [f"beat: {last.sentence}", f"broker: {broker_sentence(broker)}", f"lock: {lock.sentence}"]
        _show(project, found, facts)
    if reserved:
        output.warn(f"{reserved} cron {'row' if reserved == 1 else 'rows'} will never run: {CRON_RESERVED}")
    for warning in unmatched:
        output.warn(warning)
    finish(ok)


def _check_liveness(project: Project, named: str | None, as_json: bool) -> NoReturn:
    """As `python -m celery_qbeat check --liveness`, for an app that is loaded already."""
    path = named or project.settings.heartbeat_file or os.environ.get(heartbeat.VARIABLE)
    if path is None:
        raise click.UsageError(
            f"set qbeat_heartbeat_file, or name the file with --heartbeat-file or {heartbeat.VARIABLE}"
        )
    why = heartbeat.trouble(path, project.clock.now_us() / 1_000_000)
    if as_json:
        output.dump({"ok": not why, "heartbeat_file": path, "trouble": why})
    else:
        output.say(why or "a beat lives")
    raise SystemExit(1 if why else 0)


@dataclass(slots=True)
class _Jobs:
    """The jobs by condition, how many of them somebody has to see to, and those to be listed."""

    counts: Counter[Condition] = field(default_factory=Counter)
    ailing: int = 0
    problems: list[dict[str, Any]] = field(default_factory=list)


def _look_at_jobs(project: Project) -> _Jobs:
    jobs = _Jobs()
    for found, standing in standings(project):
        jobs.counts[standing.condition] += 1
        jobs.ailing += standing.ailing
        if standing.ailing or standing.condition in LISTED:
            jobs.problems.append({"id": found.id, "condition": standing.condition, "reason": standing.reason})
    return jobs


def _schema(project: Project) -> str:
    """What is wrong with the tables; empty when they are all right."""
    try:
        project.check()
    except SchemaError as error:
        return str(error)
    return ""


def _show(project: Project, jobs: _Jobs, facts: list[str]) -> None:
    output.say(f"tables: all right in {project.store.describe()}")
    for fact in facts:
        output.say(fact)
    output.say(output.counts(jobs.counts))
    if jobs.problems:
        problems = sorted(jobs.problems, key=lambda problem: problem["condition"] not in AILING)
        output.title("Jobs to look at")
        lines = [[p["id"], output.named(p["condition"]), p["reason"]] for p in problems]
        output.table(("ID", "STATUS", "REASON"), lines)


@command("migrate")
def migrate_command(project: Project, as_json: bool) -> None:
    """Make the tables, or bring them up to date. May be repeated; loses nothing.

    \b
    Example:
      celery -A proj qbeat migrate
    """
    project.with_database_errors(project.store.migrate)
    if as_json:
        output.dump({"schema_version": schema.SCHEMA_VERSION, "database": project.store.describe()})
    else:
        output.say(f"the tables have schema version {schema.SCHEMA_VERSION} in {project.store.describe()}")
