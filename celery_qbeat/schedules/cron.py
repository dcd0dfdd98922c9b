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

from celery_qbeat.errors import ScheduleError
from celery_qbeat.schedules.base import Kind, Terms, rebuild
from celery_qbeat.schedules.calendared import Calendared
from celery_qbeat.schedules.dates import ALL_MONTHS, BothDays, dates_of
from celery_qbeat.schedules.days import ALL_DAYS, DAY_NAMES, Days
from celery_qbeat.schedules.text import quote, refuse
from celery_qbeat.schedules.wall import Wall
from celery_qbeat.schedules.zones import SECOND, zone_named

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
_FOREIGN = (
    ("?", "'?' is not supported; write '*'"),
    ("#", "'#' is not supported; for a first Monday write '0 9 1-7 * *' with days_only 'mon'"),
    ("L", "'L' is not supported; write the day, e.g. '0 9 28 * *'"),
    ("W", "'W' is not supported; write '*' in day-of-month with weekdays, e.g. '0 9 * * 1-5'"),
    ("~", "'~' is not supported; write one number, e.g. '17 2 * * *'"),
    ("H", "'H' is not supported; write one number, e.g. '17 2 * * *'"),
)


class _Field(NamedTuple):
    name: str
    low: int
    high: int
    names: dict[str, int]
    size: int


_FIELDS = (
    _Field("minute", 0, 59, {}, 60),
    _Field("hour", 0, 23, {}, 24),
    _Field("day-of-month", 1, 31, {}, 31),
    _Field("month", 1, 12, {name: number for number, name in enumerate(_MONTH_NAMES, 1)}, 12),
    _Field("day-of-week", 0, 7, {name: number for number, name in enumerate(DAY_NAMES)}, 7),
)


@dataclass(frozen=True, slots=True)
class Cron(Calendared):
    """The minutes whose local minute, hour, month and day are in the sets, on allowed days of `zone`.

    `dom` and `dow` are None for an unrestricted `*`; weekdays are 0=Sunday..6=Saturday (7 is taken as 0). `both_days`
    says what two restricted day fields mean: 'or' as in Unix, 'and' as in Celery's crontab. `fixed` schedules (plain
    numbers or lists in minute and hour) fire once when an hour is repeated, others in both copies. Raises ScheduleError
    for values out of range and for what cannot fire within 30 years.
    """

    minute: frozenset[int] = ALL_MINUTES
    hour: frozenset[int] = ALL_HOURS
    dom: frozenset[int] | None = None
    month: frozenset[int] = ALL_MONTHS
    dow: frozenset[int] | None = None
    both_days: BothDays = "or"
    fixed: bool = False
    zone: str = "UTC"
    days: Days = ALL_DAYS
    _wall: Wall = field(init=False, repr=False, compare=False)

    kind: ClassVar[str] = "cron"

    def __post_init__(self) -> None:
        dow = None if self.dow is None else frozenset(0 if day == 7 else day for day in self.dow)
        values = (self.minute, self.hour, self.dom, self.month, dow)
        for known, given in zip(_FIELDS, values, strict=True):
            if given is not None:
                object.__setattr__(self, _ATTRIBUTES[known.name], _in_range(known, given))
        if self.both_days not in ("or", "and"):
            raise ScheduleError(f"schedule {quote(repr(self.both_days))}: both_days is 'or' or 'and'")
        dates = dates_of(self.month, self.dom, self.dow, self.both_days, self.days)
        if not dates.ever():
            self._refuse_never()
        times = _times(self.minute, self.hour)
        object.__setattr__(self, "_wall", Wall(zone_named(self.zone), dates, times, self.fixed))

    def __reduce__(self) -> tuple[type[Any], tuple[object, ...]]:
        return rebuild(self)

    def __str__(self) -> str:
        parts = (self.minute, self.hour, self.dom, self.month, self.dow)
        return " ".join(_show(known, part) for known, part in zip(_FIELDS, parts, strict=True))

    def _refuse_never(self) -> NoReturn:
        if dates_of(self.month, self.dom, self.dow, self.both_days).ever():
            reason = "never falls on a day that days_only and days_skip leave; choose other days or drop the filter"
        else:
            reason = f"can never fire: no such date comes within 30 years; write e.g. {EXAMPLE!r}"
        refuse("schedule", str(self), reason)


_ATTRIBUTES = {
    "minute": "minute",
    "hour": "hour",
    "day-of-month": "dom",
    "month": "month",
    "day-of-week": "dow",
}


