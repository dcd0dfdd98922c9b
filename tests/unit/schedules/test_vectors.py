"""The exact cases: the published vectors, the twenty cases of the semantics study, reports from the field."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from celery_qbeat.core.schedules import Cron, Daily, parse

from .instants import fires, us

VECTORS = json.loads((Path(__file__).parent / "fire_times.json").read_text())["vectors"]


@pytest.mark.parametrize("case", VECTORS, ids=[case["id"] for case in VECTORS])
def test_a_published_vector_fires_exactly_then(case):
    schedule = parse(case["kind"], case["schedule"], timezone=case["timezone"], days_only=case["days_only"])
    expected = case["expect_utc"]
    after, until = case["after"], case["until"]
    assert fires(schedule, after, until) == expected
    assert schedule.count(us(after), us(until)) == len(expected)
    assert schedule.latest(us(until)) == us(expected[-1])


BERLIN_SPRING = ("2026-03-28T22:30:00Z", "2026-03-29T05:00:00Z")

# number, kind, text, zone, days_only, after, until, slots
STUDIED = [
    ("1", "daily", "02:30", "Europe/Berlin", "", "2026-03-28T12:00Z", "2026-03-30T12:00Z",
     ["2026-03-29T01:00:00Z", "2026-03-30T00:30:00Z"]),
    ("2", "daily", "02:00,02:45", "Europe/Berlin", "", "2026-03-28T12:00Z", "2026-03-29T12:00Z",
     ["2026-03-29T01:00:00Z"]),
    ("3", "daily", "02:30", "Europe/Berlin", "", "2026-10-24T12:00Z", "2026-10-26T12:00Z",
     ["2026-10-25T00:30:00Z", "2026-10-26T01:30:00Z"]),
    ("4", "cron", "*/30 2 * * *", "Europe/Berlin", "", "2026-10-24T12:00Z", "2026-10-25T12:00Z",
     ["2026-10-25T00:00:00Z", "2026-10-25T00:30:00Z", "2026-10-25T01:00:00Z", "2026-10-25T01:30:00Z"]),
    ("5", "cron", "0 * * * *", "Europe/Berlin", "", "2026-10-24T22:30Z", "2026-10-25T03:00Z",
     ["2026-10-24T23:00:00Z", "2026-10-25T00:00:00Z", "2026-10-25T01:00:00Z", "2026-10-25T02:00:00Z",
      "2026-10-25T03:00:00Z"]),
    ("6 spring", "cron", "0 */2 * * *", "Europe/Berlin", "", *BERLIN_SPRING,
     ["2026-03-28T23:00:00Z", "2026-03-29T01:00:00Z", "2026-03-29T02:00:00Z", "2026-03-29T04:00:00Z"]),
    ("6 autumn", "cron", "0 */2 * * *", "Europe/Berlin", "", "2026-10-24T21:30Z", "2026-10-25T04:00Z",
     ["2026-10-24T22:00:00Z", "2026-10-25T00:00:00Z", "2026-10-25T01:00:00Z", "2026-10-25T03:00:00Z"]),
    ("7", "daily", "02:30", "America/New_York", "", "2026-03-07T12:00Z", "2026-03-09T12:00Z",
     ["2026-03-08T07:00:00Z", "2026-03-09T06:30:00Z"]),
    ("8", "daily", "01:30", "America/New_York", "", "2026-10-31T12:00Z", "2026-11-02T12:00Z",
     ["2026-11-01T05:30:00Z", "2026-11-02T06:30:00Z"]),
    ("9", "daily", "02:15", "Australia/Lord_Howe", "", "2026-10-03T00:00Z", "2026-10-05T00:00Z",
     ["2026-10-03T15:30:00Z", "2026-10-04T15:15:00Z"]),
    ("10 daily", "daily", "01:45", "Australia/Lord_Howe", "", "2026-04-04T00:00Z", "2026-04-06T00:00Z",
     ["2026-04-04T14:45:00Z", "2026-04-05T15:15:00Z"]),
    ("10 cron", "cron", "*/15 1 * * *", "Australia/Lord_Howe", "", "2026-04-04T00:00Z", "2026-04-05T00:00Z",
     ["2026-04-04T14:00:00Z", "2026-04-04T14:15:00Z", "2026-04-04T14:30:00Z", "2026-04-04T14:45:00Z",
      "2026-04-04T15:00:00Z", "2026-04-04T15:15:00Z"]),
    ("11 abolished", "daily", "00:00", "America/Sao_Paulo", "", "2026-10-31T12:00Z", "2026-11-02T12:00Z",
     ["2026-11-01T03:00:00Z", "2026-11-02T03:00:00Z"]),
    ("11 midnight gap", "daily", "00:00", "America/Sao_Paulo", "", "2018-11-03T12:00Z", "2018-11-05T12:00Z",
     ["2018-11-04T03:00:00Z", "2018-11-05T02:00:00Z"]),
    ("12", "daily", "00:00", "Asia/Kathmandu", "1", "2026-01-01T00:00Z", "2026-01-13T00:00Z",
     ["2026-01-04T18:15:00Z", "2026-01-11T18:15:00Z"]),
    ("13", "daily", "12:00", "Pacific/Apia", "", "2011-12-28T00:00Z", "2012-01-01T00:00Z",
     ["2011-12-28T22:00:00Z", "2011-12-29T22:00:00Z", "2011-12-30T22:00:00Z", "2011-12-31T22:00:00Z"]),
    ("14", "cron", "0 0 29 2 *", "UTC", "", "2026-01-01T00:00Z", "2033-01-01T00:00Z",
     ["2028-02-29T00:00:00Z", "2032-02-29T00:00:00Z"]),
    ("14 century", "cron", "0 0 29 2 *", "UTC", "", "2096-02-29T00:00Z", "2105-01-01T00:00Z",
     ["2104-02-29T00:00:00Z"]),
    ("15 or", "cron", "0 0 13 * 5", "UTC", "", "2026-04-01T00:00Z", "2026-04-30T00:00Z",
     ["2026-04-03T00:00:00Z", "2026-04-10T00:00:00Z", "2026-04-13T00:00:00Z", "2026-04-17T00:00:00Z",
      "2026-04-24T00:00:00Z"]),
    ("16", "cron", "*/7 * * * *", "UTC", "", "2026-01-01T00:41Z", "2026-01-01T01:08Z",
     ["2026-01-01T00:42:00Z", "2026-01-01T00:49:00Z", "2026-01-01T00:56:00Z", "2026-01-01T01:00:00Z",
      "2026-01-01T01:07:00Z"]),
    ("17 east", "daily", "06:00", "Pacific/Auckland", "1", "2026-01-01T00:00Z", "2026-01-12T00:00Z",
     ["2026-01-04T17:00:00Z", "2026-01-11T17:00:00Z"]),
    ("17 west", "daily", "20:00", "America/Los_Angeles", "5", "2026-01-05T00:00Z", "2026-01-12T00:00Z",
     ["2026-01-10T04:00:00Z"]),
    ("18", "daily", "00:00", "Africa/Cairo", "", "2026-04-23T12:00Z", "2026-04-25T12:00Z",
     ["2026-04-23T22:00:00Z", "2026-04-24T21:00:00Z"]),
    ("19 repeat", "daily", "23:30", "America/Santiago", "", "2026-04-04T12:00Z", "2026-04-06T12:00Z",
     ["2026-04-05T02:30:00Z", "2026-04-06T03:30:00Z"]),
    ("19 gap", "daily", "00:00", "America/Santiago", "sun", "2026-09-05T12:00Z", "2026-09-07T12:00Z",
     ["2026-09-06T04:00:00Z"]),
    ("20 day", "every", "1d", "Europe/Berlin", "", "2026-03-27T12:00Z", "2026-03-31T00:00Z",
     ["2026-03-28T00:00:00Z", "2026-03-29T00:00:00Z", "2026-03-30T00:00:00Z", "2026-03-31T00:00:00Z"]),
    ("20 week", "every", "7d", "America/New_York", "", "2025-12-30T00:00Z", "2026-01-16T00:00Z",
     ["2026-01-01T00:00:00Z", "2026-01-08T00:00:00Z", "2026-01-15T00:00:00Z"]),
    ("20 90 minutes", "every", "90m", "Europe/Berlin", "", "2026-03-28T23:00Z", "2026-03-29T05:00Z",
     ["2026-03-29T00:00:00Z", "2026-03-29T01:30:00Z", "2026-03-29T03:00:00Z", "2026-03-29T04:30:00Z"]),
]  # fmt: skip


@pytest.mark.parametrize(("number", "kind", "text", "zone", "days", "after", "until", "expected"), STUDIED)
def test_a_studied_case_fires_exactly_then(number, kind, text, zone, days, after, until, expected):
    schedule = parse(kind, text, timezone=zone, days_only=days)
    assert fires(schedule, after, until) == expected
    assert schedule.count(us(after), us(until)) == len(expected)


def test_day_fields_joined_by_and_need_both():
    friday_the_13th = Cron(frozenset({0}), frozenset({0}), dom=frozenset({13}), dow=frozenset({5}), both_days="and")
    assert fires(friday_the_13th, "2026-04-01T00:00Z", "2027-01-01T00:00Z") == ["2026-11-13T00:00:00Z"]


def test_a_daily_job_fires_once_on_each_of_six_days_around_both_berlin_transitions():
    half_past_two = parse("daily", "02:30", timezone="Europe/Berlin")
    assert fires(half_past_two, "2026-03-28T00:00Z", "2026-03-30T12:00Z") == [
        "2026-03-28T01:30:00Z",
        "2026-03-29T01:00:00Z",
        "2026-03-30T00:30:00Z",
    ]
    assert fires(half_past_two, "2026-10-24T00:00Z", "2026-10-26T12:00Z") == [
        "2026-10-24T00:30:00Z",
        "2026-10-25T00:30:00Z",
        "2026-10-26T01:30:00Z",
    ]
    noon = parse("daily", "12:00", timezone="Europe/Berlin")
    assert fires(noon, "2026-10-25T00:00Z", "2026-10-26T00:00Z") == ["2026-10-25T11:00:00Z"]


def test_two_times_in_one_gap_are_one_firing():
    schedule = parse("daily", "02:15, 02:45", timezone="Europe/Berlin")
    assert fires(schedule, "2026-03-28T12:00Z", "2026-03-29T12:00Z") == ["2026-03-29T01:00:00Z"]


def test_an_hourly_cron_keeps_all_five_hours_of_the_pacific_fall_back():
    hourly = parse("cron", "0 * * * *", timezone="US/Pacific")
    assert fires(hourly, "2026-11-01T06:59Z", "2026-11-01T11:00Z") == [
        f"2026-11-01T{hour:02}:00:00Z" for hour in (7, 8, 9, 10, 11)
    ]


def test_a_minutely_cron_loses_no_minute_of_the_paris_fall_back():
    minutely = parse("cron", "* * * * *", timezone="Europe/Paris")
    after, until = us("2026-10-24T23:59Z"), us("2026-10-25T02:00Z")
    assert minutely.count(after, until) == 121
    assert len(fires(minutely, "2026-10-24T23:59Z", "2026-10-25T02:00Z")) == 121


def test_a_whole_hour_period_has_seven_slots_in_seven_hours_of_the_berlin_fall_back():
    hourly = parse("every", "1h", timezone="Europe/Berlin")
    assert len(fires(hourly, "2026-10-24T21:59Z", "2026-10-25T04:00Z")) == 7


def test_weekdays_are_judged_in_the_zone_of_the_row():
    sydney = parse("daily", "08:00", timezone="Australia/Sydney", days_only="mon-fri")
    assert fires(sydney, "2026-06-04T12:00Z", "2026-06-09T12:00Z") == [
        "2026-06-04T22:00:00Z",
        "2026-06-07T22:00:00Z",
        "2026-06-08T22:00:00Z",
    ]


def test_dates_are_judged_in_the_zone_of_the_row():
    new_year = parse("cron", "30 23 31 12 *", timezone="Pacific/Auckland")
    assert fires(new_year, "2026-12-30T00:00Z", "2027-01-02T00:00Z") == ["2026-12-31T10:30:00Z"]
    skipped = parse("daily", "23:30", timezone="Pacific/Auckland", dates_skip="2026-12-31")
    assert fires(skipped, "2026-12-30T00:00Z", "2027-01-01T12:00Z") == ["2026-12-30T10:30:00Z", "2027-01-01T10:30:00Z"]


def test_a_skipped_day_ends_and_fires_nothing():
    eve = parse("cron", "0 12 30 12 *", timezone="Pacific/Apia")
    assert fires(eve, "2010-12-31T12:00Z", "2013-01-01T00:00Z") == ["2012-12-29T22:00:00Z"]


def test_a_gap_of_three_hours_still_fires_and_a_longer_one_does_not():
    # Casey went from 03:00 to 06:00; Vostok, closed for a winter, from 00:00 to 07:00.
    casey = Daily((4 * 3600,), "Antarctica/Casey")
    assert fires(casey, "2019-10-03T12:00Z", "2019-10-04T12:00Z") == ["2019-10-03T19:00:00Z"]
    vostok = Daily((3 * 3600,), "Antarctica/Vostok")
    assert fires(vostok, "1994-10-30T12:00Z", "1994-11-02T12:00Z") == ["1994-10-31T03:00:00Z", "1994-11-01T20:00:00Z"]
