"""A running beat notices every edit, and an edit never fires a job by itself."""

from __future__ import annotations

import logging

import pytest

from celery_qbeat.core.planning import OVERTAKEN_DETAIL
from celery_qbeat.engine import Limits
from tests.unit.engine.rig import HOUR, MINUTE, SECOND, Rig, at

NOON = at("2026-06-01T12:00:00")


def test_enabling_a_job_after_its_slots_passed_waits_for_the_next_one() -> None:
    rig = Rig("2026-05-17T00:00:30", limits=Limits(poll_s=60.0))
    rig.insert("j", "cron", "0 0 * * 0")
    rig.run(DAY_AND_A_HALF)
    rig.store.update("j", enabled=False)
    rig.clock.set_wall(at("2026-06-05T10:00:00"))
    rig.tick()
    rig.store.update("j", enabled=True)
    rig.run(120)
    assert rig.slots() == []
    assert rig.state().next_run_us == at("2026-06-07T00:00:00")


DAY_AND_A_HALF = 36 * 3600.0


def test_a_daily_job_moved_to_a_time_that_passed_today_runs_tomorrow() -> None:
    rig = Rig()
    rig.insert("j", "daily", "15:00")
    rig.tick()
    rig.store.update("j", schedule="01:00")
    rig.run(10)
    assert rig.slots() == []
    assert rig.state().next_run_us == at("2026-06-02T01:00:00")


def test_a_job_made_just_before_its_time_runs_once() -> None:
    rig = Rig("2026-06-01T07:59:41")
    rig.insert("j", "daily", "08:00")
    rig.run(60)
    assert rig.slots() == [at("2026-06-01T08:00:00")]


def test_a_job_whose_start_passed_before_it_was_made_takes_its_next_slot() -> None:
    rig = Rig("2026-06-01T14:02:00", limits=Limits(poll_s=60.0))
    rig.insert("j", "cron", "0 15 * * *", start_us=at("2026-06-01T14:00:00"))
    rig.run(HOUR / SECOND)
    assert rig.slots() == [at("2026-06-01T15:00:00")]


def test_an_edit_beside_the_schedule_leaves_the_slot_where_it_is() -> None:
    rig = Rig()
    rig.insert("j", "interval", "3600")
    rig.run(45 * 60)
    planned = rig.state().next_run_us
    for column, value in {"args": "[1]", "fn": "app.b", "description": "x", "catch_up": "all", "priority": 3}.items():
        rig.store.update("j", **{column: value})
        rig.tick()
        assert rig.state().next_run_us == planned == NOON + HOUR
    rig.run(16 * 60)
    assert len(rig.slots()) == 2
    assert rig.outbox.sent[-1].job.args == "[1]"


def test_editing_one_job_does_nothing_to_the_others() -> None:
    rig = Rig("2026-06-01T12:00:30")
    for name in "abcdef":
        rig.insert(name, "cron", "0 13 * * *")
    rig.tick()
    before = {name: rig.state(name) for name in "bcdef"}
    rig.store.update("a", schedule="1 12 * * *")
    rig.run(40)
    assert rig.slots("a") == [NOON + MINUTE]
    assert len(rig.outbox.sent) == 1
    assert {name: rig.state(name) for name in "bcdef"} == before


def test_a_shorter_interval_counts_from_the_last_run() -> None:
    rig = Rig()
    rig.insert("j", "interval", "3600")
    rig.tick()
    rig.clock.advance(40)
    rig.store.update("j", schedule="60")
    rig.tick()
    assert rig.slots() == [NOON]
    assert rig.state().next_run_us == NOON + 60 * SECOND


def test_an_interval_shortened_below_the_time_since_the_last_run_starts_a_new_period() -> None:
    rig = Rig()
    rig.insert("j", "interval", "3600")
    rig.tick()
    rig.clock.advance(1800)
    rig.store.update("j", schedule="60")
    rig.tick()
    assert rig.slots() == [NOON]
    assert rig.state().next_run_us == rig.clock.now_us() + 60 * SECOND


def test_an_insert_an_update_and_a_delete_are_seen_by_the_next_tick() -> None:
    rig = Rig("2026-06-01T12:00:30")
    rig.tick()
    rig.insert("j", "every", "1m")
    rig.tick()
    assert rig.slots() == [NOON]
    rig.store.update("j", enabled=False)
    rig.run(60)
    assert rig.state().next_run_us is None
    rig.store.update("j", enabled=True)
    rig.run(60)
    assert len(rig.slots()) == 2
    rig.store.delete("j")
    rig.run(120)
    assert len(rig.slots()) == 2
    assert "j" not in rig.store.state


def test_a_disabled_job_keeps_its_slot_when_it_is_enabled_before_anybody_looks() -> None:
    rig = Rig()
    rig.insert("j", "interval", "600")
    rig.tick()
    rig.store.update("j", enabled=False)
    rig.store.update("j", enabled=True)
    rig.run(601)
    assert rig.slots() == [NOON, NOON + 10 * MINUTE]


