"""From a due slot to its end in the ledger: real beats, real unmodified workers, what people see of it."""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator, Sequence

import pytest

from celery_qbeat.core.identity import database_id
from celery_qbeat.core.jobs import Verdict
from celery_qbeat.dispatchers.celery.completions import NO_REASON
from celery_qbeat.ports import RunOutcome
from celery_qbeat.testing import FakeClock, FakeCompletions
from tests.celery.making_stages import KEPT, OLD, PATIENCE_S, Stage, played
from tests.servers import PostgreSQL, RabbitMQ, Redis
from tests.unit.engine.rig import SECOND, Rig, at

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]

BUSY = "previous run still in flight"


@pytest.fixture(scope="module")
def stages(
    tmp_path_factory: pytest.TempPathFactory,
    redis_server: Redis,
    rabbitmq_server: RabbitMQ,
    postgres_server: PostgreSQL,
) -> Iterator[dict[str, Stage]]:
    with played(tmp_path_factory.mktemp("stages"), redis_server, rabbitmq_server, postgres_server) as made:
        yield made


@pytest.fixture(params=["failover", "restart"])
def stage(request: pytest.FixtureRequest, stages: dict[str, Stage]) -> Stage:
    """The two stages with all kinds of rows: Redis with results, RabbitMQ without."""
    return stages[request.param]


# ---------------------------------------------------------------- overlap


@pytest.mark.parametrize(
    ("play", "job_id"),
    [
        *itertools.product(["failover", "restart"], ["interval", "held", "seconds", "long", "unread"]),
        *itertools.product(["dying_worker"], ["interval", "held"]),
        ("ticks", "held"),
    ],
)
def test_a_job_never_starts_a_run_while_one_is_in_flight(stages: dict[str, Stage], play: str, job_id: str) -> None:
    stage = stages[play]
    spans = stage.spans(job_id)
    sent = stage.sent(job_id)
    assert len(sent) >= 2
    for before, after in itertools.pairwise(sent):
        assert before.finished_us <= after.claimed_us
    for (_, finished), (begun, _) in itertools.pairwise(spans):
        # None: the worker was killed in the middle of it.
        assert finished is None or finished <= begun


def test_an_interval_job_starts_in_the_tick_in_which_its_run_ended(stage: Stage) -> None:
    runs = stage.early["interval"]
    assert {run.verdict for run in runs[:-1]} == {"succeeded"}
    for before, after in itertools.pairwise(runs):
        assert after.claimed_us == before.finished_us
        assert after.slot_us == before.claimed_us + 1 * SECOND
    assert "skipped" not in {run.verdict for run in stage.runs("interval")}


def test_other_kinds_skip_the_slots_that_fall_into_a_run(stage: Stage) -> None:
    runs = stage.early["seconds"]
    skipped = [run for run in runs if run.verdict == "skipped"]
    sent = [run for run in runs if run.sent_us is not None]
    assert skipped
    assert {run.detail for run in skipped} == {BUSY}
    for run in skipped:
        assert any(each.claimed_us < run.claimed_us <= (each.finished_us or run.claimed_us) for each in sent)


def test_overlap_allow_starts_beside_a_run_in_flight(stage: Stage) -> None:
    spans = stage.spans("allowed")
    assert any(finished is None or begun < finished for (_, finished), (begun, _) in itertools.pairwise(spans))
    assert "skipped" not in {run.verdict for run in stage.runs("allowed")}


def test_a_failover_and_a_restart_know_the_run_in_flight(stage: Stage) -> None:
    (held,) = stage.early["held"]
    first, second, *_ = stage.sent("held")
    assert first.task_id == held.task_id
    assert first.verdict == "succeeded"
    assert second.claimed_us >= first.finished_us
    epochs = stage.project.sql(
        "SELECT DISTINCT epoch FROM qbeat_batches b JOIN qbeat_runs r ON r.batch_id = b.batch_id WHERE job_id = 'held'"
    )
    assert len(epochs) >= 2


def test_a_run_that_outlives_its_lease_goes_on_when_a_worker_says_that_it_has_it(stage: Stage) -> None:
    run = stage.ended("long")[0]
    assert run.verdict == "succeeded"
    assert any(f"lease extended: job='long' task_id={run.task_id}" in beat.output() for beat in stage.beats)


# ---------------------------------------------------------------- verdicts


