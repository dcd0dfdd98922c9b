"""The database goes away in any call and comes back: no slot twice, none lost in silence."""

from __future__ import annotations

import logging
from typing import Any, Literal

import pytest

from celery_qbeat.engine import Limits
from celery_qbeat.errors import Doubt, QbeatError, SchemaError, Unavailable
from tests.unit.engine.rig import MINUTE, SECOND, Rig, at

NOON = at("2026-06-01T12:00:00")

READS = ("workers", "load", "read_changes", "read_states", "unfinished_runs", "pending_requests", "has_drifted")
WRITES = (
    "take_epoch",
    "record_heartbeat",
    "write_plans",
    "delete_states",
    "claim",
    "mark_sent",
    "release_claims",
    "record_outcomes",
    "close_batches",
    "delete_requests",
)

FAULTS = [
    *((name, "before", Unavailable) for name in (*READS, *WRITES)),
    *((name, when, Doubt) for name in WRITES for when in ("before", "after")),
]


def busy_rig() -> Rig:
    """Jobs of every kind, edits, ends, requests: within a minute every call of the store is made."""
    rig = Rig(limits=Limits(drift_s=7.0, heartbeat_s=3.0, chunk=2))
    rig.insert("every", "every", "1m")
    rig.insert("skip", "every", "1m", overlap="skip")
    rig.insert("resend", "interval", "10", on_doubt="resend")
    rig.insert("drop", "interval", "11")
    rig.insert("gone", "interval", "3600")
    rig.insert("bad", "interval", "0")
    return rig


def exercise(rig: Rig, start: int, stop: int) -> None:
    """Two edits, a request, ends, a broker that goes away and comes back; seconds `start` to `stop` of it."""
    for second in range(start, stop):
        if second == 5:
            rig.store.update("bad", schedule="13")
            rig.store.delete("gone")
            rig.store.ask("every", rig.clock.now_us() + 7)
        if second in (20, 34):
            rig.outbox.fails = second == 20
        if second == 40:
            rig.outbox.doubt_next = True
        if second % 10 == 3 and rig.slots("skip"):
            rig.landings.end(rig.sent_id("skip"))
        rig.run(1)


def laws(rig: Rig) -> None:
    """No slot twice but a resend, and no message without a line in the ledger that fits it."""
    base = rig.store.database
    doubled = [task for task in base.by_task if sum(s.run.task_id == task for s in rig.outbox.sent) > 1]
    assert {base.by_task[task].job_id for task in doubled} <= {"resend"}
    for shipment in rig.outbox.sent:
        assert base.by_task[shipment.run.task_id].verdict in ("sent", "succeeded", "in doubt", "lost")
    sent = {shipment.run.task_id for shipment in rig.outbox.sent}
    for entry in base.ledger:
        assert entry.verdict != "claimed"
        assert entry.task_id in sent or entry.verdict in ("missed", "skipped", "in doubt", "refused")
    for job in ("every", "skip"):
        regular = [entry for entry in base.ledger if entry.job_id == job and not entry.by_hand]
        covered = sum(1 + entry.collapsed for entry in regular)
        assert covered == (regular[-1].slot_us - regular[0].slot_us) // MINUTE + 1


@pytest.mark.parametrize("second", [0, 5, 20, 40, 59])
@pytest.mark.parametrize(("method", "when", "error"), FAULTS)
def test_a_call_that_fails_loses_nothing_and_doubles_nothing(
    method: str, when: Literal["before", "after"], error: type[QbeatError], second: int
) -> None:
    rig = busy_rig()
    exercise(rig, 0, second)
    rig.store.fail_next(method, when, error)
    if method in ("workers", "load", "unfinished_runs", "close_batches", "take_epoch", "read_states"):
        rig.store.fail_next("record_heartbeat")
    exercise(rig, second, second + 90)
    laws(rig)
    assert {job: len(rig.slots(job)) for job in ("every", "bad", "drop") if not rig.slots(job)} == {}
    assert rig.tick() <= 1.0
    assert rig.store.database.requests == {}
    assert "gone" not in rig.store.state


@pytest.mark.parametrize("method", [*READS, *WRITES])
def test_every_call_of_the_store_is_made_in_the_exercise(method: str) -> None:
    rig = busy_rig()
    calls: list[str] = []
    plain = getattr(rig.store, method)

    def call(*args: Any, **kwargs: Any) -> Any:
        calls.append(method)
        return plain(*args, **kwargs)

    setattr(rig.store, method, call)
    exercise(rig, 0, 10)
    rig.store.down = True
    rig.run(2)
    rig.store.down = False
    rig.store.database.state.pop("drop")
    exercise(rig, 10, 60)
    assert calls


