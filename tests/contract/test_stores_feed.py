"""Rows, plans and the change feed of every store."""

from __future__ import annotations

import pytest

from celery_qbeat.core.jobs import State, Verdict, WorkerScope
from celery_qbeat.ports import Changes, Plan, RunOutcome, Store
from tests.contract.store_rigs import SECOND, T0, Rig

NOTHING = Changes()


def loaded(store: Store) -> tuple[dict[str, State | None], list[str]]:
    """Row ids with their states, and orphans, of a full load."""
    rows: dict[str, State | None] = {}
    orphans: list[str] = []
    for part in store.load():
        rows.update((row["id"], state) for row, state in part.rows)
        orphans.extend(state.job_id for state in part.orphans)
    return rows, orphans


def changed(rig: Rig) -> dict[str, bool]:
    """Changed ids, and whether the row is there."""
    changes = rig.store.read_changes()
    assert not changes.reload
    return {job_id: found is not None for job_id, found in changes.rows.items()}


# ---------------------------------------------------------------- loading


def test_a_load_brings_rows_states_and_orphans(rig: Rig) -> None:
    rig.planned("a", "b")
    rig.insert("c")
    rig.store.write_plans(rig.epoch, [Plan("code:x", T0, T0 + 1, "key")], T0)
    rig.delete("b")
    rows, orphans = loaded(rig.store)
    assert rows == {"a": State("a", T0, T0, plan_key="key"), "c": None}
    assert sorted(orphans) == ["b", "code:x"]


def test_a_row_has_every_column_that_matters_and_defaults_for_those_not_given(rig: Rig) -> None:
    rig.insert("a")
    [(row, _)] = [pair for part in rig.store.load() for pair in part.rows]
    rev = row["rev"]
    assert isinstance(rev, int)
    assert rev > 0
    assert {name: value for name, value in row.items() if name not in ("rev", "description")} == {
        "id": "a",
        "fn": "proj.tasks.work",
        "schedule_kind": "every",
        "schedule": "1m",
        "worker": "",
        "args": "[]",
        "kwargs": "{}",
        "enabled": True,
        "timezone": "UTC",
        "days_only": "",
        "days_skip": "",
        "dates_skip": "",
        "start_us": None,
        "end_us": None,
        "overlap": "skip",
        "catch_up": "once",
        "grace_seconds": None,
        "on_doubt": "drop",
        "max_run_seconds": 3600,
        "queue": None,
        "priority": None,
        "expires_seconds": None,
    }


def test_a_load_of_many_rows_comes_in_parts_each_row_once(rig: Rig) -> None:
    for n in range(2_300):
        rig.insert(f"job-{n}")
    rig.store.write_plans(rig.epoch, [Plan(f"job-{n}", T0, T0, "key") for n in range(0, 2_300, 2)], T0)
    parts = [part.rows for part in rig.store.load()]
    ids = [row["id"] for rows in parts for row, _ in rows]
    assert len(ids) == len(set(ids)) == 2_300
    assert len(parts) > 1
    assert sum(state is not None for rows in parts for _, state in rows) == 1_150


def test_many_orphans_come_in_parts_each_once(rig: Rig) -> None:
    rig.store.write_plans(rig.epoch, [Plan(f"code:{n}", T0, T0, "key") for n in range(4_100)], T0)
    _, orphans = loaded(rig.store)
    assert len(orphans) == len(set(orphans)) == 4_100


def test_what_is_edited_during_a_load_is_found_after_it(rig: Rig) -> None:
    for n in range(2_100):
        rig.insert(f"job-{n:04}")
    parts = rig.store.load()
    next(parts)
    rig.update("job-0000", fn="proj.tasks.other")
    rig.delete("job-2099")
    rig.insert("job-9999")
    list(parts)
    found = changed(rig)
    assert found == {"job-0000": True, "job-2099": False, "job-9999": True}


