"""A beat that alone cannot reach the database leaves the lock to one that can."""

from __future__ import annotations

import logging

import pytest

from celery_qbeat.engine import Limits
from celery_qbeat.errors import Unavailable
from celery_qbeat.gates import StandaloneGate
from celery_qbeat.ports import LockLease
from celery_qbeat.testing import FakeClock, OpenGate
from tests.unit.engine.rig import MINUTE, Rig, at

NOON = at("2026-06-01T12:00:00")
LIMITS = Limits(let_go_s=5.0)


class OneLock(OpenGate):
    """A gate of several on one lock."""

    def __init__(self, clock: FakeClock, holder: list[OneLock]) -> None:
        super().__init__(clock)
        self._holder = holder

    def acquire_or_renew(self) -> LockLease | None:
        self.open = not self._holder or self._holder[0] is self
        if self.open:
            self._holder[:] = [self]
        return super().acquire_or_renew()

    def step_aside(self) -> bool:
        if self._holder == [self]:
            self._holder.clear()
        return super().step_aside()


def two() -> tuple[Rig, Rig]:
    """Two beats on one lock, one database, one broker and one clock, with a job every minute."""
    holder: list[OneLock] = []
    clock = FakeClock(NOON)
    first = Rig(clock=clock, limits=LIMITS, gate=OneLock(clock, holder))
    first.insert()
    store = first.store.session()
    return first, Rig(clock=clock, store=store, outbox=first.outbox, limits=LIMITS, gate=OneLock(clock, holder))


@pytest.fixture
def beats() -> tuple[Rig, Rig]:
    """The first is the writer."""
    first, second = two()
    together(first, second, 3)
    assert first.engine.writing
    return first, second


def together(first: Rig, second: Rig, seconds: int) -> None:
    for _ in range(seconds):
        first.tick()
        second.tick()
        first.clock.advance(1.0)


def test_another_beat_takes_over_and_misses_no_slot(beats: tuple[Rig, Rig]) -> None:
    first, second = beats
    first.store.cut_off = True
    together(first, second, 300)
    assert second.engine.writing
    assert not first.engine.writing
    assert first.slots() == [NOON + minute * MINUTE for minute in range(6)]


def test_it_stands_by_when_the_database_answers_again(beats: tuple[Rig, Rig], caplog: pytest.LogCaptureFixture) -> None:
    first, second = beats
    caplog.set_level(logging.INFO)
    first.store.cut_off = True
    together(first, second, 90)
    first.store.cut_off = False
    together(first, second, 30)
    assert second.engine.writing
    said = [line for line in caplog.messages if line.startswith(("database", "follower", "gate"))]
    assert said == [
        "database: away, nothing is dispatched until it is back: the database cannot be reached",
        "database: back after 90.0 s",
        "follower: jobs paused (another beat is the writer; open gate)",
    ]


def test_a_short_outage_changes_no_writer(beats: tuple[Rig, Rig]) -> None:
    first, second = beats
    first.store.cut_off = True
    together(first, second, 4)
    first.store.cut_off = False
    together(first, second, 4)
    assert first.engine.writing


def test_when_nobody_reaches_the_database_the_first_that_does_goes_on_at_once(beats: tuple[Rig, Rig]) -> None:
    first, second = beats
    epoch = first.store.database.epoch
    first.store.down = True
    together(first, second, 600)
    first.store.down = False
    together(first, second, 2)
    assert [rig.engine.writing for rig in beats].count(True) == 1
    assert first.store.database.epoch == epoch + 1
    together(first, second, 60)
    assert first.slots()[-1] == NOON + 11 * MINUTE


def test_a_database_that_can_only_be_read_is_one_that_is_away(
    beats: tuple[Rig, Rig], monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(*_args: object, **_keywords: object) -> None:
        raise Unavailable("the database is read-only")

    first, second = beats
    for write in (
        "take_epoch",
        "record_heartbeat",
        "write_plans",
        "claim",
        "mark_sent",
        "release_claims",
        "record_outcomes",
    ):
        monkeypatch.setattr(first.store, write, refused)
    together(first, second, 120)
    assert second.engine.writing
    assert not first.engine.writing


def test_a_beat_that_is_alone_has_nobody_to_leave_the_lock_to() -> None:
    rig = Rig(limits=LIMITS, gate=StandaloneGate())
    rig.insert()
    rig.run(3)
    rig.store.down = True
    rig.run(120)
    rig.store.down = False
    rig.run(2)
    assert rig.engine.writing
    assert rig.slots()[-1] == NOON + 2 * MINUTE


def test_a_beat_that_never_reached_the_database_does_not_keep_the_lock() -> None:
    first, second = two()
    first.store.cut_off = True
    together(first, second, 10)
    assert second.engine.writing
    assert first.slots() == [NOON]
