"""Queues that refuse messages, and messages that the broker confirms late."""

from __future__ import annotations

import logging
from typing import Any

import pytest

from celery_qbeat.core.privileges import Privileges
from celery_qbeat.engine import Limits
from celery_qbeat.errors import Unavailable
from celery_qbeat.ports import PublishOutcome
from celery_qbeat.testing import FakeClock, OpenGate
from tests.unit.engine.rig import MINUTE, SECOND, Rig, at
from tests.unit.engine.test_broker import count_claims

NOON = at("2026-06-01T12:00:00")


def one_queue(rig: Rig, name: str = "q") -> None:
    rig.outbox.queue_of = lambda shipment: name


def test_a_refused_job_waits_while_all_others_run() -> None:
    rig = Rig()
    rig.insert("full", "interval", "3600")
    rig.insert("free", "interval", "10")
    rig.outbox.full = {"full"}
    rig.run(60)
    assert rig.verdicts("full") == []
    assert len(rig.slots("free")) == 7
    rig.outbox.full = {}
    rig.run(31)
    assert rig.slots("full") == [NOON]
    assert rig.verdicts("full") == ["sent"]


def test_a_refused_job_is_tried_less_and_less_often() -> None:
    rig = Rig()
    rig.insert("full", "interval", "3600")
    rig.outbox.full = {"full"}
    claims = count_claims(rig)
    rig.run(31)
    assert 4 <= len(claims) <= 6, "after 1, 2, 4, 8, 16 seconds"
    claims.clear()
    rig.run(300)
    assert 9 <= len(claims) <= 11, "every 30 seconds"


def test_a_full_queue_costs_one_claim_a_pause_whatever_waits() -> None:
    rig = Rig(limits=Limits(batch=100))
    one_queue(rig)
    for number in range(50):
        rig.insert(f"j{number}", "interval", "3600")
    rig.outbox.full = {"q"}
    rig.tick()
    claims = count_claims(rig)
    rig.run(300)
    assert sum(claims) <= 16
    rig.outbox.full = {}
    rig.run(32)
    assert len(rig.outbox.sent) == 50
    assert len(rig.store.ledger) == 50


def test_a_refused_slot_whose_grace_ends_is_missed_with_the_reason() -> None:
    rig = Rig()
    rig.insert("j", "interval", "3600", grace_seconds=45)
    rig.outbox.full = {"j"}
    rig.run(50)
    assert rig.verdicts() == ["missed"]
    assert rig.entry().detail.endswith("its grace of 45 s was over; queue 'j' refused it: it is full")


