"""The form of a job judges a row as the scheduler does, and says why beside the field."""

from __future__ import annotations

import json
from typing import Any

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext

from celery_qbeat.core.jobs import read_row
from celery_qbeat.django.models import Job, Worker
from celery_qbeat.django.models.people import row_of
from celery_qbeat.django.project import read_project
from tests.django.rows import insert, make_job
from tests.django.typing_forms import ADD, change, errors, typed


def test_a_row_that_the_form_saves_is_one_that_the_scheduler_reads(site: Any) -> None:
    answer = site.post(
        ADD,
        typed(
            days_only=["1", "2"],
            dates_skip="2026-12-25\n2026-12-26",
            start_us="2026-12-01T09:00",
            kwargs='{"days": 3}',
            queue="slow",
            priority="4",
        ),
    )
    assert answer.status_code == 302, errors(answer)
    job = Job.objects.get(pk="shop.cleanup.hourly")
    project = read_project()
    reading = read_row(row_of(job), project.rules, project.scopes)
    assert reading.problem == ""
    assert reading.job is not None
    assert project.privileges.refusal(reading.job) == ""
    assert (job.days_only, job.dates_skip, job.queue) == ("1,2", "2026-12-25,2026-12-26", "slow")
    assert job.start_us == 1_796_112_000_000_000  # 08:00 UTC
    assert job.kwargs == {"days": 3}


@pytest.mark.parametrize(
    ("columns", "field", "words"),
    [
        ({"schedule": "25:00"}, "schedule", "which is no time of day"),
        ({"schedule_kind": "interval", "schedule": "0"}, "schedule", "no interval of whole seconds above 0"),
        ({"schedule_kind": "every", "schedule": "1.5h"}, "schedule", "'1.5h'"),
        ({"schedule_kind": "cron", "schedule": "0 0 31 2 *"}, "schedule", "'0 0 31 2 *'"),
        ({"schedule_kind": "once", "schedule": "tomorrow"}, "schedule", "2026-12-01T09:00"),
        ({"schedule": ""}, "schedule", "required"),
        ({"timezone": "Mars/Phobos"}, "timezone", "'Mars/Phobos'"),
        ({"days_only": ["1"], "days_skip": ["1"]}, "days_skip", "can never fire"),
        ({"dates_skip": "2026-02-30"}, "dates_skip", "'2026-02-30'"),
        ({"start_us": "soon"}, "start_us", "'soon'"),
        ({"start_us": "2026-12-02T00:00", "end_us": "2026-12-01T00:00"}, "end_us", "before start_us"),
        ({"fn": "celery.chord_unlock"}, "fn", "is privileged"),
        ({"fn": "shop.cleanupp"}, "fn", "is not a registered task"),
        ({"fn": "SHOP.CLEANUP"}, "fn", "is not a registered task"),
        ({"id": "code:mine"}, "id", "is kept for entries of beat_schedule"),
        ({"id": ""}, "id", "required"),
        ({"priority": "256"}, "priority", "less than or equal to 255"),
        ({"grace_seconds": "-1"}, "grace_seconds", "greater than or equal to 0"),
        ({"max_run_seconds": "0"}, "max_run_seconds", "greater than or equal to 1"),
        ({"expires_seconds": "x"}, "expires_seconds", "whole number"),
        ({"queue": "elsewhere"}, "queue", "not one of the available choices"),
        ({"worker": "nobody"}, "worker", "not one of the available choices"),
        ({"args": '{"a": 1}'}, "args", "not a JSON list"),
        ({"kwargs": "[1]"}, "kwargs", "not a JSON object"),
        ({"kwargs": '{"a": NaN}'}, "kwargs", "This holds NaN"),
        ({"args": "[" * 60_000}, "args", "nested too deeply"),
        ({"kwargs": '{"a": "' + "x" * 70_000 + '"}'}, "args", "bytes together"),
        (
            {"kwargs": '{"a": "\\\\ \\ud83d\\ude00 \\u0000"}'},
            "kwargs",
            "Line 1, column 24: Not every database can store",
        ),
        ({"args": '["\\ud800"]'}, "args", "Line 1, column 3: Not every database can store \\ud800"),
        ({"args": "[" * 31 + "]" * 31}, "args", "in more than 30 levels"),
        ({"description": "é" * 33_000}, "description", "66,000 bytes long; at most 65,535 fit"),
    ],
)
def test_what_is_wrong_is_said_beside_its_field(site: Any, columns: dict[str, Any], field: str, words: str) -> None:
    answer = site.post(ADD, typed(**columns))
    found = errors(answer)
    assert set(found) == {field}
    assert words in found[field]
    assert not Job.objects.filter(pk=columns.get("id", "shop.cleanup.hourly")).exists()


def test_several_mistakes_are_all_said_at_once(site: Any) -> None:
    found = errors(site.post(ADD, typed(fn="os.system", schedule="25:00", args="[1,", max_run_seconds="")))
    assert set(found) == {"fn", "schedule", "args", "max_run_seconds"}


