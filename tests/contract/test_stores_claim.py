"""The fence, the claim and the ledger of every store."""

from __future__ import annotations

import pytest

from celery_qbeat.core.jobs import Verdict
from celery_qbeat.errors import Fenced
from celery_qbeat.ports import ClaimRelease, Plan, RunOutcome
from tests.contract.store_rigs import SECOND, T0, Rig


def test_a_won_claim_enters_the_ledger_and_moves_the_plan(rig: Rig) -> None:
    rig.planned("a")
    run = rig.run("a", late_us=7, collapsed=2, detail="why")
    assert rig.claim(rig.claim_of("a", run)) == frozenset()
    [entry] = rig.runs()
    assert (entry["job_id"], entry["slot_us"], entry["task_id"]) == ("a", T0, run.task_id)
    assert (entry["verdict"], entry["claimed_us"], entry["sent_us"], entry["finished_us"]) == (
        "claimed",
        T0 + SECOND,
        None,
        None,
    )
    assert (entry["late_us"], entry["collapsed"], entry["detail"]) == (7, 2, "why")
    assert (entry["batch_id"], entry["lease_until_us"]) == (rig.last_batch, run.lease_until_us)
    assert not entry["by_hand"]
    state = rig.state("a")
    assert (state["next_run_us"], state["last_run_us"], state["last_slot_us"]) == (T0 + 60 * SECOND, T0 + SECOND, T0)
    assert (state["runs"], state["last_verdict"], state["claim_epoch"]) == (1, "claimed", rig.epoch)
    assert rig.batches() == {rig.last_batch: (rig.epoch, 1, None)}


def test_a_slot_is_won_once(rig: Rig) -> None:
    rig.planned("a", "b")
    claims = [rig.claim_of("a"), rig.claim_of("b")]
    assert rig.claim(claims[0]) == frozenset()
    first = rig.last_batch
    lost = rig.claim(*claims)
    assert lost == {"a"}
    assert [entry["batch_id"] for entry in rig.runs()] == [first, rig.last_batch]
    assert rig.batches() == {first: (rig.epoch, 1, None), rig.last_batch: (rig.epoch, 1, None)}


def test_a_claim_expects_the_slot_of_the_state(rig: Rig) -> None:
    rig.planned("a", next_us=T0 + SECOND)
    assert "a" in rig.claim(rig.claim_of("a"))
    assert rig.state("a")["next_run_us"] == T0 + SECOND
    assert rig.runs() == []
    assert rig.batches() == {}


def test_a_job_without_a_state_cannot_be_claimed(rig: Rig) -> None:
    rig.insert("a")
    assert "a" in rig.claim(rig.claim_of("a"))
    assert "code:b" in rig.claim(rig.claim_of("code:b", rig.run("code:b"), rev=None))
    assert rig.runs() == []


@pytest.mark.parametrize("edit", ["disabled", "edited", "deleted", "deleted and inserted"])
def test_a_row_that_changed_since_it_was_read_cannot_be_claimed(rig: Rig, edit: str) -> None:
    rig.planned("a")
    claim = rig.claim_of("a")
    if edit == "disabled":
        rig.update("a", enabled=False)
    elif edit == "edited":
        rig.update("a", fn="proj.tasks.other")
    else:
        rig.delete("a")
        if edit != "deleted":
            rig.insert("a")
    assert "a" in rig.claim(claim)
    assert rig.runs() == []
    assert rig.state("a")["next_run_us"] == T0


def test_a_disabled_row_cannot_be_claimed_under_its_own_rev(rig: Rig) -> None:
    rig.planned("a", enabled=False)
    assert "a" in rig.claim(rig.claim_of("a"))


def test_an_entry_of_code_needs_no_row(rig: Rig) -> None:
    rig.store.write_plans(rig.epoch, [Plan("code:a", T0, T0, "key")], T0)
    claim = rig.claim_of("code:a", rig.run("code:a"), rev=None)
    assert rig.claim(claim) == frozenset()
    assert [entry["job_id"] for entry in rig.runs()] == ["code:a"]


