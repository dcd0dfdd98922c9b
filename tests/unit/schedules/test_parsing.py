"""What the texts of a row mean, and what the refusals say."""

from __future__ import annotations

from datetime import date, datetime
from zoneinfo import ZoneInfo

import pytest

from celery_qbeat.core.schedules import (
    KINDS,
    Cron,
    Daily,
    DayFilters,
    Every,
    Interval,
    Once,
    parse,
    parse_dates,
    parse_days,
)
from celery_qbeat.errors import ScheduleError

from .instants import DAY, HOUR, MINUTE, fires, us


def refusal(kind: str, text: str, **more: str) -> ScheduleError:
    with pytest.raises(ScheduleError) as caught:
        parse(kind, text, **more)
    return caught.value


def test_the_table_of_kinds_has_five_and_each_example_parses():
    assert list(KINDS) == ["interval", "every", "daily", "cron", "once"]
    for name, kind in KINDS.items():
        assert kind.name == name
        assert parse(name, kind.example).kind == name


@pytest.mark.parametrize(
    ("kind", "text", "value"),
    [
        ("interval", "3600", Interval(3600)),
        ("interval", " 90 ", Interval(90)),
        ("every", "15m", Every(15 * MINUTE)),
        ("every", "1h", Every(HOUR)),
        ("every", "60m", Every(HOUR)),
        ("every", "7d", Every(7 * DAY)),
        ("daily", "02:00,14:00", Daily((7200, 50400))),
        ("daily", "7200,50400", Daily((7200, 50400))),
        ("daily", "14:00, 2:00 ,14:00", Daily((7200, 50400))),
        ("daily", "23:59:59,0", Daily((0, 86399))),
        ("cron", "30 2 * * *", Cron(frozenset({30}), frozenset({2}), fixed=True)),
        ("cron", "  30\t2  *  *  * ", Cron(frozenset({30}), frozenset({2}), fixed=True)),
        ("cron", "0,30 2,3 * * *", Cron(frozenset({0, 30}), frozenset({2, 3}), fixed=True)),
        ("cron", "*/20 * * * *", Cron(frozenset({0, 20, 40}))),
        ("cron", "10-50/20 * * * *", Cron(frozenset({10, 30, 50}))),
        ("cron", "0 2-2 * * *", Cron(frozenset({0}), frozenset({2}))),
        ("cron", "0 0 1-7 * *", Cron(frozenset({0}), frozenset({0}), frozenset(range(1, 8)), fixed=True)),
        ("cron", "0 0 * jan,Dec *", Cron(frozenset({0}), frozenset({0}), month=frozenset({1, 12}), fixed=True)),
        ("cron", "0 0 * * 7", Cron(frozenset({0}), frozenset({0}), dow=frozenset({0}), fixed=True)),
        ("cron", "0 0 * * SUN", Cron(frozenset({0}), frozenset({0}), dow=frozenset({0}), fixed=True)),
        ("cron", "0 0 * * fri-sun", Cron(frozenset({0}), frozenset({0}), dow=frozenset({5, 6, 0}), fixed=True)),
        ("cron", "0 0 * * 5-7", Cron(frozenset({0}), frozenset({0}), dow=frozenset({5, 6, 0}), fixed=True)),
        ("cron", "0 0 * * */2", Cron(frozenset({0}), frozenset({0}), dow=frozenset({0, 2, 4, 6}), fixed=True)),
        ("once", "2026-12-01T09:00", Once.at_wall(us("2026-12-01T09:00Z"))),
        ("once", "2026-12-01 09:00:30", Once.at_wall(us("2026-12-01T09:00:30Z"))),
        ("once", "2026-12-01T09:00:30.5", Once.at_wall(us("2026-12-01T09:00:30Z") + 500_000)),
        ("once", "2026-12-01T09:00:30.123456+01:00", Once(us("2026-12-01T08:00:30Z") + 123_456)),
        ("once", "2026-12-01T09:00:30.000001Z", Once(us("2026-12-01T09:00:30Z") + 1)),
        ("once", "2026-12-01T09:00Z", Once(us("2026-12-01T09:00Z"))),
        ("once", "2026-12-01T09:00+05:30", Once(us("2026-12-01T03:30Z"))),
        ("once", "2026-12-01T09:00-0330", Once(us("2026-12-01T12:30Z"))),
    ],
)
def test_a_text_means_a_value(kind, text, value):
    assert parse(kind, text) == value
    assert hash(parse(kind, text)) == hash(value)


