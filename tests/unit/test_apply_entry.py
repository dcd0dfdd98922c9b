"""Celery's `apply_entry` as a seam: when runs go through it, and what an SDK sees there."""

from __future__ import annotations

import functools
from pathlib import Path
from typing import Any

import pytest
from celery import Celery, beat
from celery.schedules import crontab, schedule

from celery_qbeat import Schedule, Scheduler
from celery_qbeat.apply_entry import ApplyEntry, to_celery
from celery_qbeat.core.schedules import Cron, Interval, parse
from celery_qbeat.dispatchers import CeleryDispatcher
from tests.contract.making_runs import INSTANCE, fates, make_app, row, run_of, take_all, yes


@pytest.mark.parametrize(
    ("kind", "text", "fields"),
    [
        ("daily", "02:00,14:00", "0 2,14 * * *"),
        ("daily", "02:15,02:45,14:15,14:45", "15,45 2,14 * * *"),
        ("cron", "30 2 * * 1-5", "30 2 * * 1,2,3,4,5"),
        ("cron", "0 0 1 1,7 *", "0 0 1 1,7 *"),
    ],
)
def test_what_celery_can_say_becomes_a_crontab(kind: str, text: str, fields: str) -> None:
    found = to_celery(parse(kind, text, timezone="Europe/Berlin"))
    assert isinstance(found, crontab)
    parts = ("minute", "hour", "day_of_month", "month_of_year", "day_of_week")
    assert " ".join(getattr(found, f"_orig_{part}") for part in parts) == fields
    assert str(found.tz) == "Europe/Berlin"


def test_day_filters_narrow_the_weekdays() -> None:
    found = to_celery(parse("daily", "02:00", days_only="mon-fri", days_skip="wed"))
    assert (found._orig_day_of_week, found.hour) == ("1,2,4,5", {2})


@pytest.mark.parametrize(("kind", "text", "seconds"), [("interval", "90", 90), ("every", "15m", 900)])
def test_periods_become_intervals(kind: str, text: str, seconds: int) -> None:
    found = to_celery(parse(kind, text))
    assert type(found) is schedule
    assert found.seconds == seconds


@pytest.mark.parametrize(
    ("kind", "text", "filters"),
    [
        ("daily", "02:00,03:30", {}),
        ("daily", "02:00:30", {}),
        ("daily", "02:00", {"dates_skip": "2026-12-25"}),
        ("cron", "0 0 1 * 1", {}),
        ("every", "1h", {"days_only": "mon"}),
        ("once", "2030-01-01T00:00:00Z", {}),
    ],
)
def test_what_celery_cannot_say_stays_ours(kind: str, text: str, filters: dict[str, str]) -> None:
    assert isinstance(to_celery(parse(kind, text, **filters)), Schedule)


def test_every_plain_crontab_is_the_same_again() -> None:
    assert to_celery(Cron(minute=frozenset({5}), both_days="and")) == crontab(minute="5")
    assert to_celery(Interval(60.0)) == schedule(60)


@pytest.fixture
def scheduler(tmp_path: Path) -> Scheduler:
    app = make_app("memory://", tmp_path)
    app.task(shared=False, name="plain")(anything)
    return Scheduler(app, lazy=True)


def anything(*args: Any, **kwargs: Any) -> None:
    """Takes all arguments."""


def send(scheduler: Scheduler, **fields: Any) -> list[Any]:
    app: Celery = scheduler.app
    dispatcher = CeleryDispatcher(app, namespace="test", instance=lambda: INSTANCE, hook=ApplyEntry(scheduler))
    assert fates(dispatcher.send([run_of(row(fn="plain", **fields))], yes)) == ["sent"]
    dispatcher.close()
    return take_all(app)


def test_without_a_patch_no_run_goes_through_it(scheduler: Scheduler) -> None:
    assert not ApplyEntry(scheduler).hooked()


def test_a_wrapper_sees_the_entry_and_changes_its_headers(
    scheduler: Scheduler, monkeypatch: pytest.MonkeyPatch
) -> None:
    original = beat.Scheduler.apply_entry

    @functools.wraps(original)
    def patched(scheduler: Any, entry: Any, producer: Any = None) -> None:
        assert (entry.name, entry.task, entry.args) == ("shop.hourly", "plain", [1])
        assert isinstance(entry.schedule, schedule)
        entry.options["headers"]["seen"] = "yes"
        original(scheduler, entry, producer=producer)

    monkeypatch.setattr(beat.Scheduler, "apply_entry", patched)
    assert ApplyEntry(scheduler).hooked()
    (message,) = send(scheduler, args="[1]")
    assert (message.headers["seen"], message.headers["qbeat_job"]) == ("yes", "shop.hourly")
    assert message.payload[2]["callbacks"]


def test_a_patch_of_the_apply_async_of_celery_counts_too(scheduler: Scheduler, monkeypatch: pytest.MonkeyPatch) -> None:
    original, seen = beat.Scheduler.apply_async, []

    def patched(scheduler: Any, entry: Any, *args: Any, **kwargs: Any) -> Any:
        seen.append(entry.name)
        return original(scheduler, entry, *args, **kwargs)

    monkeypatch.setattr(beat.Scheduler, "apply_async", patched)
    assert len(send(scheduler)) == 1
    assert seen == ["shop.hourly"]


def test_an_sdk_that_fails_hurts_one_run(scheduler: Scheduler, monkeypatch: pytest.MonkeyPatch) -> None:
    def patched(*args: Any, **kwargs: Any) -> None:
        raise RuntimeError("no DSN")

    monkeypatch.setattr(beat.Scheduler, "apply_entry", patched)
    app = scheduler.app
    dispatcher = CeleryDispatcher(app, namespace="test", instance=lambda: INSTANCE, hook=ApplyEntry(scheduler))
    (receipt,) = dispatcher.send([run_of(row(fn="plain"))], yes)
    assert receipt.outcome.value == "bad"
    assert "RuntimeError: no DSN" in receipt.detail
    dispatcher.close()


def test_an_error_that_celery_swallows_reaches_the_receipt(
    scheduler: Scheduler, monkeypatch: pytest.MonkeyPatch
) -> None:
    original = beat.Scheduler.apply_entry
    monkeypatch.setattr(
        beat.Scheduler, "apply_entry", lambda self, entry, producer=None: original(self, entry, producer)
    )

    def refuse(*args: Any, **kwargs: Any) -> None:
        raise ValueError("not today")

    app = scheduler.app
    app.tasks["plain"].apply_async = refuse
    dispatcher = CeleryDispatcher(app, namespace="test", instance=lambda: INSTANCE, hook=ApplyEntry(scheduler))
    (receipt,) = dispatcher.send([run_of(row(fn="plain"))], yes)
    assert (receipt.outcome.value, receipt.detail) == ("bad", "apply_async of 'plain' raised ValueError: not today")
    dispatcher.close()
