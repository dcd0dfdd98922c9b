"""Many rows due at the same instant, from the claim to the mark, beside a plain loop of `app.send_task`; their ends."""

from __future__ import annotations

import time
from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import redis

from benchmarks import places
from benchmarks.beats import ShiftedClock, Stock, entries, make_app, our_beat
from benchmarks.child import fresh
from benchmarks.measure import Stopwatch, cpu_of
from benchmarks.places import HOUR_US, TASK, Options, Places
from benchmarks.tables import Table
from celery_qbeat.core.identity import database_id, run_token

SIZES = (1_000, 10_000)
LOOP = 1_000
DATABASES = ("postgresql", "sqlite")
STOCK_SECONDS = 5.0
ENDS = 1_000
ENDS_SECONDS = 15.0


def ours(url: str, broker: str, count: int, servers: list[int], **limits: int) -> dict[str, Any]:
    """Messages a second of a beat, and of a plain loop before and after it."""
    clock = ShiftedClock()
    app = make_app(broker, qbeat_database_url=url, qbeat_redis_url=broker)
    slot = clock.now_us() + HOUR_US
    places.fill(url, places.due_at(count, slot))
    engine = our_beat(app, clock, **limits)
    engine.tick()
    client = redis.Redis.from_url(broker)
    _loop(app, client, 200, servers)
    plain = [_loop(app, client, LOOP, servers)]
    client.delete("celery")
    clock.shift_us = HOUR_US
    watch, used = Stopwatch(), _cpu(servers)
    while engine.tick() == 0.0:
        pass
    mine = {"rate": count / watch.wall, "cpu": watch.cpu / count, "all": (watch.cpu + _cpu(servers) - used) / count}
    queued, marked = client.llen("celery"), places.scalar(url, "SELECT count(*) FROM qbeat_runs WHERE verdict = 'sent'")
    assert (queued, marked) == (count, count), f"{queued} messages and {marked} marks for {count} rows"
    plain.append(_loop(app, client, LOOP, servers))
    engine.close()
    client.delete("celery")
    return {"ours": mine, "plain": {name: (plain[0][name] + plain[1][name]) / 2 for name in plain[0]}}


def _loop(app: Any, client: Any, count: int, servers: list[int]) -> dict[str, float]:
    client.delete("celery")
    watch, used = Stopwatch(), _cpu(servers)
    for number in range(count):
        app.send_task(TASK, args=[number])
    return {"rate": count / watch.wall, "cpu": watch.cpu / count, "all": (watch.cpu + _cpu(servers) - used) / count}


def _cpu(servers: list[int]) -> float:
    return sum(cpu_of(pid) for pid in servers)


def ends(url: str, broker: str, count: int, seconds: float) -> dict[str, Any]:
    """Ends a second that a beat takes in when so many runs have ended, in its own rhythm, for so long at most."""
    clock = ShiftedClock()
    app = make_app(broker, qbeat_database_url=url, qbeat_redis_url=broker)
    slot = clock.now_us() + HOUR_US
    places.fill(url, places.due_at(count, slot))
    engine = our_beat(app, clock)
    engine.tick()
    clock.shift_us = HOUR_US
    while engine.tick() == 0.0:
        pass
    client = redis.Redis.from_url(broker)
    client.delete("celery")
    _report_ends(app, url)
    watch, took = Stopwatch(), 0.0
    while len(engine.leader.in_flight) and took < seconds:
        pause = engine.tick()
        took = watch.wall
        if len(engine.leader.in_flight):
            time.sleep(pause)
    landed, busy = count - len(engine.leader.in_flight), watch.cpu
    plain = _loop(app, client, LOOP, [])
    engine.close()
    client.delete("celery", _done_queue(url))
    return {"rate": landed / took, "cpu": busy / max(1, landed), "landed": landed, "plain": plain}


