"""The next slots of a schedule as a person reads them."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC
from typing import Protocol, runtime_checkable

from celery_qbeat.core.schedules.base import Schedule
from celery_qbeat.core.schedules.time_zones import zone_named


@dataclass(frozen=True, slots=True)
class Firing:
    """One slot: microseconds since the epoch, ISO 8601 in UTC (`Z`) and in the row's zone (with offset).

    `note` says what a change of the clocks did to it, and is '' on an ordinary day.
    """

    us: int
    utc: str
    local: str
    note: str


@runtime_checkable
class Noted(Protocol):
    """A schedule that clock changes move."""

    def note(self, us: int) -> str:
        """What a clock change did to the slot `us`, in words; '' on an ordinary day."""


def preview(
    schedule: Schedule,
    after_us: int,
    *,
    count: int = 10,
    until_us: int | None = None,
    start_us: int | None = None,
    end_us: int | None = None,
) -> list[Firing]:
    """At most `count` slots in (after_us, until_us] that lie within a row's bounds [start_us, end_us].

    An interval is shown as if it had been dispatched at `after_us`, or were first seen at a later `start_us`.
    """
    last = min(us for us in (until_us, end_us, _FAR) if us is not None)
    found: list[Firing] = []
    us = _begin(schedule, after_us, start_us)
    while us is not None and us <= last and len(found) < count:
        found.append(_firing(schedule, us))
        us = schedule.next_after(us)
    return found


_FAR = 1 << 63


def _begin(schedule: Schedule, after_us: int, start_us: int | None) -> int | None:
    if start_us is None or start_us <= after_us:
        return schedule.next_after(after_us)
    return schedule.first(start_us) if schedule.relative else schedule.next_after(start_us - 1)


def _firing(schedule: Schedule, us: int) -> Firing:
    local = zone_named(schedule.zone).local(us)
    utc = local.astimezone(UTC).replace(tzinfo=None)
    note = schedule.note(us) if isinstance(schedule, Noted) else ""
    return Firing(us, f"{utc.isoformat()}Z", local.isoformat(), note)
