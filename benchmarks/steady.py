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
STOCK_SECONDS = 8.0


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
    while len(noted.lateness) < count and watch.wall < until:
        time.sleep(engine.tick())
        ticks += 1
    answer = _answer(noted.lateness, count, watch)
    engine.close()
    redis.Redis.from_url(broker).delete("celery")
    return {**answer, "ticks": ticks}


def stock(broker: str, count: int, per_second: int, seconds: float) -> dict[str, Any]:
    """The same of Celery's own beat with as many entries, for its first seconds."""
    app = make_app(broker, beat_schedule=entries(count, 3_600.0))
    running = Stock(app)
    lead = LEAD_S + 1.0
    running.due(app.now() + timedelta(seconds=lead), timedelta(seconds=1 / per_second))
    wanted = min(count, round(per_second * seconds))
    watch = Stopwatch()
    while len(running.beat.late_results) < wanted and watch.wall < lead + seconds + GRACE_S:
        pause = running.beat.tick()
        if pause and pause > 0:
            time.sleep(min(pause, seconds))
    answer = _answer(running.beat.late_results[:wanted], wanted, watch)
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
    count = round(PER_SECOND * options.seconds)
    for kind, seconds in (("postgresql", options.seconds), ("stock beat", min(options.seconds, STOCK_SECONDS))):
        arguments = {"broker": broker, "count": count, "per_second": PER_SECOND}
        if kind == "stock beat":
            answer = fresh(stock, seconds=seconds, **arguments)
        else:
            answer = fresh(ours, url=where.database(kind), **arguments)
        late, p99 = answer["median"], answer["p99"]
        lines.append(
            {
                "beat": kind,
                "jobs": count,
                "seconds": seconds,
                "median late ms": late * 1_000 if late is not None else None,
                "p99 late ms": p99 * 1_000 if p99 is not None else None,
                "missed": answer["missed"],
                "of": round(PER_SECOND * seconds),
                "CPU busy": answer["busy"],
                "ticks/s": answer["ticks"] / seconds if "ticks" in answer else None,
            }
        )
    columns = {
        "beat": "",
        "jobs": ",",
        "seconds": ".0f",
        "median late ms": ",.0f",
        "p99 late ms": ",.0f",
        "missed": ",",
        "of": ",",
        "CPU busy": ".0%",
        "ticks/s": ".0f",
    }
    notes = (
        f"{PER_SECOND} jobs a second at even distances. Missed: not out {GRACE_S:g} s after the last one was due.",
    )
    yield Table("steady", "A steady stream", columns, lines, notes)
