"""`daily`: each time of day once per local day."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Any, ClassVar

from celery_qbeat.core.schedules.base import Kind, RowTerms, rebuild
from celery_qbeat.core.schedules.calendar_schedule import CalendarSchedule
from celery_qbeat.core.schedules.date_sets import dates_of
from celery_qbeat.core.schedules.day_filters import ALL_DAYS, DayFilters
from celery_qbeat.core.schedules.text_input import items, quote, refuse
from celery_qbeat.core.schedules.time_zones import SECOND, zone_named
from celery_qbeat.core.schedules.wall_clock import WallClockSlots

EXAMPLE = "02:00,14:00"

_TIME = re.compile(r"(?P<seconds>[0-9]{1,5})|([01]?[0-9]|2[0-3]):([0-5][0-9])(?::([0-5][0-9]))?")


@dataclass(frozen=True, slots=True)
class Daily(CalendarSchedule):
    """Each of `times` (seconds since local midnight) on every allowed local day of `zone`, once.

    Raises ScheduleError for no times, and for times outside 0..86399.
    """

    times: tuple[int, ...]
    zone: str = "UTC"
    days: DayFilters = ALL_DAYS
    _wall: WallClockSlots = field(init=False, repr=False, compare=False)

    kind: ClassVar[str] = "daily"

    def __post_init__(self) -> None:
        for time in self.times:
            if type(time) is not int or not 0 <= time < 86_400:
                refuse("schedule", repr(time), "is no time of day; use seconds since midnight, e.g. 7200 for 02:00")
        times = tuple(sorted(set(self.times)))
        if not times:
            refuse("schedule", repr(times), "has no time of day; use seconds since midnight, e.g. (7200, 50400)")
        object.__setattr__(self, "times", times)
        micros = tuple(time * SECOND for time in times)
        object.__setattr__(self, "_wall", WallClockSlots(zone_named(self.zone), dates_of(days=self.days), micros, True))

    def __reduce__(self) -> tuple[type[Any], tuple[object, ...]]:
        return rebuild(self)


def parse(text: str, terms: RowTerms) -> Daily:
    """A list of HH:MM, HH:MM:SS or seconds since midnight."""
    found = items(text, "schedule", EXAMPLE)
    if not found:
        refuse("schedule", text, f"has no time of day; write e.g. {EXAMPLE!r}")
    return Daily(tuple(_time(item, text) for item in found), terms.zone, terms.days)


def _time(item: str, text: str) -> int:
    match = _TIME.fullmatch(item)
    if match is None or int(match["seconds"] or 0) >= 86_400:
        reason = f"has {quote(item)} in it, which is no time of day; write HH:MM or seconds since midnight"
        refuse("schedule", text, f"{reason}, e.g. {EXAMPLE!r} or '7200,50400'")
    seconds, hour, minute, second = (int(part or 0) for part in match.groups())
    return seconds + hour * 3_600 + minute * 60 + second


KIND = Kind("daily", parse, EXAMPLE)
