"""The engine: one beat, whatever its store, gate and dispatcher. `engine.py` shows the tick; each step has a file."""

from __future__ import annotations

from celery_qbeat.engine.engine import Engine
from celery_qbeat.engine.leader_state import Chore, Dependencies, LeaderState, Limits

__all__ = ["Chore", "Dependencies", "Engine", "LeaderState", "Limits"]
