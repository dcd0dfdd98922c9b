"""`check`: what keeps jobs from running, as a health check; and `migrate`."""

from __future__ import annotations

from collections import Counter
from typing import Any

from celery_qbeat.cli import output
from celery_qbeat.cli.command import command, finish
from celery_qbeat.cli.last_beat import read_last_beat
from celery_qbeat.cli.listing import standings
from celery_qbeat.cli.project import Project
from celery_qbeat.cli.status import ask_broker, broker_data, broker_sentence
from celery_qbeat.conditions import AILING, Condition
from celery_qbeat.errors import SchemaError
from celery_qbeat.stores import schema

LISTED = frozenset({Condition.LATE, Condition.REFUSED, Condition.BAD, Condition.RESERVED, Condition.PAUSED})
"""Somebody switched the disabled ones off himself, and they are many; they are counted only."""


@command("check")
def check_command(project: Project, as_json: bool) -> None:
    """Check the tables, their triggers, and every row: which will not run, and why.

    Ends with 1 when a job is late, refused or bad, when no beat lives, when the broker takes no messages, or when the
    tables are wrong: usable as a health check. It reads the rows itself, not what a beat says of them.

    \b
    Example:
      celery -A proj qbeat check
    """
    wrong = _schema(project)
    if wrong:
        if as_json:
            output.dump({"ok": False, "database": project.store.describe(), "schema": wrong})
        else:
            output.say(f"tables: {wrong}")
        finish(False)
    counted: Counter[Condition] = Counter()
    problems: list[dict[str, Any]] = []
    for found, standing in standings(project):
        counted[standing.condition] += 1
        if standing.condition in LISTED:
            problems.append({"id": found.id, "condition": standing.condition, "reason": standing.reason})
    broker = ask_broker(project)
    last = read_last_beat(project)
    ok = output.ailing(counted) == 0 and last.alive and (broker is None or not broker.trouble)
    if as_json:
        data = {"ok": ok, "database": project.store.describe(), "schema": "", "beat": last.data}
        data["broker"] = broker_data(broker)
        output.dump({**data, "counts": {str(each): counted[each] for each in Condition}, "problems": problems})
    else:
        facts = [f"beat: {last.sentence}", f"broker: {broker_sentence(broker)}"]
        _show(project, counted, problems, facts)
    finish(ok)


def _schema(project: Project) -> str:
    """What is wrong with the tables; empty when they are all right."""
    try:
        project.check()
    except SchemaError as error:
        return str(error)
    return ""


def _show(project: Project, counted: Counter[Condition], problems: list[dict[str, Any]], facts: list[str]) -> None:
    output.say(f"tables: all right in {project.store.describe()}")
    for fact in facts:
        output.say(fact)
    output.say(output.counts(counted))
    if problems:
        problems.sort(key=lambda problem: problem["condition"] not in AILING)
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
    project.telling(project.store.migrate)
    if as_json:
        output.dump({"schema_version": schema.SCHEMA_VERSION, "database": project.store.describe()})
    else:
        output.say(f"the tables have schema version {schema.SCHEMA_VERSION} in {project.store.describe()}")
