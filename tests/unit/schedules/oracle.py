"""A second opinion on calendar schedules, sharing nothing with the package.

It walks every UTC minute, asks zoneinfo what the wall clock shows, and decides by looking: a minute fires when the
clock shows a wanted time, or has just jumped (by at most three hours) over one.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, date, datetime
from functools import lru_cache
from zoneinfo import ZoneInfo

FIRST_MINUTE = int(datetime(2020, 1, 1, tzinfo=UTC).timestamp()) // 60
LAST_MINUTE = int(datetime(2036, 1, 1, tzinfo=UTC).timestamp()) // 60
HALF_DAY = 12 * 60

# Whether a schedule wants a nominal date and minute of the day.
Wanted = Callable[[date, int], bool]


@dataclass(frozen=True)
class Walk:
    """What the wall clock shows at each UTC minute from `first` on: minutes since 0001-01-01 00:00 local, and the fold.

    One minute more at the start, so that a jump into the first minute is seen.
    """

    first: int
    shown: tuple[tuple[int, int], ...]


def changes(zone: ZoneInfo) -> list[int]:
    """The first minute of every new offset from 2020 to 2035."""
    found = []
    known = _wall(zone, FIRST_MINUTE).utcoffset()
    for probe in range(FIRST_MINUTE + HALF_DAY, LAST_MINUTE + 1, HALF_DAY):
        offset = _wall(zone, probe).utcoffset()
        if offset != known:
            minute = next(m for m in range(probe - HALF_DAY, probe + 1) if _wall(zone, m).utcoffset() == offset)
            found.append(minute)
            known = offset
    return found


def walk(zone: ZoneInfo, first: int, last: int) -> Walk:
    """Every minute from first to last."""
    shown = []
    for minute in range(first - 1, last + 1):
        wall = _wall(zone, minute)
        shown.append((wall.toordinal() * 1440 + wall.hour * 60 + wall.minute, wall.fold))
    return Walk(first, tuple(shown))


def firings(walk: Walk, wanted: Wanted, fixed: bool) -> list[int]:
    """The UTC minutes of a walk at which a schedule fires."""
    found = []
    before = walk.shown[0][0]
    for minute, (wall, fold) in enumerate(walk.shown[1:], walk.first):
        jump = wall - before - 1
        jumped = range(before + 1, wall) if 0 < jump <= 180 else range(0)
        shows = _wants(wanted, wall) and not (fixed and fold)
        if shows or any(_wants(wanted, skipped) for skipped in jumped):
            found.append(minute)
        before = wall
    return found


def _wall(zone: ZoneInfo, minute: int) -> datetime:
    return datetime.fromtimestamp(minute * 60, zone)


@lru_cache(maxsize=1 << 16)
def _wants(wanted: Wanted, wall: int) -> bool:
    return wanted(date.fromordinal(wall // 1440), wall % 1440)
