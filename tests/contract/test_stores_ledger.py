"""What becomes of claimed runs, in every store: sent, released, ended, in flight, pruned."""

from __future__ import annotations

from dataclasses import replace

import pytest

from celery_qbeat.core.jobs import Run, Verdict
from celery_qbeat.errors import Fenced
from celery_qbeat.ports import REQUESTS_A_READ, Claim, ClaimRelease, Plan, RunOutcome, Store
from tests.contract.store_rigs import SECOND, T0, Rig

NEXT = T0 + 60 * SECOND
DAY = 86_400 * SECOND


def in_flight(store: Store) -> list[str]:
    return [flight.task_id for part in store.unfinished_runs() for flight in part]


# ---------------------------------------------------------------- sent


def test_a_sent_run_is_marked_and_the_last_mark_closes_the_batch(rig: Rig) -> None:
    first, second = rig.claimed("a", "b")
    rig.store.mark_sent(rig.epoch, rig.last_batch, [first], T0 + 5, closes=False)
    assert rig.batches()[rig.last_batch] == (rig.epoch, 2, None)
    rig.store.mark_sent(rig.epoch, rig.last_batch, [second], T0 + 6, closes=True)
    assert rig.batches()[rig.last_batch] == (rig.epoch, 2, T0 + 6)
    assert [(entry["verdict"], entry["sent_us"]) for entry in rig.runs()] == [("sent", T0 + 5), ("sent", T0 + 6)]
    assert rig.state("a")["last_verdict"] == "sent"


def test_a_batch_closes_without_a_sent_run_too(rig: Rig) -> None:
    rig.claimed("a")
    rig.store.mark_sent(rig.epoch, rig.last_batch, [], T0 + 5, closes=True)
    assert rig.batches()[rig.last_batch][2] == T0 + 5
    assert rig.runs()[0]["verdict"] == "claimed"


def test_a_mark_does_not_reopen_a_run_that_ended_meanwhile(rig: Rig) -> None:
    [task] = rig.claimed("a")
    rig.store.record_outcomes(rig.epoch, [RunOutcome(task, Verdict.SUCCEEDED)], T0 + 4)
    rig.store.mark_sent(rig.epoch, rig.last_batch, [task], T0 + 5, closes=True)
    [entry] = rig.runs()
    assert (entry["verdict"], entry["sent_us"], entry["lease_until_us"]) == ("succeeded", T0 + 5, None)
    assert rig.state("a")["last_verdict"] == "succeeded"


def test_marking_twice_is_harmless(rig: Rig) -> None:
    [task] = rig.claimed("a")
    for _ in range(2):
        rig.store.mark_sent(rig.epoch, rig.last_batch, [task], T0 + 5, closes=True)
    assert rig.runs()[0]["sent_us"] == T0 + 5


# ---------------------------------------------------------------- leases


def test_only_an_open_and_longer_lease_is_shortened(rig: Rig) -> None:
    first, second, ended = rig.claimed("a", "b", "c")
    rig.store.record_outcomes(rig.epoch, [RunOutcome(ended, Verdict.SUCCEEDED)], T0)
    before = {entry["task_id"]: entry["lease_until_us"] for entry in rig.runs()}
    longer = {second: before[second] + 1, ended: T0, "no such run": T0}
    rig.store.shorten_leases(rig.epoch, {first: before[first] - 5, **longer})
    after = {entry["task_id"]: entry["lease_until_us"] for entry in rig.runs()}
    assert after == {**before, first: before[first] - 5}
    with pytest.raises(Fenced):
        rig.store.shorten_leases(rig.epoch - 1, {first: T0})


# ---------------------------------------------------------------- release


def test_a_released_run_was_never_there(rig: Rig) -> None:
    first, second = rig.claimed("a", "b")
    rig.store.release_claims(rig.epoch, rig.last_batch, [ClaimRelease("a", (first,), T0, NEXT, None)])
    assert [entry["task_id"] for entry in rig.runs()] == [second]
    state = rig.state("a")
    assert (state["next_run_us"], state["last_run_us"], state["last_slot_us"]) == (T0, None, None)
    assert (state["runs"], state["last_verdict"]) == (0, "")
    assert rig.batches()[rig.last_batch][1] == 1
    assert rig.claim(rig.claim_of("a")) == frozenset()


