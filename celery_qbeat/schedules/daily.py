"""`daily`: each time of day once per local day."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Any, ClassVar

from celery_qbeat.errors import ScheduleError
from celery_qbeat.schedules.base import Kind, Terms, rebuild
from celery_qbeat.schedules.calendared import Calendared
from celery_qbeat.schedules.dates import dates_of
from celery_qbeat.schedules.days import ALL_DAYS, Days
from celery_qbeat.schedules.text import items, quote, refuse
from celery_qbeat.schedules.wall import Wall
from celery_qbeat.schedules.zones import SECOND, zone_named

EXAMPLE = "02:00,14:00"

_CLOCK = re.compile(r"([0-9]{1,2}):([0-9]{2})(?::([0-9]{2}))?")
_SECONDS = re.compile(r"[0-9]{1,5}")


@dataclass(frozen=True, slots=True)
class Daily(Calendared):
    """Each of `times` (seconds since local midnight) on every allowed local day of `zone`, once.

    Raises ScheduleError for no times, and for times outside 0..86399.
    """

    times: tuple[int, ...]
    zone: str = "UTC"
    days: Days = ALL_DAYS
    _wall: Wall = field(init=False, repr=False, compare=False)

    kind: ClassVar[str] = "daily"

    def __post_init__(self) -> None:
        times = tuple(sorted(set(self.times)))
        for time in times:
            if type(time) is not int or not 0 <= time < 86_400:
                raise ScheduleError(
                    f"schedule {quote(repr(time))}: is no time of day; use seconds since midnight, e.g. 7200 for 02:00"
                )
        if not times:
            raise ScheduleError(f"schedule '': has no time of day; write e.g. {EXAMPLE!r}")
        object.__setattr__(self, "times", times)
        micros = tuple(time * SECOND for time in times)
        object.__setattr__(self, "_wall", Wall(zone_named(self.zone), dates_of(days=self.days), micros, True))

    def __reduce__(self) -> tuple[type[Any], tuple[object, ...]]:
        return rebuild(self)


def parse(text: str, terms: Terms) -> Daily:
    """A list of HH:MM, HH:MM:SS or seconds since midnight."""
    found = items(text, "schedule", EXAMPLE)
    if not found:
        refuse("schedule", text, f"has no time of day; write e.g. {EXAMPLE!r}")
    return Daily(tuple(_time(item, text) for item in found), terms.zone, terms.days)


def _time(item: str, text: str) -> int:
    if _SECONDS.fullmatch(item) and int(item) < 86_400:
        return int(item)
    match = _CLOCK.fullmatch(item)
    if match:
        hour, minute, second = (int(part or 0) for part in match.groups())
        if hour < 24 and minute < 60 and second < 60:
            return hour * 3_600 + minute * 60 + second
    refuse(
        "schedule",
        text,
        f"{quote(item)} is no time of day; write HH:MM or seconds since midnight, e.g. {EXAMPLE!r} or '7200,50400'",
    )


KIND = Kind("daily", parse, EXAMPLE)
