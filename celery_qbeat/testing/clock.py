"""A clock for tests."""

from __future__ import annotations


class FakeClock:
    """A clock that stands still until it is moved."""

    def __init__(self, now_us: int = 1_767_225_600_000_000, monotonic: float = 0.0) -> None:
        self._now_us = now_us
        self._monotonic = monotonic

    def now_us(self) -> int:
        return self._now_us

    def monotonic(self) -> float:
        return self._monotonic

    def advance(self, seconds: float) -> None:
        """Time passes: both clocks go on."""
        self._now_us += round(seconds * 1_000_000)
        self._monotonic += seconds

    def set_wall(self, now_us: int) -> None:
        """Somebody sets the wall clock; no time passes."""
        self._now_us = now_us