@pytest.mark.parametrize(
    ("job_id", "with_results", "without"),
    [
        ("interval", ("succeeded", ""), ("succeeded", "")),
        ("failing", ("failed", "ValueError: this task always fails"), ("failed", NO_REASON)),
        ("unknown", ("unknown task", "NotRegistered: proj.tasks.nowhere"), ("lost", "")),
        ("expired", ("expired", "expired"), ("lost", "")),
        ("unread", ("lost", ""), ("lost", "")),
        ("revoked", ("revoked", "revoked"), None),
    ],
)
def test_what_a_user_sees_of_an_end(
    stages: dict[str, Stage], job_id: str, with_results: tuple[str, str], without: tuple[str, str] | None
) -> None:
    lost = "its lease ended and nobody reported an end"
    for play, expected in {"failover": with_results, "restart": without}.items():
        if expected is not None:
            run = stages[play].ended(job_id)[0]
            verdict, detail = expected
            assert (run.verdict, run.detail) == (verdict, lost if verdict == "lost" else detail), play


def test_a_lost_run_is_logged_and_its_job_runs_on(stage: Stage) -> None:
    first, second, *_ = stage.runs("unread")
    line = f"lost: job='unread' task_id={first.task_id}: its lease ended and nobody reported an end"
    assert any(line in beat.output() for beat in stage.beats)
    assert first.verdict == "lost"
    assert second.claimed_us == first.finished_us


def test_a_run_whose_worker_was_killed_is_lost_and_its_job_runs_on(stages: dict[str, Stage]) -> None:
    stage = stages["dying_worker"]
    killed = stage.early["held"][-1]
    runs = {run.task_id: run for run in stage.runs("held")}
    assert runs[killed.task_id].verdict == "lost"
    assert stage.ended("held")[-1].verdict == "succeeded"


def test_the_state_counts_failures_and_remembers_the_last_error(stages: dict[str, Stage]) -> None:
    query = "SELECT failures_in_a_row, last_error, last_succeeded_us FROM qbeat_status WHERE id = :id"
    for play, error in {"failover": "ValueError: this task always fails", "restart": NO_REASON}.items():
        ((failures, last_error, succeeded),) = stages[play].project.sql(query, id="failing")
        assert (failures >= 4, last_error, succeeded) == (True, error, None)
        ((failures, last_error, succeeded),) = stages[play].project.sql(query, id="interval")
        assert (failures, last_error, succeeded is not None) == (0, "", True)


# ---------------------------------------------------------------- what the commands say


def test_a_job_without_a_success_for_two_periods_is_late_everywhere(stage: Stage) -> None:
    def late() -> set[str]:
        return {row[0] for row in stage.project.sql("SELECT id FROM qbeat_status WHERE late = :yes", yes=True)}

    assert {"failing", "unread"} <= late()
    assert not late() & {"rare", "refused", "bad"}
    # It succeeds every 1.3 seconds and is late after two: on a busy machine it may be, for a moment.
    stage.wait(lambda: "interval" not in late(), "a success ends lateness")
    assert {row["id"] for row in stage.cli("list", "--late")} >= {"failing", "unread"}
    problems = {problem["id"]: problem["condition"] for problem in stage.cli("check", code=1)["problems"]}
    assert problems.items() >= {"failing": "late", "refused": "refused", "stranger": "refused", "bad": "bad"}.items()


def test_check_is_a_health_check(stages: dict[str, Stage]) -> None:
    result = stages["failover"].project.qbeat("check", "--json")
    assert result.returncode == 1, result.stderr
    assert sum(json.loads(result.stdout)["counts"][name] for name in ("late", "blocked")) >= 2
    left_alone = stages["ticks"]
    assert [problem["id"] for problem in left_alone.cli("check", code=1)["problems"]] == ["held"]
    left_alone.project.sql("UPDATE qbeat_jobs SET enabled = 0 WHERE id = 'held'")
    for silence_us, code in ((10**15, 0), (1, 1)):
        left_alone.project.sql("UPDATE qbeat_leader SET silence_us = :us", us=silence_us)
        report = left_alone.cli("check", code=code)
        assert report["problems"] == []
        assert report["beat"]["holder"].startswith("tick on ")
        assert report["beat"]["alive"] is (code == 0)


