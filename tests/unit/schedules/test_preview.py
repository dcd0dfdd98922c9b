"""What a person is shown before a schedule fires."""

from __future__ import annotations

import pytest

from celery_qbeat.core.schedules import Cron, Daily, Firing, Interval, parse, preview

from .instants import us


def shown(kind, text, zone, after, count):
    firings = preview(parse(kind, text, timezone=zone), us(after), count=count)
    return [(firing.local, firing.note) for firing in firings]


def test_a_firing_is_shown_in_utc_in_local_time_and_in_microseconds():
    daily = parse("daily", "02:00", timezone="Asia/Kathmandu")
    assert preview(daily, us("2026-06-04T00:00Z"), count=1) == [
        Firing(us("2026-06-04T20:15Z"), "2026-06-04T20:15:00Z", "2026-06-05T02:00:00+05:45", "")
    ]


def test_ten_firings_are_shown_unless_asked_otherwise():
    hourly = parse("every", "1h")
    now = us("2026-06-04T00:30Z")
    assert len(preview(hourly, now)) == 10
    assert len(preview(hourly, now, count=3)) == 3
    assert preview(hourly, now, count=0) == []


def test_the_end_of_the_window_is_part_of_it_and_the_begin_is_not():
    hourly = parse("every", "1h")
    firings = preview(hourly, us("2026-06-04T01:00Z"), until_us=us("2026-06-04T03:00Z"))
    assert [firing.utc for firing in firings] == ["2026-06-04T02:00:00Z", "2026-06-04T03:00:00Z"]


def test_the_bounds_of_a_row_are_both_part_of_its_life():
    hourly = parse("every", "1h")
    start, end = us("2026-06-04T05:00Z"), us("2026-06-04T06:00Z")
    firings = preview(hourly, us("2026-06-04T01:00Z"), start_us=start, end_us=end)
    assert [firing.us for firing in firings] == [start, end]
    assert preview(hourly, end, start_us=start, end_us=end) == []


def test_an_interval_is_shown_as_if_it_ran_now():
    firings = preview(Interval(90), us("2026-06-04T00:00:30Z"), count=2)
    assert [firing.utc for firing in firings] == ["2026-06-04T00:02:00Z", "2026-06-04T00:03:30Z"]


def test_an_interval_that_starts_later_is_due_at_its_start():
    start = us("2026-06-04T10:00Z")
    firings = preview(Interval(90), us("2026-06-04T00:00Z"), count=2, start_us=start)
    assert [firing.utc for firing in firings] == ["2026-06-04T10:00:00Z", "2026-06-04T10:01:30Z"]


JUMPED = "when the clock has jumped to 03:00"


@pytest.mark.parametrize(
    ("kind", "text", "note"),
    [
        ("daily", "02:30", f"02:30 does not exist that day: fires {JUMPED}"),
        ("daily", "02:30:15", f"02:30:15 does not exist that day: fires {JUMPED}"),
        (
            "daily",
            "02:00,02:45",
            f"02:00 and 02:45 do not exist that day: fires once {JUMPED}",
        ),
        ("cron", "*/5 2 * * *", f"02:00 to 02:55 do not exist that day: fires once {JUMPED}"),
        ("cron", "0 2,3 * * *", f"02:00 does not exist that day: fires {JUMPED}"),
        ("once", "2026-03-29T02:30", f"02:30 does not exist that day: fires {JUMPED}"),
        ("daily", "03:00", ""),
    ],
)
def test_a_time_in_a_gap_is_explained(kind, text, note):
    assert shown(kind, text, "Europe/Berlin", "2026-03-28T12:00Z", 1) == [("2026-03-29T03:00:00+02:00", note)]


def test_a_repeated_time_is_explained():
    assert shown("daily", "02:30", "Europe/Berlin", "2026-10-24T12:00Z", 2) == [
        ("2026-10-25T02:30:00+02:00", "first of two 02:30"),
        ("2026-10-26T02:30:00+01:00", ""),
    ]
    assert shown("cron", "*/45 2 * * *", "Europe/Berlin", "2026-10-24T12:00Z", 4) == [
        ("2026-10-25T02:00:00+02:00", "first of two 02:00"),
        ("2026-10-25T02:45:00+02:00", "first of two 02:45"),
        ("2026-10-25T02:00:00+01:00", "second of two 02:00"),
        ("2026-10-25T02:45:00+01:00", "second of two 02:45"),
    ]
    assert shown("once", "2026-10-25T02:30", "Europe/Berlin", "2026-10-24T12:00Z", 2) == [
        ("2026-10-25T02:30:00+02:00", "first of two 02:30")
    ]


def test_the_hours_beside_a_repeat_are_ordinary():
    assert shown("cron", "0 1,3 * * *", "Europe/Berlin", "2026-10-24T22:00Z", 2) == [
        ("2026-10-25T01:00:00+02:00", ""),
        ("2026-10-25T03:00:00+01:00", ""),
    ]


@pytest.mark.parametrize(("kind", "text"), [("every", "30m"), ("interval", "1800"), ("once", "2026-10-25T00:30Z")])
def test_what_no_clock_change_moves_is_not_explained(kind, text):
    firings = preview(parse(kind, text, timezone="Europe/Berlin"), us("2026-10-24T23:59Z"), count=5)
    assert {firing.note for firing in firings} == {""}


def test_a_repeated_day_is_explained_a_day_ahead():
    noon = Daily((43_200,), "Pacific/Kwajalein")
    firings = preview(noon, us("1969-09-29T12:00Z"), count=2)
    assert [(firing.utc, firing.note) for firing in firings] == [
        ("1969-09-30T01:00:00Z", "first of two 12:00"),
        ("1969-10-02T00:00:00Z", ""),
    ]


def test_a_preview_ends_with_the_calendar():
    assert len(preview(Cron(frozenset({0}), frozenset({0})), us("9999-12-27T12:00Z"))) == 2