def test_a_batch_that_is_released_whole_is_gone(rig: Rig) -> None:
    [task] = rig.claimed("a")
    rig.store.release_claims(rig.epoch, rig.last_batch, [ClaimRelease("a", (task,), T0, NEXT, None)])
    assert rig.batches() == {}
    assert in_flight(rig.store) == []


def test_a_release_gives_the_last_run_back(rig: Rig) -> None:
    rig.claimed("a")
    run = rig.run("a", NEXT)
    claim = rig.claim_of("a", run, expected_us=NEXT, next_us=NEXT + 60 * SECOND)
    assert rig.claim(claim, now_us=NEXT + 1) == frozenset()
    release = ClaimRelease("a", (run.task_id,), NEXT, NEXT + 60 * SECOND, T0 + SECOND)
    rig.store.release_claims(rig.epoch, rig.last_batch, [release])
    state = rig.state("a")
    assert (state["next_run_us"], state["last_run_us"], state["last_slot_us"]) == (NEXT, T0 + SECOND, T0)
    assert (state["runs"], state["last_verdict"]) == (1, "claimed")


def test_a_release_that_comes_too_late_is_nothing(rig: Rig) -> None:
    [task] = rig.claimed("a")
    rig.store.write_plans(rig.epoch, [Plan("a", T0, NEXT + 1, "key")], T0)
    rig.store.release_claims(rig.epoch, rig.last_batch, [ClaimRelease("a", (task,), T0, NEXT, None)])
    assert rig.state("a")["next_run_us"] == NEXT + 1
    assert in_flight(rig.store) == [task]


def test_a_run_that_was_marked_sent_is_not_released(rig: Rig) -> None:
    [task] = rig.claimed("a")
    rig.store.mark_sent(rig.epoch, rig.last_batch, [task], T0 + 5, closes=False)
    rig.store.release_claims(rig.epoch, rig.last_batch, [ClaimRelease("a", (task,), T0, NEXT, None)])
    assert in_flight(rig.store) == [task]
    assert rig.state("a")["next_run_us"] == NEXT


def test_a_run_by_hand_is_released_without_a_word_to_the_plan(rig: Rig) -> None:
    rig.planned("a")
    claim = rig.claim_of("a", rig.run("a", T0 + 5), expected_us=None, next_us=None)
    rig.claim(claim)
    rig.store.release_claims(rig.epoch, rig.last_batch, [ClaimRelease("a", (claim.runs[0].task_id,), None, None)])
    assert rig.runs() == []
    assert (rig.state("a")["next_run_us"], rig.state("a")["runs"]) == (T0, 0)


def test_releasing_twice_is_harmless(rig: Rig) -> None:
    [task] = rig.claimed("a")
    for _ in range(2):
        rig.store.release_claims(rig.epoch, rig.last_batch, [ClaimRelease("a", (task,), T0, NEXT, None)])
    assert rig.state("a")["runs"] == 0


# ---------------------------------------------------------------- ends


def test_the_workers_start_and_duration_are_kept_with_the_run(rig: Rig) -> None:
    told, silent = rig.claimed("a")[0], rig.claimed("b")[0]
    ends = [RunOutcome(told, Verdict.SUCCEEDED, started_us=T0 + 3, took_us=4), RunOutcome(silent, Verdict.SUCCEEDED)]
    rig.store.record_outcomes(rig.epoch, ends, T0 + 9)
    times = {entry["job_id"]: (entry["started_us"], entry["took_us"]) for entry in rig.runs()}
    assert times == {"a": (T0 + 3, 4), "b": (None, None)}


def test_a_success_is_written_to_the_run_and_to_the_job(rig: Rig) -> None:
    [task] = rig.claimed("a")
    assert list(rig.store.record_outcomes(rig.epoch, [RunOutcome(task, Verdict.SUCCEEDED, "", NEXT)], T0 + 9)) == [task]
    [entry] = rig.runs()
    assert (entry["verdict"], entry["finished_us"], entry["lease_until_us"]) == ("succeeded", T0 + 9, None)
    state = rig.state("a")
    assert (state["last_finished_us"], state["last_succeeded_us"], state["late_after_us"]) == (T0 + 9, T0 + 9, NEXT)
    assert (state["last_verdict"], state["last_error"], state["failures_in_a_row"]) == ("succeeded", "", 0)
    assert rig.store.read_states(["a"])["a"].last_succeeded_us == T0 + 9


