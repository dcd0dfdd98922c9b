"""Edits from the databases' own command lines, and the ways in which commits can be hard to see."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa

from celery_qbeat.ports import Changes
from celery_qbeat.stores import open_store
from tests.contract.database_clients import type_in
from tests.contract.store_rigs import T0, SqlRig

FIRST = "INSERT INTO qbeat_jobs (id, fn, schedule_kind, schedule) VALUES ('{}', 'proj.tasks.work', 'every', '1m');"


def seen(rig: SqlRig) -> dict[str, bool] | str:
    """What one poll says: ids and whether they are there, or 'reload'."""
    changes = rig.store.read_changes()
    if changes.reload:
        list(rig.store.load())
        return "reload"
    return {job_id: found is not None for job_id, found in changes.rows.items()}


def until(condition: Callable[[], bool], seconds: float = 60.0) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "waited in vain"
        time.sleep(0.02)


def kind(rig: SqlRig) -> str:
    return sa.make_url(rig.url).get_backend_name()


def test_a_minimal_insert_from_the_command_line_is_a_job(sql_rig: SqlRig) -> None:
    type_in(sql_rig.url, FIRST.format("a"))
    changes = sql_rig.store.read_changes()
    found = changes.rows["a"]
    assert found is not None
    row = found[0]
    assert (row["worker"], row["timezone"], row["args"], row["kwargs"]) == ("", "UTC", "[]", "{}")
    assert (row["overlap"], row["catch_up"], row["on_doubt"], row["max_run_seconds"]) == ("skip", "once", "drop", 3600)
    assert row["enabled"] in (True, 1)


@pytest.mark.parametrize(
    ("statements", "expected"),
    [
        ("UPDATE qbeat_jobs SET schedule = '2m' WHERE id = 'a';", {"a": True}),
        ("UPDATE qbeat_jobs SET enabled = FALSE;", {"a": True, "b": True}),
        ("DELETE FROM qbeat_jobs WHERE id = 'a';", {"a": False}),
        ("DELETE FROM qbeat_jobs;", {"a": False, "b": False}),
        ("DELETE FROM qbeat_jobs WHERE id = 'a';" + FIRST.format("a"), {"a": True}),
        ("UPDATE qbeat_jobs SET id = 'c' WHERE id = 'a';", {"a": False, "c": True}),
        ("BEGIN; DELETE FROM qbeat_jobs; ROLLBACK;", {}),
        ("BEGIN;" + FIRST.format("c") + "DELETE FROM qbeat_jobs WHERE id = 'c'; COMMIT;", {"c": False}),
    ],
)
def test_an_edit_from_the_command_line_is_seen(sql_rig: SqlRig, statements: str, expected: dict[str, bool]) -> None:
    type_in(sql_rig.url, FIRST.format("a") + FIRST.format("b"))
    seen(sql_rig)
    type_in(sql_rig.url, statements)
    assert seen(sql_rig) == expected
    assert seen(sql_rig) == {}
    assert not sql_rig.store.has_drifted()


def test_a_row_replaced_or_upserted_from_the_command_line_is_seen(sql_rig: SqlRig) -> None:
    type_in(sql_rig.url, FIRST.format("a"))
    seen(sql_rig)
    insert = FIRST.format("a").rstrip(";")
    forms = {
        "sqlite": [f"REPLACE{insert[6:]};", f"{insert} ON CONFLICT (id) DO UPDATE SET fn = 'f';"],
        "mysql": [f"REPLACE{insert[6:]};", f"{insert} ON DUPLICATE KEY UPDATE fn = 'f';"],
        "postgresql": [
            f"{insert} ON CONFLICT (id) DO UPDATE SET fn = 'f';",
            "COPY qbeat_jobs (id, fn, schedule_kind, schedule) FROM stdin;\nb\tf\tevery\t1m\n\\.\n",
        ],
    }[kind(sql_rig)]
    for form in forms:
        type_in(sql_rig.url, form)
        found = seen(sql_rig)
        assert isinstance(found, dict)
        assert list(found.values()) == [True], form
        assert not sql_rig.store.has_drifted()


@pytest.mark.parametrize("sql_rig", ["postgresql", "mariadb"], indirect=True)
def test_a_truncated_table_is_noticed(sql_rig: SqlRig) -> None:
    sql_rig.planned("a", "b")
    type_in(sql_rig.url, "TRUNCATE TABLE qbeat_jobs;")
    if kind(sql_rig) == "postgresql":
        assert seen(sql_rig) == "reload"
    else:
        # No trigger of MariaDB fires: the count does not agree.
        assert seen(sql_rig) == {}
        assert sql_rig.store.has_drifted()
        list(sql_rig.store.load())
    assert not sql_rig.store.has_drifted()


def test_an_edited_scope_and_a_request_from_the_command_line_are_seen(sql_rig: SqlRig) -> None:
    type_in(sql_rig.url, "INSERT INTO qbeat_workers (name) VALUES ('reports');" + FIRST.format("a"))
    type_in(sql_rig.url, "UPDATE qbeat_jobs SET worker = 'reports';")
    sql_rig.store.read_changes()
    type_in(sql_rig.url, "UPDATE qbeat_workers SET enabled = FALSE WHERE name = 'reports';")
    changes = sql_rig.store.read_changes()
    assert changes.workers is not None
    assert not changes.workers["reports"].enabled
    assert set(changes.rows) == {"a"}
    type_in(sql_rig.url, "UPDATE qbeat_workers SET name = 'other';")
    assert set(sql_rig.store.read_changes().workers or {}) == {"other"}
    type_in(sql_rig.url, f"INSERT INTO qbeat_requests (job_id, asked_us) VALUES ('a', {T0});")
    assert sql_rig.store.read_changes().asked
    assert [request.job_id for request in sql_rig.store.pending_requests()] == ["a"]


def test_scopes_that_changed_past_the_triggers_are_drift(sql_rig: SqlRig) -> None:
    sql_rig.set_worker("reports")
    sql_rig.store.read_changes()
    assert not sql_rig.store.has_drifted()
    for trigger in ("qbeat_workers_upd", "qbeat_workers_ins"):
        on = " ON qbeat_workers" if kind(sql_rig) == "postgresql" else ""
        sql_rig.sql(f"DROP TRIGGER {trigger}{on}")
    try:
        sql_rig.set_worker("reports", enabled=False)
        assert sql_rig.store.read_changes() == Changes()
        assert sql_rig.store.has_drifted()
    finally:
        open_store(sql_rig.url).migrate()


@pytest.mark.parametrize("sql_rig", ["postgresql", "mariadb"], indirect=True)
def test_a_transaction_that_commits_late_is_seen_then(sql_rig: SqlRig) -> None:
    sql_rig.planned("a", "b", "c")
    with sql_rig.store.link.engine.connect() as slow:
        slow.exec_driver_sql("BEGIN")
        slow.exec_driver_sql("UPDATE qbeat_jobs SET fn = 'late' WHERE id = 'a'")
        sql_rig.update("b", fn="at once")
        assert seen(sql_rig) == {"b": True}
        slow.exec_driver_sql("DELETE FROM qbeat_jobs WHERE id = 'c'")
        sql_rig.insert("d")
        assert seen(sql_rig) == {"d": True}
        # Longer than a gap in the numbers is given before it is looked at.
        deadline = time.monotonic() + 1.3
        while time.monotonic() < deadline:
            assert seen(sql_rig) == {}
            time.sleep(0.05)
        assert not sql_rig.store.has_drifted()
        slow.exec_driver_sql("COMMIT")
    assert seen(sql_rig) == {"a": True, "c": False}
    assert not sql_rig.store.has_drifted()


@pytest.mark.parametrize("sql_rig", ["postgresql", "mariadb"], indirect=True)
def test_a_load_in_the_middle_of_a_late_transaction_misses_nothing(sql_rig: SqlRig) -> None:
    sql_rig.planned("a")
    with sql_rig.store.link.engine.connect() as slow:
        slow.exec_driver_sql("BEGIN")
        slow.exec_driver_sql("UPDATE qbeat_jobs SET fn = 'late' WHERE id = 'a'")
        sql_rig.insert("b")
        list(sql_rig.store.load())
        assert seen(sql_rig) == {}
        slow.exec_driver_sql("COMMIT")
    assert seen(sql_rig) == {"a": True}


@pytest.mark.slow
def test_a_bulk_edit_of_100_000_rows_is_seen(sql_rig: SqlRig) -> None:
    insert_many(sql_rig, 100_000)
    assert seen(sql_rig) == "reload"
    assert not sql_rig.store.has_drifted()
    type_in(sql_rig.url, "UPDATE qbeat_jobs SET fn = 'proj.tasks.other';")
    assert sql_rig.store.read_changes().reload


def test_a_bulk_edit_of_some_thousand_rows_is_read_row_by_row(sql_rig: SqlRig) -> None:
    insert_many(sql_rig, 5_000)
    assert set(changed_rows(sql_rig)) == {f"bulk-{n:06}" for n in range(5_000)}
    type_in(sql_rig.url, "UPDATE qbeat_jobs SET fn = 'proj.tasks.other';")
    rows = changed_rows(sql_rig).values()
    assert [row["fn"] for row, _ in filter(None, rows)] == ["proj.tasks.other"] * 5_000
    assert not sql_rig.store.has_drifted()


def changed_rows(rig: SqlRig) -> dict[str, Any]:
    """The rows of as many calls as it takes to read all changes."""
    rows: dict[str, Any] = {}
    while (changes := rig.store.read_changes()).more:
        rows |= changes.rows
    return rows | dict(changes.rows)


def insert_many(rig: SqlRig, n: int) -> None:
    columns = "INSERT INTO qbeat_jobs (id, fn, schedule_kind, schedule)"
    numbers = {
        "sqlite": "WITH RECURSIVE s(n) AS (SELECT 0 UNION ALL SELECT n + 1 FROM s WHERE n < {}) {} SELECT {} FROM s;",
        "postgresql": "{1} SELECT {2} FROM generate_series(0, {0}) AS s(n);",
        "mysql": "{1} SELECT {2} FROM seq_0_to_{0};",
    }[kind(rig)]
    name = {
        "sqlite": "printf('bulk-%06d', n)",
        "postgresql": "'bulk-' || lpad(n::text, 6, '0')",
        "mysql": "CONCAT('bulk-', LPAD(seq, 6, '0'))",
    }[kind(rig)]
    type_in(rig.url, numbers.format(n - 1, columns, f"{name}, 'f', 'every', '1m'"))


@pytest.mark.parametrize("sql_rig", ["mariadb"], indirect=True)
def test_rolled_back_numbers_are_buried(sql_rig: SqlRig) -> None:
    sql_rig.planned("a")
    type_in(sql_rig.url, "BEGIN; UPDATE qbeat_jobs SET fn = 'f'; ROLLBACK;")
    sql_rig.insert("b")
    assert seen(sql_rig) == {"b": True}
    assert sql_rig.store._cursor.gaps

    def closed() -> bool:
        assert seen(sql_rig) == {}
        return not sql_rig.store._cursor.gaps

    until(closed)
    assert sql_rig.sql("SELECT COUNT(*) FROM qbeat_changes WHERE op = '-'").scalar_one() >= 1
    assert not sql_rig.store.has_drifted()


def test_a_log_that_was_lost_or_pruned_too_far_asks_for_a_reload(sql_rig: SqlRig) -> None:
    sql_rig.planned("a")
    floor = sql_rig.sql("SELECT MAX(version) FROM qbeat_changes").scalar_one() + 1_000_000
    sql_rig.sql("UPDATE qbeat_meta SET log_floor = :floor", floor=floor)
    sql_rig.insert("b")
    assert seen(sql_rig) == "reload"
    sql_rig.sql("UPDATE qbeat_meta SET log_floor = 0")


def test_another_instance_under_the_same_name_asks_for_a_reload(sql_rig: SqlRig) -> None:
    sql_rig.planned("a")
    before = sql_rig.store.instance
    other = "00000000-1111-4222-8333-444444444444"
    try:
        sql_rig.sql("UPDATE qbeat_meta SET instance = :other", other=other)
        sql_rig.insert("b")
        assert seen(sql_rig) == "reload"
        assert sql_rig.store.instance == other
    finally:
        sql_rig.sql("UPDATE qbeat_meta SET instance = :before", before=before)


def test_the_log_is_pruned_only_below_what_was_read(sql_rig: SqlRig) -> None:
    other = sql_rig.other()
    list(other.load())
    for n in range(30):
        sql_rig.insert(f"job-{n}")
    sql_rig.sql("UPDATE qbeat_changes SET at_us = 0")

    def pruned() -> bool:
        sql_rig.store.read_changes()
        list(sql_rig.store.prune({}, 2 * 3_600_000_000))
        return bool(sql_rig.sql("SELECT COUNT(*) FROM qbeat_changes").scalar_one() <= 1)

    # MariaDB: after the gaps of rolled back numbers are settled.
    until(pruned)
    # The one that had read it all goes on, the one that had not begins again.
    sql_rig.insert("new")
    assert seen(sql_rig) == {"new": True}
    assert other.read_changes().reload
    assert not sql_rig.store.has_drifted()


def test_a_young_log_is_not_pruned(sql_rig: SqlRig) -> None:
    sql_rig.insert("a")
    sql_rig.store.read_changes()
    lines = sql_rig.sql("SELECT COUNT(*) FROM qbeat_changes").scalar_one()
    now_us = sql_rig.sql("SELECT MAX(at_us) FROM qbeat_changes").scalar_one()
    assert sum(sql_rig.store.prune({}, now_us)) == 0
    assert sql_rig.sql("SELECT COUNT(*) FROM qbeat_changes").scalar_one() == lines


@pytest.mark.parametrize("sql_rig", ["sqlite"], indirect=True)
def test_a_sqlite_file_that_was_replaced_is_read_anew(sql_rig: SqlRig) -> None:
    rig = sql_rig
    path = Path(rig.store.link.engine.url.database or "")
    rig.planned("a")
    rig.connection.exec_driver_sql("VACUUM INTO ?", (str(path) + ".new",))
    Path(str(path) + ".new").rename(path)
    type_in(rig.url, FIRST.format("b"))
    assert rig.store.read_changes().reload
    ids = {row["id"] for part in rig.store.load() for row, _ in part.rows}
    assert ids == {"a", "b"}