def test_a_load_that_was_given_up_must_be_begun_again(rig: Rig) -> None:
    rig.insert("a")
    parts = rig.store.load()
    next(parts)
    assert rig.store.read_changes().reload
    loaded(rig.store)
    assert rig.store.read_changes() == NOTHING


def test_a_store_that_never_loaded_asks_for_it(rig: Rig) -> None:
    other = rig.other()
    assert other.read_changes().reload
    assert other.read_changes().reload
    assert not other.has_drifted()


def test_ids_may_be_long_and_of_any_script(rig: Rig) -> None:
    ids = ["\U0001f40d" * 191, "Ж" * 191, "a" * 191, "case", "CASE", "accent-é", "accent-e", "per%cent:colon'quote\\"]
    rig.planned(*ids)
    rows, _ = loaded(rig.store)
    assert sorted(rows) == sorted(ids)
    claims = [rig.claim_of(job_id) for job_id in ids]
    assert rig.claim(*claims) == frozenset()
    rig.delete("case")
    rig.update("per%cent:colon'quote\\", fn="f")
    assert changed(rig) == {"case": False, "per%cent:colon'quote\\": True}


# ---------------------------------------------------------------- the feed


def test_nothing_changed_is_the_usual_answer(rig: Rig) -> None:
    rig.planned("a")
    rig.store.read_changes()
    rig.claim(rig.claim_of("a"))
    assert rig.store.read_changes() == NOTHING


def test_an_insert_an_update_and_a_delete_are_seen_once(rig: Rig) -> None:
    rig.insert("a")
    rig.insert("b")
    assert changed(rig) == {"a": True, "b": True}
    rig.update("a", fn="proj.tasks.other")
    changes = rig.store.read_changes()
    found = changes.rows["a"]
    assert found is not None
    assert found[0]["fn"] == "proj.tasks.other"
    rig.delete("b")
    assert changed(rig) == {"b": False}
    assert changed(rig) == {}


def test_a_changed_row_comes_with_its_state(rig: Rig) -> None:
    rig.planned("a")
    rig.update("a", enabled=False)
    found = rig.store.read_changes().rows["a"]
    assert found is not None
    assert found[1] == State("a", T0, T0, plan_key="key")
    assert not found[0]["enabled"]


def test_every_edit_gives_a_new_rev(rig: Rig) -> None:
    rig.insert("a")
    revs = [rig.rev("a")]
    rig.update("a", enabled=False)
    revs.append(rig.rev("a"))
    rig.update("a", enabled=True)
    revs.append(rig.rev("a"))
    rig.delete("a")
    rig.insert("a")
    revs.append(rig.rev("a"))
    assert len(set(revs)) == 4


def test_a_row_deleted_and_inserted_between_two_polls_is_there(rig: Rig) -> None:
    rig.planned("a")
    rig.delete("a")
    rig.insert("a", fn="proj.tasks.other")
    assert changed(rig) == {"a": True}


def test_a_renamed_row_is_gone_and_there(rig: Rig) -> None:
    rig.planned("a")
    rig.update("a", id="b")
    assert changed(rig) == {"a": False, "b": True}


def test_several_beats_read_the_feed_each_for_itself(rig: Rig) -> None:
    other = rig.other()
    loaded(other)
    rig.insert("a")
    assert set(rig.store.read_changes().rows) == {"a"}
    assert set(other.read_changes().rows) == {"a"}


def test_an_edited_scope_comes_with_its_rows(rig: Rig) -> None:
    rig.planned("a", "b", worker="w")
    rig.insert("c")
    rig.store.read_changes()
    rig.set_worker("w", queues="high, low", functions="proj.* other.task")
    changes = rig.store.read_changes()
    assert changes.workers == {"w": WorkerScope("w", True, "", ("high", "low"), ("proj.*", "other.task"))}
    assert set(changes.rows) == {"a", "b"}
    rig.set_worker("w", enabled=False)
    workers = rig.store.read_changes().workers
    assert workers is not None
    assert not workers["w"].enabled
    rig.delete_worker("w")
    changes = rig.store.read_changes()
    assert changes.workers == {}
    assert set(changes.rows) == {"a", "b"}


