"""An error that nobody foresaw may come at every tick: it is logged with its traceback once, then counted."""

from __future__ import annotations

from celery_qbeat.engine import log_events
from celery_qbeat.ports import Clock

COUNT_EVERY_S = 60.0
"""Seconds between two lines about an error that repeats itself."""


class RepeatedErrors:
    """Logs the first one of equal errors in a row in full, and the others by their number once a minute."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._last = ""
        self._count = 0
        self._said_at = 0.0

    def log(self, error: Exception) -> None:
        """Log this error, or count it when it is the last one again."""
        now, text = self._clock.monotonic(), repr(error)
        if text != self._last:
            self._last, self._count, self._said_at = text, 0, now
            log_events.bug(error)
            return
        self._count += 1
        if now - self._said_at >= COUNT_EVERY_S:
            log_events.bug_again(error, self._count, now - self._said_at)
            self._count, self._said_at = 0, now
