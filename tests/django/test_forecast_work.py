"""What a forecast and a preview cost, counted in steps of the calendar, and what they say about what they left out."""

from __future__ import annotations

from datetime import date, timedelta
from typing import Any

import pytest

from celery_qbeat.core.jobs import RowRules, State
from celery_qbeat.core.schedules.day_filters import DayFilters
from celery_qbeat.core.schedules.time_zones import Zone
from celery_qbeat.django.forecast import MOST_GROUPS, forecast
from celery_qbeat.django.models import Job
from celery_qbeat.django.preview import Before, preview
from celery_qbeat.django.times import viewers_zone
from tests.django.rows import us_now
from tests.django.test_pages import FORECAST, text
from tests.django.test_preview import columns

RULES = RowRules(cron=True)
MOST_STEPS = 600_000


class Steps:
    """Counts what all arithmetic on schedules goes through: looks at a zone, and at a day."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.count = 0
        for owner, name in ((Zone, "span"), (DayFilters, "allows")):
            monkeypatch.setattr(owner, name, self._counted(getattr(owner, name)))

    def _counted(self, method: Any) -> Any:
        def counted(*args: Any) -> Any:
            self.count += 1
            return method(*args)

        return counted


@pytest.fixture
def steps(monkeypatch: pytest.MonkeyPatch) -> Steps:
    return Steps(monkeypatch)


def dates(first: int, most: int = 1_000) -> str:
    """As many dates, one after the other, from so many days after today."""
    return ",".join(str(date.today() + timedelta(days=first + number)) for number in range(most))  # noqa: DTZ011


def make(schedules: list[tuple[str, str, str]]) -> None:
    made = [
        Job(id=f"j{number}", fn="shop.cleanup", schedule_kind=kind, schedule=schedule, dates_skip=skipped)
        for number, (kind, schedule, skipped) in enumerate(schedules)
    ]
    Job.objects.bulk_create(made, batch_size=100)


HEAVY = {
    "minutely, dates in the way": [("every", f"{1 + n % 20}m", dates(-n)) for n in range(300)],
    "minutely, dates far away": [("every", f"{1 + n % 20}m", dates(90 + n)) for n in range(300)],
    "short intervals with dates": [("interval", str(5 + n), dates(-n)) for n in range(300)],
    "hourly intervals with dates": [("interval", str(3_600 + n), dates(90 + n)) for n in range(300)],
    "dense crons": [("cron", f"*/{1 + n % 5} {n % 24}-23 * * *", dates(n, 1)) for n in range(500)],
    "daily with dates": [("daily", f"{n % 24}:00,23:59", dates(-n)) for n in range(300)],
    "5 s": [("interval", "5", "")] * 5,
}


@pytest.mark.parametrize("name", HEAVY)
def test_the_work_of_a_forecast_is_bounded(db: None, steps: Steps, name: str) -> None:
    make(HEAVY[name])
    shown = forecast(Job.objects.all(), RULES, viewers_zone(), us_now())
    assert steps.count < MOST_STEPS
    assert shown.jobs == shown.counted + shown.left_out + shown.unreadable == len(HEAVY[name]) + 1
    assert shown.counted > 1


def test_the_headline_names_the_jobs_that_are_counted(site: Any) -> None:
    make([("daily", f"{n // 60:02}:{n % 60:02}", "") for n in range(MOST_GROUPS + 99)])
    shown = site.get(FORECAST).context["forecast"]
    assert (shown.jobs, shown.counted, shown.left_out) == (MOST_GROUPS + 100, MOST_GROUPS, 100)
    assert 6 * MOST_GROUPS <= shown.total <= 7 * MOST_GROUPS
    page = text(site, FORECAST)
    assert f"runs of {MOST_GROUPS} enabled jobs" in page
    assert "100 more jobs are not counted" in page


def test_dates_longer_than_their_limit_are_not_fetched_for_a_forecast(site: Any) -> None:
    make([("every", "1h", "2026-12-25," * 5_000)])
    assert "1 enabled job with a problem</a> is not counted" in text(site, FORECAST)


@pytest.mark.parametrize(("kind", "schedule"), [("interval", "5"), ("every", "1m"), ("cron", "* * * * *")])
def test_the_work_of_a_preview_is_bounded(steps: Steps, kind: str, schedule: str) -> None:
    now = us_now()
    before = Before(columns(kind, schedule, dates_skip=dates(20)), State("a", 1, next_run_us=now))
    shown = preview(columns(kind, schedule, dates_skip=dates(5)), RULES, now, before)
    assert shown.firings
    assert steps.count < 100_000
