"""The edge to Celery: `celery -A proj beat -S celery_qbeat.Scheduler`, or `-S qbeat`."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from contextlib import suppress
from types import FrameType
from typing import Any, TypeVar

from celery import beat

from celery_qbeat.apply_entry import ApplyEntry
from celery_qbeat.beat_schedule import code_jobs
from celery_qbeat.core.safe_text import hide_secrets_in_text, one_line
from celery_qbeat.dispatchers.celery.broker import check_urls
from celery_qbeat.dispatchers.celery.overrides import OverrideProducer
from celery_qbeat.engine import Engine
from celery_qbeat.engine.repeated_errors import RepeatedErrors
from celery_qbeat.errors import QbeatError, Unavailable
from celery_qbeat.process.clock import SystemClock
from celery_qbeat.process.heartbeat import HeartbeatFile
from celery_qbeat.process.safe_logging import get_logger
from celery_qbeat.process.shutdown_signals import ShutdownSignals
from celery_qbeat.settings import Settings, read_settings
from celery_qbeat.wiring import build, engine_database, heartbeat_file

log = get_logger()

Made = TypeVar("Made")

_starting = threading.local()


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
        _or_exit(lambda: check_urls(app))
        self._engine: Engine | None = None
        self._in_tick = self._closing = self._closed = self._heartbeat_failing = False
        self._taken: dict[str, Any] = {}
        self._errors = RepeatedErrors(SystemClock())
        self._signals = ShutdownSignals(self._limit_waits)
        # Celery hands over --max-interval here; the poll interval is ours, and never longer than the one asked for.
        self._heartbeat: HeartbeatFile | None = None
        self._poll: float = min(self.settings.poll_interval, max_interval or self.settings.poll_interval)
        super().__init__(app, *args, max_interval=self._poll, lazy=lazy, **kwargs)

    def setup_schedule(self) -> None:
        """Connect and check. A server that is away is no reason to end: the ticks will find it."""
        if getattr(_starting, "now", False):
            # A signal came before Celery had its scheduler, and its handler makes another one to close it.
            return
        # Before `build`, which imports: a second scheduler could not import what the first one is importing.
        _starting.now = True
        try:
            self._start()
        finally:
            _starting.now = False
        # Celery's beat handles SIGTERM and SIGINT only. The others would end the process with the lock in its hand.
        self._signals.add_missing(self._end)

    def _start(self) -> None:
        more: dict[str, Any] = {
            "stopping": self._signals.pending,
            "note_alive": self._note_alive,
            "hook": ApplyEntry(self),
        }
        engine = self._engine = _or_exit(lambda: build(self.app, self.settings, poll_s=self._poll, **more))
        self._heartbeat = heartbeat_file(self.settings, self._poll)
        self._note_alive()
        try:
            # Away: the first tick will say so.
            with self._signals.deferred(), suppress(Unavailable):
                engine.open()
        except QbeatError as error:
            engine.close()
            raise _exit(error) from None

    def tick(self, *args: Any, **kwargs: Any) -> float:
        """One pass of the engine; the seconds that Celery shall sleep."""
        pause = self._poll
        try:
            self._in_tick = True
            self._note_alive()
            if self._engine is not None and not self._closed:
                self._take_added(self._engine)
                with self._signals.deferred():
                    pause = self._engine.tick()
        except Exception as error:
            # Under `worker -B` an exception here ends the beat process without a word while the worker lives on.
            self._errors.log(error)
        finally:
            self._in_tick = False
        if self._closing:
            # Celery's own is lost when the signal arrives where Python ignores exceptions, as in the callback of a weak
            # reference.
            raise SystemExit
        return pause

    def apply_async(self, entry: Any, producer: Any = None, advance: bool = True, **kwargs: Any) -> Any:
        """Send an entry, which `ApplyEntry` made of a run, as Celery does; its producer is told what came of it."""
        if not isinstance(producer, OverrideProducer):
            # Not advanced: the schedule would get an entry that runs.
            return super().apply_async(entry, producer=producer, advance=False, **kwargs)
        try:
            producer.result = super().apply_async(entry, producer=producer, advance=False, **kwargs)
        except beat.SchedulingError as error:
            # `apply_entry` logs it and returns.
            producer.error = error.__context__ or error
            raise
        return producer.result

    def close(self) -> None:
        """Give the lock back, at once. Celery calls this from its signal handler, even in the middle of a tick, and
        again at the end."""
        self._closing = True
        if self._in_tick or self._closed or self._engine is None:
            return
        with self._signals.deferred():
            self._closed = True
            self._engine.close()
            if self._heartbeat is not None:
                self._heartbeat.remove()
        self._signals.remove_added()

    def sync(self) -> None:
        """Nothing is ever kept back: each tick has written what it did."""

    def should_sync(self) -> bool:
        return False

    def get_schedule(self) -> Any:
        """The entries that handlers of `beat_init` and others added, by name; each tick takes over what changed."""
        return self.data

    def set_schedule(self, schedule: Any) -> None:
        self.data = schedule

    schedule = property(get_schedule, set_schedule)

    @property
    def info(self) -> str:
        gate = f"lock in Redis, namespace {self.settings.namespace!r}" if self.settings.redis_url else "standalone"
        database: str = _or_exit(lambda: engine_database(self.settings))
        return f"    . db -> {one_line(database)}\n    . gate -> {gate}"

    def _take_added(self, engine: Engine) -> None:
        if self.data != self._taken:
            added = dict(self.data)
            if engine.use_code_jobs(code_jobs(self.app, added)):
                self._taken = added

    def _end(self, _number: int, _frame: FrameType | None) -> None:
        """End as Celery's beat does on SIGTERM."""
        self.close()
        raise SystemExit

    def _note_alive(self) -> None:
        """Touch the heartbeat file. A standby does so, too: its ticks go on."""
        if self._heartbeat is None or self._closed:
            return
        try:
            if self._heartbeat.touch():
                self._heartbeat_failing = False
        except OSError as error:
            if not self._heartbeat_failing:
                log.error("heartbeat: probes take this beat for dead, because its file cannot be written: %s", error)
            self._heartbeat_failing = True

    def _limit_waits(self, seconds: float) -> None:
        if self._engine is not None:
            self._engine.limit_waits(seconds)


def _exit(error: QbeatError) -> SystemExit:
    """The end of the start: one sentence in the log, or on standard error while there is no log yet."""
    sentence = f"celery_qbeat: {one_line(hide_secrets_in_text(str(error)))}"
    if not logging.getLogger().handlers:
        return SystemExit(sentence)
    # Celery makes warnings of what is written to standard error.
    log.critical("%s", sentence)
    return SystemExit(1)


def _or_exit(make: Callable[[], Made]) -> Made:
    try:
        return make()
    except QbeatError as error:
        raise _exit(error) from None
