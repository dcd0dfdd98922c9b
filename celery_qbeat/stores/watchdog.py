"""Time limits for the answers of a server that may never come.

A half-open connection (a proxy that keeps TCP up and forwards nothing, a frozen server) blocks a driver for ever. The
watchdog is a daemon thread that shuts the socket when an answer is overdue, so that the blocked call ends with an
error. Nothing here takes a lock that a signal handler could find taken: `limit_waits` may interrupt any line of it.
"""

from __future__ import annotations

import os
import select
import signal
import socket
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from queue import Empty, SimpleQueue
from typing import Any, Generic, TypeVar

from celery_qbeat.ports import FOREVER

T = TypeVar("T")

ANSWER_S = 10.0
"""Seconds that a statement, or the making of a connection, may wait for the server."""

PRUNE_S = 60.0
"""The same for a step of pruning, which deletes thousands of rows and may take long on a slow disk."""

_RETRY_S = 1.0


class NoAnswer(Exception):
    """The server did not answer in time."""


class Watchdog:
    """Ends the waits of one connection. The thread that uses the connection calls everything but `limit_waits`."""

    def __init__(self, *, always: bool = True) -> None:
        """`always`: False when waits are limited only after `limit_waits`."""
        self._always = always
        self._raw: Any = None
        self._called = self._since_connecting = 0.0
        self._since: float | None = None
        self._allowed: float | None = None
        self._ending: tuple[float, float] | None = None
        self._wake: SimpleQueue[None] = SimpleQueue()
        self._connecting: _Attempt[Any] | None = None
        self._thread: threading.Thread | None = None
        self.cut = False
        """Whether the current call was ended from here."""
        self.gave_up = False
        """Whether a wait was ended after `limit_waits`: the process ends, and the server is not asked again."""

    def limit_waits(self, seconds: float) -> None:
        """See `Store.limit_waits`."""
        if seconds == FOREVER:
            self._ending, self.gave_up = None, False
        else:
            self._ending = (time.monotonic(), seconds)
        self._wake.put(None)
        if (connecting := self._connecting) is not None:
            connecting.answers.put(None)

    @property
    def is_ending(self) -> bool:
        """Whether `limit_waits` was called."""
        return self._ending is not None

    def watch(self, raw: Any) -> None:
        """From now on it is this driver's connection that is watched; None: there is none."""
        self._raw = raw
        if raw is None:
            self._wake.put(None)
        elif self._thread is None or not self._thread.is_alive():
            args = (threading.get_native_id(),)
            self._thread = threading.Thread(
                target=self._run, args=args, name="celery_qbeat database watchdog", daemon=True
            )
            self._thread.start()

    def call_begins(self) -> None:
        """A call of the store: all of it may take what `limit_waits` allows."""
        self.cut = False
        self._called = time.monotonic()

    def statements_begin(self, allowed_s: float | None) -> None:
        """From now on the server is asked; each statement may take this long, None: as long as it takes."""
        self._allowed = allowed_s if self._always else None
        self._since = time.monotonic()

    def next_statement(self) -> None:
        """The last statement was answered."""
        if self._since is not None:
            self._since = time.monotonic()

    def statements_end(self) -> None:
        self._since = None

    def bounded(self, make: Callable[[], T], discard: Callable[[T], object]) -> T:
        """What `make` returns or raises, called in a thread of its own. Raises NoAnswer when that takes too long.

        `discard` gets what `make` returns after that.
        """
        self._since_connecting = time.monotonic()
        attempt = _Attempt(make, discard)
        self._connecting = attempt
        try:
            while True:
                left = self._connected_by() - time.monotonic()
                try:
                    answer = attempt.answers.get(timeout=max(0.0, left))
                except Empty:
                    if self._connected_by() > time.monotonic():
                        continue
                    if attempt.settled.acquire(blocking=False):
                        self._cut_off()
                        raise NoAnswer from None
                    answer = attempt.answers.get()
                if answer is not None:
                    return answer()
        finally:
            # An interrupt leaves the attempt behind, too.
            attempt.settled.acquire(blocking=False)
            self._connecting = None

    def half_connected(self) -> None:
        """The server has answered while a connection is made, from the thread that makes it."""
        self._since_connecting = time.monotonic()

    def _connected_by(self) -> float:
        ends = self._since_connecting + ANSWER_S
        return ends if self._ending is None else min(ends, max(self._called, self._ending[0]) + self._ending[1])

    def _deadline(self) -> float | None:
        since, allowed, ending = self._since, self._allowed, self._ending
        if since is None:
            return None
        ends = [] if allowed is None else [since + allowed]
        if ending is not None:
            ends.append(max(self._called, ending[0]) + ending[1])
        return min(ends, default=None)

    def _run(self, started_by: int) -> None:
        block_signals(started_by)
        while True:
            deadline, now = self._deadline(), time.monotonic()
            if deadline is not None and deadline <= now:
                self._shut()
                deadline = now + _RETRY_S
            # The next call may begin at once, and has at least this long.
            pause = ANSWER_S if self._ending is None else min(ANSWER_S, self._ending[1])
            if deadline is not None:
                pause = min(pause, deadline - now)
            with suppress(Empty):
                self._wake.get(timeout=pause)
            if self._raw is None and self._since is None:
                self._thread = None
                # `watch` sets the connection before it looks for the thread.
                if self._raw is None:
                    return
                self._thread = threading.current_thread()

    def _shut(self) -> None:
        since, raw = self._since, self._raw
        if hasattr(raw, "interrupt"):
            self._cut_off()
            raw.interrupt()
            return
        number = file_number(raw)
        if number is None:
            return
        with suppress(OSError), socket.socket(fileno=os.dup(number)) as twin:
            # The statement may have ended while the number was looked up, and the number may be another file's now.
            if self._since == since:
                self._cut_off()
                twin.shutdown(socket.SHUT_RDWR)

    def _cut_off(self) -> None:
        self.cut = True
        self.gave_up = self.gave_up or self._ending is not None


