"""What becomes of slots that passed while nobody was dispatching."""

from __future__ import annotations

import pytest

from celery_qbeat.engine import Limits
from tests.unit.engine.rig import DAY, HOUR, MINUTE, SECOND, Rig, at


def after_an_outage(**columns: object) -> Rig:
    """2026-06-04, down from 09:30:00 to 13:20:00 UTC, with a daily job and an hourly one; then a minute of ticks."""
    rig = Rig("2026-06-04T09:00:00", limits=Limits(poll_s=30.0))
    rig.insert("daily", "daily", "10:00", **columns)
    rig.insert("hourly", "every", "1h", **columns)
    rig.run(30 * 60)
    rig.outbox.sent.clear()
    rig.restart(down_for=3 * 3600 + 50 * 60)
    assert rig.clock.now_us() == at("2026-06-04T13:20:00")
    rig.run(60)
    return rig


def test_once_sends_the_newest_missed_slot_and_counts_the_others() -> None:
    rig = after_an_outage(catch_up="once")
    assert rig.slots("daily") == [at("2026-06-04T10:00:00")]
    assert rig.slots("hourly") == [at("2026-06-04T13:00:00")]
    assert rig.entry("hourly").collapsed == 3
    assert rig.entry("daily").collapsed == 0
    assert rig.entry("hourly").late_us == 20 * MINUTE


def test_after_catching_up_once_the_cadence_goes_on() -> None:
    rig = after_an_outage(catch_up="once")
    rig.run(21 * HOUR / SECOND)
    assert rig.slots("daily") == [at("2026-06-04T10:00:00"), at("2026-06-05T10:00:00")]
    assert rig.slots("hourly")[:2] == [at("2026-06-04T13:00:00"), at("2026-06-04T14:00:00")]
    assert len(rig.slots("hourly")) == len(set(rig.slots("hourly"))) == 22


def test_skip_sends_nothing_that_passed_while_nobody_was_dispatching_and_says_so() -> None:
    rig = after_an_outage(catch_up="skip")
    assert rig.outbox.sent == []
    missed = rig.entry("hourly")
    assert (missed.verdict, missed.slot_us, missed.collapsed) == ("missed", at("2026-06-04T13:00:00"), 3)
    assert missed.detail == "1200.0 s late: nobody was dispatching"
    assert rig.state("daily").next_run_us == at("2026-06-05T10:00:00")
    assert rig.state("hourly").next_run_us == at("2026-06-04T14:00:00")


def test_skip_still_sends_the_slots_of_a_writer_that_was_only_busy() -> None:
    rig = Rig("2026-06-04T09:59:58")
    rig.insert("j", "every", "1m", catch_up="skip")
    rig.run(1)
    rig.clock.advance(8)
    rig.tick()
    assert rig.slots() == [at("2026-06-04T09:59:00"), at("2026-06-04T10:00:00")]


def test_a_slot_older_than_its_grace_is_missed_and_a_younger_one_is_sent() -> None:
    rig = after_an_outage(catch_up="once", grace_seconds=1800)
    assert rig.slots("daily") == []
    assert rig.entry("daily").verdict == "missed"
    assert rig.entry("daily").detail == "12000.0 s late: its grace of 1800 s was over"
    assert rig.slots("hourly") == [at("2026-06-04T13:00:00")]


def test_all_sends_each_missed_slot_oldest_first() -> None:
    rig = after_an_outage(catch_up="all", overlap="allow")
    assert rig.slots("hourly") == [at(f"2026-06-04T{hour}:00:00") for hour in (10, 11, 12, 13)]
    assert rig.slots("daily") == [at("2026-06-04T10:00:00")]


def test_all_judges_each_slot_by_its_own_grace() -> None:
    rig = after_an_outage(catch_up="all", overlap="allow", grace_seconds=2 * 3600)
    assert rig.verdicts("hourly")[-4:] == ["missed", "missed", "sent", "sent"]
    assert rig.slots("hourly") == [at("2026-06-04T12:00:00"), at("2026-06-04T13:00:00")]


def test_all_sends_at_most_a_hundred_slots_a_pass_and_loses_none() -> None:
    rig = Rig("2026-06-01T00:00:30")
    rig.insert(catch_up="all")
    rig.tick()
    rig.restart(down_for=2_500 * 60)
    passes = []
    while not passes or len(rig.slots()) > passes[-1]:
        passes.append(len(rig.slots()))
        rig.tick()
    assert passes == [1, *range(101, 2_501, 100), 2_501]
    assert rig.slots() == [at("2026-06-01T00:00:00") + minute * MINUTE for minute in range(2_501)]


def test_a_backlog_does_not_make_other_jobs_wait_nor_a_claim_without_bounds() -> None:
    rig = Rig("2026-06-01T00:00:30", limits=Limits(batch=100))
    for name in ("a", "b", "c"):
        rig.insert(name, catch_up="all")
    rig.insert("z", "daily", "09:00")
    rig.tick()
    rig.restart(down_for=10 * 3600)
    rig.outbox.sent.clear()
    rig.tick()
    assert rig.outbox.slots[0] == ("z", at("2026-06-01T09:00:00"))
    assert {job for job, _ in rig.outbox.slots} == {"z", "a"}
    rig.run(5)
    assert len(rig.outbox.slots) == 3 * 600 + 1


