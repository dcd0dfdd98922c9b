"""The database's clock as a second opinion."""

from __future__ import annotations

import logging
from collections.abc import Callable

import pytest

from celery_qbeat.engine import Limits
from tests.unit.engine.rig import DAY, MINUTE, SECOND, Rig


def with_database_clock(ahead_us: int = 0) -> tuple[Rig, Callable[[int], None]]:
    """A beat whose database has a clock, and how to set it: so many microseconds ahead of the beat's."""
    rig = Rig(limits=Limits(heartbeat_s=2.0))
    rig.insert("j", "every", "1m")
    ahead = [ahead_us]
    rig.store.database.clock = lambda: rig.clock.now_us() + ahead[0]
    return rig, lambda us: ahead.__setitem__(0, us)


def test_clocks_that_agree_are_not_mentioned(caplog: pytest.LogCaptureFixture) -> None:
    rig, _ = with_database_clock(ahead_us=4 * SECOND)
    rig.run(120)
    assert len(rig.slots()) == 3
    assert [line for line in caplog.messages if line.startswith("clock")] == []


def test_a_difference_of_seconds_is_a_warning(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    rig, set_ahead = with_database_clock(ahead_us=-6 * SECOND)
    rig.run(60)
    set_ahead(0)
    rig.run(60)
    assert len(rig.slots()) == 3
    ahead = "clock: this machine's clock is 6.0 s ahead of the database's clock. "
    assert [line for line in caplog.messages if line.startswith("clock")] == [
        ahead + "Set the clock that is wrong; at 600 s nothing is dispatched",
        "clock: this machine's clock agrees with the database's clock again",
    ]


@pytest.mark.parametrize("ahead", [10 * MINUTE, -10 * MINUTE, 30 * DAY])
def test_a_difference_of_ten_minutes_stops_dispatch(ahead: int, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    rig, set_ahead = with_database_clock(ahead_us=ahead)
    rig.run(300)
    assert rig.slots() == []
    set_ahead(0)
    rig.run(60)
    assert len(rig.slots()) >= 1
    assert len([line for line in caplog.messages if line.startswith("clock: nothing is dispatched")]) == 1


def test_a_clock_that_goes_wrong_while_a_beat_runs_stops_dispatch() -> None:
    rig, set_ahead = with_database_clock()
    rig.run(90)
    set_ahead(-20 * MINUTE)
    before = len(rig.slots())
    rig.run(300)
    assert len(rig.slots()) <= before
    set_ahead(0)
    rig.run(60)
    assert len(rig.slots()) > before


def test_a_slow_answer_is_no_difference() -> None:
    rig, _ = with_database_clock()
    plain = rig.store.clock_us

    def slowly() -> int | None:
        rig.clock.advance(700)
        answer = plain()
        rig.clock.advance(700)
        return answer

    rig.store.clock_us = slowly  # type: ignore[method-assign]
    rig.tick()
    assert len(rig.slots()) == 1


def test_a_beat_with_a_wrong_clock_leaves_the_lock_to_another() -> None:
    rig, _ = with_database_clock(ahead_us=20 * MINUTE)
    given_back = []
    plain = rig.gate.step_aside
    rig.gate.step_aside = lambda: given_back.append(1) or plain()  # type: ignore[method-assign, func-returns-value]
    rig.tick()
    assert given_back
    assert not rig.engine.writing