def test_failures_are_counted_until_a_success(rig: Rig) -> None:
    rig.planned("a", next_us=T0)
    slots = [T0 + n * SECOND for n in range(4)]
    rig.claim(rig.claim_of("a", *[rig.run("a", slot) for slot in slots]))
    tasks = [entry["task_id"] for entry in rig.runs()]
    ends = [RunOutcome(tasks[0], Verdict.FAILED, "ValueError: no"), RunOutcome(tasks[1], Verdict.LOST)]
    rig.store.record_outcomes(rig.epoch, ends, T0 + 9)
    state = rig.state("a")
    assert (state["failures_in_a_row"], state["last_error"], state["last_verdict"]) == (2, "lost", "lost")
    assert rig.runs()[0]["detail"] == "ValueError: no"
    rig.store.record_outcomes(rig.epoch, [RunOutcome(tasks[2], Verdict.IGNORED)], T0 + 10)
    assert rig.state("a")["failures_in_a_row"] == 2
    rig.store.record_outcomes(rig.epoch, [RunOutcome(tasks[3], Verdict.SUCCEEDED)], T0 + 11)
    assert (rig.state("a")["failures_in_a_row"], rig.state("a")["last_error"]) == (0, "")


GUESSES = (Verdict.LOST, Verdict.IN_DOUBT)
ENDS = (
    *(Verdict.SUCCEEDED, Verdict.FAILED, Verdict.REVOKED, Verdict.EXPIRED, Verdict.UNKNOWN_TASK, Verdict.IGNORED),
    *GUESSES,
)


@pytest.mark.parametrize("first", ENDS)
def test_the_first_end_stands_but_a_failure_corrects_a_success_and_knowledge_a_guess(rig: Rig, first: Verdict) -> None:
    for second in ENDS:
        job = f"job {second}"
        [task] = rig.claimed(job)
        assert list(rig.store.record_outcomes(rig.epoch, [RunOutcome(task, first, "one")], T0 + 1)) == [task]
        changed = list(rig.store.record_outcomes(rig.epoch, [RunOutcome(task, second, "two")], T0 + 2))
        guess = first in GUESSES and second not in GUESSES
        corrected = guess or (first is Verdict.SUCCEEDED and second is Verdict.FAILED)
        assert changed == ([task] if corrected else []), second
        entry = next(entry for entry in rig.runs() if entry["job_id"] == job)
        assert (entry["verdict"], entry["detail"]) == ((second, "two") if corrected else (first, "one"))
        assert entry["lease_until_us"] is None


def test_a_corrected_end_leaves_no_detail_behind(rig: Rig) -> None:
    [task] = rig.claimed("a")
    rig.store.record_outcomes(rig.epoch, [RunOutcome(task, Verdict.LOST, "nobody reported an end")], T0 + 1)
    assert dict(rig.store.record_outcomes(rig.epoch, [RunOutcome(task, Verdict.SUCCEEDED)], T0 + 2)) == {task: "a"}
    assert (rig.runs()[0]["verdict"], rig.runs()[0]["detail"]) == ("succeeded", "")


def test_a_run_counts_as_one_failure_however_often_its_end_is_corrected(rig: Rig) -> None:
    [task] = rig.claimed("a")
    rig.store.record_outcomes(rig.epoch, [RunOutcome(task, Verdict.LOST, "nobody reported an end")], T0 + 1)
    rig.store.record_outcomes(rig.epoch, [RunOutcome(task, Verdict.FAILED, "ValueError: no")], T0 + 2)
    assert (rig.state("a")["failures_in_a_row"], rig.state("a")["last_error"]) == (1, "ValueError: no")


def test_a_run_that_was_no_failure_after_all_is_not_counted_as_one(rig: Rig) -> None:
    [task] = rig.claimed("a")
    rig.store.record_outcomes(rig.epoch, [RunOutcome(task, Verdict.LOST, "nobody reported an end")], T0 + 1)
    rig.store.record_outcomes(rig.epoch, [RunOutcome(task, Verdict.IGNORED)], T0 + 2)
    assert (rig.state("a")["failures_in_a_row"], rig.state("a")["last_error"]) == (0, "")


def test_an_end_may_come_twice_in_one_call(rig: Rig) -> None:
    [task] = rig.claimed("a")
    ends = [
        RunOutcome(task, Verdict.SUCCEEDED),
        RunOutcome(task, Verdict.SUCCEEDED),
        RunOutcome(task, Verdict.FAILED, "after all"),
    ]
    assert list(rig.store.record_outcomes(rig.epoch, ends, T0 + 9)) == [task]
    assert rig.runs()[0]["verdict"] == "failed"
    assert rig.state("a")["failures_in_a_row"] == 1


