"""Processes that the tests start have the clock of the test that starts them."""

from __future__ import annotations

import os
import subprocess
import time
from pathlib import Path
from typing import Any

import time_machine

AHEAD = "SHIFTED_CLOCK_US"
"""The environment variable that tells a process how far its clock is ahead of the machine's, in microseconds."""
_SITE = Path(__file__).parent / "site"


def shift_children() -> None:
    """From now on every Python process that this one starts has this one's wall clock, and so have its children.

    Not with libfaketime 0.9.10: under it `threading.Event.wait` of CPython 3.11 never ends, because it waits for an
    instant of the shifted monotonic clock; when that clock is left alone, `time.sleep` fails. time-machine shifts the
    wall clock only.
    """
    start = subprocess.Popen.__init__

    def start_shifted(self: Any, *args: Any, **options: Any) -> None:
        given = options.get("env")
        environment = dict(os.environ if given is None else given)
        environment["PYTHONPATH"] = os.pathsep.join(filter(None, [str(_SITE), environment.get("PYTHONPATH")]))
        environment[AHEAD] = str((time.time_ns() - time_machine.escape_hatch.time.time_ns()) // 1000)
        start(self, *args, **{**options, "env": environment})

    subprocess.Popen.__init__ = start_shifted  # type: ignore[method-assign]
