"""Stand-ins for the ports, for tests without servers: use them for your own, too.

`FakeClock` stands still until moved, `MemoryStore` keeps the contract of every other store, `OpenGate` is opened and
shut by hand, `FakeDispatcher` keeps what was sent, `FakeCompletions` reports outcomes.
"""

from __future__ import annotations

from celery_qbeat.testing.clock import FakeClock
from celery_qbeat.testing.dispatcher import FakeCompletions, FakeDispatcher
from celery_qbeat.testing.gate import OpenGate
from celery_qbeat.testing.memory import MemoryStore

__all__ = ["FakeClock", "FakeCompletions", "FakeDispatcher", "MemoryStore", "OpenGate"]
