"""The preview says what a beat would do with the row as typed."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest

from celery_qbeat.core.jobs import RowRules, State
from celery_qbeat.core.schedules import parse
from celery_qbeat.core.schedules import preview as next_slots
from celery_qbeat.django.preview import COLUMNS, Before, preview
from tests.django.rows import make_job, make_run, make_state, us_now
from tests.django.typing_forms import PREVIEW, typed

RULES = RowRules(cron=True)
DAY = 86_400_000_000


def at(text: str) -> int:
    return int(datetime.fromisoformat(text).replace(tzinfo=UTC).timestamp()) * 1_000_000


def columns(kind: str, schedule: str, **more: Any) -> dict[str, Any]:
    blank = {"timezone": "UTC", "days_only": "", "days_skip": "", "dates_skip": "", "start_us": None, "end_us": None}
    return {"schedule_kind": kind, "schedule": schedule, **blank, **more}


@pytest.mark.parametrize(
    ("kind", "text", "zone"),
    [("daily", "02:30,14:00", "Europe/Berlin"), ("cron", "*/20 1-3 * * *", "America/New_York"), ("every", "6h", "UTC")],
)
def test_the_firings_are_those_of_the_schedule(kind: str, text: str, zone: str) -> None:
    now = at("2026-10-24T12:00")
    shown = preview(columns(kind, text, timezone=zone), RULES, now, Before(columns(kind, "1h"), State("a", 1)))
    wanted = next_slots(parse(kind, text, timezone=zone), now, count=10)
    assert [firing.us for firing in shown.firings] == [firing.us for firing in wanted]
    assert [firing.note for firing in shown.firings] == [firing.note for firing in wanted]
    assert len(shown.firings) == 10


def test_a_change_of_the_clocks_is_marked() -> None:
    spring = preview(columns("daily", "02:30", timezone="Europe/Berlin"), RULES, at("2026-03-28T12:00"))
    assert [bool(firing.note) for firing in spring.firings[:3]] == [True, False, False]
    assert spring.firings[0].local == "Sun 2026-03-29 03:00:00"
    assert spring.firings[0].utc == "2026-03-29 01:00:00Z"
    assert [firing.offset for firing in spring.firings[:2]] == ["UTC+02:00", "UTC+02:00"]


def test_a_new_interval_starts_at_once_and_an_edited_one_does_not() -> None:
    now = at("2026-06-01T12:00")
    new = preview(columns("interval", "3600"), RULES, now)
    assert [firing.us - now for firing in new.firings[:3]] == [0, 3_600_000_000, 7_200_000_000]
    assert new.firings[0].away == "at once"
    state = State("a", 1, next_run_us=now + 5_000_000, last_run_us=now - 1_000_000)
    edited = preview(columns("interval", "60"), RULES, now, Before(columns("interval", "6"), state))
    assert edited.firings[0].us == now + 59_000_000
    kept = preview(columns("interval", "6"), RULES, now, Before(columns("interval", "6"), state))
    assert kept.firings[0].us == now + 5_000_000
    assert kept.difference is None


def test_slots_that_passed_while_no_beat_was_running_are_one_run(site: Any) -> None:
    now = at("2026-06-01T12:00:30")
    state = State("a", 1, next_run_us=at("2026-06-01T11:00"))
    shown = preview(columns("every", "1m"), RULES, now, Before(columns("every", "1m"), state))
    assert [(firing.local[15:], firing.away) for firing in shown.firings[:3]] == [
        ("12:00:00", "at once"),
        ("12:01:00", "in 30 s"),
        ("12:02:00", "in 1 min 30 s"),
    ]


@pytest.mark.parametrize(
    ("kind", "text"), [("daily", "02:00"), ("every", "1h"), ("interval", "60"), ("cron", "0 2 * * *")]
)
def test_a_job_that_a_beat_has_taken_out_of_its_plan_fires_again_when_it_is_enabled(kind: str, text: str) -> None:
    now = at("2026-06-01T12:00:30")
    state = State("a", 1, next_run_us=None, last_run_us=at("2026-05-01T12:00"))
    shown = preview(columns(kind, text), RULES, now, Before(columns(kind, text), state))
    assert len(shown.firings) == 10
    assert now < shown.firings[0].us <= now + DAY
    assert shown.difference is None


def test_a_job_that_is_finished_stays_so() -> None:
    now = at("2026-06-01T12:00")
    state = State("a", 1, next_run_us=None, last_run_us=at("2026-05-01T12:00"))
    once = columns("once", "2026-05-01T12:00")
    assert preview(once, RULES, now, Before(once, state)).remarks == ("It never fires again.",)
    ended = columns("daily", "02:00", end_us=at("2026-05-01T12:00"))
    assert preview(ended, RULES, now, Before(ended, state)).firings == ()


def test_both_sides_of_an_edit_of_the_zone_have_their_offset(site: Any) -> None:
    make_job("daily", schedule_kind="daily", schedule="02:30", timezone="America/New_York")
    found = site.post(
        PREVIEW, typed(qbeat_object_id="daily", timezone="Asia/Kolkata"), headers={"accept": "application/json"}
    )
    difference = found.json()["html"].partition("qb-difference")[2]
    assert "UTC+05:30" in difference.partition("removed")[0]
    assert "UTC-0" in difference.partition("removed")[2]


def test_an_empty_form_is_no_mistake_yet(site: Any) -> None:
    found = site.post(PREVIEW, typed(schedule=" "), headers={"accept": "application/json"}).json()
    assert (found["problem"], found["remarks"]) == ("", ["Write a schedule: its next firings appear here."])


def test_an_edit_shows_what_it_adds_and_takes_away_in_thirty_days() -> None:
    now = at("2026-06-01T12:00")
    before = Before(columns("daily", "02:00,14:00"), State("a", 1, next_run_us=at("2026-06-01T14:00")))
    shown = preview(columns("daily", "02:00,15:00"), RULES, now, before).difference
    assert shown is not None
    assert (shown.added_count, shown.removed_count) == (30, 30)
    assert [firing.local for firing in shown.added[:2]] == ["Mon 2026-06-01 15:00:00", "Tue 2026-06-02 15:00:00"]
    assert [firing.local for firing in shown.removed[:2]] == ["Mon 2026-06-01 14:00:00", "Tue 2026-06-02 14:00:00"]
    assert (len(shown.added), shown.added_more) == (5, 25)
    assert shown.until == "2026-07-01 12:00:00"


def test_dense_schedules_are_compared_as_far_as_was_counted() -> None:
    now = at("2026-06-01T00:00")
    before = Before(columns("every", "1m"), State("a", 1, next_run_us=now + 60_000_000))
    shown = preview(columns("every", "2m"), RULES, now, before).difference
    assert shown is not None
    assert shown.added_count == 0
    assert shown.removed_count == 2_500
    assert shown.until == "2026-06-04 11:20:00"


def test_what_never_fires_again_and_what_is_reserved_says_so() -> None:
    now = at("2026-06-01T00:00")
    over = preview(columns("daily", "02:00", end_us=now - 1), RULES, now)
    assert over.firings == ()
    assert over.remarks == ("It never fires again.",)
    reserved = preview(columns("cron", "0 0 * * *"), RowRules(), now)
    assert len(reserved.firings) == 10
    assert reserved.remarks[0].startswith("cron is reserved")


def test_a_bad_schedule_names_its_field() -> None:
    shown = preview(columns("daily", "02:00", timezone="Nowhere"), RULES, 0)
    assert (shown.field, shown.firings) == ("timezone", ())
    assert "'Nowhere'" in shown.problem


@pytest.mark.clock_at("2026-06-10T12:20:00Z")
def test_the_endpoint_answers_a_script_with_json_and_a_button_with_a_page(site: Any) -> None:
    script = site.post(PREVIEW, typed(), headers={"accept": "application/json"})
    found = script.json()
    assert set(found) == {"zone", "problem", "field", "firings", "remarks", "difference", "html"}
    assert len(found["firings"]) == 10
    assert found["firings"][0]["local"][15:] == "02:30:00"
    assert found["firings"][0]["local"] in found["html"]
    button = site.post(PREVIEW, typed())
    assert button["content-type"].startswith("text/html")
    assert button["x-frame-options"] == "SAMEORIGIN"
    assert found["firings"][0]["local"] in button.content.decode()


def test_the_endpoint_needs_no_more_than_the_schedule(site: Any) -> None:
    rest = {"id": "", "fn": "", "args": "nonsense", "max_run_seconds": ""}
    found = site.post(PREVIEW, typed(**rest), headers={"accept": "application/json"}).json()
    assert (found["problem"], len(found["firings"])) == ("", 10)


def test_a_disabled_job_is_previewed_with_a_word(site: Any) -> None:
    found = site.post(PREVIEW, typed(enabled=None), headers={"accept": "application/json"}).json()
    assert found["remarks"] == ["It is disabled. Until it is enabled, none of these will run."]
    assert len(found["firings"]) == 10


def test_the_endpoint_says_why_a_schedule_cannot_be_used(site: Any) -> None:
    found = site.post(PREVIEW, typed(schedule="<b>25:00"), headers={"accept": "application/json"}).json()
    assert found["field"] == "schedule"
    assert found["problem"].startswith("Schedule: ")
    assert "<b>" not in found["html"]
    assert "&lt;b&gt;25:00" in found["html"]


@pytest.mark.clock_at("2026-06-10T12:20:00Z")
def test_the_endpoint_compares_with_the_row_in_the_database(site: Any) -> None:
    now = us_now()
    make_job("daily", schedule_kind="daily", schedule="02:30", timezone="Europe/Berlin")
    make_state("daily", first_seen_us=1, next_run_us=now - now % DAY + DAY)
    ask = {"headers": {"accept": "application/json"}}
    same = site.post(PREVIEW, typed(qbeat_object_id="daily"), **ask).json()
    assert same["difference"] is None
    more = site.post(PREVIEW, typed(qbeat_object_id="daily", schedule="02:30,14:00"), **ask).json()
    assert more["difference"]["added_count"] in (29, 30)
    assert "added" in more["html"]


def test_the_endpoint_only_takes_posts_and_only_from_people_who_may_edit(site: Any, client_of: Any) -> None:
    assert site.get(PREVIEW).status_code == 405
    assert client_of("view_job").post(PREVIEW, typed()).status_code == 403


def test_the_columns_of_a_preview_are_the_columns_of_the_schedule() -> None:
    assert len(COLUMNS) == 8


def test_an_interval_that_waits_for_its_own_run_promises_no_times(site: Any) -> None:
    now = us_now()
    make_job("waiting", schedule_kind="interval", schedule="10")
    make_state("waiting", first_seen_us=1, next_run_us=now - DAY, last_run_us=now - DAY)
    make_run("waiting", now - DAY, "sent", lease_until_us=now + DAY)
    shape = {"schedule_kind": "interval", "schedule": "10", "timezone": "UTC", "qbeat_object_id": "waiting"}
    page = site.post(PREVIEW, typed(**shape)).content.decode()
    assert "when the run in flight has ended" in page
    assert "at once" not in page
    assert "in 10 s" not in page
    overlapping = site.post(PREVIEW, typed(**shape, overlap="allow")).content.decode()
    assert "at once" in overlapping
    edited = site.post(PREVIEW, typed(**shape | {"schedule": "20"})).content.decode()
    assert "has ended" not in edited
