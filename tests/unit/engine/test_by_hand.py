"""Somebody asks for a single run."""

from __future__ import annotations

import json
import logging
from collections.abc import Sequence
from typing import Literal

import pytest

from celery_qbeat.core.identity import request_task_id
from celery_qbeat.core.jobs import Verdict
from celery_qbeat.core.planning import Claim
from celery_qbeat.errors import Doubt, QbeatError, Unavailable
from celery_qbeat.ports import REQUESTS_A_READ, Request
from celery_qbeat.testing import OpenGate
from tests.unit.engine.rig import DAY, HOUR, SECOND, Rig, at

NOON = at("2026-06-01T12:00:00")
ASKED = NOON + 1_234_567


def asked(**columns: object) -> Rig:
    rig = Rig()
    rig.insert("j", "daily", "15:00", **columns)
    rig.tick()
    rig.store.ask("j", ASKED, "ann")
    rig.clock.advance(2)
    return rig


def assert_ran_once(rig: Rig) -> None:
    """One run, whose slot is of the beat's own clock; a planned slot may be a whole second."""
    (slot,) = rig.slots()
    assert NOON < slot <= rig.clock.now_us() + 1
    assert slot != ASKED
    assert slot % SECOND


@pytest.mark.parametrize("asked_us", [ASKED, NOON + HOUR, NOON - 400 * DAY, -(2**63), 2**63 - 1, 0])
def test_the_slot_is_of_the_beats_clock_whatever_a_request_says(asked_us: int) -> None:
    rig = Rig()
    rig.insert("j", "every", "1m")
    rig.run(59)
    rig.store.ask("j", asked_us, "ann")
    rig.run(3_600)
    by_hand = [entry for entry in rig.store.ledger if entry.by_hand]
    (run,) = by_hand
    assert NOON + 59 * SECOND <= run.slot_us <= NOON + 61 * SECOND
    assert run.task_id == request_task_id(rig.store.instance, "j", 1, asked_us)
    assert len(rig.store.ledger) == 62, "no planned slot gave way"
    assert rig.store.database.requests == {}


def test_two_requests_in_one_tick_are_two_runs() -> None:
    rig = asked()
    rig.store.ask("j", ASKED, "ann")
    rig.run(1)
    assert rig.verdicts() == ["sent", "sent"]
    assert len(set(rig.slots())) == 2


def test_a_flood_of_requests_is_answered_page_by_page_beside_due_jobs() -> None:
    rig = asked()
    rig.insert("k", "every", "1m")
    for number in range(10 * REQUESTS_A_READ):
        rig.store.ask("nobody", number)
    rig.store.ask("j", ASKED)
    before = len(rig.store.database.requests)
    assert rig.tick() == 0.0
    assert before - len(rig.store.database.requests) == REQUESTS_A_READ
    assert len(rig.slots("k")) == 1
    rig.run(1)
    assert rig.store.database.requests == {}
    assert len(rig.slots()) == 2


def test_requests_that_must_wait_do_not_stop_those_behind_them(monkeypatch: pytest.MonkeyPatch) -> None:
    rig = asked()
    rig.insert("k", "daily", "15:00")
    rig.tick()
    for number in range(2 * REQUESTS_A_READ):
        rig.store.ask("k", number)
    rig.store.ask("j", ASKED)
    plain = rig.store.claim
    locked = [True]

    def claim(epoch: int, batch_id: int, claims: Sequence[Claim], now_us: int) -> frozenset[str]:
        if locked and claims[0].job_id == "k":
            return frozenset({"k"})
        return plain(epoch, batch_id, claims, now_us)

    monkeypatch.setattr(rig.store, "claim", claim)
    rig.run(3)
    assert (len(rig.slots("j")), rig.slots("k")) == (2, [])
    locked.clear()
    rig.run(3)
    assert rig.store.database.requests == {}
    assert len(rig.slots("k")) == 2 * REQUESTS_A_READ


def test_a_run_by_hand_has_its_own_slot_and_leaves_the_plan_alone() -> None:
    rig = asked()
    before = rig.state()
    rig.run(5)
    assert_ran_once(rig)
    assert rig.outbox.sent[0].by_hand
    assert (rig.entry().verdict, rig.entry().detail, rig.entry().by_hand) == ("sent", "by hand", True)
    assert rig.state() == before
    assert rig.store.database.requests == {}


def test_a_run_by_hand_of_a_disabled_job_runs() -> None:
    rig = asked(enabled=False)
    rig.run(5)
    assert_ran_once(rig)


