"""`interval`: a number of seconds after the last dispatch."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Any, ClassVar

from celery_qbeat.core.schedules.allowed_days import allowed_from
from celery_qbeat.core.schedules.base import THIRTY_YEARS_US, Kind, RowTerms, rebuild
from celery_qbeat.core.schedules.day_filters import ALL_DAYS, DayFilters
from celery_qbeat.core.schedules.text_input import refuse, strip
from celery_qbeat.core.schedules.time_zones import DAY, MAX_US, MIN_US, SECOND, Zone, zone_named

EXAMPLE = "3600"

_SECONDS = re.compile(r"[0-9]{1,12}")


@dataclass(frozen=True, slots=True)
class Interval:
    """Due at once when first seen, then `seconds` after each dispatch; `zone` matters to the day filters only.

    A time on a forbidden day moves to the first instant of the next allowed day. Raises ScheduleError for seconds
    that are not a number from one microsecond to 30 years.
    """

    seconds: float
    zone: str = "UTC"
    days: DayFilters = ALL_DAYS
    period_us: int = field(init=False, repr=False, compare=False)
    _zone: Zone = field(init=False, repr=False, compare=False)

    kind: ClassVar[str] = "interval"
    relative: ClassVar[bool] = True

    def __post_init__(self) -> None:
        number = isinstance(self.seconds, (int, float))
        if not number or not 1 <= self.seconds * SECOND <= THIRTY_YEARS_US:
            refuse("schedule", repr(self.seconds), f"is no interval; use seconds above 0, e.g. {EXAMPLE}")
        object.__setattr__(self, "period_us", round(self.seconds * SECOND))
        object.__setattr__(self, "_zone", zone_named(self.zone))

    def __reduce__(self) -> tuple[type[Any], tuple[object, ...]]:
        return rebuild(self)

    def next_after(self, t: int, /) -> int | None:
        """The slot that follows a dispatch at t."""
        return self._move(max(t, MIN_US) + self.period_us)

    def first(self, now: int, /) -> int | None:
        """`now` itself, or the first instant of the next allowed day."""
        return self._move(now)

    def after_run(self, slot: int, now: int, /) -> int | None:
        """`now` plus the interval, moved off forbidden days; the slot does not matter."""
        return self.next_after(now)

    def latest(self, now: int, /) -> int | None:
        """None: an interval has no slots of its own."""
        return None

    def count(self, after: int, until: int, /) -> int:
        """0: an interval has no slots of its own."""
        return 0

    def allows(self, us: int) -> bool:
        """Whether the local date of an instant is allowed, so that a run at that instant stays where it is."""
        return self.days.allows((us + self._zone.span(us).offset) // DAY)

    def _move(self, us: int) -> int | None:
        if us > MAX_US:
            return None
        us = max(us, MIN_US)
        return us if self.days.unfiltered else allowed_from(self._zone, self.days, us)


def parse(text: str, terms: RowTerms) -> Interval:
    """Whole seconds; fewer than `terms.min_interval_us` are clamped up to it."""
    word = strip(text)
    if _SECONDS.fullmatch(word) is None or int(word) == 0:
        refuse(
            "schedule",
            text,
            f"is no interval of whole seconds above 0, so the job is treated as disabled; write e.g. {EXAMPLE!r}",
        )
    if int(word) * SECOND > THIRTY_YEARS_US:
        refuse(
            "schedule",
            text,
            f"is longer than 30 years, so the job is treated as disabled; write fewer seconds, e.g. {EXAMPLE!r}",
        )
    floor, rest = divmod(terms.min_interval_us, SECOND)
    seconds: float = terms.min_interval_us / SECOND if rest else floor
    return Interval(max(int(word), seconds), terms.zone, terms.days)


KIND = Kind("interval", parse, EXAMPLE)
