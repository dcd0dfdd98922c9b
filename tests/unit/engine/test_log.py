"""The lines that a user reads."""

from __future__ import annotations

import logging

import pytest

from celery_qbeat.engine.log_events import instant
from celery_qbeat.engine.repeated_errors import RepeatedErrors
from celery_qbeat.testing import FakeClock
from tests.unit.engine.rig import MINUTE, SECOND, Rig, at

NOON = at("2026-06-01T12:00:00")


@pytest.fixture(autouse=True)
def everything(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG, logger="celery_qbeat")


def lines(caplog: pytest.LogCaptureFixture, start: str) -> list[logging.LogRecord]:
    return [record for record in caplog.records if record.getMessage().startswith(start)]


def texts(caplog: pytest.LogCaptureFixture, start: str) -> list[str]:
    return [record.getMessage() for record in lines(caplog, start)]


def test_at_start_one_line_says_which_database_which_rows_and_who_writes(caplog: pytest.LogCaptureFixture) -> None:
    rig = Rig()
    rig.insert("a", "interval", "60")
    rig.insert("b", "every", "1m", enabled=False)
    rig.insert("c", "cron", "x")
    rig.insert("d", fn="os.system")
    rig.insert("e", "daily", "03:00")
    rig.tick()
    line = (
        "beat: writer (open gate, epoch 1); database memory; "
        "rows 5: 2 will run, 1 disabled, 1 refused, 1 bad; entries in code 0"
    )
    assert texts(caplog, "beat:") == [line]


def test_every_dispatch_is_one_line_with_job_function_slot_lateness_and_task(caplog: pytest.LogCaptureFixture) -> None:
    rig = Rig("2026-06-01T12:00:30")
    rig.insert("shop.cleanup", "every", "1m", fn="app.b")
    rig.run(29)
    rig.clock.advance(1.25)
    rig.tick()
    sent = lines(caplog, "sent:")
    assert [record.levelno for record in sent] == [logging.INFO] * 2
    assert sent[1].getMessage() == (
        "sent: job='shop.cleanup' fn='app.b' slot=2026-06-01T12:01:00Z late=250ms "
        f"task_id={rig.sent_id('shop.cleanup')}"
    )


def test_a_dispatch_that_stands_for_older_slots_says_for_how_many(caplog: pytest.LogCaptureFixture) -> None:
    rig = Rig()
    rig.insert("j", "every", "1m")
    rig.tick()
    rig.clock.advance(300)
    rig.tick()
    assert texts(caplog, "sent:")[1].endswith(" collapsed=4")


def test_the_first_period_of_a_new_row_is_not_late_and_says_why(caplog: pytest.LogCaptureFixture) -> None:
    rig = Rig("2026-06-01T12:07:00")
    rig.insert("j", "every", "1h")
    rig.tick()
    (sent,) = texts(caplog, "sent:")
    assert "slot=2026-06-01T12:00:00Z late=0ms" in sent
    assert sent.endswith("(its period had begun when the row was first seen: late counts from then)")


def test_a_due_job_that_is_deleted_is_no_warning(caplog: pytest.LogCaptureFixture) -> None:
    rig = Rig("2026-06-01T12:00:59.500000")
    rig.insert("j", "every", "1m")
    rig.tick()
    rig.clock.advance(0.6)
    rig.store.delete("j")
    rig.tick()
    (missed,) = lines(caplog, "missed:")
    assert missed.levelno == logging.INFO
    assert missed.getMessage().endswith(": the job was deleted before this slot, and any later one, was decided")


def test_slots_that_are_not_sent_say_why(caplog: pytest.LogCaptureFixture) -> None:
    rig = Rig()
    rig.insert("a", "every", "1m", overlap="skip")
    rig.insert("b", "every", "1m", grace_seconds=30)
    rig.insert("c", "every", "1m", fn="os.system")
    rig.tick()
    rig.clock.advance(100)
    rig.tick()
    assert texts(caplog, "skipped:") == ["skipped: job='a' slot=2026-06-01T12:01:00Z: previous run still in flight"]
    assert texts(caplog, "missed:") == [
        "missed: job='b' slot=2026-06-01T12:01:00Z: 40.0 s late: its grace of 30 s was over"
    ]
    refused = lines(caplog, "refused:")
    assert len(refused) == 2
    assert {record.levelno for record in refused} == {logging.DEBUG}, "the problem itself was logged once, loudly"


def test_a_slot_lost_to_somebody_else_is_one_quiet_line(caplog: pytest.LogCaptureFixture) -> None:
    rig = Rig("2026-06-01T12:00:30")
    rig.insert("j", "every", "1m")
    rig.tick()
    row = rig.store.rows["j"]
    rig.store.rows["j"] = {**row, "rev": row["rev"] + 1}
    rig.clock.advance(30)
    rig.tick()
    assert texts(caplog, "lost:") == ["lost: job='j' slot=2026-06-01T12:01:00Z: changed or decided meanwhile"]


def test_an_idle_beat_says_nothing(caplog: pytest.LogCaptureFixture) -> None:
    rig = Rig()
    rig.insert("j", "daily", "15:00")
    rig.run(5)
    before = len(caplog.records)
    rig.run(600)
    assert len(caplog.records) == before


def test_a_success_is_quiet_and_a_failure_is_not(caplog: pytest.LogCaptureFixture) -> None:
    rig = Rig()
    rig.insert("j", "interval", "60", overlap="skip")
    rig.tick()
    rig.landings.end(rig.sent_id())
    rig.run(2)
    ended = lines(caplog, "succeeded:")
    assert [record.levelno for record in ended] == [logging.DEBUG]


@pytest.mark.parametrize(
    ("us", "text"),
    [
        (NOON, "2026-06-01T12:00:00Z"),
        (NOON + 123_000, "2026-06-01T12:00:00.123000Z"),
        (NOON + MINUTE + SECOND, "2026-06-01T12:01:01Z"),
        (-1_000_000, "1969-12-31T23:59:59Z"),
        (10**18, "1000000000000000000 us"),
    ],
)
def test_an_instant_reads_like_a_time(us: int, text: str) -> None:
    assert instant(us) == text


def test_an_error_at_every_tick_is_logged_once_and_counted(caplog: pytest.LogCaptureFixture) -> None:
    clock = FakeClock(0)
    errors = RepeatedErrors(clock)
    for _ in range(130):
        errors.log(RuntimeError("it is broken"))
        clock.advance(1.0)
    errors.log(RuntimeError("something else"))
    assert caplog.messages == [
        "beat: unexpected error, going on: RuntimeError('it is broken')",
        "beat: the same unexpected error 60 times more in 60 s: RuntimeError('it is broken')",
        "beat: the same unexpected error 60 times more in 60 s: RuntimeError('it is broken')",
        "beat: unexpected error, going on: RuntimeError('something else')",
    ]
    assert [bool(record.exc_info) for record in caplog.records] == [True, False, False, True]
