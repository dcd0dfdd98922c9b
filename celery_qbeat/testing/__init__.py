"""Stand-ins for tests, the project's own and yours: a clock that moves when told, a store without a server."""

from __future__ import annotations

from celery_qbeat.testing.clock import FakeClock
from celery_qbeat.testing.memory import MemoryStore

__all__ = ["FakeClock", "MemoryStore"]
