"""Agreement with the minute-by-minute oracle around every clock change of every IANA zone, 2020 to 2035."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import date
from functools import lru_cache
from zoneinfo import ZoneInfo, available_timezones

import pytest

from celery_qbeat.core.schedules import parse

from . import oracle
from .instants import MINUTE, slots


@dataclass(frozen=True)
class Case:
    """The same schedule twice: as a row spells it, and as a predicate on a nominal date and minute of the day."""

    kind: str
    text: str
    wanted: oracle.Wanted
    fixed: bool
    days_only: str = ""
    days_skip: str = ""


TIMES = (0, 30, 75, 120, 150, 165, 180, 720, 1410)


def sunday(day: date) -> bool:
    return day.isoweekday() == 7


CASES = (
    Case("daily", "00:00,00:30,01:15,02:00,02:30,02:45,03:00,12:00,23:30", lambda day, at: at in TIMES, True),
    Case("daily", "00:00,02:30,23:30", lambda day, at: at in (0, 150, 1410) and sunday(day), True, "sun"),
    Case("daily", "00:15,02:30", lambda day, at: at in (15, 150) and not sunday(day), True, "", "0"),
    Case("cron", "0,20,40 0,1,2,23 * * *", lambda day, at: at % 20 == 0 and at // 60 in (0, 1, 2, 23), True),
    Case("cron", "30 2 1-7 * 0", lambda day, at: at == 150 and (sunday(day) or day.day <= 7), True),
    Case("cron", "*/10 * * * *", lambda day, at: at % 10 == 0, False),
    Case("cron", "15 */2 * * *", lambda day, at: at % 120 == 15, False),
    Case("cron", "*/30 0-3 * * *", lambda day, at: at % 30 == 0 and at < 240, False),
    Case("cron", "7 * * * 1-6", lambda day, at: at % 60 == 7 and not sunday(day), False),
    Case(
        "cron", "*/25 1,2 * * *", lambda day, at: at % 60 % 25 == 0 and at // 60 in (1, 2) and sunday(day), False, "sun"
    ),
)
MINUTELY = (Case("cron", "* * * * *", lambda day, at: True, False),)


def area(zone: str) -> str:
    """The part before the first slash."""
    return zone.partition("/")[0] if "/" in zone else "no area"


# The machine's own setting is no zone of the database.
ZONES = sorted(available_timezones() - {"localtime"})
AREAS = sorted({area(zone) for zone in ZONES})


@pytest.mark.slow
@pytest.mark.parametrize("name", AREAS)
def test_every_zone_agrees_with_the_oracle_around_every_clock_change(name):
    looked_at = 0
    for zone in ZONES:
        if area(zone) == name:
            for walk, cases in windows(zone):
                for case in cases:
                    agree(case, zone, walk)
                looked_at += 1
    assert looked_at


def windows(name: str) -> Iterator[tuple[oracle.Walk, tuple[Case, ...]]]:
    """The stretches to look at: 28 hours around each change, less for a job that runs every minute."""
    zone = ZoneInfo(name)
    # A zone that never changes is looked at on one Sunday.
    for change in oracle.changes(zone) or [oracle.FIRST_MINUTE + 4 * 1440]:
        yield oracle.walk(zone, change - 14 * 60, change + 14 * 60), CASES
        yield oracle.walk(zone, change - 65, change + 185), MINUTELY


def agree(case: Case, zone: str, walk: oracle.Walk) -> None:
    schedule = parse(case.kind, case.text, timezone=zone, days_only=case.days_only, days_skip=case.days_skip)
    after, until = (walk.first - 1) * MINUTE, (walk.first + len(walk.shown) - 2) * MINUTE
    expected = firings(case, walk)
    assert list(slots(schedule, after, until)) == expected, (zone, case.text)
    assert schedule.count(after, until) == len(expected), (zone, case.text)
    if expected:
        assert schedule.latest(until) == expected[-1], (zone, case.text)


@lru_cache(maxsize=1 << 15)
def firings(case: Case, walk: oracle.Walk) -> list[int]:
    """The oracle's answer in microseconds; zones whose clocks show the same share it."""
    return [minute * MINUTE for minute in oracle.firings(walk, case.wanted, case.fixed)]
