"""Errors of any kind that last give the lock back; one that passes does not."""

from __future__ import annotations

import logging
from contextlib import suppress

import pytest

from celery_qbeat.engine import Limits
from celery_qbeat.errors import Doubt, SchemaError, Unavailable
from celery_qbeat.stores.driver_errors import BadData
from tests.unit.engine.rig import Rig

KINDS = [Unavailable, Doubt, SchemaError, BadData, RuntimeError]


def failing(error: type[Exception], method: str) -> tuple[Rig, list[float]]:
    """A beat whose call of `method` fails from now on, and when it gives its lock back."""
    rig = Rig(limits=Limits(let_go_s=5.0))
    rig.insert("j", "interval", "5")
    rig.run(1)

    def fail(*_args: object, **_keywords: object) -> None:
        raise error("it fails")

    setattr(rig.store, method, fail)
    given_back: list[float] = []
    plain = rig.gate.step_aside

    def let_go() -> bool:
        given_back.append(rig.clock.monotonic())
        return plain()

    rig.gate.step_aside = let_go  # type: ignore[method-assign]
    return rig, given_back


def ticks(rig: Rig, count: int) -> None:
    for _ in range(count):
        # The host logs what the engine does not know, and goes on.
        with suppress(RuntimeError):
            rig.tick()
        rig.clock.advance(1.0)


@pytest.mark.parametrize("method", ["read_changes", "claim"])
@pytest.mark.parametrize("error", KINDS)
def test_an_error_that_lasts_gives_the_lock_back(error: type[Exception], method: str) -> None:
    rig, given_back = failing(error, method)
    ticks(rig, 30)
    assert given_back
    assert not rig.engine.writing


@pytest.mark.parametrize("error", KINDS)
def test_an_error_that_is_over_is_forgotten(error: type[Exception]) -> None:
    rig, given_back = failing(error, "claim")
    ticks(rig, 7)
    del rig.store.claim  # type: ignore[method-assign]
    ticks(rig, 30)
    assert rig.engine.writing
    assert len(rig.slots()) >= 4
    assert len(set(rig.slots())) == len(rig.slots())
    count = len(given_back)
    ticks(rig, 30)
    assert len(given_back) == count


def test_an_error_in_single_ticks_does_not_give_the_lock_back() -> None:
    rig, given_back = failing(Unavailable, "claim")
    plain, fail = type(rig.store).claim, rig.store.claim
    for number in range(40):
        rig.store.claim = fail if number % 2 else plain.__get__(rig.store)  # type: ignore[method-assign]
        ticks(rig, 1)
    assert given_back == []


def test_an_unusable_database_is_said_once(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    rig, _ = failing(SchemaError, "read_changes")
    ticks(rig, 60)
    assert [line for line in caplog.messages if "cannot be used" in line] == [
        "database: cannot be used, nothing is dispatched: it fails"
    ]
