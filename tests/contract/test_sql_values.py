"""Values that no table takes, tables and files that go away under a running beat: one row is hurt, and it is told."""

from __future__ import annotations

import logging
from dataclasses import replace
from pathlib import Path

import pytest

from celery_qbeat.errors import SchemaError, Unavailable
from celery_qbeat.ports import Plan
from tests.contract.store_rigs import T0, SqlRig


def test_a_value_that_the_database_refuses_costs_its_own_job_alone(
    sql_rig: SqlRig, caplog: pytest.LogCaptureFixture
) -> None:
    sql_rig.planned("a", "b", "c", "d", "e")
    bad = replace(sql_rig.run("c"), late_us=2**70)
    claims = [sql_rig.claim_of(job_id) for job_id in "abde"]
    claims.insert(2, sql_rig.claim_of("c", bad))
    with caplog.at_level(logging.ERROR, "celery_qbeat.store"):
        assert sql_rig.claim(*claims) == {"c", bad.task_id}
    assert [entry["job_id"] for entry in sql_rig.runs()] == ["a", "b", "d", "e"]
    assert sql_rig.batches()[sql_rig.last_batch][1] == 4
    [record] = caplog.records
    assert record.getMessage().startswith("c: the database refuses it")
    plans = [Plan(job_id, T0, 2**70 if job_id == "c" else T0 + 7, "key") for job_id in "abc"]
    sql_rig.store.write_plans(sql_rig.epoch, plans, T0)
    assert {job_id: state.next_run_us for job_id, state in sql_rig.store.read_states(["a", "b", "c"]).items()} == {
        "a": T0 + 7,
        "b": T0 + 7,
        "c": T0,
    }


def test_a_table_dropped_under_a_running_beat_is_told(sql_rig: SqlRig) -> None:
    sql_rig.sql("ALTER TABLE qbeat_history RENAME TO qbeat_history_away")
    try:
        with pytest.raises(SchemaError, match="qbeat_history"):
            sql_rig.store.write_plans(sql_rig.epoch, [Plan("a", T0, T0, "key", record=True)], T0)
    finally:
        sql_rig.sql("ALTER TABLE qbeat_history_away RENAME TO qbeat_history")
    sql_rig.store.write_plans(sql_rig.epoch, [Plan("a", T0, T0, "key", record=True)], T0)


@pytest.mark.parametrize("sql_rig", ["sqlite"], indirect=True)
def test_text_that_is_no_utf8_in_a_sqlite_file_hurts_one_row(sql_rig: SqlRig) -> None:
    sql_rig.planned("a")
    sql_rig.sql("UPDATE qbeat_jobs SET fn = CAST(x'ff41' AS TEXT) WHERE id = 'a'")
    sql_rig.insert("b")
    rows = sql_rig.store.read_changes().rows
    assert set(rows) == {"a", "b"}
    loaded = {row["id"]: row["fn"] for part in sql_rig.store.load() for row, _ in part.rows}
    assert loaded == {"a": b"\xffA", "b": "proj.tasks.work"}


@pytest.mark.parametrize("sql_rig", ["sqlite"], indirect=True)
def test_a_scope_that_is_no_utf8_hurts_its_own_jobs(sql_rig: SqlRig) -> None:
    sql_rig.set_worker("w")
    sql_rig.sql("UPDATE qbeat_workers SET queue = CAST(x'ff41' AS TEXT)")
    sql_rig.sql("INSERT INTO qbeat_workers (name) VALUES (CAST(x'ff' AS TEXT))")
    workers = sql_rig.store.read_changes().workers
    assert workers is not None
    assert workers["w"].problem == "its queue is b'\\xffA', which is no text"
    assert sql_rig.store.workers() == workers
    assert not sql_rig.store.has_drifted()


@pytest.mark.parametrize("sql_rig", ["sqlite"], indirect=True)
def test_an_id_that_is_no_text_hurts_one_row(sql_rig: SqlRig) -> None:
    for job_id in ("x'ff00'", "x'61'", "'a'", "'z'"):
        sql_rig.sql(f"INSERT INTO qbeat_jobs (id, fn, schedule_kind, schedule) VALUES ({job_id}, 'f', 'every', '1m')")
    sql_rig.sql(
        "INSERT INTO qbeat_jobs (id, fn, schedule_kind, schedule) VALUES (CAST(x'ff' AS TEXT), 'f', 'every', '1m')"
    )
    rows = sql_rig.store.read_changes().rows
    assert {"a", "z", repr(b"\xff\x00"), repr(b"a"), repr(b"\xff")} == {job_id for job_id in rows if rows[job_id]}
    ids = [row["id"] for part in sql_rig.store.load() for row, _ in part.rows]
    assert sorted(map(str, ids)) == sorted(map(str, ["a", "z", b"\xff\x00", b"a", b"\xff"]))
    assert not sql_rig.store.has_drifted()


@pytest.mark.parametrize("sql_rig", ["sqlite"], indirect=True)
def test_a_sqlite_file_that_vanishes_is_unavailable_and_not_made_anew(sql_rig: SqlRig) -> None:
    sql_rig.planned("a")
    path = Path(sql_rig.store.link.engine.url.database or "")
    path.rename(path.with_name("away"))
    assert sql_rig.store.read_changes().reload
    with pytest.raises(Unavailable, match="does not exist"):
        list(sql_rig.store.load())
    assert not path.exists()
    path.with_name("away").rename(path)
    assert [row["id"] for part in sql_rig.store.load() for row, _ in part.rows] == ["a"]