def test_unknown_runs_and_ends_that_are_none_change_nothing(rig: Rig) -> None:
    [task] = rig.claimed("a")
    ends = [
        RunOutcome("no-such-task", Verdict.FAILED),
        RunOutcome(task, Verdict.SENT),
        RunOutcome(task, Verdict.CLAIMED),
    ]
    assert list(rig.store.record_outcomes(rig.epoch, ends, T0 + 9)) == []
    assert list(rig.store.record_outcomes(rig.epoch, [], T0 + 9)) == []
    assert rig.runs()[0]["verdict"] == "claimed"


def test_the_ledger_outlives_its_job(rig: Rig) -> None:
    [task] = rig.claimed("a")
    rig.delete("a")
    rig.store.delete_states(rig.epoch, ["a"], T0)
    assert in_flight(rig.store) == [task]
    assert list(rig.store.record_outcomes(rig.epoch, [RunOutcome(task, Verdict.SUCCEEDED)], T0 + 9)) == [task]
    assert rig.runs()[0]["verdict"] == "succeeded"
    assert dict(rig.store.read_states(["a"])) == {}


def test_text_that_no_database_takes_is_written_as_far_as_possible(rig: Rig) -> None:
    [task] = rig.claimed("a")
    rig.store.record_outcomes(rig.epoch, [RunOutcome(task, Verdict.FAILED, "a\0b \ud800 c" + "x" * 100_000)], T0 + 9)
    assert rig.runs()[0]["detail"].startswith("a")
    assert rig.state("a")["failures_in_a_row"] == 1


# ---------------------------------------------------------------- in flight


def test_flights_are_the_runs_without_an_end_with_the_epoch_that_claimed_them(rig: Rig) -> None:
    first, second, third = rig.claimed("a", "b", "c")
    batch, epoch = rig.last_batch, rig.epoch
    rig.store.mark_sent(epoch, batch, [second], T0 + 5, closes=False)
    rig.store.record_outcomes(epoch, [RunOutcome(third, Verdict.SUCCEEDED)], T0 + 6)
    rig.epoch = rig.store.take_epoch("here:1", T0)
    hand = rig.claim_of("a", rig.run("a", T0 + 7, lease_until_us=T0 + 8, resend=True), expected_us=None, next_us=None)
    rig.claim(hand)
    flights = {flight.task_id: flight for part in rig.store.unfinished_runs() for flight in part}
    assert set(flights) == {first, second, hand.runs[0].task_id}
    one = flights[first]
    assert (one.job_id, one.slot_us, one.batch_id, one.epoch) == ("a", T0, batch, epoch)
    assert (one.claimed_us, one.sent_us, one.by_hand) == (T0 + SECOND, None, False)
    assert one.lease_until_us == T0 + 3600 * SECOND
    assert flights[second].sent_us == T0 + 5
    by_hand = flights[hand.runs[0].task_id]
    assert (by_hand.epoch, by_hand.by_hand, by_hand.lease_until_us) == (rig.epoch, True, T0 + 8)
    assert [one.resend, by_hand.resend] == [False, True]


def test_many_flights_come_in_parts_each_once(rig: Rig) -> None:
    ids = [f"code:{n}" for n in range(5_500)]
    rig.store.write_plans(rig.epoch, [Plan(job_id, T0, T0, "key") for job_id in ids], T0)
    rig.claim(*[rig.claim_of(job_id, rig.run(job_id), rev=None) for job_id in ids])
    parts = [len(part) for part in rig.store.unfinished_runs()]
    assert sum(parts) == 5_500
    assert len(parts) > 1
    assert len(set(in_flight(rig.store))) == 5_500


def test_batches_of_older_epochs_are_closed_the_own_stay_open(rig: Rig) -> None:
    rig.claimed("a")
    old = rig.last_batch
    rig.epoch = rig.store.take_epoch("here:1", T0)
    rig.claimed("b")
    rig.store.close_batches(rig.epoch, T0 + 9)
    assert rig.batches()[old][2] == T0 + 9
    assert rig.batches()[rig.last_batch][2] is None


# ---------------------------------------------------------------- requests


