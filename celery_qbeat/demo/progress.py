"""Tells a person who waits that the demo is at work."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

EVERY_S = 3.0


class Progress:
    """Says at once what begins, and again every few seconds, until `end`.

    Args:
        say: Prints one line; called from a thread of its own, too.
        every_s: Seconds between two lines.
    """

    def __init__(self, say: Callable[[str], None], every_s: float = EVERY_S) -> None:
        self._say = say
        self._every_s = every_s
        self._ended = threading.Event()
        self._thread: threading.Thread | None = None
        self._step = ""

    def begin(self, step: str) -> None:
        """Say what begins now; the lines that follow name it."""
        self._step = step
        self._say(f"{step} ...")
        if self._thread is None:
            self._thread = threading.Thread(target=self._repeat, name="qbeat-demo-progress", daemon=True)
            self._thread.start()

    def end(self) -> None:
        """Say nothing more."""
        self._ended.set()

    def _repeat(self) -> None:
        began = time.monotonic()
        while not self._ended.wait(self._every_s):
            self._say(f"{time.monotonic() - began:.0f} s: still {self._step}")
