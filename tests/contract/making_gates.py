"""Gates for tests, released at the end."""

from __future__ import annotations

import time
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

from celery_qbeat.gates import RedisGate
from celery_qbeat.ports import Clock

LOCK = "qbeat:{test}:lock"


@dataclass
class Stopwatch:
    """The real clock, plus as many seconds as the test likes."""

    ahead: float = 0.0

    def now_us(self) -> int:
        return time.time_ns() // 1000

    def monotonic(self) -> float:
        return time.monotonic() + self.ahead


class GateMaker(ExitStack):
    """Makes gates of the namespace `test`."""

    def __call__(
        self,
        url: str,
        holder: str = "here:1",
        ttl_s: float = 3.0,
        poll_s: float = 0.1,
        clock: Clock | None = None,
        **options: Any,
    ) -> RedisGate:
        gate = RedisGate(url, "test", ttl_s, poll_s, holder, clock=clock or Stopwatch(), **options)
        self.callback(gate.release)
        return gate
