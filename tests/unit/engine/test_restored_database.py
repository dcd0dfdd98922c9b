"""An older copy of the database takes its place while beats live: what they remember is not sent again."""

from __future__ import annotations

import logging
from copy import deepcopy
from typing import Any

import pytest

from celery_qbeat.testing.database import Database
from tests.unit.engine.rig import MINUTE, SECOND, Rig, at

NOON = at("2026-06-01T12:00:00")
TABLES = ("epoch", "holder", "rev", "jobs", "state", "extra", "ledger", "batches", "history", "requests")


def backup(base: Database) -> dict[str, Any]:
    return {name: deepcopy(getattr(base, name)) for name in TABLES}


def restore(base: Database, copy: dict[str, Any]) -> None:
    for name, value in copy.items():
        setattr(base, name, value)
    base.by_task = {entry.task_id: entry for entry in base.ledger}
    base.by_slot = {(entry.slot_us, entry.job_id): entry for entry in base.ledger}
    base.log.append(("T", None))


def doubles(rig: Rig) -> list[tuple[str, int]]:
    return sorted({slot for slot in rig.outbox.slots if rig.outbox.slots.count(slot) > 1})


@pytest.mark.parametrize("takeover", [False, True], ids=["the epoch is the same", "the epoch is older"])
@pytest.mark.parametrize("catch_up", ["once", "all", "skip"])
@pytest.mark.parametrize(("kind", "schedule"), [("every", "1m"), ("interval", "7"), ("daily", "12:01,12:02,12:04")])
def test_what_the_living_beat_has_sent_is_not_sent_again(
    kind: str, schedule: str, catch_up: str, takeover: bool
) -> None:
    rig = Rig()
    rig.insert("j", kind, schedule, catch_up=catch_up)
    rig.run(10)
    copy = backup(rig.store.database)
    if takeover:
        rig.gate.open = False
        rig.run(2)
        rig.gate.open = True
    rig.run(200)
    restore(rig.store.database, copy)
    before = len(rig.slots())
    rig.run(200)
    assert doubles(rig) == []
    assert len(rig.slots()) > before or kind == "daily"


def test_the_ledger_says_what_is_remembered() -> None:
    rig = Rig()
    rig.insert("j", "every", "1m")
    rig.run(10)
    copy = backup(rig.store.database)
    rig.run(300)
    restore(rig.store.database, copy)
    rig.run(60)
    (remembered,) = [entry for entry in rig.store.ledger if entry.verdict == "in doubt"]
    assert (remembered.slot_us, remembered.collapsed) == (NOON + 5 * MINUTE, 4)
    assert "an older copy of the database does not" in remembered.detail
    regular = [entry for entry in rig.store.ledger if entry.job_id == "j"]
    assert sum(1 + entry.collapsed for entry in regular) == (rig.clock.now_us() - NOON) // MINUTE + 1


def test_a_request_that_was_answered_is_not_answered_again() -> None:
    rig = Rig()
    rig.insert("j", "daily", "23:00")
    rig.run(3)
    rig.store.ask("j", rig.clock.now_us())
    copy = backup(rig.store.database)
    rig.run(3)
    assert len(rig.slots()) == 1
    restore(rig.store.database, copy)
    rig.run(30)
    assert len(rig.slots()) == 1
    assert rig.store.database.requests == {}


def test_a_run_in_flight_still_blocks_its_job() -> None:
    rig = Rig()
    rig.insert("j", "every", "1m", overlap="skip")
    copy = backup(rig.store.database)
    rig.run(10)
    restore(rig.store.database, copy)
    rig.run(180)
    assert rig.slots() == [NOON]
    rig.landings.end(rig.sent_id())
    rig.run(60)
    assert len(rig.slots()) == 2


def test_a_lone_beat_goes_on_after_a_restore(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    rig = Rig()
    rig.insert("j", "interval", "10")
    copy = backup(rig.store.database)
    rig.run(30)
    restore(rig.store.database, copy)
    rig.run(30)
    assert rig.engine.writing
    assert rig.store.database.epoch > 1
    assert len([line for line in caplog.messages if "an older copy was restored" in line]) == 1


def test_slots_that_nobody_remembers_count_as_missed_by_an_outage() -> None:
    rig = Rig()
    rig.insert("j", "every", "1m")
    rig.run(10)
    copy = backup(rig.store.database)
    rig.run(300)
    restore(rig.store.database, copy)
    rig.restart()
    rig.run(1)
    assert rig.entry().collapsed == 4
    assert rig.slots()[-1] == NOON + 5 * MINUTE
    assert rig.clock.now_us() < NOON + 312 * SECOND


@pytest.mark.parametrize("kind", ["every", "interval"])
def test_catch_up_skip_set_before_the_start_sends_none_of_them(kind: str) -> None:
    rig = Rig()
    rig.insert("j", kind, {"every": "1m", "interval": "60"}[kind])
    rig.run(10)
    copy = backup(rig.store.database)
    rig.run(300)
    restore(rig.store.database, copy)
    rig.store.update("j", catch_up="skip")
    rig.restart(down_for=100)
    before = len(rig.slots())
    rig.run(1)
    assert rig.verdicts().count("missed") == 1
    assert len(rig.slots()) == before
