"""The arithmetic: the next slot of each kind of schedule, beside Celery's own question for it."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

from celery.schedules import crontab, schedule

from benchmarks.places import Options, Places
from benchmarks.tables import Table
from celery_qbeat.core.schedules import parse

NOW = datetime(2026, 11, 29, 20, 15, tzinfo=UTC)
NOW_US = round(NOW.timestamp()) * 1_000_000
CALLS = 5_000

CASES: tuple[tuple[str, str, dict[str, str], Any], ...] = (
    ("interval", "3600", {}, schedule(3_600.0)),
    ("every", "15m", {}, schedule(900.0)),
    ("daily", "02:00,14:00", {}, crontab(minute="0", hour="2,14")),
    ("daily", "06:30", {"timezone": "Europe/Berlin", "days_only": "mon-fri"}, crontab("30", "6", "mon-fri")),
    ("cron", "*/5 * * * *", {}, crontab("*/5")),
    ("cron", "30 2 * * 1-5", {"timezone": "America/New_York"}, crontab("30", "2", "mon-fri")),
    ("cron", "0 9 29 2 *", {}, crontab("0", "9", day_of_month="29", month_of_year="2")),
    ("once", "2199-06-01T09:00", {"timezone": "Asia/Tokyo"}, None),
)


def _seconds(work: Callable[[int], Any], calls: int) -> float:
    """For one call; the best of three rounds, after one that fills what is kept."""
    best = float("inf")
    for round_ in range(4):
        start = time.perf_counter()
        for number in range(calls):
            work(number)
        if round_:
            best = min(best, (time.perf_counter() - start) / calls)
    return best


def _theirs(celery_schedule: Any) -> float:
    celery_schedule.nowfun = lambda: NOW
    ago = timedelta(minutes=1)
    return _seconds(lambda number: celery_schedule.remaining_estimate(NOW - ago), CALLS // 10)


def run(_where: Places, _options: Options) -> Iterator[Table]:
    """The table `schedules`."""
    lines = []
    for kind, text, terms, rival in CASES:
        made = parse(kind, text, **terms)
        # Another instant each time: from minute to minute through three days.
        mine = _seconds(lambda number, made=made: made.next_after(NOW_US + number * 61_000_000), CALLS)
        theirs = _theirs(rival) if rival is not None else None
        lines.append(
            {
                "schedule": f"{kind} {text} {' '.join(terms.values())}".strip(),
                "next_after us": mine * 1e6,
                "Celery's us": theirs * 1e6 if theirs else None,
                "Celery's to it": theirs / mine if theirs else None,
            }
        )
    columns = {"schedule": "", "next_after us": ".2f", "Celery's us": ".1f", "Celery's to it": ".0fx"}
    notes = ("Celery's: remaining_estimate of schedule() and crontab().",)
    yield Table("schedules", "The next slot", columns, lines, notes)