def test_a_row_deleted_and_inserted_between_two_looks_is_one_job() -> None:
    rig = Rig()
    rig.insert("j", "every", "1m")
    rig.run(5)
    rig.store.delete("j")
    rig.insert("j", "every", "1m", fn="app.b")
    rig.run(5)
    assert rig.slots() == [NOON]
    rig.run(55)
    assert [shipment.job.fn for shipment in rig.outbox.sent] == ["app.a", "app.b"]


def test_a_row_inserted_again_after_it_was_forgotten_does_not_get_its_slot_twice() -> None:
    rig = Rig()
    rig.insert("j", "every", "1m")
    rig.tick()
    rig.store.delete("j")
    rig.tick()
    rig.insert("j", "every", "1m")
    rig.run(65)
    assert rig.slots() == [NOON, NOON + MINUTE]


def test_a_renamed_row_is_a_new_job() -> None:
    rig = Rig()
    rig.insert("j", "interval", "600")
    rig.tick()
    rig.store.update("j", id="k")
    rig.run(5)
    assert rig.slots("k") == [NOON]
    assert "j" not in rig.store.state


def test_a_job_does_not_run_before_its_start_and_after_its_end() -> None:
    rig = Rig("2026-06-01T11:55:30")
    rig.insert("j", "every", "1m", start_us=NOON, end_us=NOON + 2 * MINUTE)
    rig.insert("k", "interval", "60", start_us=NOON, end_us=NOON + 2 * MINUTE)
    rig.run(600)
    assert rig.slots("j") == rig.slots("k") == [NOON, NOON + MINUTE, NOON + 2 * MINUTE]
    assert rig.state("j").next_run_us is rig.state("k").next_run_us is None


def test_a_once_job_whose_instant_lies_before_its_start_never_runs() -> None:
    rig = Rig()
    rig.insert("j", "once", "2026-06-01T11:59:59", start_us=NOON)
    rig.insert("k", "every", "1h", start_us=NOON - MINUTE)
    rig.run(5)
    assert rig.slots("j") == []
    assert rig.slots("k") == [NOON]


@pytest.mark.parametrize(("kind", "schedule"), [("every", "1h"), ("daily", "13:00"), ("cron", "0 13 * * *")])
def test_a_slot_at_the_very_start_of_a_job_runs(kind: str, schedule: str) -> None:
    rig = Rig(limits=Limits(poll_s=60.0))
    rig.insert("j", kind, schedule, start_us=NOON + HOUR)
    rig.insert("k", "interval", "5")
    rig.run(60)
    rig.store.update("k", schedule_kind=kind, schedule=schedule, start_us=NOON + HOUR, end_us=NOON + HOUR)
    rig.run(3600)
    assert rig.slots("j") == [NOON + HOUR]
    assert rig.slots("k")[-1] == NOON + HOUR


def test_slots_up_to_the_end_are_caught_up_after_it() -> None:
    rig = Rig()
    rig.insert("j", "every", "1m", end_us=NOON + 5 * MINUTE)
    rig.tick()
    rig.restart(down_for=3600)
    rig.tick()
    assert rig.slots() == [NOON, NOON + 5 * MINUTE]
    assert rig.entry().collapsed == 4


def test_an_end_moved_further_lets_a_finished_job_go_on() -> None:
    rig = Rig()
    rig.insert("j", "every", "1m", end_us=NOON + MINUTE)
    rig.run(300)
    rig.store.update("j", end_us=NOON + 7 * MINUTE)
    rig.run(600)
    assert rig.slots() == [NOON + minute * MINUTE for minute in (0, 1, 6, 7)]


def test_a_disabled_worker_pauses_its_jobs_and_only_those() -> None:
    rig = Rig()
    rig.store.set_worker(name="shop")
    rig.insert("j", "interval", "60", worker="shop")
    rig.insert("k", "interval", "60")
    rig.tick()
    rig.store.set_worker(name="shop", enabled=False)
    rig.run(300)
    assert (len(rig.slots("j")), len(rig.slots("k"))) == (1, 6)
    rig.store.set_worker(name="shop", enabled=True)
    rig.run(61)
    assert len(rig.slots("j")) == 2


def test_a_worker_that_changes_its_functions_decides_at_the_next_slot() -> None:
    rig = Rig("2026-06-01T12:00:30")
    rig.store.set_worker(name="shop", functions="app.*")
    rig.insert("j", "every", "1m", worker="shop")
    rig.tick()
    rig.store.set_worker(name="shop", functions="app.b")
    rig.run(40)
    assert rig.verdicts() == ["sent", "refused"]
    assert rig.state().problem == "fn: 'app.a' is outside the functions of worker 'shop'"
    rig.store.set_worker(name="shop", functions="app.b app.a")
    rig.run(60)
    assert rig.verdicts() == ["sent", "refused", "sent"]
    assert rig.state().problem == ""