def test_a_request_is_announced_and_changes_no_row(rig: Rig) -> None:
    rig.planned("a")
    rig.ask("a", T0)
    changes = rig.store.read_changes()
    assert changes.asked
    assert changes.rows == {}
    assert rig.store.read_changes() == NOTHING


# ---------------------------------------------------------------- plans


def test_a_plan_makes_a_state_and_history(rig: Rig) -> None:
    plan = Plan("a", T0, T0 + 1, "key", "a problem", T0 + 2, spec="spec", record=True)
    rig.store.write_plans(rig.epoch, [plan, Plan("b", T0, None, "")], T0 + 3)
    states = rig.store.read_states(["a", "b", "c"])
    assert states == {
        "a": State("a", T0, T0 + 1, late_after_us=T0 + 2, plan_key="key", problem="a problem"),
        "b": State("b", T0),
    }
    assert list(rig.history()) == [("a", T0 + 3, "spec")]


def test_a_later_plan_keeps_what_the_job_has_been_through(rig: Rig) -> None:
    [task] = rig.claimed("a")
    rig.store.record_outcomes(rig.epoch, [RunOutcome(task, Verdict.SUCCEEDED, late_after_us=T0 + 9)], T0 + 5)
    rig.store.write_plans(rig.epoch, [Plan("a", T0 + 99, None, "other", "bad")], T0 + 6)
    assert rig.store.read_states(["a"])["a"] == State("a", T0, None, T0 + SECOND, T0, T0 + 5, None, "other", "bad")
    assert rig.state("a")["runs"] == 1


def test_a_forgotten_job_has_no_state_and_its_end_is_noted_once(rig: Rig) -> None:
    rig.planned("a", "b")
    for _ in range(2):
        rig.store.delete_states(rig.epoch, ["a", "never-there"], T0 + 5)
    assert set(rig.store.read_states(["a", "b"])) == {"b"}
    assert [entry for entry in rig.history() if entry[2] is None] == [("a", T0 + 5, None)]


def test_empty_plans_are_nothing(rig: Rig) -> None:
    rig.store.write_plans(rig.epoch, [], T0)
    rig.store.delete_states(rig.epoch, [], T0)
    assert rig.store.read_states([]) == {}
    assert list(rig.history()) == []


def test_a_plan_of_thousands_is_one_transaction(rig: Rig) -> None:
    plans = [Plan(f"job-{n}", T0, T0, "key", spec="s" * 50, record=True) for n in range(5_000)]
    rig.store.write_plans(rig.epoch, plans, T0)
    assert len(rig.store.read_states([plan.job_id for plan in plans])) == 5_000
    assert len(rig.history()) == 5_000


# ---------------------------------------------------------------- drift


def test_what_was_read_does_not_drift(rig: Rig) -> None:
    rig.planned("a", "b", "c")
    rig.update("a", enabled=False)
    rig.delete("b")
    rig.update("c", id="d")
    rig.store.read_changes()
    assert not rig.store.has_drifted()
    loaded(rig.store)
    assert not rig.store.has_drifted()


@pytest.mark.parametrize("edit", ["insert", "update", "delete"])
def test_what_the_feed_will_bring_is_not_drift(rig: Rig, edit: str) -> None:
    rig.planned("a")
    rig.store.read_changes()
    if edit == "insert":
        rig.insert("b")
    elif edit == "update":
        rig.update("a", enabled=False)
    else:
        rig.delete("a")
    assert not rig.store.has_drifted()
    rig.store.read_changes()
    assert not rig.store.has_drifted()


def test_a_limit_of_waits_changes_no_answer(rig: Rig) -> None:
    rig.store.limit_waits(5.0)
    rig.planned("a")
    assert set(rig.store.read_states(["a"])) == {"a"}
