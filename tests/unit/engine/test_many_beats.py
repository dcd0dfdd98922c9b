"""Several beats on one database: lost locks, ended trust, fences, take-overs, and what a dead beat left open."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

import pytest

from celery_qbeat.engine import Engine, Limits, Parts
from celery_qbeat.gates import StandaloneGate
from celery_qbeat.ports import Lease
from celery_qbeat.testing import FakeClock, MemoryStore, OpenGate, Outbox
from tests.unit.engine.rig import MINUTE, Rig, at

NOON = at("2026-06-01T12:00:00")


def two(**parts: Any) -> tuple[Rig, Rig]:
    """Two beats on one database, one broker and one clock, each with its own gate; the second gate is shut."""
    first = Rig(**parts)
    second = Rig(store=first.store.session(), outbox=first.outbox, clock=first.clock, **parts)
    second.gate.open = False
    second.landings = first.landings
    return first, second


def hand_over(old: Rig, new: Rig) -> None:
    """The lock changes hands, and the old writer notices."""
    old.gate.open = False
    old.tick()
    new.gate.open = True


def test_a_beat_without_the_lock_does_nothing_and_says_so_once(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    rig = Rig()
    rig.insert()
    rig.gate.open = False
    rig.run(60)
    assert rig.outbox.sent == []
    assert rig.store.database.epoch == 0
    assert not rig.engine.writing
    assert caplog.messages == ["follower: jobs paused (another beat is the writer; open gate)"]


def test_a_take_over_keeps_slots_and_flights() -> None:
    first, second = two()
    first.insert("i", "interval", "600", overlap="skip")
    first.insert("c", "cron", "* * * * *")
    first.insert("busy", "interval", "30", overlap="skip")
    first.run(100)
    hand_over(first, second)
    second.run(100)
    hand_over(second, first)
    first.run(500)
    assert first.slots("i") == [NOON]
    assert first.slots("busy") == [NOON]
    assert first.slots("c") == [NOON + minute * MINUTE for minute in range(1, 12)]


def test_the_state_of_a_job_is_the_same_for_the_next_writer() -> None:
    first, second = two()
    first.insert("i", "interval", "600")
    first.insert("d", "daily", "15:00")
    first.run(5)
    before = dict(first.store.state)
    hand_over(first, second)
    second.run(5)
    assert dict(first.store.state) == before


def test_every_take_over_takes_a_new_epoch() -> None:
    first, second = two()
    epochs = []
    for old, new in [(second, first), (first, second), (second, first)]:
        hand_over(old, new)
        new.tick()
        epochs.append(new.engine.desk.epoch)
    assert epochs == [1, 2, 3]


def test_a_lock_that_was_lost_and_taken_again_by_oneself_is_a_new_epoch_without_a_new_load() -> None:
    rig = Rig()
    rig.insert("j", "interval", "60")
    rig.run(5)
    loads: list[int] = []
    plain = rig.store.load
    rig.store.load = lambda: loads.append(1) or plain()  # type: ignore[method-assign, func-returns-value]
    rig.gate.open = False
    rig.run(5)
    rig.gate.open = True
    rig.run(60)
    assert rig.engine.desk.epoch == 2
    assert loads == []
    assert len(rig.slots()) == 2


def test_a_writer_that_comes_back_within_its_term_goes_on(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    rig = Rig()
    rig.insert("j", "interval", "60")
    rig.run(5)
    lease = rig.gate.hold()
    answers: list[Lease | None] = [None]
    rig.gate.hold = lambda: answers.pop() if answers else lease  # type: ignore[method-assign]
    rig.run(60)
    assert len(rig.slots()) == 2
    assert rig.engine.desk.epoch == 1
    assert "follower: jobs paused (another beat is the writer; open gate)" in caplog.messages
    assert "beat: writer again (epoch 1)" in caplog.messages


def test_a_second_standalone_beat_fences_the_first_off_which_stands_by_for_good(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO)
    clock = FakeClock(NOON)
    first = Rig(clock=clock, gate=StandaloneGate())
    first.insert("j", "every", "1m")
    first.run(30)
    second = Rig(clock=clock, gate=StandaloneGate(), store=first.store.session(), outbox=first.outbox)
    second.run(1)
    for _ in range(300):
        first.tick()
        second.tick()
        clock.advance(1.0)
    assert len(first.slots()) == len(set(first.slots())) == 6
    assert not first.engine.writing
    assert second.engine.writing
    line = (
        "fenced: a newer beat writes to this database; this one stands by (standalone). "
        "To run several beats on purpose give all of them the same qbeat_redis_url"
    )
    assert [message for message in caplog.messages if message.startswith("fenced:")] == [line]


def test_a_fenced_beat_with_a_lock_gives_it_back_and_may_be_the_writer_later() -> None:
    first, second = two()
    first.insert("j", "every", "1m")
    first.run(30)
    second.gate.open = True
    second.tick()
    first.run(40)
    assert first.gate.open is False
    assert not first.engine.writing
    second.run(60)
    hand_over(second, first)
    first.run(60)
    assert first.engine.writing
    assert len(first.slots()) == len(set(first.slots())) == 4


def test_a_fence_is_noticed_by_an_idle_writer_too() -> None:
    first, second = two()
    first.tick()
    second.gate.open = True
    second.tick()
    first.run(6)
    assert not first.engine.writing


@pytest.mark.parametrize("name", ["beat", "claim", "sent", "conclude", "plan", "forget", "release"])
def test_a_beat_that_wakes_up_after_a_take_over_writes_nothing(name: str) -> None:
    first, second = two(limits=Limits(heartbeat_s=1.0))
    first.insert("j", "interval", "10")
    first.insert("gone", "interval", "3600")
    first.run(5)
    plain = getattr(first.store, name)
    before: list[Any] = []

    def frozen(*args: Any, **kwargs: Any) -> Any:
        """The beat freezes in this very call for so long that the other one takes over."""
        if not before:
            second.gate.open = True
            second.clock.advance(30)
            second.tick()
            before.append(snapshot(first.store))
        return plain(*args, **kwargs)

    first.landings.end(first.sent_id())
    if name == "plan":
        first.store.update("j", schedule="11")
    elif name == "forget":
        first.store.delete("gone")
    first.clock.advance(11)
    first.outbox.fails = name == "release"
    setattr(first.store, name, frozen)
    first.tick()
    assert before[0] == snapshot(first.store)
    assert not first.engine.writing
    assert len(set(first.outbox.slots)) == len(first.outbox.slots)


def snapshot(store: MemoryStore) -> Any:
    base = store.database
    return (
        dict(base.state),
        [(entry.task_id, entry.verdict, entry.sent_us) for entry in base.ledger],
        base.epoch,
        list(base.history),
    )


def test_trust_that_ends_in_the_middle_of_a_chunk_stops_it_and_gives_the_rest_back() -> None:
    clock = FakeClock(NOON)
    outbox, gate = SlowOutbox(clock), OpenGate(clock, ttl_s=3.5)
    outbox.before_each = lambda: setattr(gate, "open", len(outbox.sent) < 3)
    rig = Rig(clock=clock, outbox=outbox, gate=gate)
    for number in range(10):
        rig.insert(f"j{number}", "interval", "3600")
    rig.tick()
    assert len(rig.outbox.sent) == 3
    assert [entry.verdict for entry in rig.store.ledger] == ["sent"] * 3
    outbox.before_each, gate.open = lambda: None, True
    rig.run(20)
    assert sorted(job for job, _ in rig.outbox.slots) == [f"j{number}" for number in range(10)]


def test_the_lock_is_renewed_in_the_middle_of_a_chunk() -> None:
    clock = FakeClock(NOON)
    rig = Rig(clock=clock, outbox=SlowOutbox(clock), gate=OpenGate(clock, ttl_s=3.5))
    for number in range(10):
        rig.insert(f"j{number}", "interval", "3600")
    rig.tick()
    assert len(rig.outbox.sent) == 10


def test_the_lock_is_renewed_between_the_chunks_of_a_batch() -> None:
    clock = FakeClock(NOON)
    rig = Rig(clock=clock, outbox=SlowOutbox(clock), gate=OpenGate(clock, ttl_s=3.5), limits=Limits(chunk=2))
    for number in range(10):
        rig.insert(f"j{number}", "interval", "3600")
    rig.tick()
    assert len(rig.outbox.sent) == 10


def test_a_lock_lost_between_the_chunks_of_a_batch_stops_it_and_gives_the_rest_back() -> None:
    clock = FakeClock(NOON)
    rig = Rig(clock=clock, gate=OpenGate(clock, ttl_s=3.5), limits=Limits(chunk=2))
    for number in range(10):
        rig.insert(f"j{number}", "interval", "3600")

    def lose_lock(name: str) -> None:
        if name == "marked":
            rig.gate.open = False
            clock.advance(1.0)

    rig.parts["fail_point"] = lose_lock
    rig.engine = Engine(Parts(**rig.parts))
    rig.tick()
    assert len(rig.outbox.sent) == len(rig.store.ledger) == 2
    assert not rig.engine.writing


class SlowOutbox(Outbox):
    """Takes a second for each message."""

    def __init__(self, clock: FakeClock) -> None:
        super().__init__()
        self.clock = clock
        self.before_each: Callable[[], None] = lambda: None

    def send(self, shipments: Any, trusted: Callable[[], bool]) -> Any:
        def slowly() -> bool:
            self.clock.advance(1.0)
            self.before_each()
            return trusted()

        return super().send(shipments, slowly)


def test_a_lock_lost_while_changes_are_taken_in_forgets_none_of_them() -> None:
    clock = FakeClock(NOON)
    rig = Rig(clock=clock, gate=OpenGate(clock, ttl_s=3.5))
    rig.insert("gone", "interval", "3600")
    rig.run(5)
    rig.insert("j", "interval", "60")
    rig.store.delete("gone")
    plain = rig.store.plan

    def plan(*args: Any) -> None:
        plain(*args)
        rig.gate.open = False
        clock.advance(1.0)

    rig.store.plan = plan  # type: ignore[method-assign]
    rig.run(3)
    assert rig.slots() == []
    rig.store.plan = plain  # type: ignore[method-assign]
    rig.gate.open = True
    rig.run(3)
    assert len(rig.slots()) == 1
    assert "gone" not in rig.store.state


def test_a_beat_that_is_told_to_stop_in_the_middle_of_a_batch_gives_the_rest_back() -> None:
    rig = Rig()
    for number in range(5):
        rig.insert(f"j{number}", "interval", "3600")
    rig.parts["stopping"] = lambda: len(rig.outbox.sent) >= 2
    rig.restart()
    rig.tick()
    rig.engine.close()
    assert rig.gate.released
    assert [entry.verdict for entry in rig.store.ledger] == ["sent", "sent"]
    rig.parts["stopping"] = lambda: False
    rig.restart()
    rig.run(5)
    assert sorted(job for job, _ in rig.outbox.slots) == [f"j{number}" for number in range(5)]


def test_closing_gives_everything_back_and_may_be_done_twice() -> None:
    rig = Rig()
    rig.tick()
    rig.engine.close()
    rig.engine.close()
    assert rig.gate.released


def test_a_beat_that_meets_an_error_nobody_foresaw_reads_everything_again() -> None:
    rig = Rig()
    for number in range(3):
        rig.insert(f"j{number}", "interval", "60")
    rig.run(30)
    plain = rig.outbox.send
    failures = [RuntimeError("nobody foresaw this")]

    def send(*args: Any) -> Any:
        if failures:
            raise failures.pop()
        return plain(*args)

    rig.outbox.send = send  # type: ignore[method-assign]
    rig.clock.advance(31)
    with pytest.raises(RuntimeError):
        rig.tick()
    rig.run(90)
    for number in range(3):
        assert rig.verdicts(f"j{number}")[1:] == ["in doubt", "sent"]
