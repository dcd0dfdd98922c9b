"""Schedules in code: `Schedule` for `app.conf.beat_schedule` under any Celery scheduler, and its entries as jobs."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from copy import copy
from dataclasses import dataclass, replace
from datetime import UTC, date, datetime, timedelta
from typing import Any, ClassVar

from celery.backends.base import DisabledBackend
from celery.schedules import BaseSchedule, crontab, maybe_schedule, schedstate
from celery.schedules import schedule as celery_interval

from celery_qbeat.core import schedules
from celery_qbeat.core.jobs import CODE_PREFIX, ENTRY_NAME, Job, fingerprint
from celery_qbeat.core.limits import MAX_CHARACTERS
from celery_qbeat.core.schedules import Cron, Daily, DayFilters, Every, Interval
from celery_qbeat.errors import ScheduleError
from celery_qbeat.process.safe_logging import get_logger

log = get_logger()

ARGS = "__args__"
KWARGS = "__kwargs__"
"""Where a code entry's Python arguments stand in `Job.options`."""

CELERY_SCHEDULE = "__schedule__"
"""Where its schedule stands there as Celery knows it."""

NEVER_S = 86_400.0

SOONEST_S = 0.1
"""The shortest pause, in seconds, before a schedule that decides in `is_due` is asked again."""

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_ADDRESS = re.compile(r" at 0x[0-9A-Fa-f]+")
_EXAMPLE = "{'task': 'shop.tasks.report', 'schedule': 300.0}"

_Kind = Interval | Every | Daily | Cron


class Schedule(BaseSchedule):
    """An exact schedule for `app.conf.beat_schedule`, the same arithmetic as the rows'.

    Works under every Celery scheduler: `Schedule.every_secs(300).days_only([1, 2, 3, 4, 5]).dates_skip([(2026, 12,
    25)])`, `Schedule.daily_at([2 * 3600, 14 * 3600]).days_skip([0]).in_zone("Europe/Berlin")`. Days are 0=Sunday to
    6=Saturday. A value: it is never changed, pickles, and equals another of the same definition. Raises ScheduleError.
    """

    def __init__(self, inner: _Kind, app: Any = None) -> None:
        super().__init__(app=app)
        self.inner = inner

    @classmethod
    def every_secs(cls, seconds: float) -> Schedule:
        """`seconds` after the last dispatch; the first time after `seconds`, not at once."""
        return cls(Interval(seconds))

    @classmethod
    def every(cls, period: str) -> Schedule:
        """Whole periods since 1970-01-01T00:00Z: '15m', '1h', '1d'."""
        return cls(_parsed("every", period))

    @classmethod
    def daily_at(cls, times: Iterable[int | str]) -> Schedule:
        """Times of day: seconds since local midnight, or 'HH:MM'."""
        return cls(_parsed("daily", ",".join(str(time) for time in times)))

    @classmethod
    def cron(cls, text: str) -> Schedule:
        """Five fields, as `celery_qbeat.core.schedules.cron` reads them."""
        return cls(_parsed("cron", text))

    def days_only(self, days: Iterable[int]) -> Schedule:
        return self._with_days(only=frozenset(days))

    def days_skip(self, days: Iterable[int]) -> Schedule:
        return self._with_days(skip=frozenset(days))

    def dates_skip(self, dates: Iterable[date | tuple[int, int, int]]) -> Schedule:
        """Blackout dates, as `datetime.date` or (year, month, day)."""
        return self._with_days(dates_skip=frozenset(d if isinstance(d, date) else _date(d) for d in dates))

    def in_zone(self, zone: str) -> Schedule:
        """Times of day and filters count in this IANA zone instead of UTC."""
        return Schedule(replace(self.inner, zone=zone), self._app)

    def _with_days(self, **filters: Any) -> Schedule:
        days: DayFilters = self.inner.days
        return Schedule(replace(self.inner, days=replace(days, **filters)), self._app)

    def remaining_estimate(self, last_run_at: datetime) -> timedelta:
        """The time from now to the slot after `last_run_at`; a long time when there is none."""
        slot = self.inner.next_after(to_us(last_run_at))
        return timedelta(seconds=NEVER_S) if slot is None else timedelta(microseconds=slot - to_us(self.now()))

    def is_due(self, last_run_at: datetime) -> tuple[bool, float]:
        """Celery's contract: (due, seconds until the next look)."""
        now = to_us(self.now())
        slot = self.inner.next_after(to_us(last_run_at))
        due = slot is not None and slot <= now
        following = self.inner.next_after(now) if due else slot
        wait = NEVER_S if following is None else (following - now) / 1_000_000
        state: tuple[bool, float] = schedstate(due, wait)
        return state

    def __reduce__(self) -> tuple[type[Schedule], tuple[_Kind]]:
        return Schedule, (self.inner,)

    def __eq__(self, other: object) -> bool:
        return self.inner == other.inner if isinstance(other, Schedule) else NotImplemented

    def __hash__(self) -> int:
        return hash(self.inner)

    def __repr__(self) -> str:
        return f"<Schedule: {self.inner!r}>"