def test_a_job_of_an_unknown_worker_runs_when_the_worker_appears() -> None:
    rig = Rig()
    rig.insert("j", "interval", "60", worker="shop")
    rig.run(5)
    assert rig.state().problem == "worker: 'shop' is not a row of qbeat_workers"
    rig.store.set_worker(name="shop")
    rig.run(5)
    assert len(rig.slots()) == 1
    assert rig.state().problem == ""


def test_a_cron_row_is_reserved_until_it_is_allowed() -> None:
    rig = Rig("2026-06-01T12:00:30", cron=False)
    rig.insert("j", "cron", "* * * * *")
    rig.run(120)
    assert rig.outbox.sent == []
    assert "set qbeat_cron = True" in rig.state().problem
    assert rig.store.history == [("j", rig.state().first_seen_us, None)]
    allowed = Rig("2026-06-01T12:03:30", store=rig.store.session())
    allowed.run(40)
    assert allowed.slots() == [NOON + 4 * MINUTE]
    assert allowed.state().problem == ""


def test_a_hundred_jobs_lose_nothing_while_an_unrelated_row_is_saved_every_second() -> None:
    rig = Rig("2026-06-01T12:00:30")
    for number in range(100):
        rig.insert(f"job{number:02}", "every", "1m")
    rig.insert("busy", "daily", "03:00")
    for second in range(300):
        rig.store.update("busy", description=str(second), schedule=f"03:{second % 60:02}")
        rig.run(1)
    for number in range(100):
        assert rig.slots(f"job{number:02}") == [NOON + minute * MINUTE for minute in range(6)]
    assert rig.slots("busy") == []


def test_a_table_that_changed_behind_the_feed_is_read_again() -> None:
    rig = Rig(limits=Limits(drift_s=60.0))
    rig.insert("j", "interval", "3600")
    rig.run(10)
    rig.store.rows["j"] = {**rig.store.rows["j"], "schedule": "5", "rev": 99}
    rig.run(49)
    assert len(rig.slots()) == 1
    rig.run(20)
    assert len(rig.slots()) > 1


def test_a_slot_that_an_edit_overtook_is_missed_and_not_forgotten() -> None:
    rig = Rig("2026-06-01T12:00:30")
    rig.insert("j", "every", "1m")
    rig.tick()
    rig.restart(down_for=600)
    rig.store.update("j", schedule="5m")
    rig.run(300)
    entries = [(entry.slot_us, entry.verdict) for entry in rig.store.ledger]
    assert entries == [(NOON, "sent"), (NOON + MINUTE, "missed"), (NOON + 15 * MINUTE, "sent")]
    assert rig.store.ledger[1].detail == f"570.0 s late: the row changed {OVERTAKEN_DETAIL}"


@pytest.mark.parametrize("what", ["disable", "delete", "break"])
def test_a_slot_that_is_due_when_its_row_goes_is_missed_and_not_forgotten(what: str) -> None:
    rig = Rig("2026-06-01T12:00:59.500000")
    rig.insert("j", "every", "1m")
    rig.tick()
    rig.clock.advance(0.6)
    if what == "disable":
        rig.store.update("j", enabled=False)
    elif what == "delete":
        rig.store.delete("j")
    else:
        rig.store.update("j", schedule="soon")
    rig.run(5)
    assert rig.verdicts() == ["sent", "missed"]
    assert rig.entry().slot_us == NOON + MINUTE
    assert OVERTAKEN_DETAIL in rig.entry().detail


def test_the_history_tells_when_a_job_ran_by_which_definition() -> None:
    rig = Rig()
    rig.insert("j", "once", "2026-06-01T12:01")
    rig.run(90)
    rig.store.update("j", enabled=False)
    rig.run(10)
    rig.store.update("j", enabled=True, end_us=NOON)
    rig.run(10)
    rig.store.update("j", kwargs="{")
    rig.run(10)
    kinds = [spec is not None for _, _, spec in rig.store.history]
    assert kinds == [True, False, True, False]


def test_a_disable_that_could_not_be_stored_at_once_is_in_the_history() -> None:
    rig = Rig("2026-06-01T12:00:59.500000")
    rig.insert("j", "every", "1m")
    rig.tick()
    rig.clock.advance(0.6)
    rig.store.update("j", enabled=False)
    rig.store.fail_next("write_plans")
    rig.run(5)
    assert rig.verdicts() == ["sent", "missed"]
    assert rig.store.history[-1][2] is None


def test_a_reload_does_not_disturb_a_cadence() -> None:
    rig = Rig()
    rig.insert("j", "interval", "600")
    rig.insert("k", "daily", "12:30")
    rig.tick()
    before = dict(rig.store.state)
    rig.store.database.log.append(("T", None))
    rig.tick()
    assert dict(rig.store.state) == before


def test_changes_are_counted_in_the_log(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    rig = Rig()
    rig.insert("j", "interval", "600")
    rig.insert("k", "interval", "600")
    rig.tick()
    rig.store.update("j", args="[1]")
    rig.store.delete("k")
    rig.tick()
    assert "rows: 1 changed, 1 gone" in caplog.messages
