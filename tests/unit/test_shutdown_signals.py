"""When the handlers of shutdown signals run, and that everything is as before afterwards."""

from __future__ import annotations

import faulthandler
import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType

import pytest

from celery_qbeat.ports import FOREVER
from celery_qbeat.process import shutdown_signals
from celery_qbeat.process.shutdown_signals import (
    FIRST_WAIT_S,
    REPEATED_WAIT_S,
    SAME_REQUEST_S,
    SHUTDOWN_SIGNALS,
    ShutdownSignals,
)
from tests.servers import wait_for

Call = tuple[int, FrameType | None]


class Ended(BaseException):
    """What the handlers here raise."""


class Bench:
    """A handler on each of the signals, and what is called."""

    def __init__(self) -> None:
        self.calls: list[Call] = []
        self.limits: list[float] = []
        self.raising = True
        self.now = 100.0
        self.signals = ShutdownSignals(self.limits.append)

    def handler(self, number: int, frame: FrameType | None) -> None:
        self.calls.append((number, frame))
        if self.raising:
            raise Ended

    @contextmanager
    def ending(self) -> Iterator[None]:
        """A block that ends with what the handler raises."""
        try:
            with self.signals.deferred():
                yield
        except Ended:
            return
        raise AssertionError("no handler has run")

    @property
    def numbers(self) -> list[int]:
        return [number for number, _ in self.calls]


@pytest.fixture(autouse=True)
def _handlers_as_before() -> Iterator[None]:
    before = {number: signal.getsignal(number) for number in SHUTDOWN_SIGNALS}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


@pytest.fixture
def bench(monkeypatch: pytest.MonkeyPatch) -> Bench:
    made = Bench()
    monkeypatch.setattr(shutdown_signals.time, "monotonic", lambda: made.now)
    # One object: each look-up of a bound method makes a new one.
    made.handler = made.handler  # type: ignore[method-assign]
    for number in SHUTDOWN_SIGNALS:
        signal.signal(number, made.handler)
    return made


def frame_here() -> FrameType:
    return sys._getframe(1)


@pytest.mark.parametrize("number", SHUTDOWN_SIGNALS)
def test_a_handler_runs_at_the_end_of_the_block_with_its_arguments(bench: Bench, number: signal.Signals) -> None:
    with bench.ending():
        assert not bench.signals.pending()
        signal.raise_signal(number)
        assert bench.signals.pending()
        assert bench.calls == []
    assert bench.calls == [(number, frame_here())]
    assert not bench.signals.pending()
    assert all(signal.getsignal(each) is bench.handler for each in SHUTDOWN_SIGNALS)


def test_outside_of_a_block_a_handler_runs_at_once(bench: Bench) -> None:
    with bench.signals.deferred():
        pass
    with pytest.raises(Ended):
        signal.raise_signal(signal.SIGTERM)
    assert bench.limits == []


def test_a_handler_that_was_installed_since_the_last_block_runs(bench: Bench) -> None:
    with bench.signals.deferred():
        pass
    before = signal.getsignal(signal.SIGTERM)
    seen: list[int] = []

    def wrapping(number: int, frame: FrameType | None) -> None:
        seen.append(number)
        before(number, frame)  # type: ignore[operator]

    signal.signal(signal.SIGTERM, wrapping)
    with bench.ending():
        signal.raise_signal(signal.SIGTERM)
    assert seen == bench.numbers == [signal.SIGTERM]
    assert signal.getsignal(signal.SIGTERM) is wrapping


def test_a_handler_that_is_installed_within_a_block_runs_and_stays(bench: Bench) -> None:
    seen: list[int] = []

    def later(number: int, _frame: FrameType | None) -> None:
        seen.append(number)

    with bench.signals.deferred():
        signal.raise_signal(signal.SIGTERM)
        replaced = signal.signal(signal.SIGTERM, later)
    assert seen == [signal.SIGTERM]
    assert signal.getsignal(signal.SIGTERM) is later
    # Whoever wraps what was there during the block, comes to the original all the same.
    with pytest.raises(Ended):
        replaced(signal.SIGTERM, None)  # type: ignore[operator,misc]


