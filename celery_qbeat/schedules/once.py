"""`once`: one instant, then finished."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from datetime import date, datetime, timedelta
from typing import Any, ClassVar

from celery_qbeat.errors import ScheduleError
from celery_qbeat.schedules.base import Kind, Terms, rebuild
from celery_qbeat.schedules.dates import dates_of
from celery_qbeat.schedules.days import ALL_DAYS, EPOCH_ORDINAL, Days
from celery_qbeat.schedules.text import quote, refuse, strip
from celery_qbeat.schedules.wall import Wall, clock
from celery_qbeat.schedules.zones import DAY, MAX_US, MIN_US, Zone, zone_named

EXAMPLE = "2026-12-01T09:00"

_MOMENT = re.compile(
    r"([0-9]{4}-[0-9]{2}-[0-9]{2})[T ]([0-9]{2}:[0-9]{2}(?::[0-9]{2})?)(?:(Z)|([+-])([0-9]{2}):?([0-9]{2}))?"
)
_EPOCH = datetime(1970, 1, 1)


@dataclass(frozen=True, slots=True)
class Once:
    """One slot, the instant `at_us`.

    `wall_us` is the local time it was asked for, as microseconds since 1970-01-01 00:00 local, when it was asked for
    so; `Once.at_wall` computes the instant. Raises ScheduleError when the local date is filtered out and outside the
    years 1 to 9999.
    """

    at_us: int
    zone: str = "UTC"
    days: Days = ALL_DAYS
    wall_us: int | None = None
    _zone: Zone = field(init=False, repr=False, compare=False)

    kind: ClassVar[str] = "once"
    relative: ClassVar[bool] = False

    def __post_init__(self) -> None:
        zone = zone_named(self.zone)
        if type(self.at_us) is not int or not MIN_US <= self.at_us <= MAX_US:
            raise ScheduleError(
                f"schedule {quote(repr(self.at_us))}: is outside the years 1 to 9999; write e.g. {EXAMPLE!r}"
            )
        local = self.at_us + zone.span(self.at_us).offset if self.wall_us is None else self.wall_us
        if not self.days.allows(local // DAY):
            day = date.fromordinal(local // DAY + EPOCH_ORDINAL)
            raise ScheduleError(
                f"schedule {quote(f'{day}T{clock(local)}')}: days_only, days_skip or dates_skip forbid {day:%A}, "
                f"{day}, so it would never fire; choose another day, e.g. {EXAMPLE!r}, or drop the filter"
            )
        object.__setattr__(self, "_zone", zone)

    @classmethod
    def at_wall(cls, wall_us: int, zone: str = "UTC", days: Days = ALL_DAYS) -> Once:
        """The instant of a local time: the first of two, the end of a gap; a ScheduleError in a longer gap."""
        at = _wall(zone_named(zone), wall_us).next_after(wall_us - 2 * DAY)
        if at is None or abs(at - wall_us) >= 2 * DAY:
            day = _EPOCH + timedelta(microseconds=wall_us)
            raise ScheduleError(
                f"schedule {quote(day.isoformat())}: does not exist in {zone}; choose a time that its clocks show, "
                f"e.g. {EXAMPLE!r}"
            )
        return cls(at, zone, days, wall_us)

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


def _wall(zone: Zone, wall_us: int) -> Wall:
    """The calendar engine for one local time (and the same day of other years, which is not asked for)."""
    day = date.fromordinal(wall_us // DAY + EPOCH_ORDINAL)
    dates = dates_of(frozenset({day.month}), frozenset({day.day}))
    return Wall(zone, dates, (wall_us % DAY,), fixed=True)


def parse(text: str, terms: Terms) -> Once:
    """Year-month-day T hour:minute[:second], local to the row's zone or with Z or its own offset."""
    match = _MOMENT.fullmatch(strip(text))
    if match is None:
        refuse("schedule", text, f"is no moment; write e.g. {EXAMPLE!r}, '{EXAMPLE}:30Z' or '{EXAMPLE}+01:00'")
    day, time, utc, sign, hours, minutes = match.groups()
    try:
        moment = (datetime.fromisoformat(f"{day}T{time}") - _EPOCH) // timedelta(microseconds=1)
    except ValueError:
        refuse("schedule", text, f"is no date and time of the calendar; write e.g. {EXAMPLE!r}")
    if not MIN_US <= moment <= MAX_US:
        refuse("schedule", text, f"is at the very end of the calendar; write e.g. {EXAMPLE!r}")
    if utc:
        return Once(moment, terms.zone, terms.days)
    if sign:
        if int(hours) > 23 or int(minutes) > 59:
            refuse("schedule", text, f"has no offset of a zone; write e.g. '{EXAMPLE}+01:00'")
        offset = (int(hours) * 60 + int(minutes)) * 60_000_000
        return Once(moment - offset if sign == "+" else moment + offset, terms.zone, terms.days)
    return Once.at_wall(moment, terms.zone, terms.days)


KIND = Kind("once", parse, EXAMPLE)
