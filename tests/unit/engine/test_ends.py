"""How runs end: reports, the result backend, leases; and lateness."""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Sequence

import pytest

from celery_qbeat.core.jobs import Verdict
from celery_qbeat.core.worker_answers import Answers
from celery_qbeat.engine import Limits
from celery_qbeat.errors import Unavailable
from celery_qbeat.ports import RunOutcome
from celery_qbeat.testing import FakeClock, FakeCompletions
from tests.unit.engine.rig import HOUR, MINUTE, SECOND, Rig, at

NOON = at("2026-06-01T12:00:00")
NOBODYS = "00000000-0000-5000-8000-000000000000"


def running(**columns: object) -> Rig:
    rig = Rig()
    rig.insert("j", "interval", "60", **{"overlap": "skip", "max_run_seconds": 300, **columns})
    rig.tick()
    return rig


@pytest.mark.parametrize("verdict", [Verdict.SUCCEEDED, Verdict.FAILED, Verdict.REVOKED, Verdict.UNKNOWN_TASK])
def test_an_end_is_written_and_its_report_acknowledged(verdict: Verdict) -> None:
    rig = running()
    rig.landings.end(rig.sent_id(), verdict, "because")
    rig.run(2)
    assert (rig.entry().verdict, rig.entry().detail) == (verdict, "because")
    assert rig.landings.receive(1.0) == ()


def test_a_report_is_not_acknowledged_before_it_is_safe() -> None:
    rig = running()
    rig.landings.end(rig.sent_id())
    rig.store.fail_next("record_outcomes")
    rig.tick()
    assert len(rig.landings.receive(1.0)) == 1
    rig.run(2)
    assert rig.landings.receive(1.0) == ()


def test_a_report_twice_or_of_a_run_that_nobody_knows_does_nothing() -> None:
    rig = running()
    rig.landings.end(rig.sent_id())
    rig.landings.end(rig.sent_id())
    rig.landings.end(NOBODYS)
    rig.run(2)
    assert rig.verdicts() == ["succeeded"]


def test_a_failure_corrects_a_success_and_not_the_other_way_round() -> None:
    rig = running()
    rig.landings.end(rig.sent_id())
    rig.run(2)
    rig.landings.end(rig.sent_id(), Verdict.FAILED)
    rig.run(2)
    rig.landings.end(rig.sent_id(), Verdict.SUCCEEDED)
    rig.run(2)
    assert rig.verdicts() == ["failed"]


def test_a_run_that_outlives_its_lease_is_lost_and_its_job_runs_on(caplog: pytest.LogCaptureFixture) -> None:
    rig = running()
    rig.run(299)
    assert rig.verdicts() == ["sent"]
    rig.run(2)
    assert rig.verdicts() == ["lost", "sent"]
    assert rig.store.ledger[0].detail == "its lease ended and nobody reported an end"
    assert [message for message in caplog.messages if message.startswith("lost")] == [
        f"lost: job='j' task_id={rig.store.ledger[0].task_id}: its lease ended and nobody reported an end"
    ]


def test_the_lease_counts_from_after_the_time_that_a_message_may_wait() -> None:
    rig = running(expires_seconds=100)
    assert rig.entry().lease_until_us == NOON + 400 * SECOND


def test_a_late_report_corrects_a_run_that_was_given_up() -> None:
    rig = running()
    first = rig.sent_id()
    rig.run(301)
    rig.landings.end(first, Verdict.SUCCEEDED)
    rig.run(2)
    assert rig.verdicts() == ["succeeded", "sent"]


def test_a_success_that_is_reported_late_is_not_the_last_word_on_lateness() -> None:
    rig = running()
    first = rig.sent_id()
    rig.run(301)
    rig.landings.end(first, Verdict.SUCCEEDED)
    rig.tick()
    assert rig.state().late_after_us == rig.clock.now_us() + 2 * MINUTE
    before = rig.state().late_after_us
    rig.run(700)
    assert rig.verdicts() == ["succeeded", "lost", "lost", "sent"]
    assert rig.state().late_after_us == before