def _done_queue(url: str) -> str:
    return f"qbeat.done.default.{database_id(places.scalar(url, 'SELECT instance FROM qbeat_meta'))}"


def _report_ends(app: Any, url: str) -> None:
    """What workers do when the tasks of all runs have succeeded."""
    instance = places.scalar(url, "SELECT instance FROM qbeat_meta")
    queue = _done_queue(url)
    for task in places.scalars(url, "SELECT task_id FROM qbeat_runs"):
        kwargs = {"v": 1, "run": task, "outcome": "success", "token": run_token(instance, task)}
        where = {"exchange": "celery_qbeat", "routing_key": queue, "declare": []}
        app.send_task("celery_qbeat.done", kwargs=kwargs, serializer="json", ignore_result=True, **where)


def stock(broker: str, count: int, seconds: float) -> dict[str, Any]:
    """Messages a second of Celery's own beat, for so long or until all are out."""
    app = make_app(broker, beat_schedule=entries(count, 3_600.0))
    running = Stock(app)
    running.due(app.now() - timedelta(seconds=1))
    watch = Stopwatch()
    while watch.wall < seconds and running.beat.tick() == 0:
        pass
    sent, took = len(running.beat.late_results), watch.wall
    running.close()
    redis.Redis.from_url(broker).delete("celery")
    return {"rate": sent / took, "sent": sent, "seconds": took}


def run(where: Places, options: Options) -> Iterator[Table]:
    """The tables `burst` and `ends`."""
    yield _burst(where, options)
    yield _ends(where)


def _ends(where: Places) -> Table:
    broker, lines = where.redis.url, []
    for kind in DATABASES:
        answer = fresh(ends, url=where.database(kind), broker=broker, count=ENDS, seconds=ENDS_SECONDS)
        lines.append(
            {
                "database": kind,
                "ended at once": ENDS,
                "ends/s": answer["rate"],
                "to a send_task loop": answer["rate"] / answer["plain"]["rate"],
                "CPU of one send_task to one end": answer["plain"]["cpu"] / answer["cpu"],
            }
        )
    columns = {
        "database": "",
        "ended at once": ",",
        "ends/s": ",.0f",
        "to a send_task loop": ".2fx",
        "CPU of one send_task to one end": ".2fx",
    }
    notes = ("From the message of a worker in Redis to the verdict in the database, poll interval 1 s.",)
    return Table("ends", "Runs that ended", columns, lines, notes)


def _burst(where: Places, options: Options) -> Table:
    broker = where.redis.url
    servers = [where.redis.pid, where.postgresql.pid]
    lines = []
    for count in SIZES:
        rival = fresh(stock, broker=broker, count=count, seconds=min(STOCK_SECONDS, options.seconds))
        for kind in DATABASES:
            answer = fresh(ours, url=where.database(kind), broker=broker, count=count, servers=servers)
            mine, plain = answer["ours"], answer["plain"]
            lines.append(
                {
                    "database": kind,
                    "due at once": count,
                    "messages/s": mine["rate"],
                    "send_task loop/s": plain["rate"],
                    "to the loop": mine["rate"] / plain["rate"],
                    "its CPU to ours": plain["cpu"] / mine["cpu"],
                    "with servers": plain["all"] / mine["all"],
                    "stock beat/s": rival["rate"],
                    "to the stock beat": mine["rate"] / rival["rate"],
                }
            )
    columns = {
        "database": "",
        "due at once": ",",
        "messages/s": ",.0f",
        "send_task loop/s": ",.0f",
        "to the loop": ".2fx",
        "its CPU to ours": ".2fx",
        "with servers": ".2fx",
        "stock beat/s": ",.0f",
        "to the stock beat": ".0fx",
    }
    notes = (
        "End to end: decide, claim in the database, publish to Redis, mark as sent; the loop only publishes.",
        "CPU for each message: of the process alone, and with Redis and PostgreSQL.",
    )
    return Table("burst", "Rows due at once", columns, lines, notes)