@dataclass(frozen=True, slots=True)
class Foreign:
    """Any other Celery schedule, asked through `remaining_estimate`: it decides, DST mistakes included.

    `name`: of its entry, for the log. Raises whatever the schedule raises.
    """

    schedule: Any
    name: str = ""
    zone: str = "UTC"
    kind: ClassVar[str] = "celery"
    relative: ClassVar[bool] = True

    def __post_init__(self) -> None:
        self._ask(to_us(datetime.now(UTC)))

    def next_after(self, t: int, /) -> int | None:
        """None, too, when the schedule raises: it is anybody's code, and must not stop the others."""
        try:
            return self._ask(t)
        except Exception as error:
            log.error(
                "beat_schedule entry %r stops until the next start: its schedule raised %s: %s",
                self.name,
                type(error).__name__,
                error,
            )
            return None

    def _ask(self, t: int) -> int:
        moment = _EPOCH + timedelta(microseconds=t)
        frozen = copy(self.schedule)
        frozen.nowfun = lambda: moment
        wait: timedelta = frozen.remaining_estimate(moment)
        return t + max(1, round(wait / timedelta(microseconds=1)))

    def first(self, now: int, /) -> int | None:
        return self.next_after(now)

    def after_run(self, slot: int, now: int, /) -> int | None:
        return self.next_after(now)

    def latest(self, now: int, /) -> int | None:
        return None

    def count(self, after: int, until: int, /) -> int:
        return 0


@dataclass(frozen=True, slots=True)
class Asked(Foreign):
    """A Celery schedule whose `is_due` decides. Its next slot is when it is to be asked again."""

    decides: ClassVar[bool] = True

    def __post_init__(self) -> None:
        """Ask nothing: a schedule may take an answer for a run."""

    def next_after(self, t: int, /) -> int | None:
        """At once: what the schedule would say later is known to nobody."""
        return t + 1

    def ask(self, last_run_us: int) -> tuple[bool, int]:
        """Whether a run is due now, and microseconds until it is to be asked again. Raises whatever it raises."""
        last_run = _EPOCH + timedelta(microseconds=last_run_us)
        due, wait = self.schedule.is_due(last_run.astimezone(getattr(self.schedule, "tz", None) or UTC))
        return bool(due), round(min(max(float(wait), SOONEST_S), NEVER_S) * 1_000_000)


def _decides(kind: type) -> bool:
    """Whether a class has an `is_due` of its own; Celery's own all decide by their estimate."""
    found = next(each for each in kind.__mro__ if "is_due" in vars(each))
    return found.__module__ not in (BaseSchedule.__module__, __name__)


def code_jobs(app: Any, added: Mapping[str, Any] | None = None) -> list[Job]:
    """The entries of `app.conf.beat_schedule` as jobs. An entry that cannot be used is logged and left out.

    `added`: entries of Celery's scheduler, or their fields, by name; they come before those of the setting.
    """
    found = []
    for name, entry in {**_entries(app), **(added or {})}.items():
        try:
            found.append(_job(name, _fields(entry), app))
        except ScheduleError as error:
            log.error("beat_schedule entry %r will not run: %s", name, error)
        except Exception as error:
            # Anybody's code: a schedule that is asked, a repr.
            log.error("beat_schedule entry %r will not run: %s: %s", name, type(error).__name__, error)
    return found


def _entries(app: Any) -> dict[str, Mapping[str, Any]]:
    entries = dict(app.conf.beat_schedule or {})
    keeps = not app.backend.supports_autoexpire and not isinstance(app.backend, DisabledBackend)
    if app.conf.result_expires and keeps:
        # As Celery's own scheduler does: backends that do not forget by themselves are cleaned once a day.
        cleanup = {"task": "celery.backend_cleanup", "schedule": crontab("0", "4", "*"), "options": {"expires": 43_200}}
        entries.setdefault("celery.backend_cleanup", cleanup)
    return entries