def test_requests_come_in_their_order_until_they_are_answered(rig: Rig) -> None:
    rig.ask("a", T0 + 1)
    rig.ask("b", -(2**63), "me", action="release", task_id="run-1")
    first, second = rig.store.pending_requests()
    assert (first.action, first.task_id, second.action, second.task_id) == ("run", "", "release", "run-1")
    assert (first.job_id, first.asked_us, second.job_id, second.asked_by) == ("a", T0 + 1, "b", "me")
    assert second.asked_us == -(2**63)
    rig.store.delete_requests(rig.epoch, [first.id])
    assert [request.job_id for request in rig.store.pending_requests()] == ["b"]
    rig.store.delete_requests(rig.epoch, [])
    rig.store.delete_requests(rig.epoch, [second.id, second.id + 99])
    assert list(rig.store.pending_requests()) == []


def test_many_requests_come_in_pages(rig: Rig) -> None:
    for number in range(REQUESTS_A_READ + 2):
        rig.ask("a", number)
    page = rig.store.pending_requests()
    rest = rig.store.pending_requests(page[-1].id)
    assert [request.asked_us for request in (*page, *rest)] == list(range(REQUESTS_A_READ + 2))
    assert len(page) == REQUESTS_A_READ


def test_an_answered_request_gives_its_id_to_no_other(rig: Rig) -> None:
    rig.ask("a", T0)
    [first] = rig.store.pending_requests()
    rig.store.delete_requests(rig.epoch, [first.id])
    rig.ask("a", T0)
    [second] = rig.store.pending_requests()
    assert second.id != first.id


def test_the_ledger_takes_the_run_of_a_request_once_whatever_its_slot(rig: Rig) -> None:
    rig.claimed("a")
    run = Run("a", T0 + 7, "the run of a request", Verdict.CLAIMED, lease_until_us=T0 + DAY)
    assert rig.claim(Claim("a", None, None, None, (run,))) == frozenset()
    assert run.task_id in rig.claim(Claim("a", None, None, None, (replace(run, slot_us=T0 + 8),)))
    assert [entry["slot_us"] for entry in rig.runs() if entry["task_id"] == run.task_id] == [T0 + 7]


# ---------------------------------------------------------------- pruning


def test_runs_are_pruned_by_their_verdict_and_never_in_flight(rig: Rig) -> None:
    succeeded, failed, young, flying = rig.claimed("a", "b", "c", "d")
    rig.store.record_outcomes(
        rig.epoch, [RunOutcome(succeeded, Verdict.SUCCEEDED), RunOutcome(failed, Verdict.FAILED)], T0 + SECOND
    )
    rig.store.record_outcomes(rig.epoch, [RunOutcome(young, Verdict.SUCCEEDED)], T0 + DAY)
    before = dict.fromkeys(Verdict, T0 + DAY) | {Verdict.FAILED: T0}
    gone = sum(rig.store.prune(before, T0 + DAY))
    assert gone >= 1
    assert {entry["task_id"] for entry in rig.runs()} == {failed, young, flying}
    assert in_flight(rig.store) == [flying]


def test_history_keeps_what_was_in_force(rig: Rig) -> None:
    for n, spec in enumerate(["one", "two", "three", "four"]):
        rig.store.write_plans(rig.epoch, [Plan("a", T0, None, "key", spec=spec, record=True)], T0 + n * DAY)
    rig.store.write_plans(rig.epoch, [Plan("gone", T0, None, "key", spec="spec", record=True)], T0)
    rig.store.delete_states(rig.epoch, ["gone"], T0 + DAY)
    list(rig.store.prune(dict.fromkeys(Verdict, T0 + 2 * DAY + 1), T0 + 9 * DAY))
    assert [spec for _, _, spec in rig.history()] == ["three", "four"]


def test_closed_batches_are_pruned_open_ones_are_not(rig: Rig) -> None:
    first, _ = rig.claimed("a", "b")
    flying = rig.last_batch
    [done] = rig.claimed("c")
    rig.store.mark_sent(rig.epoch, flying, [first], T0, closes=True)
    rig.store.mark_sent(rig.epoch, rig.last_batch, [done], T0, closes=True)
    rig.store.record_outcomes(rig.epoch, [RunOutcome(done, Verdict.SUCCEEDED)], T0)
    list(rig.store.prune(dict.fromkeys(Verdict, T0 + DAY), T0 + DAY))
    assert list(rig.batches()) == [flying]
