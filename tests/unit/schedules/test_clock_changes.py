"""Single cases at clock changes that a random instant seldom meets."""

from __future__ import annotations

import struct
from datetime import date
from io import BytesIO
from zoneinfo import ZoneInfo

import pytest

from celery_qbeat.core.schedules import Cron, Daily, DayFilters, Every
from celery_qbeat.core.schedules.date_sets import dates_of
from celery_qbeat.core.schedules.time_zones import Zone
from celery_qbeat.core.schedules.wall_clock import WallClockSlots

from .instants import DAY, HOUR, MINUTE, iso, us


def test_a_yearly_job_is_found_in_the_second_copy_too():
    yearly = Cron(frozenset({30}), frozenset({2}), frozenset({25}), frozenset({10}), zone="Europe/Berlin")
    assert iso(yearly.next_after(us("2026-10-25T00:45Z"))) == "2026-10-25T01:30:00Z"
    assert iso(yearly.next_after(us("2026-10-25T01:30Z"))) == "2027-10-25T00:30:00Z"


def test_a_firing_shared_by_a_gap_and_a_regular_time_counts_once():
    hourly = Cron(minute=frozenset({0}), zone="Europe/Berlin")
    assert hourly.count(us("2026-03-28T23:59Z"), us("2026-03-29T02:00Z")) == 3
    assert hourly.count(us("2026-03-29T00:00Z"), us("2026-03-29T01:00Z")) == 1


def test_the_latest_fixed_slot_of_a_second_copy_lies_in_the_first():
    twice = Daily((2 * 3600 + 1800, 2 * 3600 + 3300), "Europe/Berlin")
    assert iso(twice.latest(us("2026-10-25T01:40Z"))) == "2026-10-25T00:55:00Z"
    assert iso(twice.latest(us("2026-10-25T00:54Z"))) == "2026-10-25T00:30:00Z"


def test_the_latest_slot_of_a_period_is_found_before_a_forbidden_day_of_23_hours():
    sunday_off = Every(30 * MINUTE, "Europe/Berlin", DayFilters(skip=frozenset({0})))
    assert iso(sunday_off.latest(us("2026-03-29T12:00Z"))) == "2026-03-28T22:30:00Z"
    assert iso(sunday_off.next_after(us("2026-03-28T22:30Z"))) == "2026-03-29T22:00:00Z"
    assert sunday_off.count(us("2026-03-28T22:00Z"), us("2026-03-29T22:00Z")) == 2


def test_a_local_date_that_comes_back_for_an_hour_is_allowed_again():
    # At 00:01 on 29 October 2006 the clocks of St. John's went back to 23:01 on the 28th.
    quarters = Every(15 * MINUTE, "America/St_Johns", DayFilters(dates_skip=frozenset({date(2006, 10, 29)})))
    assert iso(quarters.latest(us("2006-10-29T12:00Z"))) == "2006-10-29T03:15:00Z"
    assert quarters.count(us("2006-10-29T02:15Z"), us("2006-10-29T12:00Z")) == 3


def zone_with_a_change(at: int, offset: int) -> Zone:
    """A zone of its own: UTC, and `offset` microseconds away from it from the instant `at` on."""
    header = struct.pack(">4s16x6l", b"TZif", 0, 0, 0, 1, 2, 4)
    types = struct.pack(">lBBlBB", 0, 0, 0, offset // 1_000_000, 0, 0)
    data = header + struct.pack(">lB", at // 1_000_000, 1) + types + b"XXX\0"
    return Zone("Test/Zone", ZoneInfo.from_file(BytesIO(data)))


# Zones are surveyed in pieces of 366 days; a change beside a seam must look like any other.
SEAM = 56 * 366 * DAY


@pytest.mark.parametrize("at", [SEAM - 30 * MINUTE, SEAM, SEAM + 30 * MINUTE, SEAM - HOUR, SEAM + HOUR])
@pytest.mark.parametrize("fixed", [True, False])
def test_a_repeated_hour_across_a_seam_of_the_survey(at, fixed):
    zone = zone_with_a_change(at, -HOUR)
    shown = at - 15 * MINUTE
    wall = WallClockSlots(zone, dates_of(), (shown % DAY,), fixed)
    copies = [shown] if fixed else [shown, shown + HOUR]
    found = []
    while not found or found[-1] < shown + HOUR:
        found.append(wall.next_after(found[-1] if found else at - 2 * HOUR))
    assert [slot for slot in found if slot <= at + 2 * HOUR] == copies
    assert wall.count(at - 2 * HOUR, at + 2 * HOUR) == len(copies)
    assert wall.latest(at + 2 * HOUR, 0) == copies[-1]
    assert [wall.note(slot)[:13] for slot in copies] == ["first of two ", "second of two"][: len(copies)]


@pytest.mark.parametrize("at", [SEAM - 30 * MINUTE, SEAM, SEAM + 30 * MINUTE, SEAM - HOUR, SEAM + HOUR])
def test_a_gap_across_a_seam_of_the_survey(at):
    zone = zone_with_a_change(at, HOUR)
    wall = WallClockSlots(zone, dates_of(), ((at + 20 * MINUTE) % DAY,), fixed=True)
    assert wall.next_after(at - 2 * HOUR) == at
    assert wall.count(at - 2 * HOUR, at + 2 * HOUR) == 1
    assert wall.latest(at + 2 * HOUR, 0) == at
    assert "does not exist that day" in wall.note(at)
