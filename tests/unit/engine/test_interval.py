"""The timing of interval jobs."""

from __future__ import annotations

import pytest

from celery_qbeat.core.jobs import RowRules
from tests.unit.engine.rig import SECOND, Rig, at

NOON = at("2026-06-01T12:00:00")


def test_a_new_interval_job_is_due_at_once_and_then_exactly_n_after_its_dispatch() -> None:
    rig = Rig()
    rig.insert("j", "interval", "7")
    rig.tick()
    for _ in range(5):
        state = rig.state()
        assert state.next_run_us == state.last_run_us + 7 * SECOND
        rig.clock.advance(7.123456)
        rig.tick()
    assert rig.entry().late_us == 123_456
    assert len(rig.slots()) == 6


def test_the_lateness_of_one_run_moves_the_next_one() -> None:
    rig = Rig()
    rig.insert("j", "interval", "10")
    rig.tick()
    rig.clock.advance(13)
    rig.tick()
    assert rig.slots() == [NOON, NOON + 10 * SECOND]
    assert rig.state().next_run_us == NOON + 23 * SECOND


def test_an_interval_below_the_floor_is_clamped_up_to_it() -> None:
    rig = Rig(rules=RowRules(min_interval_us=10 * SECOND))
    rig.insert("j", "interval", "1")
    rig.run(35)
    assert rig.slots() == [NOON + second * SECOND for second in (0, 10, 20, 30)]


@pytest.mark.parametrize("text", ["0", "-5", "1.5", "abc", ""])
def test_an_interval_that_is_no_number_above_zero_is_treated_as_disabled(text: str) -> None:
    rig = Rig()
    rig.insert("j", "interval", text)
    rig.run(5)
    assert rig.outbox.sent == []
    assert repr(text) in rig.state().problem
    assert "treated as disabled" in rig.state().problem


def test_an_interval_that_falls_on_a_forbidden_day_moves_to_the_next_allowed_day() -> None:
    rig = Rig("2026-06-05T23:59:30")
    rig.insert("j", "interval", "60", days_skip="sat,sun")
    rig.tick()
    assert rig.state().next_run_us == at("2026-06-08T00:00:00")


def test_the_pause_until_the_next_tick_ends_when_the_next_slot_comes() -> None:
    rig = Rig("2026-06-01T12:00:59.600000")
    rig.insert("j", "every", "1m")
    rig.tick()
    assert rig.tick() == pytest.approx(0.4)
    rig.clock.advance(0.4)
    assert rig.tick() == 1.0
    assert rig.slots()[-1] == at("2026-06-01T12:01:00")
