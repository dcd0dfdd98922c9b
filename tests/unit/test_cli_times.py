"""Times as the commands read and write them."""

from __future__ import annotations

import json
from datetime import datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from celery_qbeat.cli import times
from celery_qbeat.core.safe_text import one_line
from celery_qbeat.errors import QbeatError

SECOND, HOUR, DAY = 1_000_000, 3_600_000_000, 86_400_000_000
SECONDS = st.integers(30_000_000, 8_000_000_000)


def us(text: str) -> int:
    return round(datetime.fromisoformat(text).timestamp() * SECOND)


@given(SECONDS)
def test_a_time_in_utc_reads_back_as_itself(seconds: int) -> None:
    at = seconds * SECOND
    assert times.read_instant(times.utc(at), "Asia/Tokyo", 0, "--from") == at
    assert times.read_instant(str(at), "UTC", 0, "--from") == at


@pytest.mark.parametrize(
    ("text", "zone", "expected"),
    [
        ("2026-06-01T12:00", "Europe/Berlin", "2026-06-01T10:00:00+00:00"),
        ("2026-06-01", "Europe/Berlin", "2026-05-31T22:00:00+00:00"),
        ("2026-06-01T12:00:30Z", "Europe/Berlin", "2026-06-01T12:00:30+00:00"),
        ("2026-06-01 12:00+05:30", "UTC", "2026-06-01T06:30:00+00:00"),
        ("2026-03-29T02:30", "Europe/Berlin", "2026-03-29T01:00:00+00:00"),
        ("2026-10-25T02:30", "Europe/Berlin", "2026-10-25T00:30:00+00:00"),
    ],
)
def test_a_time_without_an_offset_is_local_to_the_zone(text: str, zone: str, expected: str) -> None:
    assert times.read_instant(text, zone, 0, "--from") == us(expected)


@pytest.mark.parametrize("text", ["", "yesterday", "2026-13-01", "25:00", "1h", "2026-06-01T12:00+99:00"])
def test_what_is_no_time_is_quoted_with_one_that_works(text: str) -> None:
    with pytest.raises(QbeatError, match=r"--from: .* is no time; write e\.g\. 2026-12-01T09:00"):
        times.read_instant(text, "UTC", 0, "--from")


def test_now_and_so_long_ago_are_times() -> None:
    assert times.read_instant("now", "UTC", 5, "--from") == 5
    assert times.read_past("90s", "UTC", 100 * SECOND, "--since") == 10 * SECOND
    assert times.read_past("2w", "UTC", 15 * DAY, "--since") == DAY
    assert times.read_past("1970-01-02", "UTC", 0, "--since") == DAY


@pytest.mark.parametrize(
    ("apart", "expected"),
    [
        (-5 * SECOND, "5 s ago"),
        (0, "now"),
        (999_999, "now"),
        (90 * SECOND, "in 90 s"),
        (3 * 60 * SECOND, "in 3 min"),
        (-2 * HOUR, "2 h ago"),
        (3 * DAY, "in 3 d"),
    ],
)
def test_ages_are_in_words(apart: int, expected: str) -> None:
    now = 50 * DAY
    assert times.relative(now + apart, now) == expected
    assert times.relative(None, now) == "-"


@pytest.mark.parametrize(
    ("duration", "expected"),
    [
        (0, "0.00 s"),
        (350_000, "0.35 s"),
        (12 * SECOND, "12 s"),
        (200 * SECOND, "3 min 20 s"),
        (2 * HOUR, "2 h"),
        (76 * HOUR, "3 d 4 h"),
    ],
)
def test_durations_have_two_units_at_most(duration: int, expected: str) -> None:
    assert times.lasting(duration) == expected


@given(st.integers(-(1 << 62), 1 << 62), st.text())
def test_any_number_and_any_zone_can_be_shown(at: int, zone: str) -> None:
    assert times.clock(at, zone)
    assert times.local(at, "Europe/Berlin")
    assert json.dumps(times.stamp("slot", at))


def test_json_has_microseconds_and_iso_side_by_side() -> None:
    assert times.stamp("slot", 1_500_000) == {"slot_us": 1_500_000, "slot": "1970-01-01T00:00:01.500000Z"}
    assert times.stamp("slot", None) == {"slot_us": None, "slot": None}


@given(st.text())
def test_what_is_printed_of_a_row_is_one_line_without_control_characters(text: str) -> None:
    assert one_line(text).isprintable()


def test_an_escape_sequence_in_a_row_does_not_reach_the_terminal() -> None:
    assert one_line("a\x1b[2Jb\nc") == "a\\x1b[2Jb\\nc"
    assert one_line("größe") == "größe"
