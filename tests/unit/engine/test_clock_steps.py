"""Somebody sets the machine's clock."""

from __future__ import annotations

import logging

import pytest

from tests.unit.engine.rig import DAY, HOUR, MINUTE, SECOND, Rig, at

NOON = at("2026-06-01T12:00:00")


def step(rig: Rig, us: int) -> None:
    rig.clock.set_wall(rig.clock.now_us() + us)


@pytest.mark.parametrize(("kind", "schedule"), [("every", "1m"), ("cron", "* * * * *"), ("interval", "60")])
def test_three_seconds_back_send_no_slot_twice(kind: str, schedule: str) -> None:
    rig = Rig("2026-06-01T11:59:59")
    rig.insert("j", kind, schedule)
    rig.run(2)
    before = len(rig.slots())
    step(rig, -3 * SECOND)
    rig.run(3)
    assert len(rig.slots()) == before
    rig.run(60)
    assert len(rig.slots()) == before + 1
    assert len(set(rig.slots())) == len(rig.slots())
    assert set(rig.verdicts()) == {"sent"}


@pytest.mark.parametrize(("kind", "schedule"), [("every", "1m"), ("cron", "* * * * *"), ("interval", "60")])
def test_thirty_days_back_run_the_job_again_within_its_period(kind: str, schedule: str) -> None:
    rig = Rig()
    rig.insert("j", kind, schedule)
    rig.run(300)
    before = len(rig.slots())
    step(rig, -30 * DAY)
    rig.run(61)
    assert len(rig.slots()) == before + 1
    assert rig.slots()[-1] <= NOON - 30 * DAY + 6 * MINUTE + SECOND


def test_thirty_days_back_run_a_daily_job_again_within_a_day() -> None:
    rig = Rig()
    rig.insert("j", "daily", "12:30")
    rig.run(HOUR / SECOND)
    step(rig, -30 * DAY)
    rig.tick()
    assert rig.state().next_run_us == at("2026-05-03T12:30:00")


def test_two_hours_forward_catch_up_once() -> None:
    rig = Rig()
    rig.insert("j", "every", "1m")
    rig.insert("k", "interval", "60")
    rig.run(90)
    rig.outbox.sent.clear()
    step(rig, 2 * HOUR)
    rig.run(1)
    assert rig.slots("j") == [NOON + 2 * HOUR + MINUTE]
    assert rig.entry("j").collapsed == 119
    assert len(rig.slots("k")) == 1
    rig.run(60)
    assert len(rig.slots("j")) == len(rig.slots("k")) == 2


def test_two_hours_forward_are_time_that_nobody_served_for_a_job_with_skip() -> None:
    rig = Rig()
    rig.insert("j", "every", "1m", catch_up="skip")
    rig.run(90)
    step(rig, 2 * HOUR + 20 * SECOND)
    rig.run(1)
    assert rig.verdicts()[-1] == "missed"


def test_half_an_hour_back_does_not_run_through_slots_that_were_sent_already() -> None:
    rig = Rig()
    rig.insert("j", "every", "1m")
    rig.run(2400)
    sent = len(rig.slots())
    step(rig, -30 * MINUTE)
    rig.run(1800 - 2)
    assert len(rig.slots()) == sent
    rig.run(62)
    assert len(rig.slots()) == sent + 1


def test_half_an_hour_back_just_after_the_start_does_not_silence_a_job() -> None:
    rig = Rig()
    rig.insert("j", "every", "1m")
    rig.run(90)
    step(rig, -30 * MINUTE)
    rig.run(180)
    assert rig.slots()[2:] == [NOON - (28 - minute) * MINUTE for minute in range(3)]


def test_a_step_back_before_the_start_of_a_job_plans_it_for_its_start() -> None:
    rig = Rig()
    rig.insert("j", "interval", "3600", start_us=NOON)
    rig.insert("k", "every", "1h", start_us=NOON)
    rig.run(90)
    step(rig, -DAY)
    rig.run(5)
    assert rig.state("j").next_run_us == rig.state("k").next_run_us == NOON


def test_a_step_back_is_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    rig = Rig()
    rig.insert("j", "interval", "60")
    rig.run(5)
    step(rig, -30 * DAY)
    rig.run(5)
    steps = [record.getMessage() for record in caplog.records if record.getMessage().startswith("clock:")]
    assert steps == ["clock: stepped back; 1 job planned again"]


def test_a_step_back_that_could_not_be_stored_is_planned_when_the_database_is_back() -> None:
    rig = Rig()
    rig.insert("j", "every", "1m")
    rig.run(5)
    step(rig, -30 * DAY)
    rig.store.fail_next("write_plans")
    rig.run(65)
    assert rig.slots()[-1] == NOON - 30 * DAY + MINUTE


def test_a_beat_that_was_ahead_of_its_successor_does_not_silence_a_job() -> None:
    rig = Rig()
    rig.insert("j", "every", "1m")
    rig.insert("k", "interval", "60")
    rig.run(5)
    step(rig, DAY)
    rig.run(120)
    step(rig, -DAY)
    rig.restart(down_for=5)
    rig.outbox.sent.clear()
    rig.run(120)
    assert len(rig.slots("j")) == 2
    assert len(rig.slots("k")) == 2
