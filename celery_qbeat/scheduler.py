"""The edge to Celery: `celery -A proj beat -S celery_qbeat.Scheduler`, or `-S qbeat`."""

from __future__ import annotations

import logging
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any, TypeVar

from celery import beat

from celery_qbeat.engine import Engine, report
from celery_qbeat.errors import QbeatError, Unavailable
from celery_qbeat.settings import Settings, read_settings
from celery_qbeat.wiring import build, engine_database

log = logging.getLogger("celery_qbeat")

Made = TypeVar("Made")

ENDINGS = (signal.SIGTERM, signal.SIGINT)


class Scheduler(beat.Scheduler):
    """Celery's scheduler interface over an `Engine`.

    Celery builds it twice: first with `lazy=True`, for its banner only, so nothing is connected before
    `setup_schedule`. A bad setting, a missing table or a wrong schema version ends the start with one sentence;
    after that no error of a server ends the process.
    """

    max_interval = 1

    def __init__(
        self, app: Any, *args: Any, max_interval: float | None = None, lazy: bool = False, **kwargs: Any
    ) -> None:
        self.settings: Settings = _or_exit(lambda: read_settings(app.conf))
        self._engine: Engine | None = None
        self._in_tick = self._closing = False
        # Celery hands over --max-interval here; the poll interval is ours, and never longer than the one asked for.
        self._poll: float = min(self.settings.poll_interval, max_interval or self.settings.poll_interval)
        super().__init__(app, *args, max_interval=self._poll, lazy=lazy, **kwargs)

    def setup_schedule(self) -> None:
        """Connect and check. A server that is away is no reason to end: the ticks will find it."""
        engine: Engine = _or_exit(
            lambda: build(self.app, self.settings, poll_s=self._poll, undisturbed=undisturbed, stopping=stopping)
        )
        try:
            # Away: the first tick will say so.
            with suppress(Unavailable):
                engine.open()
        except QbeatError as error:
            engine.close()
            raise SystemExit(f"celery_qbeat: {error}") from None
        self._engine = engine

    def tick(self, *args: Any, **kwargs: Any) -> float:
        """One pass of the engine; the seconds that Celery shall sleep."""
        pause = self._poll
        self._in_tick = True
        try:
            if self._engine is not None:
                pause = self._engine.tick()
        except Exception as error:
            # Under `worker -B` an exception here ends the beat process without a word while the worker lives on.
            report.bug(error)
        finally:
            self._in_tick = False
        if self._closing:
            # Celery's own is lost when the signal arrives where Python ignores exceptions, as in the callback of a weak
            # reference.
            raise SystemExit
        return pause

    def close(self) -> None:
        """Give the lock back, at once. Celery calls this from its signal handler, even in the middle of a tick, and
        again at the end."""
        self._closing = True
        if self._in_tick or self._engine is None:
            return
        engine, self._engine = self._engine, None
        engine.close()

    def sync(self) -> None:
        """Nothing is ever kept back: each tick has written what it did."""

    def should_sync(self) -> bool:
        return False

    def get_schedule(self) -> dict[str, Any]:
        return {}

    def set_schedule(self, schedule: Any) -> None:
        self.data = schedule

    schedule = property(get_schedule, set_schedule)

    @property
    def info(self) -> str:
        gate = f"lock in Redis, namespace {self.settings.namespace!r}" if self.settings.redis_url else "standalone"
        database: str = _or_exit(lambda: engine_database(self.settings))
        return f"    . db -> {database}\n    . gate -> {gate}"


@contextmanager
def undisturbed() -> Iterator[None]:
    """SIGTERM and SIGINT wait until the end of the block: a claim is published or given back, not left in doubt."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.pthread_sigmask(signal.SIG_BLOCK, ENDINGS)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def stopping() -> bool:
    """Whether a signal to end is waiting."""
    return not signal.sigpending().isdisjoint(ENDINGS)


def _or_exit(make: Callable[[], Made]) -> Made:
    try:
        return make()
    except QbeatError as error:
        raise SystemExit(f"celery_qbeat: {error}") from None