def test_runs_are_listed_by_verdict_and_by_age(stage: Stage) -> None:
    for verdict in ("skipped", "succeeded"):
        listed = stage.cli("runs", "seconds", "--verdict", verdict, "--since", "1h", "--limit", "1000")
        assert {run["verdict"] for run in listed} == {verdict}
        known = {run.task_id for run in stage.early["seconds"] if run.verdict == verdict}
        assert {run["task_id"] for run in listed} >= known
    assert stage.cli("runs", "seconds", "--verdict", "expired") == []


def test_show_has_the_last_runs_with_durations_rates_and_next_slots(stage: Stage) -> None:
    shown = stage.cli("show", "interval")
    counted = shown["statistics"]
    assert counted["success_rate"] == 1.0
    assert counted["median_us"] >= 1.3 * SECOND
    assert len(shown["last_runs"]) == 6
    assert shown["next_slots"]
    assert stage.cli("show", "failing")["statistics"]["success_rate"] == 0.0


def test_every_slot_that_was_expected_has_a_verdict_even_after_a_kill(stage: Stage) -> None:
    told = stage.cli("audit", "--from", "1h")
    assert told["counts"]["missing"] == told["counts"]["too soon"] == 0, told["findings"]
    assert told["expected"] > 20
    assert told["verdicts"].keys() >= {"succeeded", "failed", "skipped", "lost", "refused"}


def test_run_now_runs_once_beside_the_schedule_and_obeys_overlap_and_the_gate(stage: Stage) -> None:
    before = stage.project.sql("SELECT next_run_us, last_slot_us FROM qbeat_state WHERE job_id = 'rare'")
    asked = stage.cli("run-now", "rare", "--wait", str(PATIENCE_S))["run"]
    assert (asked["by_hand"], asked["detail"]) == (True, "by hand")
    stage.wait(lambda: stage.ended("rare"), "the run by hand ends")
    assert stage.runs("rare")[0].verdict == "succeeded"
    assert stage.project.sql("SELECT next_run_us, last_slot_us FROM qbeat_state WHERE job_id = 'rare'") == before
    refused = stage.cli("run-now", "refused", "--wait", str(PATIENCE_S), code=1)["run"]
    assert refused["verdict"] == "refused"
    assert refused["detail"].startswith("by hand: fn: 'os.system' is not a registered task")
    stage.gate.unlink()
    stage.wait(stage.held, "a run of 'held' is in flight")
    skipped = stage.cli("run-now", "held", "--wait", str(PATIENCE_S), code=1)["run"]
    stage.gate.touch()
    assert (skipped["verdict"], skipped["detail"]) == ("skipped", f"by hand: {BUSY}")


def test_ticks_are_a_beat_that_waits_for_its_runs(stages: dict[str, Stage]) -> None:
    stage = stages["ticks"]
    assert stage.early["ticks"] == [{"sent": 1, "succeeded": 1}, {}, {"sent": 1}]
    first, second = stage.runs("held")
    assert (first.verdict, second.claimed_us) == ("succeeded", first.finished_us)


# ---------------------------------------------------------------- many ends


def test_a_thousand_runs_that_end_at_once_keep_no_due_job_waiting(
    stages: dict[str, Stage], redis_server: Redis
) -> None:
    stage = stages["dying_worker"]
    beat, worker = stage.beats[-1], stage.workers[-1]
    stage.insert("steady", "quick", 1, overlap="allow")
    worker.freeze()
    rows = ",".join(f"('many-{number}', 'proj.tasks.quick', 'interval', '3600')" for number in range(1000))
    stage.project.sql(f"INSERT INTO qbeat_jobs (id, fn, schedule_kind, schedule) VALUES {rows}")
    query = "SELECT verdict, finished_us FROM qbeat_runs WHERE job_id LIKE 'many-%' AND sent_us IS NOT NULL"
    stage.wait(lambda: len(stage.project.sql(query)) == 1000, "all are sent")
    beat.freeze()
    worker.thaw()
    with redis_server.client() as client:
        client.select(1)
        (meta,) = stage.project.sql("SELECT instance FROM qbeat_meta")
        queue = f"qbeat.done.default.{database_id(meta.instance)}"
        stage.wait(lambda: client.llen(queue) >= 1000, "all have ended")
    beat.thaw()
    stage.wait(lambda: all(run.finished_us for run in stage.project.sql(query)), "all are heard of")
    runs = stage.project.sql(query)
    assert {run.verdict for run in runs} == {"succeeded"}
    # Each end has the time of the tick in which it was heard. The beat may have been frozen in the middle of one.
    first_ticks = sorted({run.finished_us for run in runs})[:2]
    # When all of them fitted into one tick, there was nothing to wait for.
    assert len(first_ticks) < 2 or any(run.claimed_us in first_ticks for run in stage.runs("steady"))
    assert not [run for run in stage.runs("steady") if run.verdict in ("missed", "lost", "skipped")]


