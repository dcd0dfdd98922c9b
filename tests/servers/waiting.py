"""Waiting for a condition instead of sleeping."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")


def wait_for(condition: Callable[[], T], deadline: float = 60.0, every: float = 0.02, what: str = "the condition") -> T:
    """Call ``condition`` every ``every`` seconds and return its first truthy value.

    Raises AssertionError, naming ``what`` and the last value, once ``deadline`` seconds have passed. The condition
    is always called at least once, and once more at the end. An exception that it raises is not caught.
    """
    end = time.monotonic() + deadline
    while True:
        last_call = time.monotonic() >= end
        value = condition()
        if value:
            return value
        if last_call:
            raise AssertionError(f"{what}: not within {deadline:g} s; the last value was {value!r}")
        time.sleep(every)
