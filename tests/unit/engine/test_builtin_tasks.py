"""The tasks that run inside the beat: step by step, between the slots."""

from __future__ import annotations

import pytest

from celery_qbeat.core.jobs import Verdict
from celery_qbeat.core.privileges import BUILTIN_PRUNE
from celery_qbeat.engine import Limits
from celery_qbeat.ports import Steps, Store
from celery_qbeat.testing import MemoryStore
from tests.unit.engine.rig import MINUTE, SECOND, Rig, at

NOON = at("2026-06-01T12:00:00")


def with_chore(steps: list[int | Exception], step_s: float = 0.5, **columns: object) -> Rig:
    def chore(store: Store, now_us: int) -> Steps:
        for step in steps:
            rig.clock.advance(step_s)
            if isinstance(step, Exception):
                raise step
            yield step

    rig = Rig(builtin_tasks={BUILTIN_PRUNE: chore}, limits=Limits(chore_s=0.0))
    columns = {"overlap": "skip", **columns}
    rig.insert(BUILTIN_PRUNE, "interval", "3600", fn=BUILTIN_PRUNE, **columns)
    return rig


def test_a_chore_runs_inside_the_beat_step_by_step_and_succeeds() -> None:
    rig = with_chore([1, 2, 3])
    rig.tick()
    assert rig.verdicts(BUILTIN_PRUNE) == ["sent"]
    assert rig.outbox.sent == []
    rig.run(10)
    assert rig.verdicts(BUILTIN_PRUNE) == ["succeeded"]


def lateness(rig: Rig, job_id: str = "j") -> list[float]:
    return [entry.late_us / SECOND for entry in rig.store.database.ledger if entry.job_id == job_id]


def test_no_step_of_a_chore_begins_when_it_would_delay_a_slot() -> None:
    rig = with_chore([1] * 30, step_s=0.04)
    rig.insert("j", "interval", "1")
    rig.run(10)
    assert rig.verdicts(BUILTIN_PRUNE) == ["succeeded"]
    assert len(rig.slots("j")) == 11
    assert max(lateness(rig)) == 0


def test_a_chore_delays_slots_by_one_step_when_they_leave_no_room() -> None:
    rig = with_chore([1] * 20, step_s=0.3)
    for number in range(10):
        rig.insert(f"j{number}", "interval", "1", start_us=NOON + number * SECOND // 10)
    rig.run(100)
    assert rig.verdicts(BUILTIN_PRUNE) == ["succeeded"]
    late = [seconds for number in range(10) for seconds in lateness(rig, f"j{number}")]
    assert 0 < max(late) <= 0.3


def test_a_chore_takes_half_of_the_time_and_does_not_wait_for_polls() -> None:
    rig = with_chore([1] * 40, step_s=0.25)
    rig.run(30)
    assert rig.verdicts(BUILTIN_PRUNE) == ["succeeded"]
    ended = (rig.entry(BUILTIN_PRUNE).finished_us - NOON) / SECOND
    assert 19 <= ended <= 21


def test_the_steps_of_a_chore_shrink_until_they_are_short() -> None:
    sizes: list[int] = []

    def chore(store: Store, now_us: int) -> Steps:
        rows, left = 200, 20_000
        while left > 0:
            rig.clock.advance(rows / 1_000)
            left -= rows
            sizes.append(rows)
            rows = (yield rows) or rows

    rig = Rig(builtin_tasks={BUILTIN_PRUNE: chore}, limits=Limits(chore_s=0.0))
    rig.insert(BUILTIN_PRUNE, "interval", "3600", fn=BUILTIN_PRUNE, overlap="skip")
    rig.run(60)
    assert rig.verdicts(BUILTIN_PRUNE) == ["succeeded"]
    assert sizes[:4] == [200, 100, 50, 25]
    assert set(sizes[3:]) == {25}


def test_a_chore_goes_on_while_the_broker_is_away() -> None:
    rig = with_chore([1] * 30, step_s=0.3)
    rig.insert("j", "interval", "1")
    rig.tick()
    rig.outbox.away = True
    rig.run(30)
    assert rig.verdicts(BUILTIN_PRUNE) == ["succeeded"]


def test_a_chore_is_in_flight_as_long_as_it_takes_whatever_its_lease() -> None:
    rig = with_chore([1] * 100, max_run_seconds=1)
    rig.store.update(BUILTIN_PRUNE, schedule="5")
    rig.run(60)
    assert rig.verdicts(BUILTIN_PRUNE) == ["sent"]
    rig.run(60)
    assert rig.verdicts(BUILTIN_PRUNE)[0] == "succeeded"


def test_a_chore_that_fails_is_a_failed_run_and_runs_again_next_time(caplog: pytest.LogCaptureFixture) -> None:
    steps: list[int | Exception] = [1, ValueError("no such\ntable")]
    rig = with_chore(steps)
    rig.run(10)
    assert (rig.entry(BUILTIN_PRUNE).verdict, rig.entry(BUILTIN_PRUNE).detail) == ("failed", "ValueError: no such")
    assert any(message.startswith("failed: job='_builtin.prune'") for message in caplog.messages)
    steps[:] = [1]
    rig.run(3600)
    assert rig.verdicts(BUILTIN_PRUNE) == ["failed", "succeeded"]


def test_a_chore_that_fails_without_a_word_is_a_failed_run() -> None:
    rig = with_chore([KeyError()])
    rig.run(5)
    assert rig.entry(BUILTIN_PRUNE).detail == "KeyError"


def test_a_chore_of_a_beat_that_died_is_lost_and_runs_again() -> None:
    rig = with_chore([1] * 100)
    rig.run(5)
    rig.restart(down_for=5)
    rig.run(5)
    assert (rig.entry(BUILTIN_PRUNE).verdict, rig.entry(BUILTIN_PRUNE).detail) == (
        "lost",
        "the beat that ran it is gone",
    )
    rig.run(3600)
    assert rig.verdicts(BUILTIN_PRUNE) == ["lost", "sent"]


def test_a_chore_goes_on_after_an_outage_of_the_database() -> None:
    rig = with_chore([1] * 10)
    rig.run(3)
    rig.store.down = True
    rig.run(5)
    rig.store.down = False
    rig.run(20)
    assert rig.verdicts(BUILTIN_PRUNE) == ["succeeded"]


def test_a_chore_by_hand_runs_inside_the_beat_too() -> None:
    rig = with_chore([1], enabled=False)
    rig.tick()
    rig.store.ask(BUILTIN_PRUNE, NOON + 5)
    rig.run(5)
    assert rig.outbox.sent == []
    assert rig.verdicts(BUILTIN_PRUNE) == ["succeeded"]


def test_the_built_in_prune_removes_what_the_ledger_kept_long_enough() -> None:
    def prune(store: Store, now_us: int) -> Steps:
        return store.prune(dict.fromkeys(Verdict, now_us - 10 * MINUTE), now_us)

    store = MemoryStore()
    rig = Rig(store=store, builtin_tasks={BUILTIN_PRUNE: prune}, limits=Limits(poll_s=5.0))
    rig.insert(BUILTIN_PRUNE, "every", "1h", fn=BUILTIN_PRUNE)
    rig.insert("j", "interval", "60", overlap="skip")
    for _ in range(70):
        rig.run(60)
        rig.landings.end(rig.sent_id("j"))
    kept = [entry.finished_us for entry in store.ledger if entry.finished_us is not None]
    assert at("2026-06-01T12:49:00") <= min(kept) <= at("2026-06-01T12:52:00")
    assert rig.verdicts("j")[-1] == "sent"