class _Attempt(Generic[T]):
    """One call in a daemon thread. Whoever acquires `settled` first decides: the answer counts, or it came too late."""

    def __init__(self, make: Callable[[], T], discard: Callable[[T], object]) -> None:
        self.answers: SimpleQueue[Callable[[], T] | None] = SimpleQueue()
        self.settled = threading.Lock()
        self._make = make
        self._discard = discard
        args = (threading.get_native_id(),)
        threading.Thread(target=self._run, args=args, name="celery_qbeat database connect", daemon=True).start()

    def _run(self, started_by: int) -> None:
        block_signals(started_by)
        try:
            made = self._make()
        except BaseException as error:
            if self.settled.acquire(blocking=False):
                self.answers.put(_raiser(error))
            return
        if self.settled.acquire(blocking=False):
            self.answers.put(lambda: made)
        else:
            self._discard(made)


def _raiser(error: BaseException) -> Callable[[], Any]:
    def fail() -> Any:
        raise error

    return fail


def block_signals(started_by: int) -> None:
    """Keep signals away from this thread: Python handles them in the main thread, which is the one to be woken.

    `started_by`: the native id of the thread that started this one. With gevent or eventlet that is the same one, and a
    mask would deprive the whole process of its signals.
    """
    if hasattr(signal, "pthread_sigmask") and threading.get_native_id() != started_by:
        signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())


def file_number(raw: Any) -> int | None:
    """The file descriptor of a driver's connection; None where it has none, or none any more."""
    for owner in (raw, getattr(raw, "_sock", None), getattr(raw, "_usock", None)):
        # Drivers say in ways of their own that the connection is closed.
        with suppress(Exception):
            number = owner.fileno()  # type: ignore[union-attr]
            if isinstance(number, int) and number >= 0:
                return number
    return None


def has_news(raw: Any) -> bool:
    """Whether something arrived on an idle connection: usually its end. True where nobody can tell."""
    number = file_number(raw)
    if number is None or not hasattr(select, "poll"):
        return True
    poll = select.poll()
    poll.register(number, select.POLLIN)
    return bool(poll.poll(0))
