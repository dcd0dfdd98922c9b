"""A beat of ours and Celery's own, in this process, driven tick by tick."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from datetime import datetime, timedelta
from dbm import whichdb
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from celery import Celery
from celery.beat import PersistentScheduler

from benchmarks.places import TASK
from celery_qbeat import wiring
from celery_qbeat.dispatchers import CeleryCompletions, CeleryDispatcher
from celery_qbeat.engine import Dependencies, Engine, Limits
from celery_qbeat.ports import Dispatcher, OutgoingRun, PublishOutcome, PublishResult
from celery_qbeat.process.clock import SystemClock
from celery_qbeat.settings import read_settings


def make_app(broker: str, **settings: Any) -> Any:
    """A Celery app with one task."""
    app: Any = Celery("bench", broker=broker, set_as_current=False)
    # Without a result backend there is nothing to clean up: the stock beat would add an entry for it.
    app.conf.update(result_expires=None, **settings)
    app.task(name=TASK)(_nothing)
    app.finalize()
    return app


def _nothing(*_: Any, **__: Any) -> None:
    """The task: there is no worker to run it."""


class ShiftedClock(SystemClock):
    """The system's clock, set forward."""

    def __init__(self) -> None:
        self.shift_us = 0

    def now_us(self) -> int:
        return super().now_us() + self.shift_us


class Noted:
    """A dispatcher that notes how late each message was out, in seconds."""

    def __init__(self, inner: Dispatcher, clock: SystemClock) -> None:
        self._inner = inner
        self._clock = clock
        self.lateness: list[float] = []

    def unavailable_reason(self) -> str:
        return self._inner.unavailable_reason()

    def memory_id(self) -> str:
        return self._inner.memory_id()

    def late_results(self) -> Sequence[PublishResult]:
        return self._inner.late_results()

    def send(self, shipments: Sequence[OutgoingRun], trusted: Callable[[], bool]) -> Sequence[PublishResult]:
        receipts = self._inner.send(shipments, trusted)
        now = self._clock.now_us()
        for shipment, receipt in zip(shipments, receipts, strict=True):
            if receipt.outcome is PublishOutcome.SENT:
                self.lateness.append((now - shipment.run.slot_us) / 1_000_000)
        return receipts

    def close(self) -> None:
        self._inner.close()

    def describe(self) -> str:
        return self._inner.describe()


def our_beat(app: Any, clock: SystemClock, dispatcher: Dispatcher | None = None, **limits: Any) -> Engine:
    """What `celery_qbeat.Scheduler` runs under this app's settings, opened."""
    settings = read_settings(app.conf)
    store = wiring.build_store(settings)

    def instance() -> str:
        return store.instance

    engine = Engine(
        Dependencies(
            store=store,
            gate=wiring.build_gate(settings, settings.poll_interval, "bench", clock),
            dispatcher=dispatcher or our_dispatcher(app, instance),
            completions=CeleryCompletions(app, namespace=settings.namespace, instance=instance),
            clock=clock,
            privileges=wiring.build_privileges(app, settings),
            rules=wiring.row_rules(settings),
            limits=Limits(poll_s=settings.poll_interval, **limits),
        )
    )
    engine.open()
    return engine


def our_dispatcher(app: Any, instance: Callable[[], str]) -> CeleryDispatcher:
    return CeleryDispatcher(app, namespace="default", instance=instance)


class StockBeat(PersistentScheduler):
    """Celery's default scheduler, which notes how late it sends."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        self.late_results: list[float] = []
        super().__init__(*args, **kwargs)

    def apply_async(self, entry: Any, producer: Any = None, advance: bool = True, **kwargs: Any) -> Any:
        result = super().apply_async(entry, producer=producer, advance=advance, **kwargs)
        due = entry.last_run_at + entry.schedule.run_every
        self.late_results.append((self.app.now() - due).total_seconds())
        return result


def entries(count: int, every_s: float) -> Mapping[str, Mapping[str, Any]]:
    """The cheapest kind of entry that Celery has."""
    return {
        f"shop.customer-{number:07}.report": {
            "task": TASK,
            "schedule": every_s,
            "args": (number,),
            "kwargs": {"customer": number, "full": True},
        }
        for number in range(count)
    }


class Stock:
    """`StockBeat` with its schedule file in a folder of its own. `dbm`: the kind of that file."""

    def __init__(self, app: Any) -> None:
        self._folder = TemporaryDirectory(prefix="qbeat-bench-")
        file = str(Path(self._folder.name) / "schedule")
        self.beat = StockBeat(app, schedule_filename=file)
        self.dbm = whichdb(file)

    def due(self, first: datetime, step: timedelta = timedelta(0)) -> None:
        """The first entry is due then, each other one a step later."""
        for number, name in enumerate(sorted(self.beat.schedule)):
            entry = self.beat.schedule[name]
            entry.last_run_at = first + number * step - entry.schedule.run_every

    def close(self) -> None:
        self.beat.close()
        self._folder.cleanup()
