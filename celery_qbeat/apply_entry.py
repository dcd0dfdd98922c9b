"""Celery's `Scheduler.apply_entry` for SDKs that patch it, such as Sentry's: each run as an entry of a beat."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import timedelta
from typing import Any
from zoneinfo import ZoneInfo

from celery.schedules import crontab
from celery.schedules import schedule as celery_interval

from celery_qbeat.beat_schedule import CELERY_SCHEDULE, Schedule
from celery_qbeat.core.jobs import Job
from celery_qbeat.core.schedules import Cron, Daily, DayFilters, Every, Interval
from celery_qbeat.core.schedules import Schedule as AnySchedule
from celery_qbeat.dispatchers.celery.overrides import Call, OverrideProducer, defines_override

EVERY_DAY = frozenset(range(7))


class ApplyEntry:
    """See `overrides.EntryHook`. `scheduler`: the one that Celery's beat runs."""

    def __init__(self, scheduler: Any) -> None:
        self._scheduler = scheduler

    def hooked(self) -> bool:
        """Whether a class or an SDK changed `apply_entry` or `apply_async` of the scheduler."""
        return any(defines_override(self._scheduler, name) for name in ("apply_entry", "apply_async"))

    def apply(self, job: Job, call: Call, producer: OverrideProducer) -> None:
        """Send this run as Celery's beat sends an entry; `Scheduler.apply_async` tells the producer the result."""
        given = (job.options or {}).get(CELERY_SCHEDULE)
        entry = self._scheduler.Entry(
            name=job.name,
            task=call.task,
            schedule=to_celery(job.schedule) if given is None else given,
            args=call.args,
            kwargs=call.kwargs,
            options=dict(call.options),
            app=self._scheduler.app,
        )
        self._scheduler.apply_entry(entry, producer=producer)


def to_celery(schedule: AnySchedule) -> Any:
    """The `crontab` or interval of Celery that means the same as a row's schedule; ours where there is none."""
    days: DayFilters = getattr(schedule, "days", DayFilters())
    if isinstance(schedule, Interval) and days.unfiltered:
        return celery_interval(timedelta(seconds=schedule.seconds))
    if isinstance(schedule, Every) and days.unfiltered:
        return celery_interval(timedelta(microseconds=schedule.period_us))
    fields = None if days.dates_skip else _crontab_fields(schedule, days)
    if fields is None:
        made: Any = schedule
        return Schedule(made)
    cron = crontab(**fields)
    cron.tz = ZoneInfo(schedule.zone)
    return cron


def _crontab_fields(schedule: AnySchedule, days: DayFilters) -> dict[str, str] | None:
    if isinstance(schedule, Daily):
        minutes = {time // 60 % 60 for time in schedule.times}
        hours = {time // 3600 for time in schedule.times}
        if any(time % 60 for time in schedule.times) or len(minutes) * len(hours) != len(schedule.times):
            return None
        return {"minute": _listed(minutes, 60), "hour": _listed(hours, 24), "day_of_week": _listed(days.week, 7)}
    if isinstance(schedule, Cron):
        weekdays = (schedule.dow or EVERY_DAY) & days.week
        if schedule.dom is not None and len(weekdays) < 7:
            # Two restricted day fields mean one thing in Celery and another one in Unix.
            return None
        return {
            "minute": _listed(schedule.minute, 60),
            "hour": _listed(schedule.hour, 24),
            "day_of_month": "*" if schedule.dom is None else _listed(schedule.dom, 31),
            "month_of_year": _listed(schedule.month, 12),
            "day_of_week": _listed(weekdays, 7),
        }
    return None


def _listed(numbers: Iterable[int], all_of_them: int) -> str:
    found = sorted(numbers)
    return "*" if len(found) == all_of_them else ",".join(map(str, found))
