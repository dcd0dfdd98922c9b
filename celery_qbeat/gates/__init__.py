"""Who tries to dispatch: one beat alone, or the one that holds a lock in Redis."""

from __future__ import annotations

from celery_qbeat.gates.redis import Beat, Holding, RedisGate, lock_key
from celery_qbeat.gates.standalone import StandaloneGate

__all__ = ["Beat", "Holding", "RedisGate", "StandaloneGate", "lock_key"]