def parse(text: str, terms: Terms) -> Cron:
    """Five fields separated by blanks."""
    words = [word for word in re.split(r"[ \t]+", text) if word]
    _refuse_foreign(text, words)
    if len(words) != 5:
        refuse(
            "schedule",
            text,
            f"has {len(words)} fields; cron has five, minute hour day-of-month month day-of-week, e.g. {EXAMPLE!r}"
            + (" (there are no seconds here: use kind 'interval')" if len(words) == 6 else ""),
        )
    parsed = [_field(known, word, text) for known, word in zip(_FIELDS, words, strict=True)]
    minute, hour, dom, month, dow = (values for values, _ in parsed)
    return Cron(
        minute=minute,
        hour=hour,
        dom=None if words[2] == "*" else dom,
        month=month,
        dow=None if words[4] == "*" else dow,
        fixed=parsed[0][1] and parsed[1][1],
        zone=terms.zone,
        days=terms.days,
    )


def _refuse_foreign(text: str, words: list[str]) -> None:
    if words and words[0].startswith("@"):
        known = _MACROS.get(words[0].lower())
        works = f"write {known!r}" if known else f"write five fields, e.g. {EXAMPLE!r}"
        refuse("schedule", text, f"{quote(words[0])} is not supported; {works}")
    for mark, reason in _FOREIGN:
        # A letter of a month or weekday name is no mark.
        if any(mark in re.sub(r"[A-Za-z]{3}", "", word) for word in words):
            refuse("schedule", text, reason)


def _field(known: _Field, word: str, text: str) -> tuple[frozenset[int], bool]:
    """The values of a field, and whether they are written as plain numbers."""
    values: set[int] = set()
    plain = True
    for item in word.split(","):
        match = _TERM.fullmatch(item.lower() if item.isascii() else item)
        if match is None:
            _refuse_item(known, item, text)
        star, first, last, step = match.groups()
        start = known.low if star else _number(known, first, item, text)
        end = start
        if star:
            end = known.high if known.name != "day-of-week" else 6
        elif last:
            end = _range_end(known, last, item, text)
        if step and not (star or last):
            _refuse_item(known, item, text, f"a step needs a range; write '{first}-{known.high}/{step}'")
        if step and not 1 <= int(step) <= known.size:
            _refuse_item(known, item, text, f"a step is 1 to {known.size} here")
        if start > end:
            _refuse_item(known, item, text, f"a range goes up; write '{first}-{known.high},{known.low}-{last}'")
        values.update(range(start, end + 1, int(step or 1)))
        plain = plain and not star and not last
    return frozenset(values), plain


def _number(known: _Field, word: str, item: str, text: str) -> int:
    number = known.names.get(word, int(word) if word.isdigit() else -1)
    if not known.low <= number <= known.high:
        _refuse_item(known, item, text)
    return number


def _range_end(known: _Field, word: str, item: str, text: str) -> int:
    """A range may end with Sunday as the seventh day: fri-sun."""
    return 7 if word == "sun" and known.names else _number(known, word, item, text)


def _refuse_item(known: _Field, item: str, text: str, reason: str = "") -> NoReturn:
    names = f" or {', '.join(list(known.names)[:2])} ..." if known.names else ""
    reason = reason or f"write {known.low} to {known.high}{names}, a list, a range, or a step such as '*/2'"
    refuse("schedule", text, f"{known.name} {quote(item)} cannot be read: {reason}; e.g. {EXAMPLE!r}")


def _in_range(known: _Field, given: Iterable[int]) -> frozenset[int]:
    values = frozenset(given)
    high = min(known.high, 6) if known.name == "day-of-week" else known.high
    wrong = [value for value in values if type(value) is not int or not known.low <= value <= high]
    if wrong or not values:
        shown = quote(repr(wrong[0])) if wrong else "''"
        raise ScheduleError(f"schedule {shown}: {known.name} takes numbers from {known.low} to {high}, at least one")
    return values


def _show(known: _Field, values: frozenset[int] | None) -> str:
    if values is None or len(values) == known.size:
        return "*"
    return ",".join(str(value) for value in sorted(values))


@lru_cache(maxsize=4_096)
def _times(minutes: frozenset[int], hours: frozenset[int]) -> tuple[int, ...]:
    """Microseconds since midnight, sorted, one tuple for all schedules that share it."""
    return tuple((hour * 60 + minute) * 60 * SECOND for hour in sorted(hours) for minute in sorted(minutes))


KIND = Kind("cron", parse, EXAMPLE)