def test_a_handler_that_wraps_that_of_a_block_is_deferred_in_the_next(bench: Bench) -> None:
    with bench.signals.deferred():
        replaced = signal.getsignal(signal.SIGTERM)

        def wrapping(number: int, frame: FrameType | None) -> None:
            replaced(number, frame)  # type: ignore[operator,misc]

        signal.signal(signal.SIGTERM, wrapping)
    with bench.ending():
        signal.raise_signal(signal.SIGTERM)
        assert bench.calls == []
    assert bench.numbers == [signal.SIGTERM]
    assert signal.getsignal(signal.SIGTERM) is wrapping


def test_signals_of_one_request_are_run_in_order_when_no_handler_raises(bench: Bench) -> None:
    bench.raising = False
    with bench.signals.deferred():
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGINT):
            signal.raise_signal(number)
            bench.now += SAME_REQUEST_S / 4
    assert bench.numbers == [signal.SIGINT, signal.SIGTERM]
    assert bench.limits == [FIRST_WAIT_S, REPEATED_WAIT_S, REPEATED_WAIT_S, FOREVER]


def test_a_second_signal_ends_the_block_at_once(bench: Bench) -> None:
    reached = []
    with bench.ending():
        signal.raise_signal(signal.SIGTERM)
        bench.now += SAME_REQUEST_S
        reached.append("first")
        signal.raise_signal(signal.SIGINT)
        reached.append("second")
    assert reached == ["first"]
    assert bench.numbers == [signal.SIGINT]
    assert bench.limits == [FIRST_WAIT_S, REPEATED_WAIT_S]
    assert not bench.signals.pending()


def test_a_block_that_does_not_end_is_interrupted(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutdown_signals, "PATIENCE_S", 0.05)
    monkeypatch.setattr(shutdown_signals, "SAME_REQUEST_S", 0.0)
    with bench.ending():
        signal.raise_signal(signal.SIGTERM)
        time.sleep(60)
        raise AssertionError("nothing has interrupted the wait")
    assert bench.numbers == [signal.SIGTERM]


def test_a_block_that_fails_runs_what_waited(bench: Bench) -> None:
    with bench.ending():
        signal.raise_signal(signal.SIGTERM)
        raise KeyError("the database is away")
    assert bench.numbers == [signal.SIGTERM]


def test_a_block_in_a_block_belongs_to_it(bench: Bench) -> None:
    with bench.ending():
        with bench.signals.deferred():
            signal.raise_signal(signal.SIGTERM)
        assert bench.calls == []
    assert bench.numbers == [signal.SIGTERM]


def test_an_ignored_signal_stays_ignored(bench: Bench) -> None:
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    bench.signals.add_missing(bench.handler)
    with bench.signals.deferred():
        assert signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
        signal.raise_signal(signal.SIGHUP)
        assert not bench.signals.pending()
    assert signal.getsignal(signal.SIGHUP) is signal.SIG_IGN


def test_only_what_nobody_handles_gets_a_handler_and_loses_it_again(bench: Bench) -> None:
    def own(_number: int, _frame: FrameType | None) -> None:
        raise AssertionError

    signal.signal(signal.SIGQUIT, signal.SIG_DFL)
    signal.signal(signal.SIGHUP, own)
    bench.signals.add_missing(bench.handler)
    assert signal.getsignal(signal.SIGQUIT) is bench.handler
    assert signal.getsignal(signal.SIGHUP) is own
    bench.signals.remove_added()
    assert signal.getsignal(signal.SIGQUIT) is signal.SIG_DFL
    assert signal.getsignal(signal.SIGHUP) is own


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="only Linux tells of handlers in C")
def test_a_handler_in_c_is_kept(bench: Bench, tmp_path: Path) -> None:
    signal.signal(signal.SIGQUIT, signal.SIG_DFL)
    with (tmp_path / "traces").open("w+") as traces:
        faulthandler.register(signal.SIGQUIT, file=traces)
        try:
            bench.signals.add_missing(bench.handler)
            with bench.signals.deferred():
                os.kill(os.getpid(), signal.SIGQUIT)
        finally:
            faulthandler.unregister(signal.SIGQUIT)
        traces.seek(0)
        assert "most recent call first" in traces.read()
    assert bench.calls == []


