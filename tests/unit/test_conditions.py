"""How rows stand, as commands and forms tell it."""

from __future__ import annotations

from typing import Any

import pytest

from celery_qbeat.core.health import (
    AILING,
    IDLE,
    Condition,
    Facts,
    HealthRules,
    InFlight,
    LastRun,
    condition_of,
    last_run,
    privileged,
)
from celery_qbeat.core.jobs import Job, RowRules, State, WorkerScope, read_row
from celery_qbeat.core.privileges import BUILTIN_PRUNE, Privileges
from celery_qbeat.core.schedules import parse

NOW = 1_800_000_000_000_000
ROW = {"id": "j", "fn": "app.a", "schedule_kind": "every", "schedule": "1h"}
KNOWN = Privileges(registered=frozenset({"app.a", "celery.map"}))
WORKERS = {"off": WorkerScope("off", enabled=False), "narrow": WorkerScope("narrow", functions=("other.*",))}


def judge(**more: Any) -> HealthRules:
    return HealthRules(**{"rules": RowRules(), "workers": WORKERS, "privileges": KNOWN, "now_us": NOW, **more})


def condition(state: State | None = None, by: HealthRules | None = None, **columns: Any) -> Condition:
    return (by or judge()).row_health({**ROW, **columns}, state).condition


def key(**columns: Any) -> str:
    job = read_row({**ROW, **columns}, RowRules(), {}).job
    assert job is not None
    return job.plan_key


@pytest.mark.parametrize(
    ("columns", "expected"),
    [
        ({}, Condition.READY),
        ({"enabled": False}, Condition.DISABLED),
        ({"enabled": 0, "schedule": "nonsense"}, Condition.DISABLED),
        ({"schedule": "nonsense"}, Condition.BAD),
        ({"worker": "nowhere"}, Condition.BAD),
        ({"worker": "off"}, Condition.PAUSED),
        ({"worker": "off", "fn": "celery.map"}, Condition.PAUSED),
        ({"worker": "narrow"}, Condition.REFUSED),
        ({"schedule_kind": "cron", "schedule": "0 * * * *"}, Condition.RESERVED),
        ({"fn": "celery.map"}, Condition.REFUSED),
        ({"fn": "app.unregistered"}, Condition.REFUSED),
        ({"queue": "nowhere"}, Condition.REFUSED),
    ],
)
def test_a_row_stands_as_the_scheduler_would_take_it(columns: dict[str, Any], expected: Condition) -> None:
    assert condition(**columns) is expected


def test_every_reason_but_that_of_a_sound_row_is_said() -> None:
    assert judge().row_health({**ROW, "fn": "celery.map"}, None).reason != ""
    assert judge().row_health(ROW, None).reason == "no beat has seen it yet"
    assert judge().row_health(ROW, State("j", 1, next_run_us=NOW + 1, plan_key=key())).reason == ""


def test_a_job_is_late_after_its_time_and_not_before() -> None:
    assert condition(State("j", 1, next_run_us=NOW, late_after_us=NOW - 1)) is Condition.LATE
    assert condition(State("j", 1, next_run_us=NOW, late_after_us=NOW)) is Condition.READY


def test_a_job_without_a_slot_left_is_finished_unless_a_beat_has_still_to_read_its_new_schedule() -> None:
    assert condition(State("j", 1, plan_key=key())) is Condition.FINISHED
    assert condition(State("j", 1, plan_key="of another schedule")) is Condition.READY


def test_what_a_beat_says_of_a_row_holds_while_the_beat_lives() -> None:
    state = State("j", 1, next_run_us=NOW + 1, problem="fn: 'app.a' is not a registered task", plan_key=key())
    assert condition(state) is Condition.REFUSED
    assert condition(state, judge(heard=False)) is Condition.STOPPED


def test_without_the_app_privileged_names_are_refused_and_the_beat_has_the_last_word_on_others() -> None:
    blind = judge(privileges=None, heard=False)
    assert condition(None, blind, fn="app.unregistered") is Condition.STOPPED
    assert condition(None, blind, fn="celery.map") is Condition.REFUSED
    assert condition(None, blind, fn="auth.grant") is Condition.REFUSED
    assert condition(State("j", 1, problem="not registered", plan_key=key()), blind) is Condition.REFUSED


