"""The broker is away, doubtful, or cannot take a payload."""

from __future__ import annotations

import logging

import pytest

from celery_qbeat.core.jobs import Job
from celery_qbeat.core.schedules import Every
from celery_qbeat.engine import Limits
from tests.unit.engine.rig import MINUTE, SECOND, Rig, at

NOON = at("2026-06-01T12:00:00")


def count_claims(rig: Rig) -> list[int]:
    """The sizes of all batches that are claimed from now on."""
    claims: list[int] = []
    plain = rig.store.claim

    def claim(epoch: int, batch_id: int, wanted: list[object], now_us: int) -> frozenset[str]:
        claims.append(len(wanted))
        return plain(epoch, batch_id, wanted, now_us)  # type: ignore[arg-type]

    rig.store.claim = claim  # type: ignore[method-assign, assignment]
    return claims


def test_what_surely_was_not_sent_is_released_and_sent_when_the_broker_is_back() -> None:
    rig = Rig("2026-06-01T12:00:30")
    rig.insert("j", "every", "1m")
    rig.insert("k", "interval", "3600")
    rig.outbox.away = True
    rig.run(40)
    assert rig.store.ledger == []
    assert rig.state("j").next_run_us == NOON
    assert rig.state("j").last_run_us is None
    rig.outbox.away = False
    rig.run(10)
    assert rig.slots("j") == [NOON + MINUTE]
    assert rig.entry("j").collapsed == 1
    assert rig.slots("k") == [NOON + 30 * SECOND]


def test_a_held_back_slot_whose_grace_is_over_is_missed() -> None:
    rig = Rig("2026-06-01T12:30:00")
    rig.insert("j", "daily", "13:00", grace_seconds=60)
    rig.insert("k", "daily", "13:00", grace_seconds=600)
    rig.run(29 * 60)
    rig.outbox.away = True
    rig.run(180)
    assert rig.outbox.sent == []
    rig.outbox.away = False
    rig.run(5)
    assert rig.verdicts("j") == ["missed"]
    assert rig.verdicts("k") == ["sent"]
    assert rig.entry("k").late_us == 120 * SECOND


def test_a_once_job_whose_instant_passed_just_before_it_was_seen_is_held_back_too() -> None:
    rig = Rig()
    rig.insert("j", "once", "2026-06-01T11:59:30")
    rig.outbox.away = True
    rig.run(300)
    rig.outbox.away = False
    rig.run(5)
    assert rig.verdicts() == ["sent"]


def test_a_new_job_that_is_held_back_is_late_from_when_it_was_seen() -> None:
    rig = Rig("2026-06-01T12:00:30")
    rig.insert("j", "every", "1h")
    rig.insert("k", "every", "1h", grace_seconds=100)
    rig.outbox.away = True
    rig.run(120)
    rig.outbox.away = False
    rig.run(5)
    assert rig.entry("j").late_us == 120 * SECOND
    assert rig.verdicts("k") == ["missed"]


def test_a_broker_that_is_away_is_asked_once_a_poll_and_nothing_is_claimed() -> None:
    rig = Rig(limits=Limits(poll_s=1.0))
    for number in range(50):
        rig.insert(f"j{number}", "interval", "60")
    rig.outbox.away = True
    rig.tick()
    rig.outbox.asked = 0
    claims = count_claims(rig)
    rig.run(10)
    assert claims == []
    assert 9 <= rig.outbox.asked <= 11


def test_a_broker_that_answers_but_takes_nothing_is_tried_with_one_job() -> None:
    rig = Rig(limits=Limits(poll_s=1.0))
    for number in range(50):
        rig.insert(f"j{number}", "interval", "60")
    rig.outbox.fails = True
    rig.tick()
    claims = count_claims(rig)
    rig.run(10)
    assert claims == [1] * len(claims)
    assert 9 <= len(claims) <= 11


