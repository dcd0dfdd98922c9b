"""One bad row hurts one job."""

from __future__ import annotations

import copy
import logging
from typing import Any

import pytest

from celery_qbeat.core.jobs import RowRules
from tests.unit.engine.rig import MINUTE, SECOND, Rig, at

NOON = at("2026-06-01T12:00:00")

BAD: dict[str, dict[str, Any]] = {
    "python-quotes": {"kwargs": "{'a': 1}"},
    "31-feb": {"kind": "cron", "schedule": "0 0 31 2 *"},
    "minute-99": {"kind": "cron", "schedule": "99 * * * *"},
    "no-zone": {"timezone": "Mars/Phobos"},
    "no-schedule": {"schedule": ""},
    "zero": {"kind": "interval", "schedule": "0"},
    "no-fn": {"fn": ""},
    "huge": {"args": f'["{"x" * 2_000_000}"]'},
}


def poisoned() -> Rig:
    rig = Rig(rules=RowRules(cron=True, min_interval_us=10 * SECOND))
    rig.insert("good", "interval", "60")
    rig.insert("often", "interval", "1")
    for name, columns in BAD.items():
        rig.insert(name, **columns)
    return rig


def test_a_good_row_runs_on_among_bad_ones() -> None:
    rig = poisoned()
    rig.run(299)
    assert rig.slots("good") == [NOON + minute * MINUTE for minute in range(5)]
    assert len(rig.slots("often")) == 30
    assert {shipment.job.id for shipment in rig.outbox.sent} == {"good", "often"}


def test_every_bad_row_is_reported_once_with_its_reason(caplog: pytest.LogCaptureFixture) -> None:
    rig = poisoned()
    rig.run(120)
    for name in BAD:
        problem = rig.state(name).problem
        assert problem, name
        lines = [record for record in caplog.records if f"job {name!r}" in record.getMessage()]
        assert [line.getMessage() for line in lines] == [f"job {name!r} will not run: {problem}"]
        assert lines[0].levelno == logging.WARNING


def test_a_bad_row_is_left_as_it_is() -> None:
    rig = poisoned()
    before = copy.deepcopy(rig.store.rows)
    rig.run(60)
    assert rig.store.rows == before


def test_a_repaired_row_runs_at_the_next_look_and_its_problem_goes(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    rig = poisoned()
    rig.run(120)
    rig.store.update("zero", schedule="60")
    rig.store.update("python-quotes", kwargs='{"a": 1}')
    rig.tick()
    assert len(rig.slots("zero")) == len(rig.slots("python-quotes")) == 1
    assert rig.state("zero").problem == rig.state("python-quotes").problem == ""
    assert "job 'zero' is all right again" in caplog.messages


def test_a_job_that_became_bad_and_is_repaired_is_planned_from_now() -> None:
    rig = Rig()
    rig.insert("j", "interval", "60")
    rig.run(10)
    rig.store.update("j", schedule="soon")
    rig.run(300)
    assert rig.state().next_run_us is None
    rig.store.update("j", schedule="60")
    rig.tick()
    assert len(rig.slots()) == 1
    assert rig.state().next_run_us == rig.clock.now_us() + MINUTE


def test_a_changed_problem_is_reported_again_and_an_unchanged_one_is_not(caplog: pytest.LogCaptureFixture) -> None:
    rig = Rig()
    rig.insert("j", "interval", "0")
    rig.tick()
    rig.store.update("j", description="x")
    rig.tick()
    assert len(caplog.records) == 1
    rig.store.update("j", schedule="-5")
    rig.tick()
    assert len(caplog.records) == 2
    assert "'-5'" in rig.state().problem


def test_a_problem_is_not_reported_again_when_the_beat_takes_over_again(caplog: pytest.LogCaptureFixture) -> None:
    rig = Rig()
    rig.insert("j", "interval", "0")
    rig.tick()
    rig.store.session().take_epoch("somebody", rig.clock.now_us())
    rig.gate.open = False
    rig.tick()
    rig.gate.open = True
    rig.run(3)
    assert len([message for message in caplog.messages if "will not run" in message]) == 1


def test_the_problem_of_a_row_that_went_while_standing_by_is_forgotten(caplog: pytest.LogCaptureFixture) -> None:
    rig = Rig()
    rig.insert("j", "interval", "0")
    rig.tick()
    rig.gate.open = False
    rig.tick()
    rig.store.session().take_epoch("somebody", rig.clock.now_us())
    rig.store.delete("j")
    rig.gate.open = True
    rig.tick()
    rig.insert("j", "interval", "0")
    rig.tick()
    assert len([message for message in caplog.messages if "will not run" in message]) == 2


def test_a_row_with_an_id_of_the_code_is_a_problem_of_its_own() -> None:
    rig = Rig()
    rig.insert("code:mine", "interval", "60")
    rig.run(5)
    assert rig.outbox.sent == []
    assert "kept for entries of beat_schedule" in rig.state("code:mine").problem


def test_a_refused_row_gets_a_verdict_for_its_slots_and_is_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    rig = Rig("2026-06-01T12:00:30")
    rig.insert("j", "every", "1m", fn="os.system", args='["true"]')
    rig.insert("k", "every", "1m")
    rig.run(180)
    assert rig.verdicts("j") == ["refused"] * 4
    assert rig.verdicts("k") == ["sent"] * 4
    assert rig.entry("j").detail == rig.state("j").problem
    assert "'os.system' is not a registered task" in rig.state("j").problem
    assert len([message for message in caplog.messages if "will not run" in message]) == 1


def test_an_allowed_row_that_is_edited_to_a_privileged_task_is_refused_at_its_next_slot() -> None:
    rig = Rig("2026-06-01T12:00:30")
    rig.insert("j", "every", "1m")
    rig.tick()
    rig.store.update("j", fn="celery.backend_cleanup")
    rig.run(60)
    assert rig.verdicts() == ["sent", "refused"]
    rig.store.update("j", fn="app.a")
    rig.run(60)
    assert rig.verdicts() == ["sent", "refused", "sent"]


def test_a_trusted_id_with_another_function_is_refused() -> None:
    rig = Rig()
    rig.insert("_builtin.prune", "interval", "60", fn="os.system")
    rig.insert("mine", "interval", "60", fn="_builtin.prune")
    rig.run(5)
    assert rig.outbox.sent == []
    assert rig.verdicts("_builtin.prune") == rig.verdicts("mine") == ["refused"]
