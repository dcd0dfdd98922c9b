"""What `daily` and `cron` share: their slots come from the calendar engine."""

from __future__ import annotations

from typing import ClassVar

from celery_qbeat.core.schedules.base import THIRTY_YEARS_US
from celery_qbeat.core.schedules.wall_clock import WallClockSlots


class CalendarSchedule:
    """The arithmetic of a schedule that has a Wall."""

    __slots__ = ()

    _wall: WallClockSlots
    relative: ClassVar[bool] = False

    def next_after(self, t: int, /) -> int | None:
        """The first slot strictly later than t."""
        return self._wall.next_after(t)

    def first(self, now: int, /) -> int | None:
        """The first slot strictly later than now."""
        return self._wall.next_after(now)

    def after_run(self, slot: int, now: int, /) -> int | None:
        """The next slot after both."""
        return self._wall.next_after(max(slot, now))

    def latest(self, now: int, /) -> int | None:
        """The newest slot not later than now, at most 30 years back."""
        return self._wall.latest(now, now - THIRTY_YEARS_US)

    def count(self, after: int, until: int, /) -> int:
        """Slots in (after, until]; the work grows with months, not with slots."""
        return self._wall.count(after, until)

    def note(self, us: int) -> str:
        """What a clock change did to the slot `us`, in words; '' on an ordinary day."""
        return self._wall.note(us)
