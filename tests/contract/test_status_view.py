"""The view `qbeat_status` on each database: the condition that the commands tell, one last run, readable times."""

from __future__ import annotations

from itertools import product
from typing import Any

import pytest
import sqlalchemy as sa

from celery_qbeat.core.health import (
    Condition,
    Facts,
    HealthRules,
    InFlight,
    condition_of,
    is_planned,
    problem_of,
)
from celery_qbeat.core.jobs import CRON_RESERVED, RowRules, State
from celery_qbeat.core.liveness import is_alive
from celery_qbeat.core.privileges import Privileges
from celery_qbeat.engine import Dependencies, Engine
from celery_qbeat.process.clock import SystemClock
from celery_qbeat.stores import SqlStore, open_store, reading, reports, rows, tables
from celery_qbeat.testing import FakeClock, FakeDispatcher, OpenGate
from tests.contract.store_rigs import made
from tests.unit.engine.rig import HOUR, MINUTE, SECOND

PROBLEMS = ("", "schedule 'x' is none", "fn: 'app.x' is not registered", CRON_RESERVED)


def insert(url: str, table: sa.Table, lines: list[dict[str, Any]]) -> None:
    with sa.create_engine(url, poolclass=sa.NullPool).begin() as connection:
        connection.execute(sa.insert(table), lines)


def view(url: str) -> dict[str, Any]:
    with sa.create_engine(url, poolclass=sa.NullPool).connect() as connection:
        found = connection.exec_driver_sql("SELECT * FROM qbeat_status").mappings().all()
    return {row["id"]: row for row in found}


def cases(now: int) -> list[tuple[dict[str, Any], dict[str, Any], int | None]]:
    """Many jobs: the columns of the row, those of the state, and the slot of a run in flight."""
    kinds = product(
        (True, False),
        ("", "on", "off"),
        [(problem, key) for problem in PROBLEMS for key in ("", "-", "key")],
        (None, now - HOUR, now + HOUR),
        (None, now - 3 * MINUTE, now - MINUTE),
        (None, now - HOUR, now + HOUR),
        ("skip", "allow"),
        (None, now - 2 * MINUTE),
    )
    found = []
    for enabled, worker, (problem, key), following, last, late, overlap, slot in kinds:
        row = {"enabled": enabled, "worker": worker, "overlap": overlap}
        state = {"problem": problem, "plan_key": key, "next_run_us": following, "last_slot_us": last}
        found.append((row, {**state, "late_after_us": late}, slot))
    return found


@pytest.mark.real_clock("the view reads the clock of the database")
@pytest.mark.parametrize("silent_us", [SECOND, HOUR])
def test_the_view_and_the_rule_agree_in_every_case(database_url: str, silent_us: int) -> None:
    made(database_url)
    now = SystemClock().now_us()
    every = {f"job-{n}": case for n, case in enumerate(cases(now))}
    job = {"fn": "app.a", "schedule_kind": "every", "schedule": "1h"}
    runs = [(name, slot) for name, (_, _, slot) in every.items() if slot is not None]
    blank = {"verdict": "sent", "batch_id": 1, "lease_until_us": now + HOUR}
    insert(database_url, tables.workers, [{"name": "on", "enabled": True}, {"name": "off", "enabled": False}])
    insert(database_url, tables.jobs, [{"id": name, **job, **row} for name, (row, _, _) in every.items()])
    insert(database_url, tables.state, [{"job_id": name, **state} for name, (_, state, _) in every.items()])
    insert(database_url, tables.runs, [{"task_id": n, "job_id": n, "slot_us": slot, **blank} for n, slot in runs])
    with sa.create_engine(database_url, poolclass=sa.NullPool).begin() as connection:
        connection.execute(sa.update(tables.leader).values(seen_us=now - silent_us, silence_us=10 * MINUTE))
    found = view(database_url)
    wrong = {}
    for name, (row, kept, slot) in every.items():
        state = State(name, 1, **kept)
        facts = Facts(
            enabled=row["enabled"],
            scope_enabled=row["worker"] != "off",
            problem=problem_of(state),
            planned=is_planned(state),
            next_run_us=state.next_run_us,
            last_slot_us=state.last_slot_us,
            late_after_us=state.late_after_us,
            waits=row["overlap"] == "skip",
            run=None if slot is None else InFlight(name, slot, slot),
            beat_alive=is_alive(now - silent_us, now, 10 * MINUTE),
        )
        expected = condition_of(facts, now)
        if found[name]["state"] != expected:
            wrong[name] = (facts, expected, found[name]["state"])
    assert wrong == {}
    assert {row["state"] for row in found.values()} == set(Condition) - {
        Condition.STOPPED if silent_us == SECOND else Condition.READY
    }