@pytest.mark.parametrize("outage", [3, 80])
def test_an_outage_is_logged_once_each_way_and_dispatches_nothing(
    outage: int, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    rig = busy_rig()
    rig.run(30)
    rig.store.down = True
    before = len(rig.outbox.sent)
    rig.run(outage)
    assert len(rig.outbox.sent) == before
    rig.store.down = False
    rig.run(60)
    laws(rig)
    assert [message for message in caplog.messages if message.startswith("database:")] == [
        "database: away, nothing is dispatched until it is back: the database is down",
        f"database: back after {outage}.0 s",
    ]


def test_a_database_that_is_away_at_the_start_is_waited_for(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    rig = busy_rig()
    rig.store.down = True
    rig.run(30)
    rig.store.down = False
    rig.run(30)
    laws(rig)
    assert rig.slots("every") == [NOON, NOON + MINUTE]
    assert len([message for message in caplog.messages if message.startswith("database: away")]) == 1
    assert len([message for message in caplog.messages if message.startswith("database: back")]) == 1


def test_a_schema_that_does_not_fit_is_said_once(caplog: pytest.LogCaptureFixture) -> None:
    rig = busy_rig()
    for _ in range(20):
        rig.store.fail_next("open", "before", SchemaError("the tables are missing: run celery qbeat migrate"))
    rig.run(15)
    assert rig.outbox.sent == []
    assert [line for line in caplog.messages if line.startswith("database:")] == [
        "database: cannot be used, nothing is dispatched: the tables are missing: run celery qbeat migrate"
    ]
    rig.run(30)
    laws(rig)


def test_after_an_outage_only_what_changed_is_read() -> None:
    rig = busy_rig()
    rig.run(10)
    loads: list[int] = []
    plain = rig.store.load
    rig.store.load = lambda: loads.append(1) or plain()  # type: ignore[method-assign, func-returns-value]
    rig.store.down = True
    rig.run(20)
    rig.store.update("every", args="[7]")
    rig.store.down = False
    rig.run(60)
    assert loads == []
    assert "[7]" in [shipment.job.args for shipment in rig.outbox.sent]


def test_after_an_outage_in_which_another_beat_wrote_everything_is_read() -> None:
    rig = busy_rig()
    rig.run(10)
    rig.store.down = True
    rig.run(5)
    rig.store.down = False
    rig.store.session().take_epoch("another", rig.clock.now_us())
    loads: list[int] = []
    plain = rig.store.load
    rig.store.load = lambda: loads.append(1) or plain()  # type: ignore[method-assign, func-returns-value]
    rig.run(60)
    assert loads == [1]
    laws(rig)


def test_what_was_sent_before_the_mark_failed_is_marked_when_the_database_is_back() -> None:
    rig = Rig(limits=Limits(chunk=2))
    for name in "abcdef":
        rig.insert(name, "interval", "3600", overlap="skip")
    rig.store.fail_next("mark_sent")
    rig.run(5)
    assert sorted(job for job, _ in rig.outbox.slots) == list("abcdef")
    assert {entry.verdict for entry in rig.store.ledger} == {"sent"}


def test_what_was_not_sent_when_the_mark_failed_is_given_back_and_not_in_doubt() -> None:
    rig = Rig(limits=Limits(chunk=2))
    for name in "abcdef":
        rig.insert(name, "interval", "3600")
    rig.store.fail_next("mark_sent")
    rig.store.fail_next("take_epoch")
    rig.run(1)
    rig.clock.advance(20)
    rig.run(5)
    assert sorted(job for job, _ in rig.outbox.slots) == list("abcdef")
    assert {entry.verdict for entry in rig.store.ledger} == {"sent"}


def test_a_claim_of_unknown_fate_is_undone_and_made_again() -> None:
    rig = Rig()
    rig.insert("j", "every", "1m")
    rig.store.fail_next("claim", "after", Doubt)
    rig.run(5)
    assert rig.slots() == [NOON]
    assert rig.verdicts() == ["sent"]


def test_an_end_that_could_not_be_written_frees_its_job_when_the_database_is_back() -> None:
    rig = Rig()
    rig.insert("j", "interval", "10", overlap="skip")
    rig.tick()
    rig.landings.end(rig.sent_id())
    rig.store.fail_next("record_outcomes")
    rig.run(15)
    assert rig.verdicts() == ["succeeded", "sent"]


def test_a_lease_whose_end_could_not_be_written_frees_its_job_when_the_database_is_back() -> None:
    rig = Rig()
    rig.insert("j", "interval", "10", overlap="skip", max_run_seconds=30)
    rig.tick()
    rig.clock.advance(31)
    rig.store.fail_next("record_outcomes")
    rig.run(5)
    assert rig.verdicts() == ["lost", "sent"]


def test_a_deleted_row_is_forgotten_even_if_the_plans_beside_it_could_not_be_stored() -> None:
    rig = busy_rig()
    rig.run(5)
    rig.store.delete("gone")
    rig.store.update("bad", schedule="5")
    rig.store.fail_next("write_plans")
    rig.run(10)
    assert "gone" not in rig.store.state
    assert rig.state("bad").problem == ""


def test_a_new_row_whose_plan_could_not_be_stored_runs() -> None:
    rig = Rig()
    rig.tick()
    for error in (Unavailable, Doubt):
        rig.insert(error.__name__, "interval", "3600")
        rig.store.fail_next("write_plans", "before", error)
        rig.run(5)
        assert len(rig.slots(error.__name__)) == 1


def test_the_wait_for_an_outage_is_a_poll_and_no_busy_loop() -> None:
    rig = busy_rig()
    rig.store.down = True
    assert [rig.tick() for _ in range(3)] == [1.0, 1.0, 1.0]


def test_the_late_seconds_of_an_outage_are_in_the_ledger() -> None:
    rig = Rig("2026-06-01T12:00:30")
    rig.insert("j", "daily", "12:01")
    rig.tick()
    rig.store.down = True
    rig.run(70)
    rig.store.down = False
    rig.tick()
    assert rig.entry().late_us == 40 * SECOND