def test_a_broker_outage_is_one_log_line_each_way(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    rig = Rig()
    rig.insert("j", "interval", "5")
    rig.insert("k", "interval", "7")
    rig.run(5)
    rig.outbox.away = True
    rig.run(40)
    rig.outbox.away = False
    rig.run(20)
    lines = [message for message in caplog.messages if message.startswith("broker:")]
    assert lines == ["broker: away, due runs are held back until it is back: connection refused", "broker: back"]


def test_a_whole_batch_is_held_back_and_then_sent_once_each() -> None:
    rig = Rig(limits=Limits(batch=10, chunk=3))
    for number in range(30):
        rig.insert(f"j{number:02}", "interval", "3600")
    rig.outbox.fails = True
    rig.run(5)
    assert rig.store.ledger == []
    rig.outbox.fails = False
    rig.run(10)
    assert sorted(job for job, _ in rig.outbox.slots) == [f"j{number:02}" for number in range(30)]


def test_one_bad_payload_never_stops_the_batch() -> None:
    rig = Rig(limits=Limits(chunk=2))
    for name in ("a", "b", "c", "d", "e"):
        rig.insert(name, "interval", "60", overlap="skip")
    rig.outbox.bad = {"b", "e"}
    rig.run(1)
    assert [job for job, _ in rig.outbox.slots] == ["a", "c", "d"]
    assert rig.entry("b").verdict == "failed"
    assert rig.entry("b").detail == "could not be published: cannot be encoded"
    rig.outbox.bad = set()
    rig.run(60)
    assert len(rig.slots("b")) == 1, "it does not wait for a run that never was"


def test_a_run_that_its_task_declines_is_skipped_and_holds_nothing_up() -> None:
    rig = Rig()
    for name in ("a", "b"):
        rig.insert(name, "interval", "60", overlap="skip")
    rig.outbox.declined = {"a"}
    rig.run(1)
    assert (rig.verdicts("a"), rig.verdicts("b")) == (["skipped"], ["sent"])
    assert rig.entry("a").detail == "it is queued already"
    rig.outbox.declined = ()
    rig.run(60)
    assert rig.verdicts("a") == ["skipped", "sent"]
    assert rig.state("a").last_succeeded_us is None


def test_a_run_in_doubt_that_its_task_declines_stays_in_doubt() -> None:
    rig = Rig()
    rig.insert("j", "interval", "60", on_doubt="resend")
    rig.outbox.doubt_next = True
    while not rig.outbox.sent:
        rig.tick()
    rig.outbox.declined = {"j"}
    rig.run(5)
    assert rig.verdicts("j") == ["in doubt"]


def test_a_doubtful_publish_under_drop_is_in_doubt_and_not_sent_again() -> None:
    rig = Rig()
    rig.insert("j", "interval", "60", on_doubt="drop")
    rig.outbox.doubt_next = True
    rig.run(30)
    assert rig.slots() == [NOON]
    assert rig.verdicts() == ["in doubt"]
    assert rig.entry().detail == "the broker went away while it was being sent"
    rig.run(40)
    assert len(rig.slots()) == 2


def test_a_doubtful_publish_under_resend_is_sent_again_under_the_same_id() -> None:
    rig = Rig()
    rig.insert("j", "interval", "60", on_doubt="resend", overlap="skip")
    rig.outbox.doubt_next = True
    rig.run(30)
    assert rig.slots() == [NOON, NOON]
    assert len({shipment.run.task_id for shipment in rig.outbox.sent}) == 1
    assert rig.verdicts() == ["sent"]
    rig.landings.end(rig.sent_id())
    rig.run(40)
    assert len(rig.slots()) == 3


def test_a_doubt_in_the_middle_of_a_batch_holds_back_what_follows_it() -> None:
    rig = Rig(limits=Limits(chunk=2))
    for name in ("a", "b", "c", "d"):
        rig.insert(name, "interval", "60")
    rig.tick()
    rig.clock.advance(60)
    rig.outbox.sent.clear()
    rig.outbox.doubt_next = True
    rig.run(5)
    assert rig.verdicts("a") == ["sent", "in doubt"]
    for name in ("a", "b", "c", "d"):
        assert len(rig.slots(name)) == 1
    assert rig.verdicts("d") == ["sent", "sent"]


def test_a_resend_that_finds_the_broker_away_is_kept() -> None:
    rig = Rig()
    rig.insert("j", "interval", "60", on_doubt="resend")
    rig.outbox.doubt_next = True
    rig.tick()
    rig.outbox.away = True
    rig.run(20)
    assert rig.verdicts() == ["claimed"]
    rig.outbox.away = False
    rig.run(2)
    assert rig.verdicts() == ["sent"]
    assert rig.slots() == [NOON, NOON]


def test_a_resend_whose_payload_cannot_be_published_stays_in_doubt_and_lets_the_job_run_on() -> None:
    rig = Rig()
    rig.insert("j", "interval", "60", on_doubt="resend", overlap="skip")
    rig.outbox.doubt_next = True
    rig.tick()
    rig.outbox.bad = {"j"}
    rig.run(2)
    assert rig.verdicts() == ["in doubt"]
    assert rig.entry().detail == "perhaps sent; it could not be sent again: cannot be encoded"
    rig.outbox.bad = set()
    rig.run(60)
    assert rig.verdicts() == ["in doubt", "sent"]


@pytest.mark.parametrize("edit", [{"enabled": False}, {"fn": "os.system"}, {"on_doubt": "drop"}])
def test_a_waiting_resend_of_a_row_that_may_not_run_any_more_is_dropped_and_said_so(edit: dict[str, object]) -> None:
    rig = Rig()
    rig.insert("j", "interval", "60", on_doubt="resend")
    rig.outbox.doubt_next = True
    rig.tick()
    rig.outbox.away = True
    rig.run(5)
    rig.store.update("j", **edit)
    rig.outbox.away = False
    rig.run(5)
    assert rig.slots() == [NOON]
    assert rig.verdicts() == ["in doubt"]


def test_a_doubtful_run_that_reports_an_end_was_sent_and_is_not_sent_again() -> None:
    rig = Rig()
    rig.insert("j", "interval", "3600", on_doubt="resend")
    rig.outbox.doubt_next = True
    rig.tick()
    rig.landings.end(rig.sent_id())
    rig.run(10)
    assert rig.slots() == [NOON]
    assert rig.verdicts() == ["succeeded"]


def test_a_resend_that_waits_longer_than_its_run_may_last_is_not_lost() -> None:
    rig = Rig()
    rig.insert("j", "interval", "3600", on_doubt="resend", overlap="skip", max_run_seconds=30)
    rig.outbox.doubt_next = True
    rig.tick()
    rig.outbox.away = True
    rig.run(100)
    rig.outbox.away = False
    rig.run(5)
    assert rig.verdicts() == ["sent"]
    rig.run(20)
    assert rig.verdicts() == ["sent"], "its lease began when it was sent again"
    rig.run(20)
    assert rig.verdicts() == ["lost"]


def test_a_resend_that_waits_longer_than_its_grace_is_dropped_and_said_so() -> None:
    rig = Rig()
    rig.insert("j", "interval", "3600", on_doubt="resend", grace_seconds=60)
    rig.outbox.doubt_next = True
    rig.tick()
    rig.outbox.away = True
    rig.run(100)
    rig.outbox.away = False
    rig.run(5)
    assert rig.slots() == [NOON]
    assert rig.entry().detail == "perhaps sent; its grace was over before it could be sent again"


def test_released_runs_of_all_go_back_in_order() -> None:
    rig = Rig()
    rig.insert("j", "every", "1m", catch_up="all")
    rig.tick()
    rig.restart(down_for=300)
    rig.outbox.doubt_next = True
    rig.run(5)
    assert rig.slots() == [NOON + minute * MINUTE for minute in range(6)]
    assert rig.verdicts() == ["sent", "in doubt"] + ["sent"] * 4


def test_a_released_run_keeps_the_count_of_the_slots_it_stands_for() -> None:
    secondly = Job("code:j", "app.a", Every(SECOND), plan_key="k", catch_up="skip", overlap="allow")
    rig = Rig(code_jobs=[secondly])
    rig.run(1)
    rig.restart(down_for=60)
    rig.outbox.fails = True
    rig.run(3)
    assert rig.verdicts("code:j") == ["sent", "missed"]
    rig.outbox.fails = False
    rig.run(3)
    covered = sum(1 + entry.collapsed for entry in rig.store.ledger)
    assert covered == (rig.entry("code:j").slot_us - NOON) // SECOND


def test_a_release_that_leaves_older_slots_decided_remembers_them() -> None:
    secondly = Job("code:j", "app.a", Every(SECOND), plan_key="k", catch_up="skip", overlap="allow")
    rig = Rig(code_jobs=[secondly])
    rig.run(1)
    rig.restart(down_for=60)
    rig.outbox.fails = True
    rig.tick()
    assert rig.verdicts("code:j") == ["sent", "missed"]
    assert rig.engine.leader.agenda.entries["code:j"].state == rig.state("code:j")
    assert rig.state("code:j").last_slot_us == rig.entry("code:j").slot_us


def test_a_job_that_waited_for_its_run_is_excused_even_after_a_release() -> None:
    rig = Rig()
    rig.insert("j", "interval", "60", overlap="skip", grace_seconds=5)
    rig.run(120)
    rig.landings.end(rig.sent_id())
    rig.outbox.fails = True
    rig.run(10)
    rig.outbox.fails = False
    rig.run(5)
    assert rig.verdicts() == ["succeeded", "sent"]


def test_an_outage_of_the_broker_does_not_stop_ends_and_edits() -> None:
    rig = Rig()
    rig.insert("j", "interval", "60", overlap="skip")
    rig.tick()
    rig.outbox.away = True
    rig.run(70)
    rig.landings.end(rig.sent_id())
    rig.insert("k", "interval", "0")
    rig.run(2)
    assert rig.verdicts() == ["succeeded"]
    assert rig.state("k").problem != ""
