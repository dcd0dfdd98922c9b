"""Says how far a long step is, so that nobody takes a working beat for a hanging one."""

from __future__ import annotations

from collections.abc import Callable

from celery_qbeat.ports import Clock

FIRST_LINE_S = 5.0
"""A step says nothing before this many seconds; each next line comes after twice the time."""


class Progress:
    """Calls `say(count, seconds)` now and then. Made at the begin of the step."""

    def __init__(self, clock: Clock, say: Callable[[int, float], None]) -> None:
        self._clock = clock
        self._say = say
        self._started = clock.monotonic()
        self._next_line_s = FIRST_LINE_S

    def note(self, count: int) -> None:
        """`count` items are done by now."""
        seconds = self._clock.monotonic() - self._started
        if seconds >= self._next_line_s:
            self._say(count, seconds)
            self._next_line_s = 2 * seconds
