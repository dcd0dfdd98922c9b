"""Clocks and scales."""

from __future__ import annotations

import gc
import statistics
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil


class Stopwatch:
    """Seconds of real time, and of this process's CPU time, since it was made."""

    def __init__(self) -> None:
        self._wall = time.perf_counter()
        self._cpu = time.process_time()

    @property
    def wall(self) -> float:
        return time.perf_counter() - self._wall

    @property
    def cpu(self) -> float:
        return time.process_time() - self._cpu


def median_cpu(work: Callable[[], Any], rounds: int, between: Callable[[], Any] | None = None) -> float:
    """The median CPU seconds of this process for one call; `between` is called before each and does not count."""
    found = []
    for _ in range(rounds):
        if between is not None:
            between()
        watch = Stopwatch()
        work()
        found.append(watch.cpu)
    return statistics.median(found)


def resident() -> int:
    """Bytes of memory in use, after what is garbage was given up."""
    gc.collect()
    used: int = psutil.Process().memory_info().rss
    return used


def peak() -> int | None:
    """The most bytes of memory that this process ever used; None where the system does not tell (not Linux)."""
    status = Path("/proc/self/status")
    if not status.exists():
        return None
    found = [line.split()[1] for line in status.read_text().splitlines() if line.startswith("VmHWM:")]
    return int(found[0]) * 1024 if found else None


def cpu_of(pid: int) -> float:
    """CPU seconds that a server has used so far, with its processes, those that have ended included."""
    process = psutil.Process(pid)
    own = process.cpu_times()
    used: float = own.user + own.system + own.children_user + own.children_system
    for child in process.children(recursive=True):
        with suppress(psutil.NoSuchProcess):
            spent = child.cpu_times()
            used += spent.user + spent.system
    return used


def quantile(values: list[float], part: float) -> float:
    """The value below which `part` of them lie."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(part * len(ordered)))]
