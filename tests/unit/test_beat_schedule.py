"""Schedules in code, under any Celery scheduler, and the entries of beat_schedule as jobs."""

from __future__ import annotations

import pickle
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from celery import Celery
from celery.beat import PersistentScheduler
from celery.schedules import BaseSchedule, crontab, schedstate, schedule
from hypothesis import given
from hypothesis import strategies as st

from celery_qbeat import Schedule
from celery_qbeat.beat_schedule import ARGS, CELERY_SCHEDULE, KWARGS, Asked, Foreign, code_jobs, from_celery, to_us
from celery_qbeat.core.jobs import ENTRY_NAME
from celery_qbeat.core.planning import decides_itself, late_after
from celery_qbeat.core.schedules import Cron, Interval
from celery_qbeat.errors import ScheduleError


def utc(text: str) -> datetime:
    return datetime.fromisoformat(text).replace(tzinfo=UTC)


def app_with(**entries: Any) -> Celery:
    app = Celery("t", broker="memory://")
    app.conf.beat_schedule = entries
    return app


def at(made: Schedule, now: str) -> Schedule:
    made.nowfun = lambda: utc(now)
    return made


def test_the_builder_reads_as_the_design_spells_it() -> None:
    every = Schedule.every_secs(300).days_only([1, 2, 3, 4, 5]).dates_skip([(2026, 12, 25)])
    daily = Schedule.daily_at([2 * 3600, 14 * 3600]).days_skip([0])
    assert every.inner.days.only == {1, 2, 3, 4, 5}
    assert every.inner.days.dates_skip == {date(2026, 12, 25)}
    assert daily.inner.days.skip == {0}


def test_an_entry_first_fires_after_its_interval() -> None:
    made = at(Schedule.every_secs(300), "2026-06-01T12:00:00")
    assert made.is_due(utc("2026-06-01T12:00:00")) == (False, 300.0)
    assert at(made, "2026-06-01T12:05:00").is_due(utc("2026-06-01T12:00:00")) == (True, 300.0)


def test_daily_at_is_due_at_its_times_and_says_how_long_to_wait() -> None:
    made = at(Schedule.daily_at(["02:00", 14 * 3600]).in_zone("Europe/Berlin"), "2026-06-01T12:00:00")
    assert made.is_due(utc("2026-06-01T00:00:00")) == (True, 12 * 3600.0)
    assert made.remaining_estimate(utc("2026-06-01T12:00:00")) == timedelta(hours=12)


def test_a_bad_date_or_day_says_what_works() -> None:
    with pytest.raises(ScheduleError, match=r"dates_skip \(2026, 2, 31\).*write e\.g\. \(2026, 12, 25\)"):
        Schedule.every_secs(1).dates_skip([(2026, 2, 31)])
    with pytest.raises(ScheduleError, match="days_only"):
        Schedule.every_secs(1).days_only([7])


@given(
    st.floats(1, 10**6), st.frozensets(st.integers(0, 6)), st.sampled_from(["UTC", "Europe/Berlin", "Asia/Kathmandu"])
)
def test_it_pickles_compares_and_prints_itself(seconds: float, days: frozenset[int], zone: str) -> None:
    made = Schedule.every_secs(seconds).days_only(days).in_zone(zone)
    again = pickle.loads(pickle.dumps(made))
    assert again == made
    assert hash(again) == hash(made)
    assert repr(again) == repr(made)
    assert made != Schedule.every_secs(seconds + 1)


def test_the_stock_persistent_scheduler_runs_it(tmp_path: Path) -> None:
    app = app_with(tick={"task": "app.tick", "schedule": Schedule.every_secs(10)})
    clock = [utc("2026-06-01T12:00:00")]
    app.now = lambda: clock[0]  # type: ignore[method-assign]
    sent: list[str] = []

    class Recording(PersistentScheduler):
        def apply_async(self, entry: Any, **kwargs: Any) -> None:
            sent.append(entry.name)

    shelf = str(tmp_path / "beat")
    first = Recording(app, schedule_filename=shelf)
    for _ in range(21):
        first.tick()
        clock[0] += timedelta(seconds=1)
    first.close()
    assert sent == ["tick", "tick"]
    second = Recording(app, schedule_filename=shelf)
    assert second.schedule["tick"].schedule == Schedule.every_secs(10)
    clock[0] += timedelta(seconds=10)
    second.tick()
    second.close()
    assert sent == ["tick", "tick", "tick"]


