"""`once`: one instant, then finished."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from datetime import UTC, date, datetime, timedelta
from typing import Any, ClassVar

from celery_qbeat.core.schedules.base import Kind, RowTerms, rebuild
from celery_qbeat.core.schedules.date_sets import dates_of
from celery_qbeat.core.schedules.day_filters import ALL_DAYS, DAY_NAMES, EPOCH_ORDINAL, DayFilters
from celery_qbeat.core.schedules.text_input import refuse, strip
from celery_qbeat.core.schedules.time_zones import DAY, MAX_US, MIN_US, SECOND, Zone, zone_named
from celery_qbeat.core.schedules.wall_clock import WallClockSlots

EXAMPLE = "2026-12-01T09:00"

_MOMENT = re.compile(
    r"([0-9]{4}-[0-9]{2}-[0-9]{2})[T ]((?:[01][0-9]|2[0-3]):[0-5][0-9](?::[0-5][0-9](\.[0-9]+)?)?)"
    r"(?:(Z)|([+-])([0-9]{2}):?([0-9]{2}))?"
)
_DIGITS = 6
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_NO_YEAR = f"is outside the years 1 to 9999; write e.g. {EXAMPLE!r}"


@dataclass(frozen=True, slots=True)
class Once:
    """One slot, the instant `at_us`.

    `wall_us` is the local time it was asked for, as microseconds since 1970-01-01 00:00 local, when it was asked for
    so; `Once.at_wall` computes the instant. Raises ScheduleError when the local date is filtered out or outside
    the years 1 to 9999.
    """

    at_us: int
    zone: str = "UTC"
    days: DayFilters = ALL_DAYS
    wall_us: int | None = None
    _zone: Zone = field(init=False, repr=False, compare=False)

    kind: ClassVar[str] = "once"
    relative: ClassVar[bool] = False

    def __post_init__(self) -> None:
        zone = zone_named(self.zone)
        if type(self.at_us) is not int or not MIN_US <= self.at_us <= MAX_US:
            refuse("schedule", repr(self.at_us), _NO_YEAR)
        local = self.at_us + zone.span(self.at_us).offset if self.wall_us is None else self.wall_us
        if not MIN_US <= local <= MAX_US:
            refuse("schedule", repr(local), _NO_YEAR)
        _refuse_forbidden(local, self.days, _iso(local))
        object.__setattr__(self, "_zone", zone)

    @classmethod
    def at_wall(cls, wall_us: int, zone: str = "UTC", days: DayFilters = ALL_DAYS) -> Once:
        """The instant of a local time: the first of two, the end of a gap; a ScheduleError in a longer gap."""
        if type(wall_us) is not int or not MIN_US <= wall_us <= MAX_US:
            refuse("schedule", repr(wall_us), _NO_YEAR)
        return cls(_instant(zone, wall_us, _iso(wall_us)), zone, days, wall_us)

    def __reduce__(self) -> tuple[type[Any], tuple[object, ...]]:
        return rebuild(self)

    def next_after(self, t: int, /) -> int | None:
        """The instant when it is later than t."""
        return self.at_us if self.at_us > t else None

    def first(self, now: int, /) -> int | None:
        """The instant, even if it is past."""
        return self.at_us

    def after_run(self, slot: int, now: int, /) -> int | None:
        """The instant when it is still ahead of both, else None."""
        return self.next_after(max(slot, now))

    def latest(self, now: int, /) -> int | None:
        """The instant when it is not later than now, however old."""
        return self.at_us if self.at_us <= now else None

    def count(self, after: int, until: int, /) -> int:
        """1 when the instant lies in (after, until], else 0."""
        return int(after < self.at_us <= until)

    def note(self, us: int) -> str:
        """What a clock change did to the instant, in words; '' on an ordinary day."""
        return "" if self.wall_us is None else _wall(self._zone, self.wall_us).note(us)


def _instant(zone: str, wall_us: int, text: str) -> int:
    at = _wall(zone_named(zone), wall_us).next_after(wall_us - 2 * DAY)
    if at is None or abs(at - wall_us) >= 2 * DAY:
        refuse("schedule", text, f"does not exist in {zone}; write a time that its clocks show, e.g. {EXAMPLE!r}")
    return at


def _refuse_forbidden(local: int, days: DayFilters, text: str) -> None:
    if not days.allows(local // DAY):
        day = date.fromordinal(local // DAY + EPOCH_ORDINAL)
        reason = f"is on {DAY_NAMES[day.isoweekday() % 7]} {day}, which days_only, days_skip or dates_skip forbid"
        refuse("schedule", text, f"{reason}, so it would never fire; write another day, e.g. {EXAMPLE!r}")


def _iso(wall_us: int) -> str:
    return (_EPOCH + timedelta(microseconds=wall_us)).replace(tzinfo=None).isoformat()


def _wall(zone: Zone, wall_us: int) -> WallClockSlots:
    """The calendar engine for one local time (and the same day of other years, which is not asked for)."""
    day = date.fromordinal(wall_us // DAY + EPOCH_ORDINAL)
    dates = dates_of(frozenset({day.month}), frozenset({day.day}))
    return WallClockSlots(zone, dates, (wall_us % DAY,), fixed=True)


def parse(text: str, terms: RowTerms) -> Once:
    """Year-month-day T hour:minute[:second[.fraction]], local to the row's zone or with Z or its own offset.

    A fraction has at most six digits, as `datetime.isoformat()` writes it: slots are whole microseconds.
    """
    match = _MOMENT.fullmatch(strip(text))
    if match is None:
        refuse("schedule", text, f"is no moment; write e.g. {EXAMPLE!r}, '{EXAMPLE}:30Z' or '{EXAMPLE}+01:00'")
    day, time, fraction, utc, sign, hours, minutes = match.groups()
    if fraction and len(fraction.removeprefix(".")) > _DIGITS:
        refuse(
            "schedule", text, f"has a fraction finer than microseconds; write at most six digits: '{EXAMPLE}:30.250000'"
        )
    try:
        moment = (datetime.fromisoformat(f"{day}T{time}+00:00") - _EPOCH) // timedelta(microseconds=1)
    except ValueError:
        refuse("schedule", text, f"is no date and time of the calendar; write e.g. {EXAMPLE!r}")
    if not MIN_US <= moment <= MAX_US:
        refuse("schedule", text, _NO_YEAR)
    if utc or sign:
        return _from_instant(moment - _offset(sign, hours, minutes, text), text, terms)
    _refuse_forbidden(moment, terms.days, text)
    return Once(_instant(terms.zone, moment, text), terms.zone, terms.days, moment)


def _offset(sign: str | None, hours: str | None, minutes: str | None, text: str) -> int:
    if int(hours or 0) > 23 or int(minutes or 0) > 59:
        refuse("schedule", text, f"has no offset of a zone; write e.g. '{EXAMPLE}+01:00'")
    size = (int(hours or 0) * 60 + int(minutes or 0)) * 60 * SECOND
    return -size if sign == "-" else size


def _from_instant(at_us: int, text: str, terms: RowTerms) -> Once:
    if not MIN_US <= at_us <= MAX_US:
        refuse("schedule", text, _NO_YEAR)
    _refuse_forbidden(at_us + zone_named(terms.zone).span(at_us).offset, terms.days, text)
    return Once(at_us, terms.zone, terms.days)


KIND = Kind("once", parse, EXAMPLE)
