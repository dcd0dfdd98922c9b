"""Schedules: pure arithmetic on integer microseconds (UTC), without clock, input or output.

`parse` reads a row's texts; the classes are the same values for use in code; `preview` shows slots to a person.
"""

from __future__ import annotations

from celery_qbeat.core.schedules.base import Kind, RowTerms, Schedule
from celery_qbeat.core.schedules.cron import Cron
from celery_qbeat.core.schedules.daily import Daily
from celery_qbeat.core.schedules.day_filters import DayFilters, parse_dates, parse_days
from celery_qbeat.core.schedules.every import Every
from celery_qbeat.core.schedules.interval import Interval
from celery_qbeat.core.schedules.kinds import KINDS, parse
from celery_qbeat.core.schedules.once import Once
from celery_qbeat.core.schedules.preview import Firing, preview

__all__ = [
    "KINDS",
    "Cron",
    "Daily",
    "DayFilters",
    "Every",
    "Firing",
    "Interval",
    "Kind",
    "Once",
    "RowTerms",
    "Schedule",
    "parse",
    "parse_dates",
    "parse_days",
    "preview",
]
