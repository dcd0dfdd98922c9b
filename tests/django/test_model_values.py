"""What the models take in place of a name or of microseconds, and what they refuse before it is saved."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any
from zoneinfo import ZoneInfo

import pytest
from celery import Celery
from django.core.exceptions import ValidationError
from django.core.management import call_command
from django.db import connections

from celery_qbeat.django.models import Job, Run
from tests.django.making_schemas import by_django

pytestmark = pytest.mark.usefixtures("_migrated")
FIELDS = {"id": "j", "fn": "shop.cleanup", "schedule_kind": "daily", "schedule": "02:00"}


@pytest.fixture
def alias(sqlite_url: str, django_database: Any) -> str:
    alias: str = django_database(sqlite_url)
    by_django(alias)
    return alias


def test_a_task_is_saved_and_found_by_its_name(alias: str) -> None:
    app = Celery("values", set_as_current=False)

    @app.task(name="shop.of_an_object")
    def cleanup() -> None:
        pass

    jobs = Job.objects.using(alias)
    job = jobs.create(**{**FIELDS, "fn": cleanup})
    assert job.fn == "shop.of_an_object"
    assert jobs.get(fn=cleanup).fn == "shop.of_an_object"
    jobs.filter(pk="j").update(fn=cleanup)
    assert jobs.get(pk="j").fn == "shop.of_an_object"


def test_a_function_that_is_no_task_is_refused() -> None:
    with pytest.raises(TypeError, match=r"fn: .* is not a task; give a task of the Celery app, or its name"):
        Job(**{**FIELDS, "fn": test_a_function_that_is_no_task_is_refused})


def test_an_aware_datetime_is_saved_as_microseconds(alias: str) -> None:
    at = datetime(2026, 12, 1, 9, 0, 0, 250_000, tzinfo=ZoneInfo("Europe/Berlin"))
    job = Job.objects.using(alias).create(**FIELDS, start_us=at, end_us=1_900_000_000_000_000)
    assert job.start_us == 1_796_112_000_250_000
    job.refresh_from_db()
    assert job.start_us == 1_796_112_000_250_000
    assert list(Job.objects.using(alias).filter(start_us__gte=at)) == [job]
    assert list(Run.objects.using(alias).filter(slot_us__lt=datetime.now(UTC))) == []


def test_a_datetime_without_a_zone_is_refused() -> None:
    with pytest.raises(ValueError, match=r"start_us: .* has no time zone; write e\.g\. django\.utils\.timezone\.now"):
        Job(**FIELDS, start_us=datetime(2026, 12, 1))  # noqa: DTZ001


@pytest.mark.parametrize(
    ("values", "field"),
    [
        ({"schedule": "25:00"}, "schedule"),
        ({"schedule_kind": "every"}, "schedule"),
        ({"schedule_kind": "hourly"}, "schedule_kind"),
        ({"timezone": "Europe/Nowhere"}, "timezone"),
        ({"days_only": "someday"}, "days_only"),
        ({"overlap": "maybe"}, "overlap"),
        ({"start_us": 2, "end_us": 1}, "end_us"),
        ({"kwargs": [1]}, "kwargs"),
    ],
)
def test_full_clean_refuses_what_no_beat_can_run(values: dict[str, Any], field: str) -> None:
    with pytest.raises(ValidationError) as caught:
        Job(**{**FIELDS, **values}).full_clean(validate_unique=False)
    assert field in caught.value.message_dict


@pytest.mark.parametrize("values", [{}, {"schedule_kind": "cron", "schedule": "0 2 * * *"}, {"worker": "billing"}])
def test_full_clean_takes_what_a_beat_may_run(values: dict[str, Any]) -> None:
    Job(**{**FIELDS, **values}).full_clean(validate_unique=False)


@pytest.mark.parametrize(("field", "value"), [("schedule", "25:00"), ("timezone", "Nowhere"), ("schedule_kind", "x")])
def test_validators_of_one_field_refuse_it_alone(field: str, value: str) -> None:
    """Serializers of REST frameworks run these, and not `clean`."""
    with pytest.raises(ValidationError):
        Job._meta.get_field(field).run_validators(value)


def test_the_state_of_an_unseen_job_is_none(alias: str) -> None:
    job = Job.objects.using(alias).create(**FIELDS)
    assert job.state is None
    assert Job.objects.using(alias).select_related("state").get(pk="j").state is None


def test_the_models_need_no_migration() -> None:
    call_command("makemigrations", "qbeat", check=True, dry_run=True, verbosity=0)


def test_flush_leaves_no_changes_of_rows_that_are_gone(sqlite_url: str, django_database: Any) -> None:
    """As TransactionTestCase does after each test."""
    alias = django_database(sqlite_url)
    by_django(alias, everything=True)
    Job.objects.using(alias).create(**FIELDS)
    call_command("flush", database=alias, interactive=False, verbosity=0)
    with connections[alias].cursor() as cursor:
        cursor.execute("SELECT job_id FROM qbeat_changes")
        assert [row[0] for row in cursor.fetchall()] == ["_builtin.prune"]