def test_an_error_in_json_points_at_line_and_column(site: Any) -> None:
    answer = site.post(ADD, typed(kwargs='{\n  "days": 3,\n  "mode": fast\n}'))
    assert "Line 3, column 11: Expecting value." in errors(answer)["kwargs"]
    page = answer.content.decode()
    assert "  &quot;mode&quot;: fast<br>          ▲</code>" in page


def test_the_spot_is_where_it_stands_in_the_field_whatever_is_above_it_and_before_it(site: Any) -> None:
    answer = site.post(ADD, typed(kwargs='\r\n\r\n{\t"a": "\u2028", b}'))
    assert "Line 3, column 13" in errors(answer)["kwargs"]
    assert "{ &quot;a&quot;: &quot; &quot;, b}<br>            ▲</code>" in answer.content.decode()


def test_a_scope_narrows_tasks_and_queues(site: Any) -> None:
    Worker.objects.create(name="billing", queue="bills", queues="bills slow", functions="mail.*")
    assert "outside the functions of worker 'billing'" in errors(site.post(ADD, typed(worker="billing")))["fn"]
    assert site.post(ADD, typed(worker="billing", fn="mail.send", queue="bills")).status_code == 302
    refused = errors(site.post(ADD, typed(id="other", queue="bills")))
    assert "'bills' is not allowed" in refused["queue"]


def test_offered_are_tasks_that_may_run_zones_and_allowed_queues(site: Any) -> None:
    page = site.get(ADD).content.decode()
    for name in ("shop.cleanup", "mail.send", "Europe/Berlin", "UTC", "slow"):
        assert f'<option value="{name}">' in page
    assert "celery.chord_unlock" not in page
    assert "http://" not in page.replace("http://www.w3.org/2000/svg", "")
    assert "https://" not in page


def test_times_are_shown_in_the_rows_zone_and_kept_to_the_microsecond(site: Any) -> None:
    job = make_job(timezone="Asia/Kolkata", start_us=1_796_112_000_123_456)
    page = site.get(change(job.pk)).content.decode()
    assert 'value="2026-12-01T13:30:00"' in page
    assert "1796112000123456" not in page
    form = {"start_us": "2026-12-01T13:30:00", "timezone": "Asia/Kolkata", "description": "new", "id": None}
    answer = site.post(change(job.pk), typed(**form, schedule_kind="every", schedule="1h", seen_rev=str(job_rev(job))))
    assert answer.status_code == 302, errors(answer)
    job.refresh_from_db()
    assert (job.start_us, job.description) == (1_796_112_000_123_456, "new")


def job_rev(job: Any) -> int:
    return int(Job.objects.values_list("rev", flat=True).get(pk=job.pk))


def test_a_time_in_a_gap_or_a_repeated_hour_is_the_one_that_schedules_mean(site: Any) -> None:
    site.post(ADD, typed(start_us="2027-03-28T02:30", end_us="2027-10-31T02:30"))
    job = Job.objects.get(pk="shop.cleanup.hourly")
    assert job.start_us == 1_806_195_600_000_000  # 01:00 UTC, the end of the gap
    assert job.end_us == 1_824_942_600_000_000  # 00:30 UTC, the first of the two


def test_the_words_of_a_row_stay_when_they_mean_the_same(site: Any) -> None:
    job = make_job(days_only="mon-fri", dates_skip="2026-12-25, 2026-12-26")
    same = {"days_only": list("12345"), "dates_skip": "2026-12-25\n2026-12-26", "timezone": "UTC", "id": None}
    answer = site.post(change(job.pk), typed(**same, schedule_kind="every", schedule="2h"))
    assert answer.status_code == 302, errors(answer)
    job.refresh_from_db()
    assert (job.days_only, job.dates_skip, job.schedule) == ("mon-fri", "2026-12-25, 2026-12-26", "2h")


def test_saving_writes_only_what_was_changed(site: Any) -> None:
    job = make_job(timezone="UTC")
    with CaptureQueriesContext(connection) as queries:
        site.post(change(job.pk), typed(id=None, timezone="UTC", schedule_kind="every", schedule="3h"))
    updates = [query["sql"] for query in queries if query["sql"].startswith('UPDATE "qbeat_jobs"')]
    assert len(updates) == 1
    assert '"schedule" =' in updates[0]
    assert '"fn"' not in updates[0]
    assert '"rev"' not in updates[0]


def test_another_zone_takes_the_wall_times_with_it(site: Any) -> None:
    job = make_job(timezone="UTC", start_us=1_796_112_000_000_000, end_us=1_796_112_000_000_000 + 3_600_000_000)
    same = {"id": None, "schedule_kind": "every", "schedule": "1h"}
    shown = {"start_us": "2026-12-01T08:00:00", "end_us": "2026-12-01T09:00:00"}
    assert site.post(change(job.pk), typed(**same, **shown, timezone="Asia/Kolkata")).status_code == 302
    job.refresh_from_db()
    assert job.start_us == 1_796_112_000_000_000 - 19_800_000_000
    page = site.get(change(job.pk)).content.decode()
    assert f'value="{shown["start_us"]}"' in page
    assert f'value="{shown["end_us"]}"' in page


