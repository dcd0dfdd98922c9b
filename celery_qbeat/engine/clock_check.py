"""The database's clock as a second opinion about the time."""

from __future__ import annotations

from celery_qbeat.engine import log_events
from celery_qbeat.errors import QbeatError
from celery_qbeat.ports import Clock, Store

WARN_US = 5_000_000
"""A difference of this many microseconds between the two clocks is logged."""

STOP_US = 600_000_000
"""At a difference of this many microseconds nothing is dispatched: nobody knows which clock is right."""


class ClocksDisagree(QbeatError):
    """The clocks of this machine and of the database are too far apart to dispatch anything."""


class ClockCheck:
    """Compares the two clocks and says when they begin and cease to differ."""

    def __init__(self, clock: Clock, store: Store) -> None:
        self._clock = clock
        self._store = store
        self._warned = False

    def compare(self) -> None:
        """One round trip. Raises ClocksDisagree at a difference of `STOP_US` or more.

        The answer is from some moment between question and answer, so a slow round trip shows no difference.
        """
        before = self._clock.now_us()
        theirs = self._store.clock_us()
        after = self._clock.now_us()
        if theirs is None:
            return
        ahead = max(0, before - theirs) - max(0, theirs - max(before, after))
        if abs(ahead) >= STOP_US:
            raise ClocksDisagree(_sentence(ahead))
        if abs(ahead) >= WARN_US and not self._warned:
            log_events.clocks_differ(_sentence(ahead))
        elif self._warned and abs(ahead) < WARN_US:
            log_events.clocks_agree()
        self._warned = abs(ahead) >= WARN_US


def _sentence(ahead: int) -> str:
    side = "ahead of" if ahead > 0 else "behind"
    return f"this machine's clock is {abs(ahead) / 1_000_000:.1f} s {side} the database's clock"
