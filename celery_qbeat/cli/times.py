"""Times as people write and read them. Integer microseconds since the epoch on our side."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta

from celery_qbeat.core.schedules import parse
from celery_qbeat.core.schedules.time_zones import MAX_US, MIN_US, zone_named
from celery_qbeat.errors import QbeatError, ScheduleError

SECOND = 1_000_000
_UNITS = {"s": SECOND, "m": 60 * SECOND, "h": 3_600 * SECOND, "d": 86_400 * SECOND, "w": 7 * 86_400 * SECOND}
_DURATION = re.compile(r"([0-9]{1,9})([smhdw])")
_MICROSECONDS = re.compile(r"-?[0-9]{9,17}")
_DATE = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}")
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def utc(us: int) -> str:
    """ISO 8601 in UTC, `2026-12-01T09:00:00Z`, with a fraction only where there is one."""
    if not MIN_US <= us <= MAX_US:
        return f"{us} us"
    return (_EPOCH + timedelta(microseconds=us)).replace(tzinfo=None).isoformat() + "Z"


def local(us: int, zone: str) -> str:
    """ISO 8601 in a zone, with its offset; in UTC when the zone is none."""
    try:
        return zone_named(zone).local(us).isoformat() if MIN_US <= us <= MAX_US else f"{us} us"
    except ScheduleError:
        return utc(us)


def clock(us: int, zone: str) -> str:
    """For people: whole seconds, a blank for the T; `Z` in UTC, else the offset."""
    whole = us // SECOND * SECOND
    return (utc(whole) if zone == "UTC" else local(whole, zone)).replace("T", " ")


def relative(us: int | None, now_us: int) -> str:
    """`3 min ago`, `in 2 h`; '-' for None."""
    if us is None:
        return "-"
    if abs(us - now_us) < SECOND:
        return "now"
    return f"in {_round(us - now_us)}" if us > now_us else f"{_round(now_us - us)} ago"


def _round(us: int) -> str:
    seconds = us // SECOND
    for size, unit in ((86_400, "d"), (3_600, "h"), (60, "min")):
        if seconds >= 2 * size:
            return f"{seconds // size} {unit}"
    return f"{seconds} s"


def lasting(us: int) -> str:
    """A duration: `0.35 s`, `12 s`, `3 min 20 s`, `2 h 5 min`, `3 d 4 h`."""
    if us < 10 * SECOND:
        return f"{us / SECOND:.2f} s"
    seconds = us // SECOND
    for size, unit, less, small in ((86_400, "d", 3_600, "h"), (3_600, "h", 60, "min"), (60, "min", 1, "s")):
        if seconds >= size:
            rest = seconds % size // less
            return f"{seconds // size} {unit} {rest} {small}" if rest else f"{seconds // size} {unit}"
    return f"{seconds} s"


def stamp(name: str, us: int | None) -> dict[str, int | str | None]:
    """For JSON: `<name>_us` and `<name>` in ISO."""
    return {f"{name}_us": us, name: None if us is None else utc(us)}


def read_duration(text: str) -> int | None:
    """`90s`, `15m`, `1h`, `7d`, `2w`; None for anything else."""
    found = _DURATION.fullmatch(text.strip())
    return None if found is None else int(found[1]) * _UNITS[found[2]]


def read_instant(text: str, zone: str, now_us: int, field: str) -> int:
    """An ISO time, local to the zone unless it has an offset; a date alone is its midnight; `now`; or microseconds.

    Raises QbeatError naming `field`.
    """
    word = text.strip()
    if word == "now":
        return now_us
    if _MICROSECONDS.fullmatch(word):
        return int(word)
    zone_named(zone)
    try:
        moment = parse("once", f"{word}T00:00" if _DATE.fullmatch(word) else word, timezone=zone)
    except ScheduleError:
        raise QbeatError(
            f"{field}: {text!r} is no time; write e.g. 2026-12-01T09:00, 2026-12-01T09:00Z or now"
        ) from None
    at_us = moment.first(0)
    if at_us is None:
        raise QbeatError(f"{field}: {text!r} is no time")
    return at_us


def read_past(text: str, zone: str, now_us: int, field: str) -> int:
    """As `read_instant`; a duration means so long ago."""
    ago = read_duration(text)
    return read_instant(text, zone, now_us, field) if ago is None else now_us - ago
