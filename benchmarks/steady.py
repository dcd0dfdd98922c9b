"""A steady stream: so many jobs a second, each at its own instant. How late are the messages?"""

from __future__ import annotations

import time
from collections.abc import Iterator
from datetime import timedelta
from statistics import median
from typing import Any

import redis

from benchmarks import places
from benchmarks.beats import Noted, ShiftedClock, Stock, entries, make_app, our_beat, our_dispatcher
from benchmarks.child import fresh
from benchmarks.measure import Stopwatch, quantile
from benchmarks.places import HOUR_US, Options, Places
from benchmarks.tables import Table

PER_SECOND = 200
LEAD_S = 0.5
GRACE_S = 3.0
STOCK_SECONDS = 10.0


def ours(url: str, broker: str, count: int, per_second: int) -> dict[str, Any]:
    """How late the messages were."""
    clock = ShiftedClock()
    app = make_app(broker, qbeat_database_url=url, qbeat_redis_url=broker)
    first = clock.now_us() + HOUR_US
    places.fill(url, places.due_at(count, first, 1_000_000 // per_second))
    instance = places.scalar(url, "SELECT instance FROM qbeat_meta")
    noted = Noted(our_dispatcher(app, instance), clock)
    engine = our_beat(app, clock, dispatcher=noted)
    engine.tick()
    clock.shift_us += first - clock.now_us() - round(LEAD_S * 1_000_000)
    watch = Stopwatch()
    until = LEAD_S + count / per_second + GRACE_S
    ticks = 0
    while len(noted.late) < count and watch.wall < until:
        time.sleep(engine.tick())
        ticks += 1
    answer = _answer(noted.late, count, watch)
    engine.close()
    redis.Redis.from_url(broker).delete("celery")
    return {**answer, "ticks": ticks}


def stock(broker: str, count: int, per_second: int) -> dict[str, Any]:
    """The same of Celery's own beat."""
    app = make_app(broker, beat_schedule=entries(count, 3_600.0))
    running = Stock(app)
    lead = LEAD_S + 1.0
    running.due(app.now() + timedelta(seconds=lead), timedelta(seconds=1 / per_second))
    watch = Stopwatch()
    until = lead + count / per_second + GRACE_S
    while len(running.beat.late) < count and watch.wall < until:
        pause = running.beat.tick()
        if pause and pause > 0:
            time.sleep(min(pause, until))
    answer = _answer(running.beat.late, count, watch)
    running.close()
    redis.Redis.from_url(broker).delete("celery")
    return answer


def _answer(late: list[float], count: int, watch: Stopwatch) -> dict[str, Any]:
    return {
        "median": median(late) if late else None,
        "p99": quantile(late, 0.99) if late else None,
        "missed": count - len(late),
        "busy": watch.cpu / watch.wall,
    }


def run(where: Places, options: Options) -> Iterator[Table]:
    """The table `steady`."""
    broker = where.redis.url
    lines = []
    for kind, seconds in (("postgresql", options.seconds), ("stock beat", min(options.seconds, STOCK_SECONDS))):
        arguments = {"broker": broker, "count": round(PER_SECOND * seconds), "per_second": PER_SECOND}
        if kind == "stock beat":
            answer = fresh(stock, **arguments)
        else:
            answer = fresh(ours, url=where.database(kind), **arguments)
        lines.append(
            {
                "beat": kind,
                "seconds": seconds,
                "runs": arguments["count"],
                "median late ms": answer["median"] * 1_000 if answer["median"] is not None else None,
                "p99 late ms": answer["p99"] * 1_000 if answer["p99"] is not None else None,
                "missed": answer["missed"],
                "CPU busy": answer["busy"],
                "ticks/s": answer["ticks"] / seconds if "ticks" in answer else None,
            }
        )
    columns = {
        "beat": "",
        "seconds": ".0f",
        "runs": ",",
        "median late ms": ",.0f",
        "p99 late ms": ",.0f",
        "missed": ",",
        "CPU busy": ".0%",
        "ticks/s": ".0f",
    }
    notes = (
        f"{PER_SECOND} jobs a second at even distances. Missed: not out {GRACE_S:g} s after the last one was due.",
    )
    yield Table("steady", "A steady stream", columns, lines, notes)