def test_the_filters_and_the_zone_are_part_of_the_value():
    schedule = parse(
        "daily", "0", timezone="Europe/Berlin", days_only="mon-fri", days_skip="3", dates_skip="2026-12-25, 2026-12-24"
    )
    days = DayFilters(frozenset(range(1, 6)), frozenset({3}), frozenset({date(2026, 12, 24), date(2026, 12, 25)}))
    assert schedule == Daily((0,), "Europe/Berlin", days)
    assert schedule != parse("daily", "0", timezone="Europe/Paris")


@pytest.mark.parametrize(
    ("text", "days"),
    [
        ("", set()),
        ("  ", set()),
        ("1,2,3,4,5", {1, 2, 3, 4, 5}),
        ("mon-fri", {1, 2, 3, 4, 5}),
        ("Mon , wed", {1, 3}),
        ("fri-mon", {5, 6, 0, 1}),
        ("sat-sun", {6, 0}),
        ("0-6", {0, 1, 2, 3, 4, 5, 6}),
    ],
)
def test_weekdays_are_numbers_or_names_and_ranges_may_pass_the_weekend(text, days):
    assert parse_days(text) == days


def test_dates_are_a_list():
    assert parse_dates("") == frozenset()
    assert parse_dates(" 2026-12-25 ,2026-12-26") == {date(2026, 12, 25), date(2026, 12, 26)}


@pytest.mark.parametrize(
    "text", ["0", "000", "-5", "+5", "1.5", "1e3", "abc", "", "3_600", "١", "1 0", "9" * 500, "1h"]
)
def test_an_unusable_interval_is_treated_as_disabled(text):
    error = refusal("interval", text)
    assert error.field == "schedule"
    assert "the job is treated as disabled; write " in str(error)
    assert "e.g. '3600'" in str(error)


def test_an_interval_below_the_floor_is_clamped_up_to_it():
    assert parse("interval", "1", min_interval_us=10_000_000) == Interval(10)
    assert parse("interval", "1", min_interval_us=1_500_000) == Interval(1.5)
    assert parse("interval", "11", min_interval_us=10_000_000) == Interval(11)
    assert parse("interval", "1", min_interval_us=500_000) == Interval(1)
    assert parse("every", "1m", min_interval_us=3_600_000_000) == Every(MINUTE)
    assert Interval(1.5).after_run(0, 7) == 1_500_007


@pytest.mark.parametrize(
    ("kind", "text", "sentence"),
    [
        ("every", "8d", "is longer than 7 days; write at most '7d'"),
        ("every", "0m", "is no period; write a whole number and m, h or d, e.g. '15m'"),
        ("every", "01h", "is no period"),
        ("every", "15", "is no period"),
        ("every", "15M", "is no period"),
        ("every", "1m1h", "is no period"),
        ("every", "١m", "is no period"),
        ("every", "99999m", "is longer than 7 days"),
        ("daily", "25:00", "has '25:00' in it, which is no time of day"),
        ("daily", "24:00", "has '24:00' in it, which is no time of day"),
        ("daily", "02:60", "is no time of day"),
        ("daily", "86400", "is no time of day"),
        ("daily", "2am", "write HH:MM or seconds since midnight, e.g. '02:00,14:00'"),
        ("daily", "", "has no time of day"),
        ("daily", "02:00,", "has a comma with nothing beside it"),
        ("daily", "02:00;14:00", "is no time of day"),
        ("cron", "", "has 0 fields; write five: minute hour day-of-month month day-of-week, e.g. '30 2 * * 1-5'"),
        ("cron", "* * * *", "has 4 fields"),
        ("cron", "0 0 12 * * ?", "has 6 fields; write five, without seconds"),
        ("cron", "99 * * * *", "has the minute '99', which cannot be read; write 0 to 59"),
        ("cron", "* 24 * * *", "has the hour '24'"),
        ("cron", "* * 0 * *", "has the day-of-month '0'"),
        ("cron", "* * * 13 *", "has the month '13', which cannot be read; write 1 to 12 or jan, feb, ..."),
        ("cron", "* * * * 8", "has the day-of-week '8'"),
        ("cron", "mon * * * *", "has the minute 'mon'"),
        ("cron", "* * * * foo", "has the day-of-week 'foo'"),
        ("cron", "1,,2 * * * *", "has the minute ''"),
        ("cron", "30-10 * * * *", "a range goes upwards"),
        ("cron", "0 0 * * fri-mon", "a range goes upwards"),
        ("cron", "*/0 * * * *", "a step here is 1 to 60"),
        ("cron", "*/90 * * * *", "a step here is 1 to 60"),
        ("cron", "5/20 * * * *", "a step needs a range such as '5-59/20'"),
        ("cron", "١ * * * *", "has the minute '١'"),
        ("cron", "@daily", "is a shorthand that is not supported; write '0 0 * * *'"),
        ("cron", "@reboot", "is a shorthand that is not supported; write five fields"),
        ("cron", "0 0 L * *", "uses 'L', which is not supported; write the day"),
        ("cron", "0 0 ? * 1", "uses '?', which is not supported; write '*'"),
        ("cron", "0 0 * * 1#1", "uses '#', which is not supported; for a first Monday write"),
        ("cron", "0 0 15W * *", "uses 'W', which is not supported"),
        ("cron", "H H * * *", "uses 'H', which is not supported"),
        ("cron", "0~30 * * * *", "uses '~', which is not supported"),
        ("cron", "0 0 31 2 *", "can never fire, because no such date comes within 30 years"),
        ("cron", "0 0 30 feb *", "can never fire"),
        ("cron", "0 0 31 4,6,9,11 *", "can never fire"),
        ("once", "tomorrow", "is no moment; write e.g. '2026-12-01T09:00'"),
        ("once", "2026-12-01", "is no moment"),
        ("once", "2026-12-01T9:00", "is no moment"),
        ("once", "2026-12-01T24:00", "is no moment"),
        ("once", "2026-12-01T09:00.5", "is no moment"),
        ("once", "2026-12-01T09:00:00.", "is no moment"),
        ("once", "2026-12-01T09:00:00.1234567", "finer than microseconds; write at most six digits"),
        ("once", "2026-02-30T09:00", "is no date and time of the calendar"),
        ("once", "2026-12-01T09:00+24:00", "has no offset of a zone"),
        ("once", "2026-12-01T09:00+01:60", "has no offset of a zone"),
        ("once", "0000-12-01T09:00", "is no date and time of the calendar"),
        ("once", "0001-01-01T00:00", "is outside the years 1 to 9999"),
        ("once", "9999-12-31T23:59-12:00", "is outside the years 1 to 9999"),
    ],
)
def test_a_refusal_names_the_field_quotes_the_input_and_says_what_works(kind, text, sentence):
    error = refusal(kind, text)
    assert error.field == "schedule"
    assert str(error).startswith(f"schedule {text!r} ")
    assert sentence in str(error)


