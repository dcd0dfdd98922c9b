"""The handlers of signals that the scheduler adds, and takes away again, in this very process."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from types import FrameType

import pytest
from celery import Celery

from celery_qbeat import Scheduler
from celery_qbeat.process.shutdown_signals import SHUTDOWN_SIGNALS


@pytest.fixture(autouse=True)
def _handlers() -> Iterator[None]:
    """As in a new process, and afterwards as before."""
    before = {number: signal.getsignal(number) for number in SHUTDOWN_SIGNALS}
    for number in SHUTDOWN_SIGNALS:
        signal.signal(number, signal.SIG_DFL)
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


@pytest.fixture
def app(sqlite_url: str) -> Iterator[Celery]:
    app = Celery("signals", broker="memory://", set_as_current=False)
    app.conf.update(qbeat_database_url=sqlite_url)
    yield app
    app.close()


def handlers() -> list[object]:
    return [signal.getsignal(number) for number in SHUTDOWN_SIGNALS]


def test_a_scheduler_handles_what_nobody_does_until_it_is_closed(app: Celery) -> None:
    scheduler = Scheduler(app)
    scheduler.tick()
    assert all(callable(handler) for handler in handlers())
    with pytest.raises(SystemExit):
        signal.raise_signal(signal.SIGHUP)
    assert handlers() == [signal.SIG_DFL] * len(SHUTDOWN_SIGNALS)
    scheduler.close()


def test_the_banner_s_scheduler_handles_nothing(app: Celery) -> None:
    Scheduler(app, lazy=True)
    assert handlers() == [signal.SIG_DFL] * len(SHUTDOWN_SIGNALS)


def test_a_handler_that_makes_a_scheduler_at_the_start_connects_to_nothing(
    app: Celery, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As Celery's does when its own is not there yet."""
    opened: list[str] = []

    def end(_number: int, _frame: FrameType | None) -> None:
        Scheduler(app).close()
        raise SystemExit

    def signalled(_engine: object) -> None:
        opened.append("once")
        signal.raise_signal(signal.SIGTERM)
        opened.append("to the end")

    signal.signal(signal.SIGTERM, end)
    monkeypatch.setattr("celery_qbeat.engine.Engine.open", signalled)
    with pytest.raises(SystemExit):
        Scheduler(app)
    assert opened == ["once", "to the end"]
