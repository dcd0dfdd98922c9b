"""The machine's clock."""

from __future__ import annotations

import time


class SystemClock:
    """Wall time in microseconds (UTC) and monotonic seconds, from the operating system."""

    def now_us(self) -> int:
        return time.time_ns() // 1000

    def monotonic(self) -> float:
        return time.monotonic()