def test_all_with_overlap_skip_runs_its_backlog_one_after_another() -> None:
    rig = after_an_outage(catch_up="all", overlap="skip", max_run_seconds=86_400)
    assert rig.slots("hourly") == [], "the run of 09:00 has not ended"
    rig.landings.end(rig.store.ledger[0].task_id)
    for _ in range(6):
        rig.tick()
        rig.landings.end(rig.sent_id("hourly"))
    assert rig.slots("hourly") == [at(f"2026-06-04T{hour}:00:00") for hour in (10, 11, 12, 13)]


@pytest.mark.parametrize("hours", ["10", "10,22"])
def test_how_a_cron_row_spells_its_hour_makes_no_difference_to_catching_up(hours: str) -> None:
    rig = Rig("2026-06-04T09:00:00")
    rig.insert("j", "cron", f"0 {hours} * * *")
    rig.tick()
    rig.restart(down_for=4 * 3600 + 20 * 60)
    rig.tick()
    assert rig.slots() == [at("2026-06-04T10:00:00")]


def test_a_cron_row_within_its_grace_catches_up_once() -> None:
    rig = Rig("2026-06-04T08:40:00")
    rig.insert("j", "cron", "0,45 * * * *", grace_seconds=1800)
    rig.run(10 * 60)
    rig.restart(down_for=90 * 60)
    rig.run(60)
    assert rig.clock.now_us() == at("2026-06-04T10:21:00")
    assert rig.slots() == [at("2026-06-04T08:45:00"), at("2026-06-04T10:00:00")]
    assert rig.entry().collapsed == 2


def test_an_overdue_interval_job_runs_once_and_counts_on_from_there() -> None:
    rig = Rig()
    rig.insert("j", "interval", "600")
    rig.tick()
    rig.restart(down_for=3 * 3600)
    rig.run(1200)
    assert rig.slots() == [at(f"2026-06-01T{time}:00") for time in ("12:00", "12:10", "15:10", "15:20")]


def test_an_overdue_interval_job_with_skip_waits_for_its_next_period() -> None:
    rig = Rig()
    rig.insert("j", "interval", "600", catch_up="skip")
    rig.tick()
    rig.restart(down_for=3 * 3600)
    rig.tick()
    assert rig.verdicts()[1:] == ["missed"]
    assert rig.state().next_run_us == rig.clock.now_us() + 600 * SECOND


def test_a_once_job_is_sent_late_after_an_outage() -> None:
    rig = Rig()
    rig.insert("j", "once", "2026-06-01T13:00")
    rig.tick()
    rig.restart(down_for=2 * 3600)
    rig.run(60)
    assert rig.slots() == [at("2026-06-01T13:00:00")]
    assert rig.state().next_run_us is None


def test_a_once_job_that_is_first_seen_long_after_its_instant_is_missed() -> None:
    rig = Rig()
    rig.insert("j", "once", "2026-06-01T11:58:59")
    rig.insert("k", "once", "2026-06-01T11:59:30")
    rig.tick()
    assert rig.verdicts("j") == ["missed"]
    assert rig.entry("j").detail == "61.0 s late: its instant had passed when the row was first seen"
    assert rig.slots("k") == [at("2026-06-01T11:59:30")]


def test_a_database_that_was_away_is_an_outage_like_any_other() -> None:
    rig = Rig("2026-06-04T09:59:00")
    rig.insert("once")
    rig.insert("skip", catch_up="skip")
    rig.run(30)
    rig.outbox.sent.clear()
    rig.store.down = True
    rig.run(3 * 60)
    rig.store.down = False
    rig.run(5)
    assert rig.slots("once") == [at("2026-06-04T10:02:00")]
    assert rig.entry("once").collapsed == 2
    assert rig.slots("skip") == []
    assert rig.entry("skip").collapsed == 2


@pytest.mark.parametrize("overlap", ["allow", "skip"])
def test_a_backlog_does_not_starve_what_is_due_now(overlap: str) -> None:
    rig = Rig(limits=Limits(batch=8, chunk=8))
    for number in range(40):
        rig.insert(f"late{number}", "every", "1m", catch_up="all", overlap=overlap)
    rig.run(5)
    rig.clock.advance(2 * 86_400)
    rig.insert("now", "every", "1m")
    for _ in range(350):
        rig.tick()
        rig.clock.advance(0.2)
        for task in [shipment.run.task_id for shipment in rig.outbox.sent[-16:]]:
            rig.landings.end(task)
    sent = [shipment.run for shipment in rig.outbox.sent if shipment.job.id == "now"]
    assert len(sent) >= 2
    worst = max(run.late_us for run in sent[1:])
    assert worst <= 3 * SECOND
    behind = [shipment for shipment in rig.outbox.sent if shipment.job.id != "now"]
    assert len(behind) > 100


def test_a_clock_that_was_a_month_behind_sends_no_slot_from_before_the_job() -> None:
    rig = Rig()
    rig.insert("j", "every", "1m", catch_up="all")
    rig.run(300)
    born = rig.state().first_seen_us
    rig.clock.set_wall(rig.clock.now_us() - 30 * DAY)
    rig.run(15)
    rig.clock.set_wall(rig.clock.now_us() + 30 * DAY)
    before = len(rig.slots())
    rig.run(300)
    late = rig.slots()[before:]
    assert all(slot >= born for slot in late)
    assert len(late) <= 6
    assert len(set(rig.slots())) == len(rig.slots())
