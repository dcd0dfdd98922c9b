"""The wall clock of the tests.

Tests that run in this process have a clock of their own: it says `START` when a test begins, and goes on from there.
So no such test depends on the hour, the date or the zone of the machine. Tests with real beats and workers share the
machine's clock with them. `python -m tests.hours` runs both kinds at other instants and in other zones.

Two markers make exceptions: `clock_at(instant)` stops the clock at an instant (for a test about an hour or a date);
`real_clock(reason)` leaves the clock alone (for a test in which another program's clock must agree with ours).
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path

import pytest
import time_machine

from tests.hours.shift import shift_children

TESTS = Path(__file__).parent
START = "2026-06-10T12:20:00Z"
"""A Wednesday after noon: the next midnight and the next change of the clocks are far away."""
INSTANT = "QBEAT_TEST_INSTANT"
"""The environment variable that starts all tests at another instant, and their processes with them."""
ZONE = "QBEAT_TEST_ZONE"
"""The environment variable that puts the tests into another time zone than UTC."""
FIXED = {"unit", "contract", "django", "simulation"}
"""The directories whose tests have a clock of their own."""
PROCESSES = {"make_project", "shop"}
"""The fixtures that start beats and workers, which have the machine's clock."""


def now_us() -> int:
    """The wall clock in microseconds since the epoch: the one that the product sees, too."""
    return time.time_ns() // 1000


def set_up() -> None:
    """Put this process and its children into the zone of the tests, and its children under the clock of `INSTANT`."""
    os.environ["TZ"] = os.environ.get(ZONE, "UTC")
    time.tzset()
    if INSTANT in os.environ:
        shift_children()


@contextmanager
def clock_of(item: pytest.Item) -> Iterator[None]:
    """Let the clock of this process say what the test is to see."""
    stopped = item.get_closest_marker("clock_at")
    shifted = INSTANT in os.environ
    if item.get_closest_marker("real_clock") is not None or not (shifted or _alone(item)):
        assert stopped is None, f"{item.nodeid}: a clock that other processes share cannot be stopped"
        yield
    elif stopped is not None:
        with time_machine.travel(instant(stopped.args[0]), tick=False):
            yield
    else:
        with time_machine.travel(instant(os.environ.get(INSTANT, START)), tick=True):
            yield


def instant(text: str) -> datetime:
    """An instant from ISO 8601 with an offset. In UTC: time-machine takes the zone of the process from a ZoneInfo."""
    found = datetime.fromisoformat(text)
    if found.tzinfo is None:
        raise ValueError(f"{text!r} has no offset: write {text}Z")
    return found.astimezone(UTC)


def _alone(item: pytest.Item) -> bool:
    """Whether the test runs in this process only, as far as the clock matters."""
    directory = item.path.relative_to(TESTS).parts[0]
    return directory in FIXED and not PROCESSES & set(getattr(item, "fixturenames", []))
