"""What many rows cost a beat that has nothing to do: the idle tick, the start, the memory, one changed row."""

from __future__ import annotations

import itertools
import time
from collections.abc import Iterator
from typing import Any

from benchmarks import places
from benchmarks.beats import ShiftedClock, Stock, entries, make_app, our_beat
from benchmarks.child import fresh
from benchmarks.measure import Stopwatch, median_cpu, peak, resident
from benchmarks.places import Options, Places
from benchmarks.tables import Table

DATABASES = ("sqlite", "postgresql")
STOCK = "stock beat"
MANY = 10_000
PHASES = (0.1, 0.9)
EDIT = "UPDATE qbeat_jobs SET description = :text WHERE id = :id"
EDITED = "shop.customer-0000042.report"

Found = dict[tuple[str, int], dict[str, Any]]
"""What was measured, by kind of beat and number of rows."""


def ours(url: str, redis: str, rows: int, restart: bool) -> dict[str, Any]:
    """Start on a table of rows and tick. `restart`: all that is measured of a beat which knows them already."""
    clock = ShiftedClock()
    app = make_app(redis, qbeat_database_url=url, qbeat_redis_url=redis)
    engine = our_beat(app, clock)
    watch = Stopwatch()
    engine.tick()
    answer: dict[str, Any] = {"load": watch.wall, "load_cpu": watch.cpu, "peak": peak(), "memory": resident()}
    assert len(engine.leader.agenda) == rows
    if restart:
        count = itertools.count()

        def edit() -> None:
            places.write(url, EDIT, text=f"edit {next(count)}", id=EDITED)

        answer["tick"] = median_cpu(engine.tick, 100)
        answer["edit_tick"] = median_cpu(engine.tick, 30, between=edit)
        answer["seen_after"] = [_seen_after(engine, edit, phase) for phase in PHASES if rows >= MANY]
    engine.close()
    return answer


def _seen_after(engine: Any, edit: Any, phase: float) -> float:
    """Seconds from an edit's commit until the agenda has it, in a beat that sleeps as Celery lets it sleep."""
    pause = engine.tick()
    before = engine.leader.agenda.entries[EDITED].job.rev
    time.sleep(phase * pause)
    edit()
    watch = Stopwatch()
    time.sleep((1 - phase) * pause)
    engine.tick()
    assert engine.leader.agenda.entries[EDITED].job.rev > before
    return watch.wall


def stock(redis: str, rows: int) -> dict[str, Any]:
    """The same of Celery's own beat: entries that are not due."""
    app = make_app(redis)
    watch = Stopwatch()
    app.conf.beat_schedule = entries(rows, 86_400.0)
    running = Stock(app)
    running.beat.tick()
    answer: dict[str, Any] = {"load": watch.wall, "load_cpu": watch.cpu, "peak": peak(), "memory": resident()}
    answer["tick"] = median_cpu(running.beat.tick, 20 if rows <= MANY else 5)
    answer["dbm"] = running.dbm
    running.close()
    return answer


def run(where: Places, options: Options) -> Iterator[Table]:
    """The tables `idle`, `load` and `edit`."""
    redis = where.redis.url
    found: Found = {}
    for rows in options.sizes:
        if rows in options.stock_sizes:
            found[STOCK, rows] = fresh(stock, redis=redis, rows=rows)
        for kind in DATABASES:
            url = where.database(kind)
            places.fill(url, places.calendar(rows, ShiftedClock().now_us()))
            first = fresh(ours, url=url, redis=redis, rows=rows, restart=False)
            again = fresh(ours, url=url, redis=redis, rows=rows, restart=True)
            found[kind, rows] = {**again, "first": first["load_cpu"]}
    yield _idle(found, min(options.sizes))
    yield _load(found, min(options.sizes))
    yield _edit(found)


