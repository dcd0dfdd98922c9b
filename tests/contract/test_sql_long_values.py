"""Values longer than their limits: they stay in the database, their row is bad, and no other row notices."""

from __future__ import annotations

from typing import Any

import pytest

from celery_qbeat.core.jobs import RowRules, read_row
from celery_qbeat.core.limits import MAX_CHARACTERS
from celery_qbeat.stores import rows
from tests.contract.store_rigs import SqlRig

LONG = 1_000_000
TEXTS = ("fn", "schedule", "schedule_kind", "timezone", "days_only", "dates_skip", "queue", "args", "kwargs", "worker")
NUMBERS = ("start_us", "end_us", "grace_seconds", "max_run_seconds", "priority", "expires_seconds")


def fetched(sql_rig: SqlRig) -> list[dict[str, Any]]:
    """The rows as a load, the change feed and the commands bring them."""
    changed = [dict(there[0]) for there in sql_rig.store.read_changes().rows.values() if there is not None]
    loaded = [dict(row) for part in sql_rig.store.load() for row, _ in part.rows]
    listed = [dict(found.row) for found in sql_rig.store.link.read(rows.part)]
    return [*changed, *loaded, *listed]


def assert_bad(sql_rig: SqlRig, column: str) -> None:
    sql_rig.insert("good", args='["x"]', dates_skip="2026-12-25")
    found = fetched(sql_rig)
    assert sorted(row["id"] for row in found) == ["bad"] * 3 + ["good"] * 3
    for row in found:
        reading = read_row(row, RowRules(), {})
        assert sum(len(value) for value in row.values() if isinstance(value, str)) < 5 * MAX_CHARACTERS["args"]
        assert (reading.problem == "") == (reading.id == "good")
        if reading.id == "bad":
            assert reading.problem.startswith(column)


@pytest.mark.parametrize(
    ("column", "value"),
    [
        ("args", '["' + "é" * LONG + '"]'),
        ("kwargs", '{"a": "' + "x" * LONG + '"}'),
        ("dates_skip", "2026-12-25," * 5_900),
    ],
)
def test_a_long_value_is_not_fetched_and_its_row_is_bad(sql_rig: SqlRig, column: str, value: str) -> None:
    sql_rig.insert("bad", **{column: value})
    assert_bad(sql_rig, "args" if column == "kwargs" else column)


@pytest.mark.parametrize("sql_rig", ["sqlite"], indirect=True)
@pytest.mark.parametrize("column", [name for name in TEXTS + NUMBERS if name not in ("args", "kwargs")])
@pytest.mark.parametrize("value", ["x" * LONG, b"x" * LONG, "\0" + "x" * LONG], ids=["text", "bytes", "NUL"])
def test_no_column_of_sqlite_is_fetched_beyond_its_limit(sql_rig: SqlRig, column: str, value: str | bytes) -> None:
    sql_rig.insert("bad", **{column: value})
    assert_bad(sql_rig, column)


def test_a_long_list_of_a_scope_is_not_fetched(sql_rig: SqlRig) -> None:
    sql_rig.set_worker("good", functions="a.*", description="words")
    most = 65_535 if sql_rig.connection.dialect.name == "mysql" else LONG
    sql_rig.set_worker("bad", functions="x" * most, description="x" * most)
    for workers in (sql_rig.store.workers(), sql_rig.store.read_changes().workers):
        assert workers is not None
        assert workers["good"].functions == ("a.*",)
        bad = workers["bad"]
        assert bad.problem == ("" if most == 65_535 else "its column functions is longer than 65,535 characters")
        assert len("".join(bad.functions)) <= 65_535
    assert not sql_rig.store.has_drifted()


@pytest.mark.parametrize("sql_rig", ["sqlite"], indirect=True)
@pytest.mark.parametrize("column", ["job_id", "asked_us", "asked_by", "action", "task_id"])
@pytest.mark.parametrize("value", ["x" * LONG, b"x" * LONG, "\0" + "x" * LONG], ids=["text", "bytes", "NUL"])
def test_no_column_of_a_request_is_fetched_beyond_its_limit(sql_rig: SqlRig, column: str, value: str | bytes) -> None:
    asked = {"job_id": "good", "asked_us": 1, column: value}
    sql_rig.sql(f"INSERT INTO qbeat_requests ({', '.join(asked)}) VALUES (:{', :'.join(asked)})", **asked)
    (found,) = sql_rig.store.pending_requests()
    assert len(str(getattr(found, column))) < 5 * MAX_CHARACTERS["queue"]
