"""Somebody asks for a single run."""

from __future__ import annotations

import json
import logging
from collections.abc import Sequence
from typing import Literal

import pytest

from celery_qbeat.errors import Doubt, QbeatError, Unavailable
from celery_qbeat.jobs import Verdict
from celery_qbeat.ports import Request
from celery_qbeat.testing import OpenGate
from tests.unit.engine.rig import DAY, HOUR, Rig, at

NOON = at("2026-06-01T12:00:00")
ASKED = NOON + 1_234_567


def asked(**columns: object) -> Rig:
    rig = Rig()
    rig.insert("j", "daily", "15:00", **columns)
    rig.tick()
    rig.store.ask("j", ASKED, "ann")
    rig.clock.advance(2)
    return rig


def test_a_run_by_hand_has_its_own_slot_and_leaves_the_plan_alone() -> None:
    rig = asked()
    before = rig.state()
    rig.run(5)
    assert rig.slots() == [ASKED]
    assert rig.outbox.sent[0].by_hand
    assert (rig.entry().verdict, rig.entry().detail, rig.entry().by_hand) == ("sent", "by hand", True)
    assert rig.state() == before
    assert rig.store.database.requests == {}


def test_a_run_by_hand_of_a_disabled_job_runs() -> None:
    rig = asked(enabled=False)
    rig.run(5)
    assert rig.slots() == [ASKED]


def test_a_run_by_hand_is_of_the_row_as_it_was_when_somebody_asked_however_late_it_was_edited(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    rig = asked(args="[1]")
    plain = rig.store.requests

    def edited_first() -> Sequence[Request]:
        if rig.store.database.jobs["j"]["args"] == "[1]":
            rig.store.update("j", args="[2]")
        return plain()

    monkeypatch.setattr(rig.store, "requests", edited_first)
    rig.run(5)
    assert [json.loads(shipment.job.args) for shipment in rig.outbox.sent] == [[2]]
    assert rig.slots() == [ASKED]


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
    assert rig.slots() == [ASKED]
    assert rig.store.database.requests == {}


def test_a_broker_that_comes_back_with_nothing_due_still_answers_requests() -> None:
    rig = asked()
    rig.outbox.away = True
    rig.run(10)
    rig.outbox.away = False
    rig.run(10)
    assert rig.slots() == [ASKED]


def test_a_request_whose_trust_ended_is_kept_for_the_next_tick() -> None:
    rig = asked()
    gate = OpenGate(rig.clock, ttl_s=-1.0)
    gate.bind(rig.store.instance)
    rig.gate.hold = gate.hold  # type: ignore[method-assign]
    rig.run(2)
    assert rig.slots() == []
    del rig.gate.hold  # type: ignore[method-assign]
    rig.run(2)
    assert rig.slots() == [ASKED]


@pytest.mark.parametrize(
    ("when", "error"), [("before", Unavailable), ("before", Doubt), ("after", Doubt)], ids=["away", "undone", "done"]
)
@pytest.mark.parametrize("method", ["requests", "claim", "sent", "answer"])
def test_a_request_is_run_once_whatever_call_of_the_database_fails(
    method: str, when: Literal["before", "after"], error: type[QbeatError]
) -> None:
    rig = asked()
    rig.store.fail_next(method, when, error)
    rig.run(10)
    assert rig.slots() == [ASKED]
    assert rig.verdicts() == ["sent"]
    assert rig.store.database.requests == {}


def test_a_doubtful_run_by_hand_is_not_run_twice() -> None:
    rig = asked()
    rig.outbox.doubt_next = True
    rig.run(10)
    assert rig.slots() == [ASKED]
    assert rig.verdicts() == ["in doubt"]
    assert rig.store.database.requests == {}


def test_requests_survive_a_restart() -> None:
    rig = asked()
    rig.restart(down_for=60)
    rig.run(5)
    assert rig.slots() == [ASKED]


def test_the_end_of_a_run_by_hand_is_an_end_like_any_other(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    rig = asked()
    rig.run(2)
    rig.landings.end(rig.sent_id(), Verdict.FAILED, "KeyError: 'x'")
    rig.run(2)
    assert rig.verdicts() == ["failed"]
    assert f"failed: job='j' task_id={rig.sent_id()}: KeyError: 'x'" in caplog.messages
