"""Microseconds as people read them."""

from __future__ import annotations

import time
from datetime import UTC, datetime, timedelta, tzinfo
from itertools import pairwise
from zoneinfo import ZoneInfo

from django.conf import settings
from django.utils import timezone
from django.utils.html import format_html
from django.utils.safestring import SafeString

SECOND, MINUTE, HOUR, DAY = 1_000_000, 60_000_000, 3_600_000_000, 86_400_000_000

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_UNITS = ((DAY, "d"), (HOUR, "h"), (MINUTE, "min"), (SECOND, "s"))


def now_us() -> int:
    """The wall clock, in microseconds since the epoch."""
    return time.time_ns() // 1000


def viewers_zone() -> tzinfo:
    """The zone that this page's times are shown in: Django's current one."""
    zone: tzinfo = timezone.get_current_timezone() if settings.USE_TZ else ZoneInfo(settings.TIME_ZONE or "UTC")
    return zone


def moment(us: int | str, zone: tzinfo | None = None) -> datetime | None:
    """The instant in a zone (the viewer's, if none is given); None outside the years 1 to 9999, and for a text."""
    try:
        return None if isinstance(us, str) else (_EPOCH + timedelta(microseconds=us)).astimezone(zone or viewers_zone())
    except (OverflowError, ValueError):
        return None


def microseconds(when: datetime) -> int:
    """The instant of an aware datetime."""
    return (when - _EPOCH) // timedelta(microseconds=1)


def clock(us: int | str | None, zone: tzinfo | None = None) -> str:
    """`2026-11-29 20:24:03`; a dash for none, the number itself for what no calendar has."""
    if us is None:
        return "–"
    found = moment(us, zone)
    return str(us) if found is None else found.strftime("%Y-%m-%d %H:%M:%S")


def length(us: int) -> str:
    """`850 ms`, `12.5 s`, `3 min 20 s`, `2 h 5 min`, `9 d 3 h`."""
    if us < SECOND:
        return f"{us // 1000} ms"
    if us < MINUTE:
        return f"{us / SECOND:.3g} s"
    for (size, name), (smaller, small_name) in pairwise(_UNITS):
        if us >= size:
            whole, rest = us // size, us % size // smaller
            return f"{whole} {name} {rest} {small_name}" if rest and whole < 100 else f"{whole} {name}"
    raise AssertionError(us)


def ago(us: int, now: int) -> str:
    """`3 min 20 s ago`, `in 2 h`, `now`."""
    if abs(us - now) < SECOND:
        return "now"
    return f"{length(now - us)} ago" if us < now else f"in {length(us - now)}"


def short(us: int, now: int) -> str:
    """The clock without what goes without saying: `21:49:07` today, `Mon 30 Nov 02:30` this year."""
    found, today = moment(us), moment(now)
    if found is None or today is None:
        return str(us)
    if found.date() == today.date():
        return found.strftime("%H:%M:%S")
    return found.strftime("%a %d %b %H:%M" if found.year == today.year else "%Y-%m-%d %H:%M")


def cell(us: int | None, now: int, *, quiet: bool = False) -> SafeString | str:
    """A time for a table: as short as can be, and how far away that is; the rest is in its title.

    `quiet`: on one line, as the small print of something else.
    """
    found = None if us is None else moment(us)
    if us is None or found is None:
        return "–" if us is None else str(us)
    title = f"{clock(us)} ({clock(us, UTC)} UTC)"
    if quiet:
        words = '<time class="qb-quiet qb-ltr" datetime="{}" title="{}">{}</time>'
        return format_html(words, found.isoformat(), title, ago(us, now))
    words = '<time class="qb-ltr" datetime="{}" title="{}">{}</time><br><span class="qb-quiet"><bdi>{}</bdi></span>'
    return format_html(words, found.isoformat(), title, short(us, now), ago(us, now))
