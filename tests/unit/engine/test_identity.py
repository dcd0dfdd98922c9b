"""The engine tells its gate which database it guards, and what a beat says when it does not hold."""

from __future__ import annotations

import logging

import pytest

from celery_qbeat.testing import MemoryStore
from tests.unit.engine.rig import Rig

INSTANCE = "0b9a8c7d-1111-4222-8333-444455556666"


class Unopened(MemoryStore):
    """Knows its instance only once it is open, as a SQL store does."""

    known = ""

    def open(self) -> None:
        super().open()
        self.known = self.database.instance

    @property
    def instance(self) -> str:
        return self.known


def test_the_gate_is_bound_to_the_database_before_it_is_asked() -> None:
    rig = Rig(store=Unopened())
    rig.tick()
    assert rig.gate.instance == rig.store.database.instance
    assert rig.engine.writing


def test_no_lock_is_asked_for_before_the_database_was_seen() -> None:
    rig = Rig(store=Unopened())
    rig.store.down = True
    rig.run(30)
    assert rig.gate.instance == ""
    rig.store.down = False
    rig.run(2)
    assert rig.engine.writing


def test_tables_with_another_identity_are_taken_over_under_a_new_term_and_epoch() -> None:
    rig = Rig()
    rig.insert()
    rig.tick()
    term, epoch = rig.engine.leader.term, rig.engine.leader.epoch
    rig.store.database.instance = INSTANCE
    rig.tick()
    assert rig.gate.instance == INSTANCE
    assert rig.engine.leader.term != term
    assert rig.engine.leader.epoch > epoch
    assert rig.engine.leader.instance == INSTANCE


def test_a_follower_gives_the_reason_that_its_gate_gives(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    caplog.set_level(logging.INFO)
    rig = Rig()
    monkeypatch.setattr(rig.gate, "reason", lambda: "Redis is away")
    rig.gate.open = False
    rig.tick()
    assert caplog.messages == ["follower: jobs paused (Redis is away; open gate)"]