def _idle(found: Found, least: int) -> Table:
    lines = []
    for (kind, rows), answer in _by_kind(found):
        rival = found.get((STOCK, rows)) if kind != STOCK else None
        lines.append(
            {
                "beat": kind,
                "rows": rows,
                "CPU ms": answer["tick"] * 1_000,
                f"to {least:,} rows": answer["tick"] / found[kind, least]["tick"] if (kind, least) in found else None,
                "stock beat to it": rival["tick"] / answer["tick"] if rival else None,
            }
        )
    columns = {"beat": "", "rows": ",", "CPU ms": ".3f", f"to {least:,} rows": ".2fx", "stock beat to it": ".1fx"}
    notes = ("Lock and broker in Redis. A tick renews the lock and looks for changed rows, ends of runs and due jobs.",)
    return Table("idle", "An idle tick", columns, lines, notes)


def _load(found: Found, least: int) -> Table:
    lines = []
    for (kind, rows), answer in _by_kind(found):
        rival = found.get((STOCK, rows)) if kind != STOCK else None
        line = {
            "beat": kind,
            "rows": rows,
            "start s": answer["load"],
            "CPU us a row": answer["load_cpu"] / rows * 1e6,
            "first start": answer["first"] / rows * 1e6 if "first" in answer else None,
            "stock CPU to it": rival["load_cpu"] / answer["load_cpu"] if rival else None,
        }
        base = found.get((kind, least))
        if base is not None and rows >= MANY:
            line["bytes a row"] = (answer["memory"] - base["memory"]) / (rows - least)
            line["peak"] = (answer["peak"] - base["peak"]) / (rows - least) if answer["peak"] else None
        if rival is not None and rows >= MANY and (STOCK, least) in found:
            theirs = (rival["memory"] - found[STOCK, least]["memory"]) / (rows - least)
            line["stock bytes to it"] = theirs / line["bytes a row"]
        lines.append(line)
    columns = {
        "beat": "",
        "rows": ",",
        "start s": ".2f",
        "CPU us a row": ".0f",
        "first start": ".0f",
        "stock CPU to it": ".1fx",
        "bytes a row": ",.0f",
        "peak": ",.0f",
        "stock bytes to it": ".1fx",
    }
    kept = {answer["dbm"] for (kind, _), answer in found.items() if kind == STOCK}
    notes = [
        "From the start to the end of the first tick; first start: no beat has seen the rows yet.",
        f"Memory above that of a beat with {least:,} rows.",
        *(f"The stock beat keeps its schedule in {name}." for name in kept),
    ]
    return Table("load", "Start, and memory", columns, lines, notes)


def _edit(found: Found) -> Table:
    lines = []
    for (kind, rows), answer in _by_kind(found):
        if kind == STOCK:
            continue
        rival, seen = found.get((STOCK, rows)), answer["seen_after"]
        lines.append(
            {
                "beat": kind,
                "rows": rows,
                "CPU ms of its tick": answer["edit_tick"] * 1_000,
                "to an idle tick": answer["edit_tick"] / answer["tick"],
                "seen after s": sum(seen) / len(seen) if seen else None,
                "at most": max(seen, default=None),
                "stock restart CPU to its tick": rival["load_cpu"] / answer["edit_tick"] if rival else None,
            }
        )
    columns = {
        "beat": "",
        "rows": ",",
        "CPU ms of its tick": ".2f",
        "to an idle tick": ".1fx",
        "seen after s": ".2f",
        "at most": ".2f",
        "stock restart CPU to its tick": ",.0fx",
    }
    notes = ("One row changed with SQL; the poll interval is 1 s. The stock beat sees a change when it is restarted.",)
    return Table("edit", "One changed row", columns, lines, notes)


def _by_kind(found: Found) -> list[tuple[tuple[str, int], dict[str, Any]]]:
    order = [*DATABASES, STOCK]
    return sorted(found.items(), key=lambda item: (order.index(item[0][0]), item[0][1]))
