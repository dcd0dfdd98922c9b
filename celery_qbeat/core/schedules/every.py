"""`every`: whole periods counted from 1970-01-01T00:00Z, the same in every process."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Any, ClassVar

from celery_qbeat.core.schedules.allowed_days import allowed_from, allowed_until, day_end
from celery_qbeat.core.schedules.base import THIRTY_YEARS_US, Kind, RowTerms, rebuild
from celery_qbeat.core.schedules.day_filters import ALL_DAYS, DayFilters
from celery_qbeat.core.schedules.text_input import refuse, strip
from celery_qbeat.core.schedules.time_zones import DAY, MAX_US, MIN_US, SECOND, Zone, zone_named

EXAMPLE = "15m"

_PERIOD = re.compile(r"([1-9][0-9]{0,4})([mhd])")
_UNITS = {"m": 60 * SECOND, "h": 3_600 * SECOND, "d": DAY}
_LONGEST = 7 * DAY
# Whether a period ever meets an allowed weekday is judged over 30 years from here (2020-01-01), not from a clock.
_JUDGED_FROM = 18_262 * DAY


@dataclass(frozen=True, slots=True)
class Every:
    """A slot at every whole multiple of `period_us` since the epoch, on allowed local days of `zone`.

    Raises ScheduleError for a period outside (0, 7 days] and when no slot falls on an allowed day within 30 years.
    """

    period_us: int
    zone: str = "UTC"
    days: DayFilters = ALL_DAYS
    _zone: Zone = field(init=False, repr=False, compare=False)

    kind: ClassVar[str] = "every"
    relative: ClassVar[bool] = False

    def __post_init__(self) -> None:
        if type(self.period_us) is not int or not 0 < self.period_us <= _LONGEST:
            reason = f"is no period; use microseconds, more than 0 and at most 7 days, e.g. {60 * SECOND}"
            refuse("schedule", repr(self.period_us), reason)
        object.__setattr__(self, "_zone", zone_named(self.zone))
        _refuse_never(self.period_us, self._zone, self.days, str(self))

    def __reduce__(self) -> tuple[type[Any], tuple[object, ...]]:
        return rebuild(self)

    def next_after(self, t: int, /) -> int | None:
        """The next multiple of the period on an allowed day."""
        return _seek(self.period_us, self._zone, self.days, max(t, MIN_US - 1), MAX_US)

    def first(self, now: int, /) -> int | None:
        """The start of the current period when its day is allowed, else the next slot."""
        start = now // self.period_us * self.period_us
        if not MIN_US <= start <= MAX_US:
            return self.next_after(now)
        if self.days.unfiltered or allowed_from(self._zone, self.days, start) == start:
            return start
        return self.next_after(now)

    def after_run(self, slot: int, now: int, /) -> int | None:
        """The next slot after both."""
        return self.next_after(max(slot, now))

    def latest(self, now: int, /) -> int | None:
        """The newest slot not later than now, at most 30 years back."""
        us = min(now, MAX_US) // self.period_us * self.period_us
        oldest = max(now - THIRTY_YEARS_US, MIN_US)
        while us >= oldest:
            day = us if self.days.unfiltered else allowed_until(self._zone, self.days, us)
            if day is None or day == us:
                return day
            us = day // self.period_us * self.period_us
        return None

    def count(self, after: int, until: int, /) -> int:
        """Slots in (after, until]: one division, or one a day when days are filtered."""
        us, until = max(after + 1, MIN_US), min(until, MAX_US)
        if self.days.unfiltered:
            return max(until // self.period_us - (us - 1) // self.period_us, 0)
        total = 0
        while us <= until:
            start = allowed_from(self._zone, self.days, us, until)
            if start is None:
                break
            end = min(day_end(self._zone, start), until)
            total += end // self.period_us - (start - 1) // self.period_us
            us = end + 1
        return total

    def __str__(self) -> str:
        for unit, size in reversed(_UNITS.items()):
            if self.period_us % size == 0:
                return f"{self.period_us // size}{unit}"
        return f"{self.period_us} us"


def _seek(period: int, zone: Zone, days: DayFilters, t: int, last: int) -> int | None:
    """The first slot in (t, last]."""
    us = (t // period + 1) * period
    while us <= last:
        day = us if days.unfiltered else allowed_from(zone, days, us)
        if day is None or day == us:
            return day
        us = -(-day // period) * period
    return None


def _refuse_never(period: int, zone: Zone, days: DayFilters, text: str) -> None:
    # A period of up to a day meets every local date of ordinary length.
    if period <= DAY or len(days.week) == 7:
        return
    if _seek(period, zone, days.without_dates(), _JUDGED_FROM, _JUDGED_FROM + THIRTY_YEARS_US) is None:
        reason = "never falls on a day that days_only and days_skip leave; write other days, or use kind 'daily'"
        refuse("schedule", text, f"{reason}, e.g. '02:00'")


def parse(text: str, terms: RowTerms) -> Every:
    """A number and m, h or d, from 1m to 7d."""
    match = _PERIOD.fullmatch(strip(text))
    if match is None:
        refuse("schedule", text, f"is no period; write a whole number and m, h or d, e.g. {EXAMPLE!r} or '1d'")
    period = int(match[1]) * _UNITS[match[2]]
    if period > _LONGEST:
        refuse("schedule", text, "is longer than 7 days; write at most '7d', or use kind 'cron'")
    _refuse_never(period, zone_named(terms.zone), terms.days, text)
    return Every(period, terms.zone, terms.days)


KIND = Kind("every", parse, EXAMPLE)