def test_several_slots_of_a_job_are_decided_together(rig: Rig) -> None:
    rig.planned("a")
    runs = [
        rig.run("a", T0, Verdict.MISSED, detail="late"),
        rig.run("a", T0 + SECOND),
        rig.run("a", T0 + 2 * SECOND),
    ]
    assert rig.claim(rig.claim_of("a", *runs)) == frozenset()
    assert [entry["verdict"] for entry in rig.runs()] == ["missed", "claimed", "claimed"]
    missed = rig.runs()[0]
    assert (missed["finished_us"], missed["lease_until_us"], missed["batch_id"]) == (T0 + SECOND, None, None)
    assert missed["detail"] == "late"
    assert rig.state("a")["runs"] == 2
    assert rig.state("a")["last_slot_us"] == T0 + 2 * SECOND
    assert rig.batches()[rig.last_batch][1] == 2


@pytest.mark.parametrize("verdict", [Verdict.SKIPPED, Verdict.MISSED, Verdict.REFUSED])
def test_a_slot_that_is_not_to_be_sent_moves_the_plan_and_opens_no_batch(rig: Rig, verdict: Verdict) -> None:
    rig.planned("a")
    assert rig.claim(rig.claim_of("a", rig.run("a", verdict=verdict))) == frozenset()
    state = rig.state("a")
    assert (state["next_run_us"], state["last_run_us"], state["last_slot_us"]) == (T0 + 60 * SECOND, None, T0)
    assert (state["runs"], state["last_verdict"]) == (0, verdict)
    assert rig.batches() == {}
    assert list(rig.store.unfinished_runs()) == []


def test_a_slot_that_the_ledger_has_is_lost_but_its_plan_moves_on(rig: Rig) -> None:
    rig.claimed("a")
    rig.store.write_plans(rig.epoch, [Plan("a", T0, T0, "key")], T0)
    claim = rig.claim_of("a")
    assert rig.claim(claim) == {"a", claim.runs[0].task_id}
    assert rig.state("a")["next_run_us"] == T0 + 60 * SECOND
    assert rig.state("a")["runs"] == 1
    assert len(rig.runs()) == 1
    assert rig.last_batch not in rig.batches()


def test_a_slot_that_the_ledger_has_under_another_task_id_is_lost(rig: Rig) -> None:
    rig.claimed("a")
    rig.store.write_plans(rig.epoch, [Plan("a", T0, T0, "key")], T0)
    run = rig.run("a")
    other = type(run)("a", T0, "another-task-id", Verdict.CLAIMED, lease_until_us=T0)
    assert rig.claim(rig.claim_of("a", other)) == {"a", "another-task-id"}
    assert [entry["task_id"] for entry in rig.runs()] == [run.task_id]


def test_of_several_slots_only_those_that_the_ledger_has_are_lost(rig: Rig) -> None:
    [first] = rig.claimed("a")
    rig.store.write_plans(rig.epoch, [Plan("a", T0, T0, "key")], T0)
    claim = rig.claim_of("a", rig.run("a", T0), rig.run("a", T0 + SECOND))
    assert rig.claim(claim) == {first}
    assert rig.state("a")["runs"] == 2
    assert rig.batches()[rig.last_batch] == (rig.epoch, 1, None)


def test_a_run_by_hand_leaves_the_plan_alone(rig: Rig) -> None:
    rig.planned("a", next_us=T0 + 9 * SECOND)
    claim = rig.claim_of("a", rig.run("a", T0 + 5), expected_us=None, next_us=None)
    assert rig.claim(claim) == frozenset()
    state = rig.state("a")
    assert (state["next_run_us"], state["last_run_us"], state["last_slot_us"]) == (T0 + 9 * SECOND, None, None)
    assert (state["runs"], state["last_verdict"]) == (1, "claimed")
    [entry] = rig.runs()
    assert entry["by_hand"]
    assert rig.batches()[rig.last_batch][1] == 1