def test_a_run_by_hand_is_of_the_row_as_it_was_when_somebody_asked_however_late_it_was_edited(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    rig = asked(args="[1]")
    plain = rig.store.pending_requests

    def edited_first(after_id: int = 0) -> Sequence[Request]:
        if rig.store.database.jobs["j"]["args"] == "[1]":
            rig.store.update("j", args="[2]")
        return plain(after_id)

    monkeypatch.setattr(rig.store, "pending_requests", edited_first)
    rig.run(5)
    assert [json.loads(shipment.job.args) for shipment in rig.outbox.sent] == [[2]]
    assert_ran_once(rig)


def test_a_run_by_hand_obeys_the_privilege_gate() -> None:
    rig = asked(fn="os.system")
    rig.run(5)
    assert rig.outbox.sent == []
    assert rig.verdicts() == ["refused"]
    assert rig.entry().detail.startswith("by hand: fn: 'os.system' is not a registered task")


def test_a_run_by_hand_of_a_bad_row_is_refused_with_the_reason() -> None:
    rig = asked(kwargs="{'a': 1}")
    rig.run(5)
    assert rig.verdicts() == ["refused"]
    assert rig.entry().detail == f"by hand: {rig.state().problem}"


def test_a_run_by_hand_in_a_disabled_worker_scope_is_refused() -> None:
    rig = Rig()
    rig.store.set_worker(name="shop", enabled=False)
    rig.insert("j", "daily", "15:00", worker="shop")
    rig.tick()
    rig.store.ask("j", ASKED)
    rig.run(5)
    assert rig.verdicts() == ["refused"]
    assert rig.entry().detail == "by hand: its worker scope is disabled"


def test_a_run_by_hand_is_skipped_while_another_run_is_in_flight() -> None:
    rig = asked(overlap="skip")
    rig.run(5)
    rig.store.ask("j", ASKED + 1)
    rig.run(5)
    assert rig.verdicts() == ["sent", "skipped"]
    assert rig.entry().detail == "by hand: previous run still in flight"
    rig.landings.end(rig.sent_id())
    rig.store.ask("j", ASKED + 2)
    rig.run(5)
    assert rig.verdicts() == ["succeeded", "skipped", "sent"]


def test_a_run_by_hand_blocks_the_planned_run_of_a_job_that_may_not_overlap() -> None:
    rig = asked(overlap="skip", max_run_seconds=DAY // 1_000_000)
    rig.run(3 * HOUR / 1_000_000)
    assert rig.verdicts() == ["sent", "skipped"]


def test_a_request_for_a_job_that_is_not_there_is_answered_and_logged(caplog: pytest.LogCaptureFixture) -> None:
    rig = Rig()
    rig.tick()
    rig.store.ask("nothing", ASKED, "ann")
    rig.run(5)
    assert rig.store.database.requests == {}
    assert caplog.messages == ["run by hand: 'nothing' is not a job (asked by ann)"]


def test_a_request_waits_for_the_broker_and_is_answered_once() -> None:
    rig = asked()
    rig.outbox.away = True
    rig.run(30)
    assert rig.store.ledger == []
    assert len(rig.store.database.requests) == 1
    rig.store.insert(id="k", fn="app.a", schedule_kind="interval", schedule="60")
    rig.outbox.away = False
    rig.run(5)
    assert_ran_once(rig)
    assert rig.store.database.requests == {}


def test_a_broker_that_comes_back_with_nothing_due_still_answers_requests() -> None:
    rig = asked()
    rig.outbox.away = True
    rig.run(10)
    rig.outbox.away = False
    rig.run(10)
    assert_ran_once(rig)


def test_a_request_whose_trust_ended_is_kept_for_the_next_tick() -> None:
    rig = asked()
    gate = OpenGate(rig.clock, ttl_s=-1.0)
    gate.bind(rig.store.instance)
    rig.gate.acquire_or_renew = gate.acquire_or_renew  # type: ignore[method-assign]
    rig.run(2)
    assert rig.slots() == []
    del rig.gate.acquire_or_renew  # type: ignore[method-assign]
    rig.run(2)
    assert_ran_once(rig)


@pytest.mark.parametrize(
    ("when", "error"), [("before", Unavailable), ("before", Doubt), ("after", Doubt)], ids=["away", "undone", "done"]
)
@pytest.mark.parametrize("method", ["pending_requests", "claim", "mark_sent", "delete_requests"])
def test_a_request_is_run_once_whatever_call_of_the_database_fails(
    method: str, when: Literal["before", "after"], error: type[QbeatError]
) -> None:
    rig = asked()
    rig.store.fail_next(method, when, error)
    rig.run(10)
    assert_ran_once(rig)
    assert rig.verdicts() == ["sent"]
    assert rig.store.database.requests == {}


def test_a_doubtful_run_by_hand_is_not_run_twice() -> None:
    rig = asked()
    rig.outbox.doubt_next = True
    rig.run(10)
    assert_ran_once(rig)
    assert rig.verdicts() == ["in doubt"]
    assert rig.store.database.requests == {}


def test_requests_survive_a_restart() -> None:
    rig = asked()
    rig.restart(down_for=60)
    rig.run(5)
    assert_ran_once(rig)


def test_the_end_of_a_run_by_hand_is_an_end_like_any_other(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    rig = asked()
    rig.run(2)
    rig.landings.end(rig.sent_id(), Verdict.FAILED, "KeyError: 'x'")
    rig.run(2)
    assert rig.verdicts() == ["failed"]
    assert f"failed: job='j' task_id={rig.sent_id()}: KeyError: 'x'" in caplog.messages
