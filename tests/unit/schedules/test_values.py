"""The schedules as values built in code."""

from __future__ import annotations

import math
import pickle
from dataclasses import FrozenInstanceError
from datetime import date, datetime

import pytest

from celery_qbeat.core.schedules import Cron, Daily, DayFilters, Every, Interval, Once
from celery_qbeat.errors import ScheduleError

from .instants import DAY, HOUR, MINUTE, fires, iso, us

VALUES = [
    Interval(3600, "Europe/Berlin"),
    Every(15 * MINUTE, days=DayFilters(only=frozenset({1}))),
    Daily((7200, 50400), "Europe/Berlin", DayFilters(dates_skip=frozenset({date(2026, 12, 25)}))),
    Cron(frozenset({30}), frozenset({2}), dow=frozenset({1, 2, 3, 4, 5}), fixed=True),
    Once(us("2026-12-01T09:00Z")),
]


@pytest.mark.parametrize("value", VALUES, ids=lambda value: value.kind)
def test_a_value_is_frozen_slotted_and_survives_pickling(value):
    with pytest.raises(FrozenInstanceError):
        value.zone = "UTC"
    assert not hasattr(value, "__dict__")
    twin = pickle.loads(pickle.dumps(value))
    assert twin == value
    assert {value, twin} == {value}
    assert twin.next_after(0) == value.next_after(0)


def test_equal_definitions_are_equal_however_they_were_ordered():
    assert Daily((50400, 7200, 7200)) == Daily((7200, 50400))
    assert Interval(60) == Interval(60.0)
    assert Cron(minute=frozenset([3, 1])) == Cron(minute=frozenset([1, 3]))
    assert Daily((0,), "UTC") != Daily((0,), "Etc/UTC")
    assert Daily((0,)) != Daily((0,), days=DayFilters(skip=frozenset({0})))


def test_a_cron_prints_as_its_five_fields():
    assert str(VALUES[3]) == "30 2 * * 1,2,3,4,5"
    assert str(Cron()) == "* * * * *"
    assert str(Cron(dom=frozenset(range(1, 32)), dow=frozenset({0}))) == "* * 1-31 * 0"
    assert str(Every(90 * MINUTE)) == "90m"
    assert str(Every(DAY)) == "1d"
    assert str(Every(7)) == "7 us"


@pytest.mark.parametrize(
    "build",
    [
        lambda: Interval(0),
        lambda: Interval(-1),
        lambda: Interval(math.nan),
        lambda: Interval(math.inf),
        lambda: Interval(10**400),
        lambda: Interval(1e-7),
        lambda: Interval("60"),
        lambda: Every(0),
        lambda: Every(7 * DAY + 1),
        lambda: Every(60.0),
        lambda: Every(7 * DAY, days=DayFilters(only=frozenset({1}))),
        lambda: Daily(()),
        lambda: Daily((86_400,)),
        lambda: Daily((-1,)),
        lambda: Daily(("02:00", 1)),
        lambda: Cron(minute=frozenset()),
        lambda: Cron(minute=frozenset({60})),
        lambda: Cron(hour=frozenset({"1"})),
        lambda: Cron(dow=frozenset({7})),
        lambda: Cron(month=frozenset({0})),
        lambda: Cron(both_days="xor"),
        lambda: Cron(dom=frozenset({31}), month=frozenset({2})),
        lambda: Cron(dom=frozenset({30}), month=frozenset({2}), dow=frozenset({1}), both_days="and"),
        lambda: Cron(dow=frozenset({1}), days=DayFilters(skip=frozenset({1}))),
        lambda: Once(1 << 62),
        lambda: Once(0, wall_us=1 << 62),
        lambda: Once(0, days=DayFilters(only=frozenset({1}))),
        lambda: Once.at_wall(-(1 << 62)),
        lambda: Once.at_wall(us("2011-12-30T12:00Z"), "Pacific/Apia"),
        lambda: DayFilters(only=frozenset({7})),
        lambda: DayFilters(skip=frozenset({"mon"})),
        lambda: DayFilters(skip=frozenset(range(7))),
        lambda: DayFilters(only=frozenset({1}), skip=frozenset({1})),
        lambda: DayFilters(dates_skip=frozenset({"2026-12-25"})),
        lambda: DayFilters(dates_skip=frozenset({datetime(2026, 12, 25)})),  # noqa: DTZ001
        lambda: Daily((0,), "Mars/Phobos"),
    ],
)
def test_a_value_that_cannot_be_meant_is_refused(build):
    with pytest.raises(ScheduleError, match=r"[;,] (use|write|leave) "):
        build()


def test_an_interval_is_due_at_once_and_then_from_each_dispatch():
    hourly = Interval(3600)
    now = us("2026-06-04T12:34:56Z") + 7
    assert hourly.first(now) == now
    assert hourly.after_run(now, now) == now + HOUR
    assert hourly.after_run(now, now + 10 * HOUR) == now + 11 * HOUR


