"""The machine's clock."""

from __future__ import annotations

import time

# CLOCK_MONOTONIC stands still while a machine is suspended: a lease would look trusted that Redis gave away long ago.
_STEADY = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)


class SystemClock:
    """Wall time in microseconds (UTC), and steady seconds that go on in a suspended machine."""

    def now_us(self) -> int:
        return time.time_ns() // 1000

    def monotonic(self) -> float:
        return time.clock_gettime(_STEADY)
