"""Who tries to dispatch: one beat alone, or the one that holds a lock in Redis."""

from __future__ import annotations

from celery_qbeat.gates.redis import AnnouncedBeat, LockHolder, RedisGate, lock_key
from celery_qbeat.gates.standalone import StandaloneGate

__all__ = ["AnnouncedBeat", "LockHolder", "RedisGate", "StandaloneGate", "lock_key"]
