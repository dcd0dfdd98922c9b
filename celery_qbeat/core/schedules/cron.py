"""`cron`: five fields, minute hour day-of-month month day-of-week, as Vixie cron reads them.

Lists, ranges, `*/n` and `a-b/n`; names for months and weekdays; Sunday is 0 or 7. A step belongs to `*` or to a range,
as crontab(5) has it: `5/20`, which every cron reads differently, is refused. When both day fields are restricted
either one matching is enough, and only a literal `*` is unrestricted.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, ClassVar, NamedTuple, NoReturn

from celery_qbeat.core.schedules.base import Kind, RowTerms, rebuild
from celery_qbeat.core.schedules.calendar_schedule import CalendarSchedule
from celery_qbeat.core.schedules.date_sets import ALL_MONTHS, BothDays, DateSet, dates_of
from celery_qbeat.core.schedules.day_filters import ALL_DAYS, DAY_NAMES, DayFilters
from celery_qbeat.core.schedules.text_input import quote, refuse
from celery_qbeat.core.schedules.time_zones import SECOND, zone_named
from celery_qbeat.core.schedules.wall_clock import WallClockSlots

EXAMPLE = "30 2 * * 1-5"
ALL_MINUTES = frozenset(range(60))
ALL_HOURS = frozenset(range(24))

_MONTH_NAMES = ("jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec")
_TERM = re.compile(r"(?:(\*)|([0-9]{1,2}|[a-z]{3})(?:-([0-9]{1,2}|[a-z]{3}))?)(?:/([0-9]{1,2}))?")
_MACROS = {
    "@yearly": "0 0 1 1 *",
    "@annually": "0 0 1 1 *",
    "@monthly": "0 0 1 * *",
    "@weekly": "0 0 * * 0",
    "@daily": "0 0 * * *",
    "@midnight": "0 0 * * *",
    "@hourly": "0 * * * *",
}
# What other crons understand, and what to write here.
_FOREIGN = {
    "?": "write '*'",
    "#": "for a first Monday write '0 9 1-7 * *' with days_only 'mon'",
    "L": "write the day, e.g. '0 9 28 * *'",
    "W": "write '*' in day-of-month with weekdays, e.g. '0 9 * * 1-5'",
    "~": "write one number, e.g. '17 2 * * *'",
    "H": "write one number, e.g. '17 2 * * *'",
}


class _Field(NamedTuple):
    attribute: str
    name: str
    low: int
    high: int
    names: dict[str, int]


_FIELDS = (
    _Field("minute", "minute", 0, 59, {}),
    _Field("hour", "hour", 0, 23, {}),
    _Field("dom", "day-of-month", 1, 31, {}),
    _Field("month", "month", 1, 12, {name: number for number, name in enumerate(_MONTH_NAMES, 1)}),
    _Field("dow", "day-of-week", 0, 6, {name: number for number, name in enumerate(DAY_NAMES)}),
)


@dataclass(frozen=True, slots=True)
class Cron(CalendarSchedule):
    """The minutes whose local minute, hour, month and day are in the sets, on allowed days of `zone`.

    `dom` and `dow` are None for an unrestricted `*`; weekdays are 0=Sunday..6=Saturday. `both_days` says what two
    restricted day fields mean: 'or' as in Unix, 'and' as in Celery's crontab. `fixed` schedules (plain numbers or
    lists in minute and hour) fire once when an hour is repeated, others in both copies. Raises ScheduleError for
    values out of range and for what cannot fire within 30 years.
    """

    minute: frozenset[int] = ALL_MINUTES
    hour: frozenset[int] = ALL_HOURS
    dom: frozenset[int] | None = None
    month: frozenset[int] = ALL_MONTHS
    dow: frozenset[int] | None = None
    both_days: BothDays = "or"
    fixed: bool = False
    zone: str = "UTC"
    days: DayFilters = ALL_DAYS
    _wall: WallClockSlots = field(init=False, repr=False, compare=False)

    kind: ClassVar[str] = "cron"

    def __post_init__(self) -> None:
        for known in _FIELDS:
            given = getattr(self, known.attribute)
            if given is not None or known.attribute not in ("dom", "dow"):
                object.__setattr__(self, known.attribute, _checked(known, given))
        if self.both_days not in ("or", "and"):
            refuse("schedule", repr(self.both_days), "is no way to join two day fields; use 'or' or 'and'")
        dates = _dates(self.month, self.dom, self.dow, self.both_days, self.days, str(self))
        times = _times(self.minute, self.hour)
        object.__setattr__(self, "_wall", WallClockSlots(zone_named(self.zone), dates, times, self.fixed))

    def __reduce__(self) -> tuple[type[Any], tuple[object, ...]]:
        return rebuild(self)

    def __str__(self) -> str:
        return " ".join(_show(known, getattr(self, known.attribute)) for known in _FIELDS)


def parse(text: str, terms: RowTerms) -> Cron:
    """Five fields separated by blanks."""
    words = [word for word in re.split(r"[ \t]+", text) if word]
    _refuse_foreign(text, words)
    values = [_read(known, word, text) for known, word in zip(_FIELDS, words, strict=True)]
    dom = None if words[2] == "*" else values[2]
    dow = None if words[4] == "*" else values[4]
    _dates(values[3], dom, dow, "or", terms.days, text)
    return Cron(
        minute=values[0],
        hour=values[1],
        dom=dom,
        month=values[3],
        dow=dow,
        fixed=not re.search(r"[*-]", words[0] + words[1]),
        zone=terms.zone,
        days=terms.days,
    )


def _refuse_foreign(text: str, words: list[str]) -> None:
    """Refuse what other crons take and this one does not, with what to write instead."""
    if words and words[0].startswith("@"):
        known = _MACROS.get(words[0].lower())
        works = f"write {known!r}" if known else f"write five fields, e.g. {EXAMPLE!r}"
        refuse("schedule", text, f"is a shorthand that is not supported; {works}")
    if len(words) != 5:
        seconds = ", without seconds" if len(words) in (6, 7) else ""
        reason = f"has {len(words)} fields; write five{seconds}: minute hour day-of-month month day-of-week"
        refuse("schedule", text, f"{reason}, e.g. {EXAMPLE!r}")
    # The letters of a month or weekday name are no marks.
    rest = re.sub(r"[A-Za-z]{3}", "", text)
    for mark, works in _FOREIGN.items():
        if mark in rest:
            refuse("schedule", text, f"uses {mark!r}, which is not supported; {works}")


def _read(known: _Field, word: str, text: str) -> frozenset[int]:
    """The values of one field."""
    values: set[int] = set()
    for item in word.split(","):
        match = _TERM.fullmatch(item.lower() if item.isascii() else item)
        if match is None:
            _refuse_item(known, item, text)
        star, first, last, step = match.groups()
        if step and not star and not last:
            _refuse_item(known, item, text, f"a step needs a range such as '{first}-{known.high}/{step}'")
        if step and not 1 <= int(step) <= known.high - known.low + 1:
            _refuse_item(known, item, text, f"a step here is 1 to {known.high - known.low + 1}")
        start = known.low if star else _number(known, first, item, text)
        end = known.high if star else start
        if last:
            # Sunday is also the seventh day: fri-sun, 5-7.
            end = 7 if last == "sun" else _number(known, last, item, text)
        if start > end:
            _refuse_item(known, item, text, "a range goes upwards; write two ranges with a comma")
        values.update(range(start, end + 1, int(step or 1)))
    return frozenset(0 if known.attribute == "dow" and value == 7 else value for value in values)


def _number(known: _Field, word: str, item: str, text: str) -> int:
    number = int(word) if word.isdigit() else known.names.get(word, -1)
    if not known.low <= number <= known.high and not (known.attribute == "dow" and number == 7):
        _refuse_item(known, item, text)
    return number


def _refuse_item(known: _Field, item: str, text: str, reason: str = "") -> NoReturn:
    names = f" or {', '.join(list(known.names)[:2])}, ..." if known.names else ""
    reason = reason or f"write {known.low} to {known.high}{names}, a list, a range, or a step such as '*/2'"
    refuse("schedule", text, f"has the {known.name} {quote(item)}, which cannot be read; {reason}; e.g. {EXAMPLE!r}")


def _dates(
    month: frozenset[int],
    dom: frozenset[int] | None,
    dow: frozenset[int] | None,
    both: BothDays,
    days: DayFilters,
    text: str,
) -> DateSet:
    """The dates of a definition; a ScheduleError that quotes `text` when there never is one."""
    dates = dates_of(month, dom, dow, both, days)
    if not dates.ever():
        reason = "can never fire, because no such date comes within 30 years; write another date"
        if dates_of(month, dom, dow, both).ever():
            reason = "never falls on a day that days_only and days_skip leave; use other days"
        refuse("schedule", text, f"{reason}, e.g. {EXAMPLE!r}")
    return dates


def _checked(known: _Field, given: Iterable[int]) -> frozenset[int]:
    values = frozenset(given)
    wrong = [value for value in values if type(value) is not int or not known.low <= value <= known.high]
    if wrong or not values:
        shown = repr(wrong[0]) if wrong else "an empty set"
        refuse("schedule", shown, f"is no {known.name}; use at least one of the numbers {known.low} to {known.high}")
    return values


def _show(known: _Field, values: frozenset[int] | None) -> str:
    everything = len(values or ()) == known.high - known.low + 1
    if values is None or (everything and known.attribute not in ("dom", "dow")):
        return "*"
    return f"{known.low}-{known.high}" if everything else ",".join(str(value) for value in sorted(values))


@lru_cache(maxsize=4_096)
def _times(minutes: frozenset[int], hours: frozenset[int]) -> tuple[int, ...]:
    """Microseconds since midnight, sorted, one tuple for all schedules that share it."""
    return tuple((hour * 60 + minute) * 60 * SECOND for hour in sorted(hours) for minute in sorted(minutes))


KIND = Kind("cron", parse, EXAMPLE)
