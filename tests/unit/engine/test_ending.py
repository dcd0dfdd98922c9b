"""How a beat ends: what it owes is written first, the lock is given back whatever happens, and no wait is long."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from typing import Any

import pytest

from celery_qbeat.errors import Doubt
from celery_qbeat.ports import FOREVER
from tests.unit.engine.rig import Rig


def with_an_open_claim() -> Rig:
    """Nobody knows whether the claim was committed; surely nothing was sent."""
    rig = Rig()
    rig.insert("j", "interval", "3600")
    rig.store.fail_next("claim", "after", Doubt)
    rig.tick()
    assert rig.verdicts() == ["claimed"]
    return rig


def test_what_was_not_sent_is_given_back_before_the_lock() -> None:
    rig = with_an_open_claim()
    order: list[str] = []
    release, let_go = rig.store.release_claims, rig.gate.release

    def noted(name: str, plain: Any) -> Any:
        def call(*args: Any) -> Any:
            order.append(name)
            return plain(*args)

        return call

    rig.store.release_claims = noted("claims", release)  # type: ignore[method-assign]
    rig.gate.release = noted("lock", let_go)  # type: ignore[method-assign]
    rig.engine.close()
    assert order == ["claims", "lock"]
    assert rig.verdicts() == []


def test_a_database_that_is_away_keeps_nobody_from_the_lock(caplog: pytest.LogCaptureFixture) -> None:
    rig = with_an_open_claim()
    rig.store.cut_off = True
    rig.engine.close()
    assert rig.gate.released
    assert "beat: ends with 1 write undone" in caplog.text


def test_a_database_that_has_made_the_end_wait_is_not_asked_again() -> None:
    rig = with_an_open_claim()
    rig.engine.limit_waits(2.0)
    rig.clock.advance(1.5)
    rig.engine.close()
    assert rig.gate.released
    assert rig.verdicts() == ["claimed"]


def test_a_signal_that_ended_nothing_leaves_no_limit() -> None:
    rig = with_an_open_claim()
    rig.engine.limit_waits(2.0)
    rig.engine.limit_waits(FOREVER)
    assert rig.store.longest_wait_s == FOREVER
    rig.clock.advance(60)
    rig.engine.close()
    assert rig.store.longest_wait_s == 2.0
    assert rig.verdicts() == []


def test_an_exception_in_the_last_write_keeps_nobody_from_the_lock() -> None:
    rig = with_an_open_claim()

    def interrupted(*_args: Any) -> None:
        raise SystemExit

    rig.store.release_claims = interrupted  # type: ignore[method-assign]
    with pytest.raises(SystemExit):
        rig.engine.close()
    assert rig.gate.released


def test_a_load_ends_early_when_the_beat_is_to_end(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    read: list[int] = []
    rig = Rig(stopping=lambda: len(read) >= 2)
    for number in range(5):
        rig.insert(f"j{number}")
    load = rig.store.load

    def by_row() -> Iterator[Any]:
        for part in load():
            for row in part.rows:
                read.append(1)
                yield type(part)(rows=[row])

    rig.store.load = by_row  # type: ignore[method-assign]
    rig.tick()
    assert len(read) < 5
    assert "jobs paused" not in caplog.text
    assert rig.outbox.sent == []


def test_a_beat_that_is_to_end_claims_nothing() -> None:
    stop: list[bool] = []
    rig = Rig(stopping=lambda: bool(stop))
    rig.insert("j", "interval", "3600")
    beat = rig.store.record_heartbeat

    def signalled(*args: Any) -> None:
        stop.append(True)
        beat(*args)

    rig.store.record_heartbeat = signalled  # type: ignore[method-assign]
    rig.tick()
    assert rig.verdicts() == []
    stop.clear()
    rig.store.record_heartbeat = beat  # type: ignore[method-assign]
    rig.tick()
    assert rig.verdicts() == ["sent"]