def test_the_row_that_the_scheduler_seeds_is_trusted_and_its_fn_elsewhere_is_not() -> None:
    assert condition(id=BUILTIN_PRUNE, fn=BUILTIN_PRUNE) is Condition.READY
    assert condition(fn=BUILTIN_PRUNE) is Condition.REFUSED
    assert condition(None, judge(privileges=None), id=BUILTIN_PRUNE, fn=BUILTIN_PRUNE) is Condition.READY


def test_an_entry_in_code_is_late_or_ready() -> None:
    job = Job("code:x", "celery.anything", parse("every", "1h"), "key")
    assert judge().code_health(job, State("code:x", 1, next_run_us=NOW, late_after_us=1)).condition is Condition.LATE
    assert judge().code_health(job, None).condition is Condition.READY


def test_privileged_means_for_ever_and_unregistered_does_not() -> None:
    assert privileged("celery.map", KNOWN) != ""
    assert privileged("db.drop", KNOWN) != ""
    assert privileged("app.unregistered", KNOWN) == ""
    assert privileged("app.no", Privileges(denied=frozenset({"app.no"}))) != ""
    assert privileged("db.report", Privileges(functions=frozenset({"db.report"}))) == ""


RUN = InFlight("task-1", NOW - 60, NOW - 50)


@pytest.mark.parametrize(
    ("facts", "expected"),
    [
        ({}, Condition.READY),
        ({"beat_alive": False}, Condition.STOPPED),
        ({"run": RUN}, Condition.RUNNING),
        ({"run": RUN, "beat_alive": False}, Condition.RUNNING),
        ({"run": RUN, "next_run_us": NOW}, Condition.BLOCKED),
        ({"run": RUN, "next_run_us": NOW + 1}, Condition.RUNNING),
        ({"run": RUN, "next_run_us": NOW, "waits": False}, Condition.RUNNING),
        ({"run": RUN, "last_slot_us": NOW - 59}, Condition.BLOCKED),
        ({"run": RUN, "last_slot_us": NOW - 60}, Condition.RUNNING),
        ({"run": RUN, "late_after_us": NOW - 1}, Condition.LATE),
        ({"run": RUN, "next_run_us": NOW, "late_after_us": NOW - 1}, Condition.BLOCKED),
        ({"planned": True}, Condition.FINISHED),
        ({"planned": True, "run": RUN}, Condition.RUNNING),
        ({"planned": True, "beat_alive": False}, Condition.FINISHED),
        ({"problem": Condition.BAD, "scope_enabled": False}, Condition.PAUSED),
        ({"problem": Condition.BAD, "run": RUN}, Condition.BAD),
        ({"enabled": False, "scope_enabled": False}, Condition.DISABLED),
    ],
)
def test_one_condition_follows_from_the_facts(facts: dict[str, Any], expected: Condition) -> None:
    assert condition_of(Facts(**facts), NOW) is expected


def test_a_blocked_job_ails_when_it_is_late_too() -> None:
    on_time = judge().row_health(ROW, State("j", 1, next_run_us=NOW, plan_key=key()), RUN)
    late = judge().row_health(ROW, State("j", 1, next_run_us=NOW, plan_key=key(), late_after_us=NOW - 1), RUN)
    assert (on_time.condition, on_time.ailing) == (Condition.BLOCKED, False)
    assert (late.condition, late.ailing) == (Condition.BLOCKED, True)
    assert "run task-1" in late.reason


def test_the_last_run_is_one_run() -> None:
    skipped = {"last_run_us": 5, "last_verdict": "skipped"}
    assert last_run(skipped, LastRun(4, "sent", "task-1")) == LastRun(4, "sent", "task-1")
    assert last_run(skipped, None) == LastRun(5, "")
    assert last_run({"last_run_us": 5, "last_verdict": "failed"}, None) == LastRun(5, "failed")
    assert last_run({"last_run_us": None, "last_verdict": "missed"}, None) is None
    assert last_run({"last_run_us": None, "last_verdict": "sent"}, LastRun(4, "sent")) == LastRun(4, "sent")


def test_what_ails_and_what_idles() -> None:
    assert {Condition.LATE, Condition.BAD, Condition.REFUSED} == AILING
    assert Condition.READY not in IDLE
    assert Condition.LATE not in IDLE