def test_entries_become_trusted_jobs_with_their_own_arguments_and_options() -> None:
    app = app_with(
        one={"task": "t.one", "schedule": 30, "args": (1, b"x"), "kwargs": {"k": 2}, "options": {"queue": "q"}},
        two={"task": "t.two", "schedule": Schedule.daily_at([0])},
    )
    one, two = sorted(code_jobs(app), key=lambda job: job.id)
    assert (one.id, one.fn, one.rev, one.overlap) == ("code:one", "t.one", None, "allow")
    options = {ARGS: (1, b"x"), KWARGS: {"k": 2}, ENTRY_NAME: "one", CELERY_SCHEDULE: schedule(timedelta(seconds=30))}
    assert one.options == {"queue": "q", **options}
    assert one.from_code
    assert one.schedule == Interval(30.0)
    assert two.schedule == Schedule.daily_at([0]).inner


def test_one_bad_entry_is_logged_and_the_others_run(caplog: pytest.LogCaptureFixture) -> None:
    app = app_with(bad={"task": "t.x", "schedule": object()}, none={"schedule": 5}, good={"task": "t.y", "schedule": 5})
    assert [job.id for job in code_jobs(app)] == ["code:good"]
    assert "'bad' will not run: schedule <object object at" in caplog.text
    assert "'none' will not run: it has no 'task'; write e.g. {'task': 'shop.tasks.report', 'sch" in caplog.text


class Weekdays(crontab):
    def is_due(self, last_run_at: datetime) -> Any:
        return super().is_due(last_run_at) if last_run_at.weekday() < 5 else (False, 60.0)


class OnlyIsDue(BaseSchedule):
    def is_due(self, last_run_at: datetime) -> Any:
        return True, 2.0


class Broken(schedule):
    def remaining_estimate(self, last_run_at: datetime) -> timedelta:
        raise RuntimeError("no tide table")


class Fragile(schedule):
    """Decides in both methods."""

    def is_due(self, last_run_at: datetime) -> Any:
        return self.remaining_estimate(last_run_at) <= timedelta(0), 1.0

    def remaining_estimate(self, last_run_at: datetime) -> timedelta:
        return timedelta(minutes=1)

    __repr__ = object.__repr__


class Inherited(Weekdays):
    """Its `is_due` is that of its base."""

    def remaining_estimate(self, last_run_at: datetime) -> timedelta:
        return timedelta(seconds=3)


class Ours(Schedule):
    def is_due(self, last_run_at: datetime) -> Any:
        return False, 5.0


@pytest.mark.parametrize("made", [Weekdays(), OnlyIsDue(), Fragile(60), Inherited(), Ours(Interval(3.0))])
def test_a_schedule_whose_class_decides_is_asked(made: Any) -> None:
    [job] = code_jobs(app_with(x={"task": "t.x", "schedule": made}))
    assert isinstance(job.schedule, Asked)
    assert decides_itself(job)
    due, wait = job.schedule.ask(to_us(datetime.now(UTC)))
    assert type(due) is bool
    assert 0 < wait <= 86_400_000_000
    assert late_after(job, 0) is None


@pytest.mark.parametrize("made", [crontab(), schedule(60), schedule(60, relative=True), Schedule.every_secs(3)])
def test_a_schedule_of_celery_or_ours_is_not_asked(made: Any) -> None:
    [job] = code_jobs(app_with(x={"task": "t.x", "schedule": made}))
    assert not decides_itself(job)


@pytest.mark.parametrize(("answer", "wait"), [(0, 100_000), (-5, 100_000), (2.5, 2_500_000), (1e300, 86_400_000_000)])
def test_a_strange_pause_is_bounded(answer: float, wait: int) -> None:
    class Strange(BaseSchedule):
        def is_due(self, last_run_at: datetime) -> Any:
            return schedstate(True, answer)

    made = from_celery(Strange())
    assert isinstance(made, Asked)
    assert made.ask(0) == (True, wait)


def test_the_last_run_is_told_in_the_zone_of_the_app() -> None:
    told: list[datetime] = []

    class Nosy(BaseSchedule):
        def is_due(self, last_run_at: datetime) -> Any:
            told.append(last_run_at)
            return False, 60

    app = app_with()
    app.conf.timezone = "Asia/Tokyo"
    made = from_celery(Nosy(app=app))
    assert isinstance(made, Asked)
    made.ask(to_us(utc("2026-06-01T12:00:00")))
    assert told[0].isoformat() == "2026-06-01T21:00:00+09:00"


