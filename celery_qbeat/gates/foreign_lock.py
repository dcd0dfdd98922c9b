"""A lock that no beat made, or that has no TTL: somebody else wrote to its key, and would keep all beats waiting."""

from __future__ import annotations

import re

from celery_qbeat.process.safe_logging import get_logger

log = get_logger()

ANOTHER = "another beat is the writer"

UNKNOWN = "somebody unknown holds the lock"

ENDLESS = -1
"""What PTTL says of a key that has no end."""

PATIENCE_S = 60.0
"""The least time for which a lock without TTL must stay unchanged before it is taken over, in seconds."""

TELL_AGAIN_S = 600.0
"""Seconds between two warnings about the same lock."""

_VALUE = re.compile(rb"[0-9a-f]{32}:\d+")


def is_beats_value(value: bytes) -> bool:
    """Whether a beat could have written this value of the lock."""
    return _VALUE.fullmatch(value) is not None


class ForeignLock:
    """Follows the lock while somebody else has it.

    A lock without TTL that nobody touches is taken over: a beat that lives gives its lock an end at every poll, and
    whatever else wrote there keeps nothing alive. A lock with a TTL ends by itself.
    """

    def __init__(self, patience_s: float, where: str) -> None:
        self._patience_s = max(PATIENCE_S, patience_s)
        self._where = where
        self._mark = ""
        self._since = self._tell_again = float("-inf")
        self.reason = ANOTHER

    def see(self, key: str, value: bytes, mark: str, left_ms: int, now: float) -> None:
        """Another one holds the lock `key`.

        Args:
            key: the lock's key, for the log.
            value: the begin of what is in it; empty when it is no text at all.
            mark: the same for as long as the value is the same.
            left_ms: what PTTL says.
            now: monotonic seconds.
        """
        readable, endless = is_beats_value(value), left_ms == ENDLESS
        self.reason = ANOTHER if readable else UNKNOWN
        if readable and not endless:
            self.forget()
            return
        state = f"{mark} {endless}"
        if state != self._mark:
            self._mark, self._since = state, now
        if now >= self._tell_again:
            self._tell_again = now + TELL_AGAIN_S
            self._tell(key, readable, left_ms)

    def abandoned(self, now: float) -> str:
        """The mark of the lock that may be taken over; empty: none."""
        mark, _, endless = self._mark.rpartition(" ")
        return mark if endless == "True" and now - self._since >= self._patience_s else ""

    def taken_over(self, key: str) -> None:
        """The beat holds the lock now that was abandoned."""
        log.warning(
            "gate: the lock %s had no TTL and did not change for %.0f s: taken over (%s)",
            *(key, self._patience_s, self._where),
        )
        self.forget()

    def forget(self) -> None:
        """The lock is free, or another beat's."""
        self._mark = ""
        self._since = self._tell_again = float("-inf")

    def _tell(self, key: str, readable: bool, left_ms: int) -> None:
        endless, who = left_ms == ENDLESS, "a beat" if readable else "somebody unknown"
        log.warning(
            "gate: the lock %s is held by %s%s: jobs paused until %s. To end it now: redis-cli DEL '%s' (%s)",
            key,
            f"{who} and has no TTL" if endless else who,
            f" for {left_ms / 1000:.0f} s more" if not endless else "",
            f"it is taken over, after {self._patience_s:.0f} s without a change" if endless else "it ends",
            key,
            self._where,
        )
