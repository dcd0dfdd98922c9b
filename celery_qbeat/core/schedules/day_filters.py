"""The filters that every kind of schedule takes: weekdays to keep or skip, dates to skip."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from datetime import date, datetime

from celery_qbeat.core.limits import MAX_DATES, MAX_DATES_TEXT
from celery_qbeat.core.schedules.text_input import check, items, quote, refuse

EPOCH_ORDINAL = date(1970, 1, 1).toordinal()
DAY_NAMES = ("sun", "mon", "tue", "wed", "thu", "fri", "sat")
DAYS_EXAMPLE = "mon-fri"
DATES_EXAMPLE = "2026-12-25,2026-12-26"

_DAY_NUMBERS = {name: number for number, name in enumerate(DAY_NAMES)} | {str(n): n for n in range(7)}
_DATE = re.compile(r"([0-9]{4})-([0-9]{2})-([0-9]{2})")


@dataclass(frozen=True, slots=True)
class DayFilters:
    """Which local dates a schedule may fire on. Empty sets filter nothing.

    Weekdays are 0=Sunday..6=Saturday. Raises ScheduleError for a value that is no weekday or no date, and
    when no weekday is left.
    """

    only: frozenset[int] = frozenset()
    skip: frozenset[int] = frozenset()
    dates_skip: frozenset[date] = frozenset()
    week: frozenset[int] = field(init=False, repr=False, compare=False)
    skipped: frozenset[int] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        only, skip = _weekdays(self.only, "days_only"), _weekdays(self.skip, "days_skip")
        dates = _dates(self.dates_skip)
        week = (only or frozenset(range(7))) - skip
        if not week:
            reason = "skips every day that days_only leaves, so it can never fire; leave a weekday, e.g. 'sat,sun'"
            refuse("days_skip", _names(skip), reason)
        object.__setattr__(self, "only", only)
        object.__setattr__(self, "skip", skip)
        object.__setattr__(self, "dates_skip", dates)
        object.__setattr__(self, "week", week)
        object.__setattr__(self, "skipped", frozenset(day.toordinal() - EPOCH_ORDINAL for day in dates))

    def __reduce__(self) -> tuple[type[DayFilters], tuple[object, ...]]:
        return DayFilters, (self.only, self.skip, self.dates_skip)

    @property
    def unfiltered(self) -> bool:
        """True when every date is allowed."""
        return len(self.week) == 7 and not self.skipped

    def allows(self, day: int) -> bool:
        """Whether a date may be used; it is given in days since 1970-01-01 (a Thursday)."""
        return (day + 4) % 7 in self.week and day not in self.skipped

    def without_dates(self) -> DayFilters:
        """The weekday filters alone."""
        return DayFilters(self.only, self.skip)


def parse_days(text: str, field: str = "days_only") -> frozenset[int]:
    """Weekdays (0=Sunday..6=Saturday) from `1,2,3`, `mon,wed`, `mon-fri` or `fri-mon`; empty text is an empty set.

    Raises ScheduleError naming `field`.
    """
    found: set[int] = set()
    for item in items(check(text, field), field, DAYS_EXAMPLE):
        first, dash, last = item.partition("-")
        start = _day_number(first, text, field)
        end = _day_number(last, text, field) if dash else start
        found.update((start + step) % 7 for step in range((end - start) % 7 + 1))
    return frozenset(found)


def parse_dates(text: str, field: str = "dates_skip") -> frozenset[date]:
    """Dates from `2026-12-25,2026-12-26`; empty text is an empty set. Raises ScheduleError naming `field`."""
    found = items(check(text, field, MAX_DATES_TEXT), field, DATES_EXAMPLE)
    if len(found) > MAX_DATES:
        refuse(
            field, text, f"has {len(found):,} dates; at most {MAX_DATES:,} are read, so leave out those that are past"
        )
    return frozenset(_one_date(item, field) for item in found)


def _day_number(word: str, text: str, field: str) -> int:
    number = _DAY_NUMBERS.get(word.lower() if word.isascii() else word)
    if number is None:
        reason = f"has {quote(word)} in it, which is no weekday; write 0 (Sunday) to 6 (Saturday) or names"
        refuse(field, text, f"{reason}, e.g. {DAYS_EXAMPLE!r}")
    return number


def _one_date(item: str, field: str) -> date:
    match = _DATE.fullmatch(item)
    if match is None:
        refuse(field, item, f"is not a date; write year-month-day, e.g. {DATES_EXAMPLE!r}")
    try:
        return date(*(int(part) for part in match.groups()))
    except ValueError:
        refuse(field, item, f"is not a day of the calendar; write e.g. {DATES_EXAMPLE!r}")


def _dates(values: Iterable[object]) -> frozenset[date]:
    days = set()
    for day in values:
        if not isinstance(day, date) or isinstance(day, datetime):
            refuse("dates_skip", repr(day), "is not a date; use e.g. date(2026, 12, 25)")
        days.add(day)
    return frozenset(days)


def _weekdays(values: Iterable[int], field: str) -> frozenset[int]:
    days = frozenset(values)
    for day in days:
        if type(day) is not int or not 0 <= day <= 6:
            refuse(field, repr(day), "is no weekday; use 0 (Sunday) to 6 (Saturday), e.g. {1, 2, 3, 4, 5}")
    return days


def _names(days: Iterable[int]) -> str:
    return ",".join(DAY_NAMES[day] for day in sorted(days))


ALL_DAYS = DayFilters()
