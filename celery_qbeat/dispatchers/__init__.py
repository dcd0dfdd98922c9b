"""How claimed runs reach the workers, and how their ends come back."""

from __future__ import annotations

from celery_qbeat.dispatchers.celery import CeleryDispatcher
from celery_qbeat.dispatchers.completions import CeleryCompletions

__all__ = ["CeleryCompletions", "CeleryDispatcher"]
