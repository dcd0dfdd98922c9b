"""Schedules: pure arithmetic on integer microseconds (UTC), without clock, input or output.

`parse` reads a row's texts; the classes are the same values for use in code; `preview` shows slots to a person.
"""

from __future__ import annotations

from celery_qbeat.schedules.base import Kind, Schedule, Terms
from celery_qbeat.schedules.cron import Cron
from celery_qbeat.schedules.daily import Daily
from celery_qbeat.schedules.days import Days, parse_dates, parse_days
from celery_qbeat.schedules.every import Every
from celery_qbeat.schedules.interval import Interval
from celery_qbeat.schedules.kinds import KINDS, parse
from celery_qbeat.schedules.once import Once
from celery_qbeat.schedules.preview import Firing, preview

__all__ = [
    "KINDS",
    "Cron",
    "Daily",
    "Days",
    "Every",
    "Firing",
    "Interval",
    "Kind",
    "Once",
    "Schedule",
    "Terms",
    "parse",
    "parse_dates",
    "parse_days",
    "preview",
]