@pytest.mark.parametrize("us", [2**62, -(2**62), 10**18])
def test_a_limit_that_no_calendar_has_is_shown_and_can_be_removed(site: Any, us: int) -> None:
    job = make_job(timezone="UTC", end_us=us)
    assert f"The row has {us} there" in site.get(change(job.pk)).content.decode()
    answer = site.post(change(job.pk), typed(id=None, timezone="UTC", schedule_kind="every", schedule="1h"))
    assert answer.status_code == 302, errors(answer)
    job.refresh_from_db()
    assert job.end_us is None


@pytest.mark.parametrize(("before", "after"), [([1], "[true]"), ([0], "[false]"), ([1], "[1.0]"), ([True], "[1]")])
def test_json_values_that_python_takes_for_equal_are_still_an_edit(site: Any, before: Any, after: str) -> None:
    job = make_job(timezone="UTC", args=before)
    form = typed(id=None, timezone="UTC", schedule_kind="every", schedule="1h", args=after)
    assert site.post(change(job.pk), form).status_code == 302
    job.refresh_from_db()
    assert json.dumps(job.args) == after


def test_a_page_that_was_open_while_somebody_else_edited_asks_once(site: Any) -> None:
    job = make_job(timezone="UTC")
    seen = job_rev(job)
    Job.objects.filter(pk=job.pk).update(schedule="5h")
    mine = typed(id=None, timezone="UTC", schedule_kind="every", schedule="2h", seen_rev=str(seen))
    answer = site.post(change(job.pk), mine)
    assert "Somebody else changed this job" in errors(answer)["__all__"]
    assert Job.objects.get(pk=job.pk).schedule == "5h"
    again = mine | {"seen_rev": str(answer.context["adminform"].form["seen_rev"].value())}
    assert site.post(change(job.pk), again).status_code == 302
    assert Job.objects.get(pk=job.pk).schedule == "2h"


def test_a_job_whose_task_went_away_can_be_disabled_but_not_enabled(site: Any) -> None:
    job = make_job(fn="shop.gone", timezone="UTC")
    form = {"id": None, "fn": "shop.gone", "timezone": "UTC", "schedule_kind": "every", "schedule": "1h"}
    assert site.post(change(job.pk), typed(**form, enabled=None)).status_code == 302
    assert not Job.objects.get(pk=job.pk).enabled
    assert "is not a registered task" in errors(site.post(change(job.pk), typed(**form)))["fn"]


def test_a_row_that_sql_wrote_badly_opens_and_can_be_repaired(site: Any) -> None:
    insert("qbeat_jobs", id="bad", fn="x", schedule_kind="moon", schedule="?", timezone="Nowhere", days_only="x")
    page = site.get(change("bad"))
    assert page.status_code == 200
    assert "is no kind of schedule" in page.content.decode()
    assert site.post(change("bad"), typed(id=None)).status_code == 302
    job = Job.objects.get(pk="bad")
    assert (job.schedule, job.days_only) == ("02:30", "")


@pytest.mark.parametrize("zone", ["Europe", "../etc", ""])
def test_a_row_with_limits_in_a_zone_that_is_none_opens(site: Any, zone: str) -> None:
    insert("qbeat_jobs", id="bad", fn="x", schedule_kind="daily", schedule="02:00", timezone=zone, start_us=5)
    assert site.get(change("bad")).status_code == 200


@pytest.mark.parametrize("query", ["start_us=2026-12-01T09:00", "end_us=5", "args=[1]", "timezone=Europe&start_us=x"])
def test_a_form_can_be_filled_in_by_its_address(site: Any, query: str) -> None:
    page = site.get(f"{ADD}?{query}")
    assert page.status_code == 200
    assert f'value="{query.rpartition("=")[2]}"' in page.content.decode() or "args" in query


def test_a_cron_row_is_saved_with_a_word_when_cron_is_reserved(site: Any, celery_app: Any) -> None:
    celery_app.conf.qbeat_cron = False
    answer = site.post(ADD, typed(schedule_kind="cron", schedule="0 9 * * 1"), follow=True)
    assert "Saved, but cron is reserved: set qbeat_cron = True" in answer.content.decode()


def test_ids_with_odd_characters_have_pages_that_work(site: Any) -> None:
    name = 'a/b?c#d "e" <f> _5F &%'
    assert site.post(ADD, typed(id=name)).status_code == 302
    page = site.get(change(name))
    assert page.status_code == 200
    assert "<f>" not in page.content.decode()


def test_a_worker_scopes_patterns_must_be_ones_that_match_something(site: Any) -> None:
    address = "/admin/qbeat/worker/add/"
    form = {"name": "billing", "enabled": "on", "queue": "", "queues": "a, b", "functions": "shop*", "description": ""}
    assert "'shop*' matches nothing" in errors(site.post(address, form))["functions"]
    assert site.post(address, form | {"functions": "shop.*\nmail.send"}).status_code == 302
    scope = Worker.objects.get()
    assert (scope.queues, scope.functions) == ("a\nb", "shop.*\nmail.send")