def test_a_disabled_row_can_be_run_by_hand_but_not_one_that_changed_or_went_since_it_was_read(rig: Rig) -> None:
    rig.planned("a")
    rig.update("a", enabled=False)
    by_hand = {"expected_us": None, "next_us": None}
    assert rig.claim(rig.claim_of("a", rig.run("a", T0 + 5), **by_hand)) == frozenset()
    claim = rig.claim_of("a", rig.run("a", T0 + 6), **by_hand)
    rig.update("a", fn="other")
    assert rig.claim(claim) == {"a"}
    claim = rig.claim_of("a", rig.run("a", T0 + 6), **by_hand)
    rig.delete("a")
    assert rig.claim(claim) == {"a"}
    assert len(rig.runs()) == 1


def test_a_job_may_be_claimed_and_run_by_hand_in_one_batch(rig: Rig) -> None:
    rig.planned("a")
    hand = rig.claim_of("a", rig.run("a", T0 + 5), expected_us=None, next_us=None)
    assert rig.claim(rig.claim_of("a"), hand) == frozenset()
    assert [bool(entry["by_hand"]) for entry in rig.runs()] == [False, True]
    assert rig.state("a")["runs"] == 2
    assert rig.batches()[rig.last_batch][1] == 2


def test_an_empty_claim_is_nothing(rig: Rig) -> None:
    assert rig.claim() == frozenset()
    assert rig.batches() == {}


def test_a_plan_can_move_on_without_a_run(rig: Rig) -> None:
    rig.planned("a")
    claim = rig.claim_of("a")
    assert rig.claim(type(claim)("a", claim.rev, T0, None, ())) == frozenset()
    assert rig.state("a")["next_run_us"] is None
    assert rig.state("a")["last_slot_us"] is None
    assert rig.runs() == []


def test_a_thousand_jobs_are_claimed_in_one_batch(rig: Rig) -> None:
    ids = [f"job-{n:04}" for n in range(1_200)]
    rig.store.write_plans(rig.epoch, [Plan(f"code:{job_id}", T0, T0, "key") for job_id in ids], T0)
    claims = [rig.claim_of(f"code:{job_id}", rig.run(f"code:{job_id}"), rev=None) for job_id in reversed(ids)]
    assert rig.claim(*claims) == frozenset()
    assert len(rig.runs()) == 1_200
    assert rig.batches()[rig.last_batch][1] == 1_200


# ---------------------------------------------------------------- the fence


def test_epochs_go_up_by_one(rig: Rig) -> None:
    other = rig.other()
    assert other.take_epoch("there:2", T0) == rig.epoch + 1
    assert other.take_epoch("there:2", T0) == rig.epoch + 2


def test_an_older_epoch_may_not_write(rig: Rig) -> None:
    [task] = rig.claimed("a")
    claim = rig.claim_of("a", rig.run("a", T0 + 60 * SECOND), expected_us=T0 + 60 * SECOND)
    rig.ask("a", T0)
    [request] = rig.store.pending_requests()
    rig.other().take_epoch("there:2", T0)
    before = (rig.runs(), rig.state("a"), rig.batches(), rig.history())
    store, epoch = rig.store, rig.epoch
    for write in (
        lambda: rig.claim(claim),
        lambda: store.record_heartbeat(epoch, T0),
        lambda: store.write_plans(epoch, [Plan("a", T0, None, "other", record=True)], T0),
        lambda: store.delete_states(epoch, ["a"], T0),
        lambda: store.mark_sent(epoch, rig.last_batch, [task], T0, closes=True),
        lambda: store.release_claims(epoch, rig.last_batch, [ClaimRelease("a", (task,), T0, T0 + 60 * SECOND)]),
        lambda: store.record_outcomes(epoch, [RunOutcome(task, Verdict.SUCCEEDED)], T0),
        lambda: store.close_batches(epoch, T0),
        lambda: store.delete_requests(epoch, [request.id]),
    ):
        with pytest.raises(Fenced, match="there:2"):
            write()
    assert (rig.runs(), rig.state("a"), rig.batches(), rig.history()) == before
    assert len(store.pending_requests()) == 1


def test_the_writer_of_the_newest_epoch_may_write(rig: Rig) -> None:
    rig.planned("a")
    claim = rig.claim_of("a")
    other = rig.other()
    newer = other.take_epoch("there:2", T0)
    other.record_heartbeat(newer, T0)
    assert other.claim(newer, newer << 20, [claim], T0) == frozenset()