class Tide(schedule):
    """Decides in its estimate, which raises from 2100 on."""

    def remaining_estimate(self, last_run_at: datetime) -> timedelta:
        if last_run_at.year >= 2100:
            raise RuntimeError("no tide table")
        return timedelta(minutes=1)

    __repr__ = object.__repr__


def test_a_schedule_that_raises_at_the_start_is_left_out(caplog: pytest.LogCaptureFixture) -> None:
    app = app_with(broken={"task": "t.x", "schedule": Broken(60)}, good={"task": "t.x", "schedule": Tide(60)})
    assert [job.id for job in code_jobs(app)] == ["code:good"]
    assert "'broken' will not run: RuntimeError: no tide table" in caplog.text


def test_a_schedule_that_raises_later_stops_its_own_entry(caplog: pytest.LogCaptureFixture) -> None:
    [job] = code_jobs(app_with(tide={"task": "t.x", "schedule": Tide(60)}))
    now = to_us(utc("2026-06-01T12:00:00"))
    assert job.schedule.next_after(now) == now + 60_000_000
    assert job.schedule.next_after(to_us(utc("2100-01-01T00:00:00"))) is None
    assert "'tide' stops until the next start: its schedule raised RuntimeError: no tide table" in caplog.text


def test_a_schedule_without_a_repr_keeps_its_plan_after_a_restart() -> None:
    keys = [code_jobs(app_with(x={"task": "t.x", "schedule": made}))[0].plan_key for made in (Fragile(60), Fragile(60))]
    assert keys[0] == keys[1]


def test_celerys_starting_deadline_is_the_grace_of_crontabs() -> None:
    app = app_with(cron={"task": "t.x", "schedule": crontab()}, plain={"task": "t.x", "schedule": 60})
    app.conf.beat_cron_starting_deadline = 90
    assert {job.id: job.grace_us for job in code_jobs(app)} == {"code:cron": 90_000_000, "code:plain": None}


def test_a_crontab_keeps_celerys_reading_and_loses_no_hour_when_the_clock_goes_back() -> None:
    app = app_with()
    app.conf.timezone = "US/Pacific"
    hourly = from_celery(crontab(minute="0", app=app))
    after, fires = to_us(utc("2026-11-01T06:30:00")), []
    while (slot := hourly.next_after(after)) is not None and slot <= to_us(utc("2026-11-01T11:00:00")):
        fires.append(slot)
        after = slot
    assert fires == [to_us(utc(f"2026-11-01T{hour:02d}:00:00")) for hour in (7, 8, 9, 10, 11)]


def test_a_crontab_with_both_day_fields_needs_both() -> None:
    app = app_with()
    made = from_celery(crontab("0", "0", day_of_week="5", day_of_month="13", app=app))
    assert isinstance(made, Cron)
    assert made.next_after(to_us(utc("2026-04-01T00:00:00"))) == to_us(utc("2026-11-13T00:00:00"))


@pytest.mark.parametrize(
    ("minute", "hour", "fixed"), [("30", "2", True), ("0,30", "2", True), ("*/30", "2", False), (5, "*", False)]
)
def test_only_plain_numbers_make_a_fixed_crontab(minute: Any, hour: str, fixed: bool) -> None:
    made = from_celery(crontab(minute, hour, app=app_with()))
    assert isinstance(made, Cron)
    assert made.fixed is fixed


def test_any_other_celery_schedule_is_asked_itself() -> None:
    relative = from_celery(schedule(timedelta(hours=1), relative=True, app=app_with()))
    assert isinstance(relative, Foreign)
    assert relative.next_after(to_us(utc("2026-06-01T12:20:00"))) == to_us(utc("2026-06-01T13:00:00"))


def test_a_backend_that_never_forgets_is_cleaned_once_a_day(tmp_path: Path) -> None:
    app = Celery("t", broker="memory://", backend=f"file://{tmp_path}")
    app.conf.beat_schedule = {}
    assert [job.id for job in code_jobs(app)] == ["code:celery.backend_cleanup"]
    assert code_jobs(Celery("t", broker="memory://")) == []


def test_a_long_name_is_shortened_to_the_same_id_at_each_start() -> None:
    longest, long, other = "n" * 186, "n" * 187, "n" * 400
    entries = {name: {"task": "t", "schedule": 30} for name in (longest, long, other)}
    first, again = (code_jobs(app_with(**entries)) for _ in range(2))
    assert [job.id for job in first] == [job.id for job in again]
    assert first[0].id == f"code:{longest}"
    assert len({job.id for job in first}) == 3
    assert {len(job.id) for job in first} == {191}
    assert all(job.id == f"code:{job.name}" for job in first)
