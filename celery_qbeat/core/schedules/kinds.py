"""The kinds of schedule. A new one is a file beside this and a line in KINDS."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from types import MappingProxyType

from celery_qbeat.core.limits import MAX_DATES_TEXT
from celery_qbeat.core.schedules import cron, daily, every, interval, once
from celery_qbeat.core.schedules.base import Kind, RowTerms, Schedule
from celery_qbeat.core.schedules.day_filters import ALL_DAYS, DayFilters, parse_dates, parse_days
from celery_qbeat.core.schedules.text_input import check, refuse
from celery_qbeat.core.schedules.time_zones import zone_named

KINDS: Mapping[str, Kind] = MappingProxyType(
    {kind.name: kind for kind in (interval.KIND, every.KIND, daily.KIND, cron.KIND, once.KIND)}
)

# Longer lists are parsed each time: keeping them would let a table of them fill the memory.
_KEPT = 500


def parse(
    kind: str,
    text: str,
    *,
    timezone: str = "UTC",
    days_only: str = "",
    days_skip: str = "",
    dates_skip: str = "",
    min_interval_us: int = 1_000_000,
) -> Schedule:
    """The schedule of a row's texts. Raises ScheduleError, whose `field` is the column at fault, and nothing else."""
    check(kind, "schedule_kind")
    check(timezone, "timezone")
    check(text, "schedule")
    check(days_only, "days_only")
    check(days_skip, "days_skip")
    check(dates_skip, "dates_skip", MAX_DATES_TEXT)
    read = _parse if len(dates_skip) <= _KEPT else _parse.__wrapped__
    return read(kind, text, timezone, days_only, days_skip, dates_skip, min_interval_us)


@lru_cache(maxsize=16_384)
def _parse(
    kind: str, text: str, zone: str, days_only: str, days_skip: str, dates_skip: str, min_interval_us: int
) -> Schedule:
    known = KINDS.get(kind)
    if known is None:
        refuse("schedule_kind", kind, f"is no kind of schedule; write one of {', '.join(KINDS)}")
    zone_named(zone)
    return known.parse(text, RowTerms(zone, _days(days_only, days_skip, dates_skip), min_interval_us))


def _days(days_only: str, days_skip: str, dates_skip: str) -> DayFilters:
    if not days_only and not days_skip and not dates_skip:
        return ALL_DAYS
    return DayFilters(
        parse_days(days_only, "days_only"), parse_days(days_skip, "days_skip"), parse_dates(dates_skip, "dates_skip")
    )
