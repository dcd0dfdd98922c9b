"""Which local dates a calendar schedule fires on, as one bit mask a month."""

from __future__ import annotations

from datetime import date
from functools import lru_cache
from typing import Literal

from celery_qbeat.core.schedules.day_filters import ALL_DAYS, EPOCH_ORDINAL, DayFilters

FIRST_DAY = date(1, 1, 1).toordinal() - EPOCH_ORDINAL
LAST_DAY = date(9999, 12, 31).toordinal() - EPOCH_ORDINAL
ALL_MONTHS = frozenset(range(1, 13))

BothDays = Literal["or", "and"]

# With more skipped dates than these a cache full of them would fill the memory.
_FEW = 50
_LENGTHS = (0, 31, 28, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31)
# Thirty years with every length of February and every weekday that 29 February falls on.
_JUDGED_YEARS = range(2020, 2050)


class DateSet:
    """A set of dates: month, day of month and weekday (None = unrestricted), less what the filters forbid.

    Dates are integers, days since 1970-01-01; months and weekdays as in cron, 0=Sunday.
    """

    __slots__ = ("_both", "_days", "_dom", "_dow", "_everything", "_masks", "_months", "_next", "_previous", "_skipped")

    def __init__(
        self,
        months: frozenset[int] = ALL_MONTHS,
        dom: frozenset[int] | None = None,
        dow: frozenset[int] | None = None,
        both: BothDays = "or",
        days: DayFilters = ALL_DAYS,
    ) -> None:
        self._months, self._dom, self._dow, self._both, self._days = months, dom, dow, both, days
        self._everything = months == ALL_MONTHS and dom is None and dow is None and days.unfiltered
        self._masks: dict[tuple[int, int], int] = {}
        self._skipped: dict[tuple[int, int], int] = {}
        for day in days.dates_skip:
            month = day.year, day.month
            self._skipped[month] = self._skipped.get(month, 0) | 1 << day.day
        ordered = sorted(months)
        # The neighbour months of the set, 0 when it lies in another year; asked from month 0 and 13 there.
        self._next = [next((m for m in ordered if m > month), 0) for month in range(13)]
        self._previous = [next((m for m in reversed(ordered) if m < month), 0) for month in range(14)]

    def at_or_after(self, day: int) -> int | None:
        """The first date of the set that is not before `day`; None beyond the year 9999."""
        if day > LAST_DAY:
            return None
        day = max(day, FIRST_DAY)
        if self._everything:
            return day
        start = date.fromordinal(day + EPOCH_ORDINAL)
        year, month = start.year, start.month
        mask = self._mask(year, month) >> start.day << start.day
        while not mask:
            month = self._next[month]
            if not month:
                year += 1
                month = self._next[0]
                if year > 9999:
                    return None
            mask = self._mask(year, month)
        return date(year, month, (mask & -mask).bit_length() - 1).toordinal() - EPOCH_ORDINAL

    def at_or_before(self, day: int, oldest: int) -> int | None:
        """The last date of the set that is not after `day`; None when it would be before `oldest`."""
        day, oldest = min(day, LAST_DAY), max(oldest, FIRST_DAY)
        if day < oldest:
            return None
        if self._everything:
            return day
        start = date.fromordinal(day + EPOCH_ORDINAL)
        year, month = start.year, start.month
        mask = self._mask(year, month) & ((2 << start.day) - 1)
        while not mask:
            month = self._previous[month]
            if not month:
                year, month = year - 1, self._previous[13]
            if year < 1 or date(year, month, 1).toordinal() - EPOCH_ORDINAL + 31 < oldest:
                return None
            mask = self._mask(year, month)
        found = date(year, month, mask.bit_length() - 1).toordinal() - EPOCH_ORDINAL
        return found if found >= oldest else None

    def count(self, first: int, last: int) -> int:
        """How many dates of the set lie in [first, last]; one step a month."""
        first, last = max(first, FIRST_DAY), min(last, LAST_DAY)
        if first > last:
            return 0
        if self._everything:
            return last - first + 1
        start, end = date.fromordinal(first + EPOCH_ORDINAL), date.fromordinal(last + EPOCH_ORDINAL)
        total = -(self._mask(start.year, start.month) & ((1 << start.day) - 1)).bit_count()
        total -= (self._mask(end.year, end.month) >> end.day + 1).bit_count()
        for number in range(start.year * 12 + start.month - 1, end.year * 12 + end.month):
            total += self._mask(number // 12, number % 12 + 1).bit_count()
        return total

    def ever(self) -> bool:
        """Whether a date comes within thirty years, dates_skip aside."""
        return any(self._pattern(year, month) for year in _JUDGED_YEARS for month in self._months)

    def _mask(self, year: int, month: int) -> int:
        """Bit d is set when day d of that month is in the set."""
        if month not in self._months:
            return 0
        mask = self._pattern(year, month)
        if self._skipped:
            mask &= ~self._skipped.get((year, month), 0)
        return mask

    def _pattern(self, year: int, month: int) -> int:
        length = 29 if month == 2 and year % 4 == 0 and (year % 100 or year % 400 == 0) else _LENGTHS[month]
        shape = date(year, month, 1).toordinal() % 7, length
        mask = self._masks.get(shape)
        if mask is None:
            mask = self._masks[shape] = self._draw(*shape)
        return mask

    def _draw(self, weekday: int, length: int) -> int:
        """The mask of a month of that length whose first day is that weekday."""
        return sum(1 << day for day in range(1, length + 1) if self._matches(day, (weekday + day - 1) % 7))

    def _matches(self, day: int, weekday: int) -> bool:
        if weekday not in self._days.week:
            return False
        if self._dom is None or self._dow is None or self._both == "and":
            return (self._dom is None or day in self._dom) and (self._dow is None or weekday in self._dow)
        return day in self._dom or weekday in self._dow


def dates_of(
    months: frozenset[int] = ALL_MONTHS,
    dom: frozenset[int] | None = None,
    dow: frozenset[int] | None = None,
    both: BothDays = "or",
    days: DayFilters = ALL_DAYS,
) -> DateSet:
    """The Dates of that definition, shared by the schedules that use it unless it lists many dates."""
    make = _shared if len(days.dates_skip) <= _FEW else DateSet
    return make(months, dom, dow, both, days)


_shared = lru_cache(maxsize=8_192)(DateSet)