@pytest.mark.parametrize(
    ("field", "text", "sentence"),
    [
        ("days_only", "7", "has '7' in it, which is no weekday; write 0 (Sunday) to 6 (Saturday) or names"),
        ("days_only", "monday", "has 'monday' in it"),
        ("days_only", "1-", "has '' in it"),
        ("days_skip", "1,,2", "has a comma with nothing beside it; write e.g. 'mon-fri'"),
        ("days_skip", "0-6", "skips every day that days_only leaves"),
        ("days_skip", "١", "is no weekday"),
        ("dates_skip", "2026-02-31", "is not a day of the calendar; write e.g. '2026-12-25,2026-12-26'"),
        ("dates_skip", "25.12.2026", "is not a date; write year-month-day"),
        ("dates_skip", "20261225", "is not a date"),
        ("timezone", "Mars/Phobos", "is no known IANA time zone; write e.g. 'Europe/Berlin' or 'UTC'"),
        ("timezone", "", "is no known IANA time zone"),
        ("timezone", " UTC", "is no known IANA time zone"),
        ("timezone", "localtime", "is no known IANA time zone"),
        ("timezone", "right/UTC", "is no known IANA time zone"),
        ("timezone", "../../etc/passwd", "is no known IANA time zone"),
        ("timezone", "/usr/share/zoneinfo/UTC", "is no known IANA time zone"),
        ("timezone", "Europe", "is no known IANA time zone"),
        ("timezone", "Europe/", "is no known IANA time zone"),
    ],
)
@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_refuses_bad_filters_and_zones(kind, field, text, sentence):
    error = refusal(kind, KINDS[kind].example, **{field: text})
    assert error.field == field
    assert str(error).startswith(f"{field} ")
    assert sentence in str(error)


def test_an_unknown_kind_is_refused_with_the_known_ones():
    for kind in ("Cron", " cron", "weekly", ""):
        error = refusal(kind, "1")
        assert error.field == "schedule_kind"
        assert str(error) == (
            f"schedule_kind {kind!r} is no kind of schedule; write one of interval, every, daily, cron, once"
        )


@pytest.mark.parametrize("field", ["schedule", "timezone", "days_only", "days_skip", "dates_skip"])
@pytest.mark.parametrize(
    ("text", "sentence"), [("1\n", "control character"), ("1\0", "control"), ("1" * 70_000, "long")]
)
def test_line_breaks_nul_and_endless_text_are_refused_in_every_field(field, text, sentence):
    more = {} if field == "schedule" else {field: text}
    error = refusal("interval", text if field == "schedule" else "60", **more)
    assert error.field == field
    assert sentence in str(error)
    assert len(str(error)) < 250


