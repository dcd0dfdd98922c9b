"""`status`: who writes, who stands by, and what is under way."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any

from celery_qbeat.cli import output, times
from celery_qbeat.cli.command import command, finish
from celery_qbeat.cli.last_beat import LastBeat, read_last_beat
from celery_qbeat.cli.listing import standings
from celery_qbeat.cli.project import Project
from celery_qbeat.conditions import Condition
from celery_qbeat.errors import Unavailable
from celery_qbeat.identity import database_id
from celery_qbeat.stores import reports
from celery_qbeat.stores.reports import Open
from celery_qbeat.wiring import build_gate

if TYPE_CHECKING:
    from celery_qbeat.dispatchers import BrokerCheck
    from celery_qbeat.gates import Beat, Holding

    Lock = tuple[Holding | None, tuple[Beat, ...]]


@command("status")
def status_command(project: Project, as_json: bool) -> None:
    """Show the writer, the standbys, how the jobs stand, and what is under way.

    Ends with 1 when the broker takes no messages, or when the lock's Redis is away.

    \b
    Example:
      celery -A proj qbeat status
    """
    last = read_last_beat(project)
    work = project.read(reports.open_work)
    counted = Counter(standing.condition for _, standing in standings(project))
    instance = project.instance()
    lock, away = _lock(project, instance)
    broker = ask_broker(project)
    if as_json:
        data = {"database_id": database_id(instance), "broker": broker_data(broker)}
        output.dump({**data, **_data(last, work, counted, lock, away)})
    else:
        facts = [*_database(project, instance), ("broker", broker_sentence(broker))]
        output.facts([*facts, *_facts(last, work, counted, lock, away)])
    finish(not away and (broker is None or not broker.trouble))


def ask_broker(project: Project) -> BrokerCheck | None:
    """What the broker of the app says; None without an app. Waits for about three seconds at most."""
    if project.app is None:
        return None
    from celery_qbeat.dispatchers import check_broker

    return check_broker(project.app)


def broker_sentence(broker: BrokerCheck | None) -> str:
    """Whether the broker takes messages, in words."""
    if broker is None:
        return "not asked: name the Celery app with -A proj"
    return f"{broker.url} takes no messages: {broker.trouble}" if broker.trouble else f"{broker.url} takes messages"


def broker_data(broker: BrokerCheck | None) -> dict[str, Any] | None:
    """Whether the broker takes messages, for JSON; None when it was not asked."""
    return None if broker is None else {"ok": not broker.trouble, "url": broker.url, "trouble": broker.trouble}


def _database(project: Project, instance: str) -> list[tuple[str, output.Cell]]:
    """Where the tables are, and the name that the log of beats on the same Redis has for them."""
    return [("database", project.store.describe()), ("database id", database_id(instance))]


def _lock(project: Project, instance: str) -> tuple[Lock | None, str]:
    """What Redis says of the lock, and why it cannot say it; nothing when there is no lock."""
    if project.settings.redis_url is None:
        return None, ""
    from celery_qbeat.gates import RedisGate

    gate = build_gate(project.settings, project.settings.poll_interval, "status", project.clock)
    if not isinstance(gate, RedisGate):
        return None, ""
    gate.bind(instance)
    try:
        return (gate.holding(), gate.beats()), ""
    except Unavailable as error:
        return None, str(error)
    finally:
        gate.release()


def _facts(
    last: LastBeat, work: Open, counted: Counter[Condition], lock: Lock | None, away: str
) -> list[tuple[str, output.Cell]]:
    facts: list[tuple[str, output.Cell]] = [
        ("writer", last.sentence),
    ]
    if away:
        facts.append(("lock", away))
    elif lock is None:
        facts.append(("lock", "standalone: no qbeat_redis_url is set, so only one beat may run"))
    else:
        holding, beats = lock
        facts.append(("lock", _held(holding)))
        standbys = [beat for beat in beats if not beat.writer]
        facts.extend(("standby", f"{beat.holder}, seen {beat.seen_s:.0f} s ago") for beat in standbys)
        if not standbys:
            facts.append(("standby", "none seen within the last minute"))
    facts.append(("jobs", output.counts(counted)))
    facts.append(("runs in flight", str(work.flights)))
    batches = str(work.batches)
    if work.oldest_us is not None:
        batches += f", the oldest claimed {times.relative(work.oldest_us, last.now_us)}"
    facts.append(("open batches", batches))
    if work.requests:
        facts.append(("asked by hand", f"{work.requests} not answered yet"))
    return facts


def _held(holding: Holding | None) -> str:
    if holding is None:
        return "nobody holds it"
    who = holding.holder or "a beat that is not listed"
    if holding.left_s is None:
        return f"{who} holds it, without an end: no beat made this lock, delete its key"
    return f"{who} holds it, for {holding.left_s:.1f} s more unless it renews"


def _data(last: LastBeat, work: Open, counted: Counter[Condition], lock: Lock | None, away: str) -> dict[str, Any]:
    holding, beats = lock if lock is not None else (None, ())
    held = None if holding is None else {"holder": holding.holder, "left_s": holding.left_s}
    listed = [
        {"holder": beat.holder, "writer": beat.writer, "seen_s": beat.seen_s, **times.stamp("since", beat.since_us)}
        for beat in beats
    ]
    return {
        "writer": last.data,
        "gate": "redis" if lock is not None or away else "standalone",
        "redis_away": away,
        "lock": held,
        "beats": listed,
        "jobs": {str(each): counted[each] for each in Condition},
        "runs_in_flight": work.flights,
        "open_batches": work.batches,
        **times.stamp("oldest_batch", work.oldest_us),
        "requests": work.requests,
    }
