"""`status`: who writes, who stands by, and what is under way."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any

from celery_qbeat.cli import output, times
from celery_qbeat.cli.command import command, finish
from celery_qbeat.cli.last_beat import LastBeat, read_last_beat
from celery_qbeat.cli.listing import standings
from celery_qbeat.cli.lock import Lock, read_lock
from celery_qbeat.cli.project import Project
from celery_qbeat.core.health import Condition
from celery_qbeat.core.identity import database_id
from celery_qbeat.stores import reports
from celery_qbeat.stores.reports import Open

if TYPE_CHECKING:
    from celery_qbeat.dispatchers import BrokerCheck


@command("status")
def status_command(project: Project, as_json: bool) -> None:
    """Show the writer, the standbys, how the jobs stand, and what is under way.

    Ends with 1 when the broker takes no messages, when the lock's Redis is away, or when something that is no beat
    holds the lock.

    \b
    Example:
      celery -A proj qbeat status
    """
    last = read_last_beat(project)
    work = project.read(reports.open_work)
    counted = Counter(standing.condition for _, standing in standings(project))
    instance = project.instance()
    lock = read_lock(project, last.leader.holder)
    broker = ask_broker(project)
    if as_json:
        data = {"database_id": database_id(instance), "broker": broker_data(broker)}
        output.dump({**data, **_data(last, work, counted, lock)})
    else:
        facts = [*_database(project, instance), ("broker", broker_sentence(broker))]
        output.facts([*facts, *_facts(last, work, counted, lock)])
    finish(not lock.trouble and (broker is None or not broker.trouble))


def ask_broker(project: Project) -> BrokerCheck | None:
    """What the broker of the app says; None without an app. Waits for about three seconds at most."""
    if project.app is None:
        return None
    from celery_qbeat.dispatchers import check_broker

    return check_broker(project.app, namespace=project.settings.namespace, instance=project.instance())


def broker_sentence(broker: BrokerCheck | None) -> str:
    """Whether the broker takes messages, in words."""
    if broker is None:
        return "not asked: name the Celery app with -A proj"
    return broker.sentence


def broker_data(broker: BrokerCheck | None) -> dict[str, Any] | None:
    """Whether the broker takes messages, for JSON; None when it was not asked."""
    if broker is None:
        return None
    return {"ok": not broker.trouble, "url": broker.url, "trouble": broker.trouble, "unread_ends": broker.unread}


def _database(project: Project, instance: str) -> list[tuple[str, output.Cell]]:
    """Where the tables are, and the name that the log of beats on the same Redis has for them."""
    return [("database", project.store.describe()), ("database id", database_id(instance))]


def _facts(last: LastBeat, work: Open, counted: Counter[Condition], lock: Lock) -> list[tuple[str, output.Cell]]:
    facts: list[tuple[str, output.Cell]] = [("writer", last.sentence), *lock.facts()]
    facts.append(("jobs", output.counts(counted)))
    facts.append(("runs in flight", str(work.flights)))
    batches = str(work.batches)
    if work.oldest_us is not None:
        batches += f", the oldest claimed {times.relative(work.oldest_us, last.now_us)}"
    facts.append(("open batches", batches))
    if work.requests:
        facts.append(("asked by hand", f"{work.requests} not answered yet"))
    return facts


def _data(last: LastBeat, work: Open, counted: Counter[Condition], lock: Lock) -> dict[str, Any]:
    return {
        "writer": last.data,
        **lock.data,
        "beats": lock.beats_data(),
        "jobs": {str(each): counted[each] for each in Condition},
        "runs_in_flight": work.flights,
        "open_batches": work.batches,
        **times.stamp("oldest_batch", work.oldest_us),
        "requests": work.requests,
    }
