"""A job never starts a run while one of its own is in flight, unless it may."""

from __future__ import annotations

from celery_qbeat.core.jobs import Verdict
from tests.unit.engine.rig import MINUTE, SECOND, Rig, at

NOON = at("2026-06-01T12:00:00")


def test_slots_that_fall_into_a_run_are_skipped_with_the_reason() -> None:
    rig = Rig("2026-06-01T11:59:59")
    rig.insert("j", "cron", "* * * * *", overlap="skip")
    rig.run(151)
    rig.landings.end(rig.sent_id())
    rig.run(60)
    assert rig.slots() == [NOON, NOON + 3 * MINUTE]
    lines = [(entry.slot_us, entry.verdict, entry.detail) for entry in rig.store.ledger]
    assert lines == [
        (NOON, "succeeded", ""),
        (NOON + MINUTE, "skipped", "previous run still in flight"),
        (NOON + 2 * MINUTE, "skipped", "previous run still in flight"),
        (NOON + 3 * MINUTE, "sent", ""),
    ]


def test_overlap_allow_starts_beside_a_run_in_flight() -> None:
    rig = Rig("2026-06-01T11:59:59")
    rig.insert("j", "cron", "* * * * *", overlap="allow")
    rig.run(181)
    assert rig.slots() == [NOON + minute * MINUTE for minute in range(4)]


def test_an_interval_job_stays_due_while_it_runs_and_starts_when_the_run_ends() -> None:
    rig = Rig()
    rig.insert("j", "interval", "60", overlap="skip")
    rig.run(150)
    assert rig.slots() == [NOON]
    assert rig.verdicts() == ["sent"]
    rig.landings.end(rig.sent_id())
    rig.tick()
    assert rig.slots() == [NOON, NOON + MINUTE]
    assert rig.entry().late_us == 90 * SECOND
    assert rig.state().next_run_us == rig.clock.now_us() + MINUTE


def test_an_interval_job_that_waited_for_its_own_run_is_not_past_its_grace() -> None:
    rig = Rig()
    rig.insert("j", "interval", "60", overlap="skip", grace_seconds=5, catch_up="skip")
    rig.run(300)
    rig.landings.end(rig.sent_id())
    rig.tick()
    assert rig.verdicts() == ["succeeded", "sent"]


def test_a_run_that_waits_in_a_queue_counts_as_in_flight() -> None:
    rig = Rig()
    rig.insert("j", "interval", "60", overlap="skip")
    rig.insert("k", "every", "1m", overlap="skip")
    rig.run(600)
    assert len(rig.slots("j")) == len(rig.slots("k")) == 1


def test_a_restarted_beat_knows_the_runs_in_flight() -> None:
    rig = Rig()
    rig.insert("j", "interval", "60", overlap="skip")
    rig.insert("k", "every", "1m", overlap="skip")
    rig.tick()
    rig.restart(down_for=70)
    rig.run(120)
    assert len(rig.slots("j")) == len(rig.slots("k")) == 1
    for job in ("j", "k"):
        rig.landings.end(rig.sent_id(job))
    rig.run(60)
    assert len(rig.slots("j")) == len(rig.slots("k")) == 2


def test_a_run_whose_worker_died_stops_blocking_when_its_lease_is_over() -> None:
    rig = Rig()
    rig.insert("j", "every", "1m", overlap="skip", max_run_seconds=300)
    rig.run(370)
    assert rig.store.ledger[0].verdict == "lost"
    assert rig.slots() == [NOON, NOON + 6 * MINUTE], "the slot at the lease's end came before the answers"


def test_a_failed_run_lets_the_next_one_start() -> None:
    rig = Rig()
    rig.insert("j", "interval", "60", overlap="skip")
    rig.tick()
    rig.landings.end(rig.sent_id(), Verdict.FAILED, "ZeroDivisionError: division by zero")
    rig.run(61)
    assert len(rig.slots()) == 2
    assert rig.store.database.extra["j"].last_error == "ZeroDivisionError: division by zero"


def test_a_waiting_job_that_is_edited_to_allow_overlap_starts_at_once() -> None:
    rig = Rig()
    rig.insert("j", "interval", "60", overlap="skip")
    rig.run(90)
    rig.store.update("j", overlap="allow")
    rig.tick()
    assert len(rig.slots()) == 2


def test_a_waiting_job_that_loses_its_privilege_is_refused() -> None:
    rig = Rig()
    rig.insert("j", "interval", "60", overlap="skip")
    rig.run(90)
    rig.store.update("j", fn="os.system")
    rig.tick()
    assert rig.verdicts() == ["sent", "refused"]


def test_a_waiting_job_keeps_waiting_when_something_else_of_it_is_edited() -> None:
    rig = Rig()
    rig.insert("j", "interval", "60", overlap="skip", grace_seconds=10)
    rig.run(90)
    rig.store.update("j", args="[1]")
    rig.run(30)
    assert len(rig.slots()) == 1
    rig.landings.end(rig.sent_id())
    rig.tick()
    assert rig.verdicts() == ["succeeded", "sent"]


def test_waiting_jobs_cost_nothing_and_others_run_on() -> None:
    rig = Rig()
    for number in range(20):
        rig.insert(f"busy{number}", "interval", "5", overlap="skip")
    rig.insert("free", "every", "1m")
    rig.run(20)
    assert rig.tick() == 1.0
    rig.run(60)
    assert len(rig.slots("free")) == 2