def test_an_interval_moves_off_forbidden_days_to_the_first_instant_of_the_next_allowed_one():
    weekdays = Interval(3600, "Europe/Berlin", DayFilters(only=frozenset(range(1, 6))))
    friday_night = us("2026-06-05T21:30Z")
    assert iso(weekdays.after_run(0, friday_night)) == "2026-06-07T22:00:00Z"
    saturday = us("2026-06-06T10:00Z")
    assert iso(weekdays.first(saturday)) == "2026-06-07T22:00:00Z"
    # Cairo's 24 April 2026 begins at one o'clock.
    cairo = Interval(60, "Africa/Cairo", DayFilters(dates_skip=frozenset({date(2026, 4, 23)})))
    assert iso(cairo.first(us("2026-04-23T10:00Z"))) == "2026-04-23T22:00:00Z"
    # Apia has no 30 December 2011.
    apia = Interval(60, "Pacific/Apia", DayFilters(dates_skip=frozenset({date(2011, 12, 29)})))
    assert iso(apia.first(us("2011-12-29T12:00Z"))) == "2011-12-30T10:00:00Z"


def test_a_period_takes_its_current_slot_at_once_and_the_next_one_on_a_forbidden_day():
    hourly = Every(HOUR)
    assert iso(hourly.first(us("2026-06-04T12:34Z"))) == "2026-06-04T12:00:00Z"
    assert iso(hourly.first(us("2026-06-04T12:00Z"))) == "2026-06-04T12:00:00Z"
    mondays = Every(HOUR, days=DayFilters(only=frozenset({1})))
    assert iso(mondays.first(us("2026-06-04T12:34Z"))) == "2026-06-08T00:00:00Z"
    assert iso(mondays.latest(us("2026-06-04T12:34Z"))) == "2026-06-01T23:00:00Z"
    assert mondays.count(us("2026-06-01T00:00Z") - 1, us("2026-06-30T00:00Z")) == 5 * 24


def test_calendar_schedules_begin_with_their_next_slot():
    daily = Daily((7200,))
    assert iso(daily.first(us("2026-06-04T02:00Z"))) == "2026-06-05T02:00:00Z"
    assert iso(daily.after_run(us("2026-06-05T02:00Z"), us("2026-06-05T02:00:03Z"))) == "2026-06-06T02:00:00Z"
    # A clock that was set back does not bring a slot again.
    assert iso(daily.after_run(us("2026-06-05T02:00Z"), us("2026-06-01T00:00Z"))) == "2026-06-06T02:00:00Z"
    assert iso(daily.latest(us("2026-06-05T01:59Z"))) == "2026-06-04T02:00:00Z"


def test_a_moment_is_first_even_when_past_and_then_never_again():
    moment = us("2026-12-01T09:00Z")
    once = Once(moment)
    assert once.first(moment + DAY) == moment
    assert once.next_after(moment - 1) == moment
    assert once.next_after(moment) is None
    assert once.after_run(moment, moment + 5) is None
    assert once.latest(moment - 1) is None
    assert once.latest(moment) == once.latest(moment + 40 * 366 * DAY) == moment
    assert (once.count(moment - 1, moment), once.count(moment, moment + 1)) == (1, 0)


def test_the_fixed_flag_alone_decides_about_the_second_copy():
    def half_past_two(fixed):
        cron = Cron(frozenset({30}), frozenset({2}), fixed=fixed, zone="Europe/Berlin")
        return fires(cron, "2026-10-25T00:00Z", "2026-10-25T12:00Z")

    assert half_past_two(True) == ["2026-10-25T00:30:00Z"]
    assert half_past_two(False) == ["2026-10-25T00:30:00Z", "2026-10-25T01:30:00Z"]


def test_times_of_a_whole_repeated_day_fire_once_when_fixed():
    # Kwajalein lived 30 September 1969 twice but for an hour.
    assert fires(Daily((43_200,), "Pacific/Kwajalein"), "1969-09-29T00:00Z", "1969-10-02T00:00Z") == [
        "1969-09-29T01:00:00Z",
        "1969-09-30T01:00:00Z",
        "1969-10-02T00:00:00Z",
    ]


def test_a_rare_date_is_found_across_the_century():
    leap_monday = Cron(
        frozenset({0}), frozenset({0}), frozenset({29}), frozenset({2}), frozenset({1}), "and", zone="Europe/Berlin"
    )
    assert iso(leap_monday.next_after(us("2026-01-01T00:00Z"))) == "2044-02-28T23:00:00Z"
    assert iso(leap_monday.next_after(us("2073-01-01T00:00Z"))) == "2112-02-28T23:00:00Z"
    assert leap_monday.latest(us("2111-01-01T00:00Z")) is None
    assert leap_monday.count(us("2000-01-01T00:00Z"), us("2113-01-01T00:00Z")) == 4


@pytest.mark.parametrize("value", VALUES[:4], ids=lambda value: value.kind)
@pytest.mark.parametrize("zone", ["UTC", "Pacific/Kiritimati", "Etc/GMT+12", "Europe/Berlin"])
def test_the_end_of_the_calendar_is_none_and_never_an_overflow(value, zone):
    value = type(value)(*(zone if part == value.zone else part for part in value.__reduce__()[1]))
    end = us("9999-12-28T00:00Z")
    slot, seen = end, 0
    while slot is not None:
        seen += 1
        assert slot < us("9999-12-31T23:59Z")
        slot = value.next_after(slot)
    assert seen < 200
    for far in (1 << 63, 1 << 80, us("9999-12-31T23:59Z")):
        assert value.next_after(far) is None
        assert value.first(far) is None
        assert value.after_run(0, far) is None
        assert value.latest(far) is None or value.latest(far) < far
        assert value.count(end + 10 * DAY, far) == 0
    for far in (-(1 << 63), -(1 << 80)):
        assert value.next_after(far) < us("0001-02-01T00:00Z")
        assert value.latest(far) is None
        assert value.count(far, far + DAY) == 0