def test_what_is_not_text_is_refused():
    error = refusal("interval", 3600)  # type: ignore[arg-type]
    assert str(error) == "schedule must be text, not '3600'"


@pytest.mark.parametrize(
    ("kind", "text", "more"),
    [
        ("cron", "0 0 * * mon", {"days_skip": "mon"}),
        ("cron", "0 0 * * 0", {"days_only": "mon-fri"}),
        ("every", "7d", {"days_only": "mon"}),
        ("every", "168h", {"days_only": "mon"}),
        ("every", "28h", {"days_only": "wed"}),
    ],
)
def test_what_the_weekday_filters_never_leave_is_refused(kind, text, more):
    error = refusal(kind, text, **more)
    assert str(error).startswith(f"schedule {text!r} never falls on a day that days_only and days_skip leave")


def test_a_weekly_period_may_fall_on_another_local_day():
    # Whole weeks since 1970 begin on Thursday in UTC, which is Wednesday in New York.
    weekly = parse("every", "7d", timezone="America/New_York", days_only="wed")
    assert fires(weekly, "2026-01-01T00:00Z", "2026-01-15T00:00Z") == ["2026-01-08T00:00:00Z", "2026-01-15T00:00:00Z"]


@pytest.mark.parametrize(
    ("text", "more"),
    [
        ("2026-12-25T09:00", {"dates_skip": "2026-12-25"}),
        ("2026-12-25T09:00", {"days_only": "mon"}),
        ("2026-12-25T23:00Z", {"timezone": "Europe/Berlin", "days_skip": "sat"}),
    ],
)
def test_a_moment_on_a_forbidden_day_is_refused(text, more):
    error = refusal("once", text, **more)
    assert str(error).startswith(f"schedule {text!r} is on ")
    assert "which days_only, days_skip or dates_skip forbid, so it would never fire" in str(error)


def test_a_moment_is_judged_by_its_local_date():
    evening = parse("once", "2026-12-25T23:00Z", timezone="Europe/Berlin", days_only="sat")
    assert evening.next_after(0) == us("2026-12-25T23:00Z")


def test_a_moment_that_a_skipped_day_swallows_is_refused():
    error = refusal("once", "2011-12-30T12:00", timezone="Pacific/Apia")
    assert str(error).startswith("schedule '2011-12-30T12:00' does not exist in Pacific/Apia")


def test_a_moment_in_a_gap_is_the_gap_end_and_a_repeated_one_the_first():
    gap = parse("once", "2026-03-29T02:30", timezone="Europe/Berlin")
    assert gap.next_after(0) == us("2026-03-29T01:00Z")
    twice = parse("once", "2026-10-25T02:30", timezone="Europe/Berlin")
    assert twice.next_after(0) == us("2026-10-25T00:30Z")
    midnight = parse("once", "2026-09-06T00:00", timezone="America/Santiago", days_only="sun")
    assert midnight.next_after(0) == us("2026-09-06T04:00Z")


def test_only_a_literal_star_leaves_a_day_field_unrestricted():
    every_day = ("0 0 1-31 * 5", "0 0 */1 * 5", "0 0 *,1 * 5")
    for text in every_day:
        assert parse("cron", text).count(us("2026-01-01T00:00Z"), us("2026-01-31T00:00Z")) == 30
    assert parse("cron", "0 0 * * 5").count(us("2026-01-01T00:00Z"), us("2026-01-31T00:00Z")) == 5
    assert parse("cron", "0 0 */2 * 1").count(us("2026-01-01T00:00Z"), us("2026-01-31T00:00Z")) == 17


def test_a_thousand_blackout_dates_are_read_each_time():
    days = ",".join(f"{year}-12-25" for year in range(2000, 3000))
    yearly = parse("cron", "0 0 25 12 *", dates_skip=days)
    assert yearly.next_after(us("2026-01-01T00:00Z")) == us("3000-12-25T00:00Z")
    assert yearly == parse("cron", "0 0 25 12 *", dates_skip=days)


@pytest.mark.parametrize("zone", ["UTC", "Europe/Berlin"])
def test_once_takes_what_isoformat_gives(zone: str) -> None:
    moment = datetime(2026, 10, 25, 3, 30, 0, 123_456, tzinfo=ZoneInfo(zone))
    for text in (moment.isoformat(), moment.replace(tzinfo=None).isoformat()):
        once = parse("once", text, timezone=zone)
        at = us("2026-10-25T03:30Z") + 123_456 - (HOUR if zone == "Europe/Berlin" else 0)
        assert once.first(0) == at
        assert once.next_after(at - 1) == at
