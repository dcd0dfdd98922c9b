"""A takeover that takes long: the lock is kept by time, and what is done is not done again."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import cast

import pytest

from celery_qbeat.ports import Loaded, UnfinishedRun
from celery_qbeat.testing import FakeClock, MemoryStore, OpenGate
from celery_qbeat.testing.database import Database
from tests.unit.engine.rig import Rig


class SlowStore(MemoryStore):
    """Each row of a load and each run in flight is a part of its own, and costs a second. `reads` notes them."""

    def __init__(self, database: Database, clock: FakeClock) -> None:
        super().__init__(database)
        self.reads: list[str] = []
        self._clock = clock

    def load(self) -> Iterator[Loaded]:
        for part in super().load():
            yield replace(part, rows=())
            for row in part.rows:
                self._note(row[0]["id"])
                yield Loaded(rows=[row])

    def unfinished_runs(self) -> Iterator[Sequence[UnfinishedRun]]:
        for part in super().unfinished_runs():
            for flight in part:
                self._note(flight.task_id)
                yield [flight]

    def _note(self, name: str) -> None:
        self._clock.advance(1.0)
        self.reads.append(name)


def slow_start(ttl_s: float, *, jobs: int = 20) -> Rig:
    """A beat before its first tick, whose load and whose runs in flight take seconds."""
    first = Rig()
    for number in range(jobs):
        first.insert(f"j{number:02}", "interval", "3600")
    first.tick()
    store = SlowStore(first.store.database, first.clock)
    return Rig(clock=first.clock, store=store, outbox=first.outbox, gate=OpenGate(first.clock, ttl_s=ttl_s))


def test_a_takeover_longer_than_the_lock_keeps_it() -> None:
    rig = slow_start(ttl_s=3.0)
    rig.tick()
    assert rig.engine.writing
    assert rig.store.database.epoch == 2


def test_a_takeover_that_loses_its_lock_repeats_nothing(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    rig = slow_start(ttl_s=0.5)
    for _ in range(100):
        rig.tick()
    assert rig.engine.writing
    reads = cast(SlowStore, rig.store).reads
    assert len(reads) == len(set(reads)) == 20 + 20
    assert caplog.messages.count("follower: jobs paused (another beat is the writer; open gate)") == 1


def test_a_long_takeover_says_how_far_it_is(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    slow_start(ttl_s=3.0, jobs=50).tick()
    assert [line for line in caplog.messages if line.startswith("take-over:")] == [
        "take-over: 5 rows read after 5 s, going on",
        "take-over: 10 rows read after 10 s, going on",
        "take-over: 20 rows read after 20 s, going on",
        "take-over: 40 rows read after 40 s, going on",
        "take-over: 5 runs in flight read after 5 s, going on",
        "take-over: 10 runs in flight read after 10 s, going on",
        "take-over: 20 runs in flight read after 20 s, going on",
        "take-over: 40 runs in flight read after 40 s, going on",
    ]


def test_a_takeover_begins_anew_when_another_beat_had_an_epoch() -> None:
    rig = slow_start(ttl_s=0.5)
    for _ in range(10):
        rig.tick()
    rig.store.session().take_epoch("another", rig.clock.now_us())
    for _ in range(100):
        rig.tick()
    reads = cast(SlowStore, rig.store).reads
    assert reads.count("j00") == 2
    assert rig.engine.writing


def test_an_edit_during_a_long_load_is_not_missed() -> None:
    rig = slow_start(ttl_s=0.5)
    for _ in range(10):
        rig.tick()
    rig.store.update("j01", schedule="7")
    rig.store.delete("j02")
    for _ in range(100):
        rig.tick()
    entries = rig.engine.leader.agenda.entries
    job = entries["j01"].job
    assert job is not None
    assert job.rev == rig.store.database.jobs["j01"]["rev"]
    assert "j02" not in entries
