"""What a schedule is: slots as integer microseconds since the epoch (UTC), computed from nothing but its own value."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields
from typing import Any, Protocol

from celery_qbeat.core.schedules.day_filters import ALL_DAYS, DayFilters

THIRTY_YEARS_US = 30 * 366 * 86_400 * 1_000_000


class Schedule(Protocol):
    """When a job is due. Every value is frozen, hashable, picklable, and equal to one of the same definition.

    Instants are integer microseconds since 1970-01-01T00:00Z. No method reads a clock or raises for any integer.
    """

    @property
    def kind(self) -> str:
        """The name in the KINDS table."""

    @property
    def zone(self) -> str:
        """The IANA name of the zone, as given."""

    @property
    def relative(self) -> bool:
        """True when slots count from the last dispatch, so that only the agenda knows them."""

    def next_after(self, t: int, /) -> int | None:
        """The first slot strictly later than t; None = never again (the year 9999 is the end)."""

    def first(self, now: int, /) -> int | None:
        """The slot of a job first seen at `now`; it may lie in the past."""

    def after_run(self, slot: int, now: int, /) -> int | None:
        """The slot that follows when `slot` was dispatched at `now`."""

    def latest(self, now: int, /) -> int | None:
        """The newest slot that is not later than `now`; None when there is none within 30 years or for `relative`."""

    def count(self, after: int, until: int, /) -> int:
        """How many slots lie in (after, until]; 0 for `relative`."""


@dataclass(frozen=True, slots=True)
class RowTerms:
    """What a row says about time beside its schedule text."""

    zone: str = "UTC"
    days: DayFilters = ALL_DAYS
    min_interval_us: int = 1_000_000


@dataclass(frozen=True, slots=True)
class Kind:
    """A line of the KINDS table: how a kind is read, and a text that it takes.

    `parse` raises ScheduleError and nothing else.
    """

    name: str
    parse: Callable[[str, RowTerms], Schedule]
    example: str


def rebuild(value: Any) -> tuple[type[Any], tuple[object, ...]]:
    """A dataclass as its class and definition, for `__reduce__`: what is derived is derived again when unpickled."""
    return type(value), tuple(getattr(value, field.name) for field in fields(value) if field.init)