ROWS: dict[str, dict[str, Any]] = {
    "ready": {},
    "disabled": {"enabled": False},
    "disabled-and-bad": {"enabled": False, "schedule": "never"},
    "bad": {"schedule": "never"},
    "unknown-scope": {"worker": "nowhere"},
    "paused": {"worker": "off"},
    "paused-and-bad": {"worker": "off", "schedule": "never"},
    "paused-and-refused": {"worker": "off", "fn": "celery.map"},
    "refused": {"fn": "celery.map"},
    "reserved": {"schedule_kind": "cron", "schedule": "0 * * * *"},
    "finished": {"schedule_kind": "once", "schedule": "2020-01-01T09:00"},
    "running": {"schedule_kind": "interval", "schedule": "3600"},
    "blocked": {"schedule_kind": "interval", "schedule": "60"},
    "overlapping": {"schedule_kind": "interval", "schedule": "60", "overlap": "allow"},
}


@pytest.mark.real_clock("the view reads the clock of the database")
def test_the_view_and_the_commands_agree_on_rows_that_a_beat_has_read(database_url: str) -> None:
    made(database_url)
    row = {"fn": "app.a", "schedule_kind": "every", "schedule": "1h"}
    insert(database_url, tables.workers, [{"name": "off", "enabled": False}])
    for name, columns in ROWS.items():
        insert(database_url, tables.jobs, [{"id": name, **row, **columns}])
    # So that what was sent at first is two minutes old now.
    clock = FakeClock(SystemClock().now_us() - 2 * MINUTE)
    store = open_store(database_url)
    privileges = Privileges(registered=frozenset({"app.a"}))
    parts = {"store": store, "gate": OpenGate(clock), "dispatcher": FakeDispatcher(), "clock": clock}
    engine = Engine(Dependencies(**parts, privileges=privileges))
    # It takes the epoch, then sends.
    for _ in range(3):
        engine.tick()
    clock.advance(119)
    engine.tick()
    assert {name: row["state"] for name, row in view(database_url).items()} == by_command(store, privileges)
    assert by_command(store, privileges)["blocked"] == "blocked"
    engine.close()


def by_command(store: SqlStore, privileges: Privileges) -> dict[str, str]:
    def judged(connection: sa.Connection) -> dict[str, str]:
        now, leader = SystemClock().now_us(), reports.leader(connection)
        alive = is_alive(leader.seen_us, now, leader.silence_us)
        judge = HealthRules(RowRules(), reading.workers(connection), privileges, now, alive)
        found = rows.with_runs(connection, rows.part(connection))
        return {job.id: judge.row_health(job.row, job.memory, job.run).condition.value for job in found}

    return store.link.read(judged)


def test_the_last_run_and_its_verdict_are_of_one_run(database_url: str) -> None:
    made(database_url)
    now = 1_780_300_800_000_000
    row = {"fn": "app.a", "schedule_kind": "every", "schedule": "1h"}
    insert(database_url, tables.jobs, [{"id": name, **row} for name in ("skipped", "by-hand", "pruned", "never")])
    insert(
        database_url,
        tables.state,
        [
            {"job_id": "skipped", "last_run_us": now - HOUR, "last_verdict": "skipped"},
            {"job_id": "by-hand", "last_run_us": None, "last_verdict": "succeeded"},
            {"job_id": "pruned", "last_run_us": now - HOUR, "last_verdict": "failed"},
            {"job_id": "never", "last_run_us": None, "last_verdict": "missed"},
        ],
    )
    blank = {"sent_us": None, "batch_id": None, "lease_until_us": None}
    sent = {"job_id": "skipped", "slot_us": now - HOUR, "verdict": "sent", "sent_us": now - HOUR + 1, "batch_id": 1}
    hand = {"job_id": "by-hand", "slot_us": now, "verdict": "succeeded", "sent_us": now, "batch_id": 2}
    insert(
        database_url,
        tables.runs,
        [
            {**blank, **sent, "task_id": "a", "lease_until_us": now + HOUR},
            {**blank, "job_id": "skipped", "slot_us": now, "verdict": "skipped", "task_id": "b"},
            {**blank, **hand, "task_id": "c"},
            {**blank, "job_id": "never", "slot_us": now, "verdict": "missed", "task_id": "d"},
        ],
    )
    found = {name: (row["last_run_us"], row["last_verdict"]) for name, row in view(database_url).items()}
    assert found == {
        "skipped": (now - HOUR + 1, "sent"),
        "by-hand": (now, "succeeded"),
        "pruned": (now - HOUR, "failed"),
        "never": (None, None),
    }


def test_times_stand_beside_their_microseconds_in_utc(database_url: str) -> None:
    made(database_url)
    row = {"fn": "app.a", "schedule_kind": "every", "schedule": "1h"}
    insert(database_url, tables.jobs, [{"id": name, **row} for name in ("a", "b")])
    state = {"last_run_us": 1_780_300_800_999_999, "next_run_us": 253_402_300_799_999_999, "last_succeeded_us": 0}
    insert(database_url, tables.state, [{"job_id": "a", **state}, {"job_id": "b", **dict.fromkeys(state, 2**62)}])
    found = view(database_url)
    assert [found["a"][name] for name in ("last_run", "next_run", "last_succeeded", "running_since")] == [
        *("2026-06-01T08:00:00Z", "9999-12-31T23:59:59Z", "1970-01-01T00:00:00Z", None)
    ]
    assert [found["b"][name] for name in ("last_run", "next_run", "last_succeeded")] == [None, None, None]
