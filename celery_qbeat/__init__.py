"""A Celery Beat scheduler whose recurring jobs are rows in a SQL database.

`celery -A proj beat -S celery_qbeat.Scheduler`. In code: `from celery_qbeat import Schedule`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from celery_qbeat.beat_schedule import Schedule
    from celery_qbeat.scheduler import Scheduler

__all__ = ["Schedule", "Scheduler", "__version__"]

__version__ = "0.1.0"

_HOMES = {"Schedule": "celery_qbeat.beat_schedule", "Scheduler": "celery_qbeat.scheduler"}

_importing: set[tuple[str, int]] = set()
"""The names whose modules are being imported, each with its thread."""


def __getattr__(name: str) -> Any:
    # Lazily: a worker that unpickles a Schedule, or Django loading its models, needs neither SQLAlchemy nor Redis.
    if name in _HOMES:
        from importlib import import_module
        from threading import get_ident

        mark = (name, get_ident())
        if mark in _importing:
            # Celery's handler of SIGTERM takes a scheduler to close it. In the middle of this import there is none.
            raise SystemExit
        _importing.add(mark)
        try:
            return getattr(import_module(_HOMES[name]), name)
        finally:
            _importing.discard(mark)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