def test_a_lease_is_extended_while_a_worker_says_that_it_has_the_run(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    rig = running()
    rig.landings.running = {rig.sent_id()}
    rig.run(905)
    assert rig.verdicts() == ["sent"]
    assert len([message for message in caplog.messages if message.startswith("lease extended")]) == 3
    rig.landings.running = ()
    rig.run(301)
    assert rig.verdicts() == ["lost", "sent"]


def test_a_run_is_not_lost_while_no_worker_can_be_asked() -> None:
    rig = running()
    rig.run(10)
    rig.landings.running = {rig.sent_id()}
    rig.landings.away = rig.outbox.away = True
    rig.run(1_000)
    assert rig.verdicts() == ["sent"]
    rig.landings.away = rig.outbox.away = False
    rig.run(1_000)
    assert rig.verdicts() == ["sent"]
    rig.landings.running = ()
    rig.run(301)
    assert rig.verdicts() == ["lost", "sent"]


class Slow(FakeCompletions):
    """Takes ten messages within its budget, and uses it up; `junk`: so many a tick arrive that are no ends."""

    def __init__(self, clock: FakeClock) -> None:
        super().__init__()
        self.clock = clock
        self.junk = 0
        self._arrived: deque[float] = deque()

    def end(self, task_id: str, verdict: Verdict = Verdict.SUCCEEDED, detail: str = "") -> None:
        self._arrived.append(self.clock.monotonic())
        super().end(task_id, verdict, detail)

    def forge(self, number: int) -> None:
        for _ in range(number):
            self.end("junk")

    def receive(self, budget_s: float) -> Sequence[RunOutcome]:
        self.forge(self.junk)
        self._taken = min(10, len(self._waiting))
        if self._taken == 10:
            self.clock.advance(budget_s + 0.001)
        taken = self._waiting[: self._taken]
        del self._waiting[: self._taken]
        for _ in taken:
            self._arrived.popleft()
        return [end for end in taken if end.task_id != "junk"]

    def unread_s(self) -> float:
        return self.clock.monotonic() - self._arrived[0] + 0.001 if self._arrived else 0.0

    def acknowledge(self) -> None:
        pass


def test_no_run_is_lost_whose_end_has_arrived_and_waits_to_be_read() -> None:
    rig = Rig()
    for number in range(100):
        rig.insert(f"j{number}", "interval", "86400", overlap="skip", max_run_seconds=300)
    rig.run(2)
    slow = rig.parts["completions"] = Slow(rig.clock)
    for shipment in rig.outbox.sent:
        slow.end(shipment.run.task_id)
    rig.restart(down_for=1_000)
    for _ in range(12):
        rig.tick()
        assert {entry.verdict for entry in rig.store.ledger} <= {"sent", "succeeded"}
    assert {entry.verdict for entry in rig.store.ledger} == {"succeeded"}


def test_no_run_is_lost_whose_end_waits_behind_forged_ones() -> None:
    rig = running()
    slow = rig.parts["completions"] = Slow(rig.clock)
    slow.forge(5_000)
    slow.end(rig.sent_id())
    rig.restart(down_for=1_000)
    rig.run(200)
    assert rig.verdicts()[:1] == ["succeeded"]


def test_no_run_is_lost_whose_end_came_while_workers_were_asked() -> None:
    rig = running()
    slow = rig.parts["completions"] = Slow(rig.clock)
    rig.restart()
    rig.clock.advance(301)
    task_id, answers = rig.sent_id(), slow.worker_answers

    def ended() -> Answers | None:
        if not slow.junk:
            # The worker finished before it was asked, and strangers were faster.
            slow.forge(1_000)
            slow.end(task_id)
            slow.junk = 5
        return answers()

    slow.worker_answers = ended  # type: ignore[method-assign]
    seen = [rig.verdicts()[0] for _ in range(300) if rig.tick() is not None]
    assert sorted(set(seen)) == ["sent", "succeeded"]


def test_an_endless_flood_of_forged_ends_does_not_keep_leases_from_ending() -> None:
    rig = running()
    slow = rig.parts["completions"] = Slow(rig.clock)
    slow.forge(500)
    slow.junk = 10
    rig.restart(down_for=1_000)
    rig.run(70)
    assert rig.verdicts()[:1] == ["lost"]


def test_forged_ends_are_taken_at_once_and_not_after_a_pause() -> None:
    rig = running()
    slow = rig.parts["completions"] = Slow(rig.clock)
    rig.restart()
    slow.forge(100)
    pauses = [rig.tick() for _ in range(12)]
    assert pauses[:9] == [0.0] * 9
    assert pauses[-1] > 0


def test_an_end_that_only_the_result_backend_knows_is_found() -> None:
    rig = running()
    rig.landings.backend[rig.sent_id()] = RunOutcome(rig.sent_id(), Verdict.REVOKED)
    rig.run(10)
    assert rig.verdicts() == ["revoked"]


def test_the_result_backend_is_asked_once_more_before_a_run_is_called_lost() -> None:
    rig = Rig(limits=Limits(look_up_s=10_000.0))
    rig.insert("j", "interval", "60", overlap="skip", max_run_seconds=300)
    rig.tick()
    rig.run(100)
    rig.landings.backend[rig.sent_id()] = RunOutcome(rig.sent_id(), Verdict.SUCCEEDED)
    rig.run(201)
    assert rig.verdicts() == ["succeeded", "sent"]


def test_a_look_up_that_fails_does_not_lose_sight_of_a_lease() -> None:
    rig = running()
    plain = rig.landings.query_results
    answers = [Unavailable("the result backend is away")]

    def look_up(flights: object) -> object:
        if answers:
            raise answers.pop()
        return plain(flights)  # type: ignore[arg-type]

    rig.clock.advance(301)
    rig.landings.query_results = look_up  # type: ignore[method-assign, assignment]
    rig.run(30)
    assert rig.verdicts() == ["lost", "sent"]


def test_without_completions_leases_end_runs() -> None:
    rig = Rig(ends=False)
    rig.insert("j", "interval", "60", overlap="skip", max_run_seconds=120)
    rig.run(125)
    assert rig.verdicts() == ["lost", "sent"]


def test_a_restarted_beat_ends_what_outlived_its_lease_meanwhile() -> None:
    rig = running()
    rig.restart(down_for=1000)
    rig.run(1)
    assert rig.verdicts() == ["lost", "sent"]


def test_a_thousand_ends_at_once_are_taken_in_one_tick() -> None:
    rig = Rig()
    for number in range(1000):
        rig.insert(f"j{number}", "interval", "3600", overlap="skip")
    rig.run(2)
    for shipment in rig.outbox.sent:
        rig.landings.end(shipment.run.task_id)
    rig.tick()
    assert {entry.verdict for entry in rig.store.ledger} == {"succeeded"}


def test_a_job_is_late_after_two_periods_without_a_success() -> None:
    rig = Rig()
    rig.insert("j", "interval", "60", overlap="skip")
    rig.insert("k", "cron", "0 13,15 * * *")
    rig.tick()
    assert rig.state("j").late_after_us == NOON + 2 * MINUTE
    assert rig.state("k").late_after_us == NOON + 3 * HOUR
    rig.clock.advance(30)
    rig.landings.end(rig.sent_id("j"))
    rig.tick()
    assert rig.state("j").last_succeeded_us == NOON + 30 * SECOND
    assert rig.state("j").late_after_us == NOON + 150 * SECOND


def test_a_failure_does_not_put_lateness_off() -> None:
    rig = running()
    before = rig.state().late_after_us
    rig.run(30)
    rig.landings.end(rig.sent_id(), Verdict.FAILED)
    rig.run(60)
    assert rig.state().late_after_us == before


def test_a_job_that_cannot_run_is_not_late_and_one_that_can_again_starts_to_count() -> None:
    rig = running()
    for edit in ({"enabled": False}, {"fn": "os.system", "enabled": True}, {"schedule": "0", "fn": "app.a"}):
        rig.store.update("j", **edit)
        rig.tick()
        assert rig.state().late_after_us is None
    rig.run(100)
    rig.store.update("j", schedule="60")
    rig.tick()
    assert rig.state().late_after_us == rig.clock.now_us() + 2 * MINUTE
