"""Signals that end the process wait for the end of a tick, whatever handlers the app has installed.

Python runs signal handlers in the main thread, between any two of its instructions, and the handlers that end a process
raise an exception there. Between claim and mark that would leave slots of which nobody knows whether they were sent. In
the middle of a call, drivers have surprises for it: psycopg first asks the server to cancel the statement, for up to 10
seconds when it does not answer. A signal mask does not help: with a second thread in the process the kernel gives the
signal to that one, and Python runs the handler in the main thread all the same. So the handlers themselves are replaced
meanwhile.
"""

from __future__ import annotations

import _thread
import os
import re
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from types import FrameType
from typing import Any

from celery_qbeat.ports import FOREVER

Handler = Callable[[int, FrameType | None], Any]

SHUTDOWN_SIGNALS = tuple(
    getattr(signal, name) for name in ("SIGTERM", "SIGINT", "SIGQUIT", "SIGHUP") if hasattr(signal, name)
)
"""Those that this platform has."""

FIRST_WAIT_S = 2.0
"""How long a call to a server may take once a signal has come."""

REPEATED_WAIT_S = 0.5
"""The same, once it has come again."""

SAME_REQUEST_S = 0.5
"""Signals that come within this many seconds are one request to end: a process manager signals the whole process group,
and the parent in the group passes the signal on."""

PATIENCE_S = 3.5
"""A block that lasts longer than this after the first signal is interrupted: something in it waits without a limit."""


class ShutdownSignals:
    """Defers the handlers of shutdown signals in a `with` block. Outside of it they run at once.

    Signal handlers can be replaced in the main thread only. In any other thread `deferred` does nothing, and need not:
    Python runs no handler there.
    """

    def __init__(self, limit_waits: Callable[[float], None]) -> None:
        """
        Args:
            limit_waits: Is called in the handler of a deferred signal, with the seconds that a call to a server may
                take from now on; with `FOREVER` when the process goes on although the signal's handler has run.
        """
        self.block: object | None = None
        self._limit_waits = limit_waits
        self._limited = False
        self._noted: dict[int, FrameType | None] = {}
        self._first_at = 0.0
        self._added: Handler | None = None

    def pending(self) -> bool:
        """Whether a signal waits for the end of the block."""
        return bool(self._noted)

    @contextmanager
    def deferred(self) -> Iterator[None]:
        """Run no handler of a shutdown signal before the end of the block, then the one that was there before.

        A signal that is repeated after `SAME_REQUEST_S` does not wait: its handler runs in the middle of the block. So
        does the first one after `PATIENCE_S`.
        """
        if self.block is not None:
            yield
            return
        block = object()
        replaced: dict[int, _Replacement] = {}
        try:
            self._replace(block, replaced)
            self.block = block
            yield
        finally:
            # First of all: should a handler raise between these lines, what is still replaced passes signals on.
            self.block = None
            for number, replacement in replaced.items():
                current: Any = signal.getsignal(number)
                # Any other was installed within the block, and stays.
                if current is replacement:
                    signal.signal(number, replacement.original)
            self._run_noted()

    def add_missing(self, handler: Handler) -> None:
        """Install `handler` for signals that would end the process without one: in `celery beat` SIGQUIT and SIGHUP.

        A handler of the app stays, and so does an ignored signal (`nohup`). In a thread other than the main one nothing
        is installed.
        """
        self._added = handler
        for number in SHUTDOWN_SIGNALS:
            if _is_default(number):
                with suppress(ValueError):
                    signal.signal(number, handler)

    def remove_added(self) -> None:
        """Take the handler of `add_missing` away again. In a thread other than the main one it stays."""
        for number in SHUTDOWN_SIGNALS:
            if self._added is not None and signal.getsignal(number) is self._added:
                with suppress(ValueError):
                    signal.signal(number, signal.SIG_DFL)

    def note(self, number: int, frame: FrameType | None, original: Any) -> None:
        """A signal has come within the block."""
        now, self._limited = time.monotonic(), True
        if not self._noted:
            self._noted[number], self._first_at = frame, now
            self._limit_waits(FIRST_WAIT_S)
            # Not a `threading.Thread`, whose start takes a lock that the interrupted code may hold.
            _thread.start_new_thread(self._repeat, (self.block, number))
            return
        self._limit_waits(REPEATED_WAIT_S)
        if now - self._first_at < SAME_REQUEST_S:
            self._noted.setdefault(number, frame)
        else:
            # This one stands for all before it: after its exception none of their handlers may run once more.
            self._noted.clear()
            # Lifted only when the handler returns.
            self._limited = False
            _run(original, number, frame)
            self._limited = True

    def _repeat(self, block: object, number: int) -> None:
        time.sleep(PATIENCE_S)
        if self.block is block:
            _send_to_this_process(number)

    def _replace(self, block: object, replaced: dict[int, _Replacement]) -> None:
        for number in SHUTDOWN_SIGNALS:
            handler: Any = signal.getsignal(number)
            while isinstance(handler, _Replacement):
                # Of a block whose end was cut short by an exception.
                handler = handler.original
            if callable(handler) or _is_default(number):
                replaced[number] = _Replacement(self, block, handler)
                try:
                    signal.signal(number, replaced[number])
                except ValueError:
                    return

    def _run_noted(self) -> None:
        noted, self._noted = self._noted, {}
        for number, frame in noted.items():
            _run(signal.getsignal(number), number, frame)
        if self._limited:
            self._limited = False
            self._limit_waits(FOREVER)


class _Replacement:
    """The handler of one signal during one block. Afterwards, should anybody still have it, it is `original`."""

    def __init__(self, signals: ShutdownSignals, block: object, original: Any) -> None:
        self.original = original
        self._signals = signals
        self._block = block

    def __call__(self, number: int, frame: FrameType | None) -> None:
        if self._signals.block is self._block:
            self._signals.note(number, frame, self.original)
        else:
            _run(self.original, number, frame)


def _run(handler: Any, number: int, frame: FrameType | None) -> None:
    """Do what the signal does where `handler` is installed."""
    if callable(handler):
        handler(number, frame)
    elif handler == signal.SIG_DFL:
        signal.signal(number, signal.SIG_DFL)
        signal.raise_signal(number)


def _send_to_this_process(number: int) -> None:
    if os.name == "posix":
        # It wakes the main thread from a system call, too.
        os.kill(os.getpid(), number)
    else:
        _thread.interrupt_main(signal.Signals(number))


def _is_default(number: int) -> bool:
    """Whether the signal would end the process: nothing handles it, not even C code such as `faulthandler`."""
    return signal.getsignal(number) == signal.SIG_DFL and not _is_caught(number)


def _is_caught(number: int) -> bool:
    """Whether the kernel knows of a handler. Only Linux tells; elsewhere False."""
    try:
        status = Path("/proc/self/status").read_text()
    except OSError:
        return False
    caught = re.search(r"^SigCgt:\s*([0-9a-f]+)", status, re.MULTILINE)
    return caught is not None and bool(int(caught[1], 16) >> (number - 1) & 1)
