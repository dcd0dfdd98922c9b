"""How long ticks have failed, and what follows from it: the lock goes back, so that another beat may try."""

from __future__ import annotations

from typing import Literal

from celery_qbeat.ports import Clock

Cause = Literal["database", "clock", "unknown"]


class Outage:
    """Failed ticks in a row, whatever the error. `give_back_s`: after this many seconds the lock goes back."""

    def __init__(self, clock: Clock, give_back_s: float) -> None:
        self._clock = clock
        self._give_back_s = give_back_s
        self._since: float | None = None
        self._failed_at = 0.0
        self.cause: Cause = "unknown"
        self.given_back = False
        """Whether this beat has given the lock back and has not asked for it since."""

    def __bool__(self) -> bool:
        """Whether the last tick failed."""
        return self._since is not None

    def begin(self, cause: Cause) -> bool:
        """Count a failed tick; whether it is the first one with this cause. `clock`: the lock goes back at once."""
        now, first = self._clock.monotonic(), self._since is None or cause != self.cause
        if self._since is None:
            self._since = now
        self.cause, self.given_back, self._failed_at = cause, False, now
        return first

    def end(self) -> float:
        """The cause is over. Returns how many seconds it lasted."""
        since, self._since, self.given_back = self._since, None, False
        return 0.0 if since is None else self._clock.monotonic() - since

    @property
    def is_long(self) -> bool:
        """Whether another beat shall have its chance."""
        if self._since is None:
            return False
        return self.cause == "clock" or self._clock.monotonic() - self._since >= self._give_back_s

    @property
    def is_fresh(self) -> bool:
        """Whether the last failed tick is so near that a beat that cannot test the cause shall not try again."""
        return self._clock.monotonic() - self._failed_at < self._give_back_s
