"""Instants and slots as the tests write them."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta

from celery_qbeat.core.schedules import Schedule

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
MINUTE = 60 * 1_000_000
HOUR = 60 * MINUTE
DAY = 24 * HOUR


def us(text: str) -> int:
    """Microseconds since the epoch of an ISO 8601 instant."""
    return (datetime.fromisoformat(text) - EPOCH) // timedelta(microseconds=1)


def iso(instant: int) -> str:
    """2026-03-29T01:00:00Z."""
    return (EPOCH + timedelta(microseconds=instant)).isoformat().replace("+00:00", "Z")


def slots(schedule: Schedule, after: int, until: int) -> Iterator[int]:
    """The slots in (after, until], one by one."""
    slot = schedule.next_after(after)
    while slot is not None and slot <= until:
        yield slot
        slot = schedule.next_after(slot)


def fires(schedule: Schedule, after: str, until: str) -> list[str]:
    """The slots in (after, until], readable."""
    return [iso(slot) for slot in slots(schedule, us(after), us(until))]