def _fields(entry: Any) -> Mapping[str, Any]:
    if isinstance(entry, Mapping):
        return entry
    names = ("task", "schedule", "args", "kwargs", "options")
    if not all(hasattr(entry, name) for name in names):
        raise ScheduleError(f"{entry!r} is no entry; write e.g. {_EXAMPLE}")
    return {name: getattr(entry, name) for name in names}


def _job(name: str, entry: Mapping[str, Any], app: Any) -> Job:
    missing = [key for key in ("task", "schedule") if entry.get(key) is None]
    if missing:
        raise ScheduleError(f"it has no {missing[0]!r}; write e.g. {_EXAMPLE}")
    given = entry["schedule"]
    if not isinstance(given, int | float | timedelta) and not hasattr(given, "remaining_estimate"):
        raise ScheduleError(f"schedule {given!r} is no schedule of Celery; write e.g. {_EXAMPLE}", field="schedule")
    celerys = maybe_schedule(given, entry.get("relative", False), app=app)
    schedule = from_celery(celerys, name)
    deadline = app.conf.beat_cron_starting_deadline if isinstance(celerys, crontab) else None
    # Without addresses: the same definition after a restart.
    spec = json.dumps(["code", _ADDRESS.sub("", repr(schedule))])
    options = dict(entry.get("options") or {})
    options[ARGS] = entry.get("args") or ()
    options[KWARGS] = entry.get("kwargs") or {}
    name = _shortened(name)
    options[ENTRY_NAME] = name
    options[CELERY_SCHEDULE] = celerys
    return Job(
        id=CODE_PREFIX + name,
        fn=str(entry["task"]),
        schedule=schedule,
        plan_key=fingerprint(spec),
        spec=spec,
        overlap="allow",
        grace_us=None if deadline is None else round(deadline * 1_000_000),
        rev=None,
        options=options,
    )


def _shortened(name: str) -> str:
    """A name that fits into an id, and stays different from those of other entries."""
    room = MAX_CHARACTERS["id"] - len(CODE_PREFIX)
    if len(name) <= room:
        return name
    mark = f"~{fingerprint(name)}"
    return name[: room - len(mark)] + mark


def from_celery(schedule: Any, name: str = "") -> schedules.Schedule:
    """The exact schedule that means the same as a Celery one; `Foreign` or `Asked` where there is none.

    A plain `crontab` keeps Celery's reading (both day fields must match) and loses its DST mistakes: no hour is lost
    when the clock goes back.
    """
    if _decides(type(schedule)):
        return Asked(schedule, name)
    if isinstance(schedule, Schedule):
        return schedule.inner
    if type(schedule) is crontab and schedule.nowfun is None:
        zone = getattr(schedule.tz, "key", None)
        if zone is not None:
            return _from_crontab(schedule, zone)
    if type(schedule) is celery_interval and not schedule.relative and schedule.nowfun is None:
        return Interval(schedule.run_every.total_seconds())
    return Foreign(schedule, name)


def _from_crontab(cron: Any, zone: str) -> Cron:
    return Cron(
        minute=frozenset(cron.minute),
        hour=frozenset(cron.hour),
        dom=None if cron._orig_day_of_month == "*" else frozenset(cron.day_of_month),
        month=frozenset(cron.month_of_year),
        dow=None if cron._orig_day_of_week == "*" else frozenset(cron.day_of_week),
        both_days="and",
        fixed=not any(mark in str(field) for field in (cron._orig_minute, cron._orig_hour) for mark in "*-/"),
        zone=zone,
    )


def to_us(moment: datetime) -> int:
    """Microseconds since the epoch of an aware datetime; a naive one is taken as UTC, as Celery does."""
    aware = moment if moment.tzinfo is not None else moment.replace(tzinfo=UTC)
    return (aware - _EPOCH) // timedelta(microseconds=1)


def _parsed(kind: str, text: str) -> _Kind:
    parsed: Any = schedules.parse(kind, text)
    found: _Kind = parsed
    return found


def _date(parts: tuple[int, int, int]) -> date:
    try:
        return date(*parts)
    except (TypeError, ValueError) as error:
        raise ScheduleError(f"dates_skip {parts!r}: {error}; write e.g. (2026, 12, 25)", field="dates_skip") from None