def test_in_another_thread_nothing_is_deferred_and_nothing_installed(bench: Bench) -> None:
    signal.signal(signal.SIGHUP, signal.SIG_DFL)
    inside, go_on = threading.Event(), threading.Event()
    done: list[str] = []

    def work() -> None:
        bench.signals.add_missing(bench.handler)
        with bench.signals.deferred():
            inside.set()
            go_on.wait(10)
        bench.signals.remove_added()
        done.append("undisturbed")

    thread = threading.Thread(target=work)
    thread.start()
    assert inside.wait(10)
    with pytest.raises(Ended):
        signal.raise_signal(signal.SIGTERM)
    assert signal.getsignal(signal.SIGHUP) is signal.SIG_DFL
    go_on.set()
    thread.join(10)
    assert done == ["undisturbed"]


def test_without_a_handler_the_process_ends_after_the_block() -> None:
    source = (
        "import signal; from celery_qbeat.process.shutdown_signals import ShutdownSignals\n"
        "with ShutdownSignals(lambda seconds: None).deferred():\n"
        "    signal.raise_signal(signal.SIGTERM); print('complete', flush=True)\n"
        "print('never')"
    )
    run = subprocess.run([sys.executable, "-c", source], capture_output=True, text=True, timeout=60, check=False)
    assert (run.returncode, run.stdout) == (-signal.SIGTERM, "complete\n")


def test_without_sigquit_and_sighup_the_others_are_deferred() -> None:
    source = (
        "import signal; del signal.SIGHUP, signal.SIGQUIT, signal.pthread_sigmask, signal.sigpending\n"
        "from celery_qbeat.process.shutdown_signals import SHUTDOWN_SIGNALS, ShutdownSignals\n"
        "print([number.name for number in SHUTDOWN_SIGNALS])\n"
        "signals = ShutdownSignals(lambda seconds: None); signals.add_missing(print)\n"
        "with signals.deferred(): signal.raise_signal(signal.SIGINT); print('complete')"
    )
    run = subprocess.run([sys.executable, "-c", source], capture_output=True, text=True, timeout=60, check=False)
    assert run.stdout == "['SIGTERM', 'SIGINT']\ncomplete\n"
    assert run.stderr.endswith("KeyboardInterrupt\n")


def test_at_whatever_instant_signals_come_no_handler_runs_in_a_block() -> None:
    inside = armed = installed = False
    calls = breaches = 0
    signals = ShutdownSignals(lambda _seconds: None)

    def storm() -> None:
        dice = random.Random(7)
        wait_for(lambda: installed)
        for _ in range(400):
            os.kill(os.getpid(), dice.choice(SHUTDOWN_SIGNALS))
            time.sleep(dice.random() / 2000)

    def handler(_number: int, _frame: FrameType | None) -> None:
        nonlocal calls, breaches, armed
        calls += 1
        breaches += inside
        if armed:
            armed = False
            raise Ended

    thread = threading.Thread(target=storm)
    thread.start()
    for number in SHUTDOWN_SIGNALS:
        signal.signal(number, handler)
    installed = True
    while thread.is_alive():
        try:
            armed = True
            with signals.deferred():
                inside = True
                sum(range(50))
                inside = False
            armed = False
        except Ended:
            # It would still be set, had the handler run in the middle of the block.
            breaches += inside
    assert breaches == 0
    assert calls > 50
    with signals.deferred():
        pass
    assert all(signal.getsignal(number) is handler for number in SHUTDOWN_SIGNALS)
