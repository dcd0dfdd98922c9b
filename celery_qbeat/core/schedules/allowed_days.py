"""Instants against the day filters: which ones are on an allowed local day, and where the nearest one is."""

from __future__ import annotations

from celery_qbeat.core.schedules.day_filters import DayFilters
from celery_qbeat.core.schedules.time_zones import DAY, MAX_US, MIN_US, Zone


def allowed_from(zone: Zone, days: DayFilters, us: int, last: int = MAX_US) -> int | None:
    """The first instant not before `us` whose local date is allowed; None after `last` or beyond the year 9999."""
    us, last = max(us, MIN_US), min(last, MAX_US)
    while us <= last:
        span = zone.span(us)
        day = (us + span.offset) // DAY
        if days.allows(day):
            return us
        last_day = (last + span.offset) // DAY
        while day <= last_day and not days.allows(day):
            day += 1
        us = min(day * DAY - span.offset, span.end)
    return None


def allowed_until(zone: Zone, days: DayFilters, us: int) -> int | None:
    """The last instant not after `us` whose local date is allowed; None before the year 1."""
    us = min(us, MAX_US)
    while us >= MIN_US:
        span = zone.span(us)
        day = (us + span.offset) // DAY
        if days.allows(day):
            return us
        while not days.allows(day):
            day -= 1
        us = max((day + 1) * DAY - span.offset, span.start) - 1
    return None


def day_end(zone: Zone, us: int) -> int:
    """The last instant from `us` on that surely shares its local date: before midnight and any change of offset."""
    span = zone.span(us)
    return min(((us + span.offset) // DAY + 1) * DAY - span.offset, span.end) - 1