class Slow(FakeCompletions):
    """Each message takes 3 ms, as on Redis."""

    def __init__(self, clock: FakeClock) -> None:
        super().__init__()
        self._clock = clock
        self._left = 0

    def receive(self, budget_s: float) -> Sequence[RunOutcome]:
        until = self._clock.monotonic() + budget_s
        taken = 0
        while taken < len(self._waiting) and self._clock.monotonic() < until:
            self._clock.advance(0.003)
            taken += 1
        self._taken, self._left = taken, len(self._waiting) - taken
        return tuple(self._waiting[:taken])

    def unread_s(self) -> float:
        return float(self._left)


def test_a_thousand_ends_delay_a_due_job_by_no_more_than_the_drain_budget() -> None:
    clock = FakeClock(at("2026-06-01T12:00:00"))
    slow = Slow(clock)
    rig = Rig(clock=clock, completions=slow)
    rig.insert("j", "interval", "1", overlap="allow")
    for number in range(1000):
        rig.insert(f"many{number}", "interval", "3600", overlap="skip")
    rig.run(5)
    for shipment in rig.outbox.sent:
        slow.end(shipment.run.task_id)
    rig.run(10)
    ended = [entry for entry in rig.store.ledger if entry.job_id != "j"]
    assert {entry.verdict for entry in ended} == {Verdict.SUCCEEDED}
    assert len({entry.finished_us for entry in ended}) >= 15
    budget_us = round(rig.parts["limits"].drain_s * SECOND)
    assert max(entry.late_us for entry in rig.store.ledger if entry.job_id == "j") <= budget_us + 3_000


# ---------------------------------------------------------------- retention


def test_the_beat_prunes_an_old_ledger_in_batches_by_verdict(stages: dict[str, Stage]) -> None:
    stage = stages["restart"]
    query = "SELECT transaction, sum(runs) FROM deletions GROUP BY transaction ORDER BY transaction"
    gone = [int(count) for _, count in stage.project.sql(query) if count]
    assert sum(gone) == OLD + KEPT
    assert max(gone) <= 5_000
    left = stage.project.sql("SELECT verdict, count(*) FROM qbeat_runs WHERE job_id = 'gone' GROUP BY verdict")
    assert [tuple(row) for row in left] == [("failed", KEPT)]
    assert stage.ended("_builtin.prune")[0].verdict == "succeeded"
    assert not any("_builtin" in worker.output() for worker in stage.workers)


def test_the_row_that_prunes_is_seeded_once_may_be_edited_and_is_trusted_with_its_id_only(
    stages: dict[str, Stage],
) -> None:
    stage = stages["restart"]
    assert {run.verdict for run in stage.runs("stranger")} == {"refused"}
    stage.project.sql("DELETE FROM deletions")
    stage.project.sql("UPDATE qbeat_runs SET finished_us = 1, claimed_us = 1 WHERE job_id = 'gone'")
    stage.project.sql("UPDATE qbeat_jobs SET schedule_kind = 'interval', schedule = '1' WHERE id = '_builtin.prune'")
    stage.wait(lambda: stage.runs("gone") == [], "the edited row prunes again")
    stage.project.sql("UPDATE qbeat_jobs SET enabled = false WHERE id = '_builtin.prune'")
    beat = stage.beats[-1]
    disabled = r"rows: 1 changed, 0 gone(?s:.*)rows: 1 changed, 0 gone"
    beat.wait_output(disabled, PATIENCE_S)
    runs = len(stage.runs("_builtin.prune"))
    ended = len(stage.ended("interval"))
    stage.wait_ended(ended + 2, "interval")
    assert len(stage.runs("_builtin.prune")) == runs
    stage.project.sql("DELETE FROM qbeat_jobs WHERE id = '_builtin.prune'")
    beat.terminate()
    assert beat.wait_exit() == 0
    stage.writer()
    assert stage.project.sql("SELECT id FROM qbeat_jobs WHERE id = '_builtin.prune'") == []