def test_a_refusal_is_one_warning_and_its_end_one_line(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    rig = Rig()
    rig.insert("j", "interval", "20")
    rig.outbox.full = {"j"}
    rig.run(200)
    rig.outbox.full = {}
    rig.run(120)
    lines = [(record.levelname, record.message) for record in caplog.records if "queue" in record.message]
    assert lines == [
        ("WARNING", "queue 'j' refuses messages, its jobs wait within their grace: it is full"),
        ("INFO", "queue 'j' takes messages again"),
    ]
    assert not [message for message in caplog.messages if message.startswith("broker:")]


def test_a_row_that_moves_to_another_queue_does_not_wait_for_the_old_one() -> None:
    rig = Rig(privileges=Privileges(registered=frozenset({"app.a"}), queues=frozenset({"other"})))
    rig.outbox.queue_of = lambda shipment: shipment.job.queue or "celery"
    rig.insert("j", "interval", "3600")
    rig.outbox.full = {"celery"}
    rig.run(120)
    rig.store.update("j", queue="other")
    rig.run(1)
    assert rig.slots() == [NOON]


def test_a_refused_run_by_hand_fails_with_the_reason() -> None:
    rig = Rig()
    rig.insert("j", "interval", "3600", enabled=False)
    rig.tick()
    rig.outbox.full = {"j"}
    rig.store.ask("j", rig.clock.now_us())
    rig.run(3)
    assert rig.verdicts() == ["failed"]
    assert rig.entry().detail == "could not be published: it is full"


def test_a_refused_slot_of_several_is_sent_later_and_no_other_twice() -> None:
    rig = Rig()
    rig.insert("j", "every", "1m", catch_up="all")
    rig.tick()
    rig.restart(down_for=180)
    calls = iter(["q", "full", "q", "q"])
    rig.outbox.queue_of = lambda shipment: next(calls, "q")
    rig.outbox.full = {"full"}
    rig.run(40)
    assert sorted(rig.slots()) == [NOON + minute * MINUTE for minute in range(4)]
    assert rig.verdicts() == ["sent"] * 4


# ---------------------------------------------------------------- confirmed late


def test_a_message_that_is_confirmed_late_was_sent_and_leaves_no_doubt() -> None:
    rig = Rig()
    rig.insert("j", "interval", "60", overlap="skip")
    rig.insert("k", "interval", "60")
    rig.outbox.silent = True
    rig.run(30)
    assert rig.verdicts("j") == rig.verdicts("k") == ["claimed"]
    rig.outbox.confirm()
    rig.run(2)
    assert rig.verdicts("j") == rig.verdicts("k") == ["sent"]
    assert len(rig.outbox.sent) == 2


@pytest.mark.parametrize(
    ("fate", "verdict", "detail"),
    [
        (PublishOutcome.UNKNOWN, "in doubt", "the broker went away while it was being sent"),
        (PublishOutcome.REFUSED, "failed", "could not be published: it is full"),
        (PublishOutcome.NOT_SENT, "failed", "could not be published: it is full"),
    ],
)
def test_what_a_broker_says_late_is_the_verdict(fate: PublishOutcome, verdict: str, detail: str) -> None:
    rig = Rig()
    rig.insert("j", "interval", "60", overlap="skip", on_doubt="drop")
    rig.outbox.silent = True
    rig.run(5)
    rig.outbox.confirm(fate, "it is full")
    rig.run(2)
    assert (rig.entry().verdict, rig.entry().detail) == (verdict, detail)
    rig.run(60)
    assert rig.verdicts() == [verdict, "sent"], "and its job runs on"


def test_a_late_doubt_is_sent_again_where_the_row_wants_it() -> None:
    rig = Rig()
    rig.insert("j", "interval", "60", on_doubt="resend")
    rig.outbox.silent = True
    rig.run(5)
    rig.outbox.confirm(PublishOutcome.UNKNOWN, "connection reset")
    rig.run(2)
    assert rig.slots() == [NOON, NOON]
    assert rig.verdicts() == ["sent"]


def test_what_a_broker_says_late_while_the_database_is_away_is_not_forgotten() -> None:
    rig = Rig()
    for number in range(3):
        rig.insert(f"j{number}", "interval", "3600")
    rig.outbox.silent = True
    rig.run(2)
    plain, failures = rig.store.mark_sent, [Unavailable("the database is down")]

    def sent(*args: Any, **kwargs: Any) -> None:
        if failures:
            raise failures.pop()
        plain(*args, **kwargs)

    rig.store.mark_sent = sent  # type: ignore[method-assign]
    rig.outbox.confirm()
    rig.run(5)
    assert [rig.verdicts(f"j{number}") for number in range(3)] == [["sent"]] * 3


def test_an_unconfirmed_run_that_reports_an_end_has_ended() -> None:
    rig = Rig()
    rig.insert("j", "interval", "3600", overlap="skip")
    rig.outbox.silent = True
    rig.run(5)
    rig.landings.end(rig.sent_id())
    rig.run(2)
    rig.outbox.confirm()
    rig.run(2)
    assert rig.verdicts() == ["succeeded"]


def test_an_unconfirmed_run_outlives_its_lease() -> None:
    rig = Rig()
    rig.insert("j", "interval", "3600", overlap="skip", max_run_seconds=10)
    rig.outbox.silent = True
    rig.run(100)
    assert rig.verdicts() == ["claimed"]
    rig.outbox.confirm()
    rig.run(2)
    assert rig.verdicts() == ["sent"]


# ---------------------------------------------------------------- asked before


def test_what_needs_no_broker_goes_on_without_it() -> None:
    rig = Rig()
    rig.insert("missed", "interval", "60", grace_seconds=5)
    rig.insert("held", "interval", "3600")
    rig.run(1)
    rig.outbox.away = True
    rig.run(70)
    assert rig.verdicts("missed") == ["sent", "missed"]
    assert rig.outbox.asked > 1


def test_a_broker_is_not_asked_while_nothing_is_due() -> None:
    rig = Rig()
    rig.insert("j", "interval", "3600")
    rig.run(2)
    rig.outbox.asked = 0
    rig.run(60)
    assert rig.outbox.asked == 0


def test_a_broker_that_hangs_is_asked_less_often_than_one_that_refuses() -> None:
    rig = Rig()
    rig.insert("j", "interval", "3600")
    rig.outbox.away = True
    plain = rig.outbox.unavailable_reason

    def slowly() -> str:
        rig.clock.advance(4)
        return plain()

    rig.outbox.unavailable_reason = slowly  # type: ignore[method-assign]
    rig.run(60)
    assert 6 <= rig.outbox.asked <= 9


def test_the_lock_is_renewed_after_a_slow_answer_and_nothing_is_claimed_without_it() -> None:
    clock = FakeClock(at("2026-06-01T12:00:00"))
    rig = Rig(clock=clock, gate=OpenGate(clock, ttl_s=10.0))
    rig.insert("j", "interval", "3600")
    plain = rig.outbox.unavailable_reason

    def slowly() -> str:
        rig.clock.advance(4)
        rig.gate.open = False
        return plain()

    rig.outbox.unavailable_reason = slowly  # type: ignore[method-assign]
    claims = count_claims(rig)
    rig.tick()
    assert claims == []
    rig.outbox.unavailable_reason = plain  # type: ignore[method-assign]
    rig.gate.open = True
    rig.run(2)
    assert rig.slots() == [NOON], "in its grace"
    assert rig.entry().late_us >= 4 * SECOND
