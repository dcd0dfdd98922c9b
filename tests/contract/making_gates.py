"""Gates for tests, released at the end."""

from __future__ import annotations

import time
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

import pytest

from celery_qbeat.gates import RedisGate, lock_key
from celery_qbeat.ports import Clock, Gate, LockLease

INSTANCE = "5f0c2b9e-7f43-4a55-9a3e-0d6f1c2b3a4d"
OTHER = "0b9a8c7d-1111-4222-8333-444455556666"
"""The instance of another database."""

LOCK = lock_key("test", INSTANCE)
BEATS = LOCK.removesuffix("lock") + "beats"


@dataclass
class Stopwatch:
    """The real clock, plus as many seconds as the test likes."""

    ahead: float = 0.0

    def now_us(self) -> int:
        return time.time_ns() // 1000

    def monotonic(self) -> float:
        return time.monotonic() + self.ahead


class GateMaker(ExitStack):
    """Makes gates of the namespace `test`, bound to a database."""

    def __call__(
        self,
        url: str,
        holder: str = "here:1",
        ttl_s: float = 3.0,
        poll_s: float = 0.1,
        clock: Clock | None = None,
        instance: str = INSTANCE,
        **options: Any,
    ) -> RedisGate:
        gate = RedisGate(url, "test", ttl_s, poll_s, holder, clock=clock or Stopwatch(), **options)
        self.callback(gate.release)
        gate.bind(instance)
        return gate


def held(gate: Gate) -> LockLease:
    """The lease of a gate that must hold now."""
    lease = gate.acquire_or_renew()
    assert lease is not None
    return lease


def hold_often(*gates: Gate) -> list[LockLease | None]:
    """What each of them gets, three times in turn."""
    return [gate.acquire_or_renew() for _ in range(3) for gate in gates]


def said(caplog: pytest.LogCaptureFixture, *, keep: bool = False) -> list[str]:
    """What a gate logged since the last call, without the address and the words of Redis; `keep`: for the next, too."""
    lines = [record.getMessage().partition(" (redis:")[0] for record in caplog.records]
    if not keep:
        caplog.clear()
    return lines
