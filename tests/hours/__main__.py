"""Runs the tests that take no real time at each of the hours, and on a machine that is slow.

    python -m tests.hours                        at all hours, one after the other
    python -m tests.hours evening busy           at these
    python -m tests.hours --list                 which there are
    python -m tests.hours apia -- tests/unit -x  with arguments for pytest instead of the directories

Tests with the marker `real_clock` are left out. Ends with 1 if a test failed at any hour.
"""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.clock import INSTANT, ZONE
from tests.hours import HOURS, Hour

ROOT = Path(__file__).parents[2]
LOGS = ROOT / "build" / "hours"
DIRECTORIES = ["tests/unit", "tests/django", "tests/contract", "tests/simulation", "tests/celery", "tests/chaos"]
CHOSEN = "not slow and not chaos and not browser and not real_clock"
BUSY = "while True: pass"


@contextmanager
def slowed(processes: int) -> Iterator[None]:
    """As many processes as given use all the time of the processors that they get."""
    loops = [subprocess.Popen([sys.executable, "-c", BUSY]) for _ in range(processes)]
    try:
        yield
    finally:
        for loop in loops:
            loop.kill()
            loop.wait()


def run(hour: Hour, arguments: list[str]) -> tuple[bool, str]:
    """All chosen tests at this hour: whether they passed, and what to say about it."""
    options = ["-q", "-m", CHOSEN, "-p", "no:cacheprovider", "--color=no"]
    command = [sys.executable, "-m", "pytest", *options, *(arguments or DIRECTORIES)]
    environment = {**os.environ, INSTANT: hour.instant, ZONE: hour.zone}
    log, begun = LOGS / f"{hour.name}.log", time.monotonic()
    with log.open("w") as sink, slowed(hour.busy):
        code = subprocess.run(command, cwd=ROOT, env=environment, stdout=sink, stderr=subprocess.STDOUT).returncode
    lines = log.read_text(errors="replace").splitlines()
    failures = [line for line in lines if re.match(r"(FAILED|ERROR) ", line)]
    last = lines[-1].strip("= ") if lines else "pytest printed nothing"
    return code == 0, "\n".join([f"{last}, {time.monotonic() - begun:.0f} s; {log.relative_to(ROOT)}", *failures])


def main() -> int:
    """Run what the command line asks for; the exit code."""
    own, arguments = sys.argv[1:], []
    if "--" in own:
        cut = own.index("--")
        own, arguments = own[:cut], own[cut + 1 :]
    parser = argparse.ArgumentParser(
        prog="python -m tests.hours", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("names", nargs="*", metavar="HOUR")
    parser.add_argument("--list", action="store_true", help="which hours there are")
    asked = parser.parse_args(own)
    known = {hour.name: hour for hour in HOURS}
    if unknown := set(asked.names) - set(known):
        parser.error(f"no such hour: {', '.join(sorted(unknown))}; there are {', '.join(known)}")
    if asked.list:
        for hour in HOURS:
            sys.stdout.write(f"{hour.name:16} {hour}\n")
        return 0
    LOGS.mkdir(parents=True, exist_ok=True)
    all_passed = True
    for name in asked.names or known:
        passed, words = run(known[name], arguments)
        all_passed &= passed
        sys.stdout.write(f"{name:16} {'passed' if passed else 'FAILED'}: {words}\n")
        sys.stdout.flush()
    return 0 if all_passed else 1


if __name__ == "__main__":
    sys.exit(main())
