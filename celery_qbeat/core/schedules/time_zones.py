"""A time zone as stretches of constant offset, so that wall-clock questions become integer arithmetic."""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta, tzinfo
from functools import lru_cache
from typing import NamedTuple
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from celery_qbeat.core.schedules.text_input import refuse

SECOND = 1_000_000
DAY = 86_400 * SECOND
LONGEST_GAP = 3 * 3_600 * SECOND

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
# Two days inside the range of datetime: no zone is further than one day from UTC.
MIN_US = (datetime(1, 1, 3, tzinfo=UTC) - _EPOCH) // timedelta(microseconds=1)
MAX_US = (datetime(9999, 12, 29, tzinfo=UTC) - _EPOCH) // timedelta(microseconds=1)

# A probe every six days sees every change of offset: since 1970 the closest pair in the tz database (2026f) is just
# under seven days apart (Recife, 2000). One earlier pair is closer: Freetown, 1939.
_PROBE = 6 * DAY
_BLOCK = 366 * DAY

_NAME = re.compile(r"[A-Za-z][A-Za-z0-9_+-]*(/[A-Za-z0-9_+-]+)*")
# These files of a tz database are leap-second variants, duplicates or this machine's own setting, not zones.
_NOT_A_ZONE = ("right/", "posix/", "localtime", "posixrules")


class Span(NamedTuple):
    """A stretch of constant offset; all values are microseconds.

    `start` (inclusive) and `end` (exclusive) are UTC, `offset` is local minus UTC. Local times before `fresh` are
    the second copy of a repeated hour. Local times from `gap` up to `start + offset` are those that the clock
    jumped over at `start`; both are equal when it did not jump, or jumped by more than three hours.
    """

    start: int
    end: int
    offset: int
    fresh: int
    gap: int


class Zone:
    """The stretches of one IANA zone, found with zoneinfo on demand and kept for the life of the process."""

    __slots__ = ("_blocks", "_tz", "name")

    def __init__(self, name: str, tz: tzinfo) -> None:
        self.name = name
        self._tz = tz
        self._blocks: dict[int, tuple[list[int], list[Span]]] = {}

    def span(self, us: int) -> Span:
        """The stretch that holds the instant `us`, which must lie between MIN_US and MAX_US.

        A stretch may end without a change of offset: stretches are also cut every 366 days.
        """
        number = us // _BLOCK
        block = self._blocks.get(number)
        if block is None:
            block = self._blocks[number] = self._survey(number)
        starts, spans = block
        return spans[bisect_right(starts, us) - 1]

    def local(self, us: int) -> datetime:
        """The aware local datetime of an instant."""
        return (_EPOCH + timedelta(microseconds=us)).astimezone(self._tz)

    def _survey(self, number: int) -> tuple[list[int], list[Span]]:
        first, stop = max(number * _BLOCK, MIN_US), min((number + 1) * _BLOCK, MAX_US + 1)
        # A change shortly before the block still decides what its first local times are: copies or new.
        changes = list(self._changes(max(first - 2 * DAY, MIN_US), stop))
        cuts = [first, *(at for at, _, _ in changes if at > first)]
        spans = []
        for start, end in zip(cuts, [*cuts[1:], stop], strict=True):
            offset = self._offset(start)
            fresh = gap = start + offset
            for at, before, after in changes:
                if at <= start:
                    fresh = max(fresh, at + before)
                if at == start and 0 < after - before <= LONGEST_GAP:
                    gap = at + before
            spans.append(Span(start, end, offset, fresh, gap))
        return cuts, spans

    def _changes(self, first: int, stop: int) -> Iterator[tuple[int, int, int]]:
        """Every change of offset in (first, stop): its instant, the offset before, the offset after."""
        low, before, last = first, self._offset(first), stop - SECOND
        while low < last:
            high = min(low + _PROBE, last)
            after = self._offset(high)
            if after != before:
                yield self._bisect(low, high, before), before, after
            low, before = high, after

    def _bisect(self, low: int, high: int, before: int) -> int:
        """The instant in (low, high] at which the offset `before` ends; changes stand on whole seconds."""
        while high - low > SECOND:
            middle = (low + high) // (2 * SECOND) * SECOND
            if self._offset(middle) == before:
                low = middle
            else:
                high = middle
        return high

    def _offset(self, us: int) -> int:
        delta = self.local(us).utcoffset() or timedelta(0)
        return delta // timedelta(microseconds=1)


def zone_named(name: str, field: str = "timezone") -> Zone:
    """The zone of an IANA name, shared by all who use it. Raises ScheduleError naming `field`."""
    zone = _load(name) if len(name) <= 64 else None
    if zone is None:
        refuse(field, name, "is no known IANA time zone; write e.g. 'Europe/Berlin' or 'UTC'")
    return zone


@lru_cache(maxsize=2_048)
def _load(name: str) -> Zone | None:
    if _NAME.fullmatch(name) is None or name.startswith(_NOT_A_ZONE):
        return None
    try:
        return Zone(name, ZoneInfo(name))
    except (ZoneInfoNotFoundError, ValueError, OSError):
        return None
