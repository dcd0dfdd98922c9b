"""Brokers that go away, hang, refuse: what is said of each run then is true."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from kombu import Queue

from celery_qbeat.core.jobs import Verdict
from celery_qbeat.dispatchers.celery.publishers.confirming import BLOCKED, SURE_S
from celery_qbeat.ports import PublishResult
from tests.contract.making_brokers import Bench, Bomb, Broker
from tests.contract.making_runs import (
    Desk,
    entry,
    fates,
    fresh_id,
    row,
    run_of,
    runs_of,
)
from tests.servers import RabbitMQ, Redis, wait_for

pytestmark = pytest.mark.chaos


@pytest.fixture(scope="module")
def redis_with_memory() -> Iterator[Redis]:
    with Redis("--appendfsync", "always", persist=True).start() as server:
        yield server


@pytest.fixture(scope="module")
def own_rabbit(rabbitmq_server: RabbitMQ) -> Iterator[RabbitMQ]:
    with RabbitMQ().start() as server:
        yield server


@pytest.fixture(params=["redis", "rabbitmq"])
def bench(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Bench]:
    fixture = {"redis": "redis_with_memory", "rabbitmq": "own_rabbit"}[request.param]
    made = Bench(request.getfixturevalue(fixture), tmp_path)
    yield made
    made.dispatcher.close()
    if not made.server.running:
        made.server.start()
    made.arrived()


@pytest.fixture
def rabbit(own_rabbit: RabbitMQ, tmp_path: Path) -> Iterator[Bench]:
    made = Bench(own_rabbit, tmp_path)
    yield made
    made.dispatcher.close()
    made.arrived()


def check_story(receipts: list[PublishResult], arrived: list[str]) -> None:
    """Nothing twice, nothing that was not sent, all that was; and after the first doubt nothing is sent."""
    assert len(arrived) == len(set(arrived))
    by_fate = {fate: {r.task_id for r in receipts if r.outcome.value == fate} for fate in ("sent", "not sent", "doubt")}
    assert by_fate["sent"] <= set(arrived)
    assert not by_fate["not sent"] & set(arrived)
    assert all(receipt.detail for receipt in receipts if receipt.outcome.value != "sent")
    order = fates(receipts)
    assert order == sorted(order, key=["sent", "doubt", "not sent"].index)


def test_a_broker_that_restarted_between_two_sends_leaves_no_doubt(bench: Bench) -> None:
    assert fates(bench.send(runs_of(row(), 1))) == ["sent"]
    bench.server.restart()
    first = fates(bench.send(runs_of(row(), 3)))
    assert first in (["sent"] * 3, ["not sent"] * 3)
    assert fates(bench.send(runs_of(row(), 3))) == ["sent"] * 3


def test_a_broker_that_hangs_before_the_first_letter_leaves_no_doubt(bench: Bench) -> None:
    assert fates(bench.send(runs_of(row(), 1))) == ["sent"]
    bench.server.freeze()
    started = time.monotonic()
    receipts = bench.send(runs_of(row(), 60))
    assert time.monotonic() - started < 30
    bench.server.thaw()
    assert fates(receipts) == ["not sent"] * 60
    wait_for(lambda: fates(bench.send([run_of(row())])) == ["sent"])


def test_a_broker_that_is_killed_in_the_middle_and_stays_away(bench: Bench) -> None:
    receipts = bench.send(runs_of(row(), 100), Bomb(21, bench.server.kill))
    assert "sent" not in fates(receipts)[21:]
    for _ in range(2):
        away = bench.send(runs_of(row(), 60))
        assert fates(away) == ["not sent"] * 60
        assert all(receipt.detail for receipt in away)
    bench.server.start()
    check_story(receipts, bench.arrived())
    assert fates(bench.send(runs_of(row(), 2))) == ["sent"] * 2
    assert len(bench.arrived()) == 2


@pytest.mark.parametrize("at", [1, 21])
def test_a_broker_that_hangs_in_the_middle(bench: Bench, at: int) -> None:
    assert fates(bench.send(runs_of(row(), 1))) == ["sent"]
    bench.arrived()
    started = time.monotonic()
    receipts = bench.send(runs_of(row(), 100), Bomb(at, bench.server.freeze))
    assert time.monotonic() - started < 30
    bench.server.thaw()
    assert "not sent" in fates(receipts)
    wait_for(lambda: bench.dispatcher.unavailable_reason() == "", 20, what="it works again")
    receipts = told_late(bench, receipts)
    assert fates(bench.send([run_of(row())])) == ["sent"]
    check_story(receipts, bench.arrived()[:-1])
    assert "doubt" not in fates(receipts), "it says what it had when it hung"


def told_late(bench: Bench, receipts: list[PublishResult]) -> list[PublishResult]:
    """With what the broker said later in the place of what was unconfirmed."""
    late = {receipt.task_id: receipt for receipt in bench.dispatcher.late_results()}
    assert late.keys() == {receipt.task_id for receipt in receipts if receipt.outcome.value == "unconfirmed"}
    return [late.get(receipt.task_id, receipt) for receipt in receipts]


def test_a_broker_that_hangs_is_not_ready_and_keeps_nobody_long(bench: Bench) -> None:
    assert bench.dispatcher.unavailable_reason() == ""
    bench.server.freeze()
    started = time.monotonic()
    assert bench.dispatcher.unavailable_reason() != ""
    assert bench.dispatcher.unavailable_reason() != ""
    assert time.monotonic() - started < 20
    bench.server.thaw()
    wait_for(lambda: bench.dispatcher.unavailable_reason() == "", 20, what="it is ready")
    assert fates(bench.send(runs_of(row(), 3))) == ["sent"] * 3


@pytest.mark.parametrize(
    ("kind", "outage"), [("redis_with_memory", "stop"), ("redis_with_memory", "freeze"), ("own_rabbit", "freeze")]
)
def test_while_the_broker_is_away_no_ends_are_read_and_this_is_said_once(
    kind: str,
    outage: str,
    request: pytest.FixtureRequest,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("celery_qbeat.dispatchers.celery.completions.PAUSE_S", 0.1)
    monkeypatch.setattr("celery_qbeat.dispatchers.celery.completions.PAUSES_PER_WAIT", 0)
    caplog.set_level(logging.INFO, logger="celery_qbeat")
    server: Broker = request.getfixturevalue(kind)
    desk = Desk(server.url, tmp_path)
    run = fresh_id()
    desk.report(run)
    assert desk.take() == [(run, Verdict.SUCCEEDED)]
    getattr(server, outage)()
    desk.completions.acknowledge()
    assert desk.take() == []
    assert desk.completions.ask_workers({run: None}) is False
    server.start() if outage == "stop" else server.thaw()
    wait_for(lambda: desk.take() or "is back" in caplog.text)
    desk.completions.acknowledge()
    again = fresh_id()
    desk.report(again)
    assert (again, Verdict.SUCCEEDED) in wait_for(desk.take)
    desk.completions.acknowledge()
    lines = [record.getMessage().partition(" (")[0] for record in caplog.records]
    assert lines == [
        "completions: the broker is away, ends of runs are not read",
        "completions: the broker is back",
    ]
    desk.completions.close()
    desk.completions.close()


# ---------------------------------------------------------------- RabbitMQ


def test_a_queue_that_was_deleted_is_declared_again(rabbit: Bench) -> None:
    assert fates(rabbit.send(runs_of(row(queue="gone"), 1))) == ["sent"]
    with rabbit.app.connection_for_write() as connection:
        connection.default_channel.queue_delete("gone")
    receipts = rabbit.send([run_of(row(queue="gone")), run_of(row())])
    assert fates(receipts) == ["not sent", "sent"]
    assert "queue is gone" in receipts[0].detail
    again = run_of(row(queue="gone"))
    assert fates(rabbit.send([again])) == ["sent"]
    assert rabbit.arrived("gone") == [again.run.task_id]


def test_a_queue_that_exists_with_other_arguments_hurts_its_own_runs_alone(rabbit: Bench) -> None:
    with rabbit.app.connection_for_write() as connection:
        Queue("odd", queue_arguments={"x-max-length": 5})(connection.default_channel).declare()
    receipts = rabbit.send([run_of(row()), run_of(row(queue="odd")), *runs_of(row(), 2)])
    assert fates(receipts) == ["sent", "bad", "sent", "sent"]
    assert "x-max-length" in receipts[1].detail
    assert len(rabbit.arrived()) == 3


@pytest.mark.parametrize("before", ["the first message", "the middle of a window"])
def test_an_alarm_of_the_broker_leaves_no_doubt(rabbit: Bench, before: str) -> None:
    assert isinstance(rabbit.server, RabbitMQ)
    assert fates(rabbit.send(runs_of(row(), 1))) == ["sent"]
    rabbit.arrived()
    if before == "the first message":
        time.sleep(SURE_S)
        rabbit.server.alarm(True)
        assert rabbit.dispatcher.unavailable_reason() == "", "nobody knows before a message is sent"
        first = rabbit.send(runs_of(row(), 60))
        assert fates(first) == ["unconfirmed"] + ["not sent"] * 59
    else:
        first = rabbit.send(runs_of(row(), 60), Bomb(21, lambda: rabbit.server.alarm(True)))
        assert {"unconfirmed", "not sent"} <= set(fates(first)) <= {"sent", "unconfirmed", "not sent"}
    assert rabbit.dispatcher.unavailable_reason() == BLOCKED
    assert {(r.outcome.value, r.detail) for r in rabbit.send(runs_of(row(), 60))} == {("not sent", BLOCKED)}
    assert rabbit.dispatcher.late_results() == []
    rabbit.server.alarm(False)
    wait_for(lambda: rabbit.dispatcher.unavailable_reason() == "", 20, what="it takes messages again")
    check_story(told_late(rabbit, first), rabbit.arrived())
    assert fates(rabbit.send(runs_of(row(), 3))) == ["sent"] * 3


def test_a_broker_that_restarts_during_an_alarm_is_used_again(rabbit: Bench) -> None:
    assert isinstance(rabbit.server, RabbitMQ)
    assert rabbit.dispatcher.unavailable_reason() == ""
    rabbit.server.alarm(True)
    first = rabbit.send(runs_of(row(), 60))
    assert rabbit.dispatcher.unavailable_reason() == BLOCKED
    rabbit.server.restart()
    wait_for(lambda: rabbit.dispatcher.unavailable_reason() == "", 30, what="it is ready")
    late = told_late(rabbit, first)
    assert set(fates(late)) <= {"sent", "doubt", "not sent"}
    assert fates(rabbit.send(runs_of(row(), 3))) == ["sent"] * 3


def test_a_password_that_changed_is_a_broker_that_is_away(rabbit: Bench) -> None:
    assert isinstance(rabbit.server, RabbitMQ)
    assert rabbit.dispatcher.unavailable_reason() == ""
    rabbit.dispatcher.close()
    rabbit.server.change_password("another")
    try:
        assert "ACCESS_REFUSED" in rabbit.dispatcher.unavailable_reason()
        assert set(fates(rabbit.send(runs_of(row(), 2)))) == {"not sent"}
    finally:
        rabbit.server.change_password("guest")
    assert fates(rabbit.send(runs_of(row(), 2))) == ["sent"] * 2


def test_a_broker_that_restarted_is_another_incarnation(bench: Bench) -> None:
    known = bench.dispatcher.memory_id()
    assert known
    assert fates(bench.send(runs_of(row(), 2))) == ["sent"] * 2
    assert bench.dispatcher.memory_id() == known
    bench.server.restart()
    wait_for(lambda: bench.dispatcher.memory_id() not in ("", known), 20, what="the change is seen")


def test_an_entry_with_an_exchange_that_is_missing_does_not_touch_its_neighbours(rabbit: Bench) -> None:
    lost = entry(exchange="nowhere", routing_key="x")
    receipts = rabbit.send([*runs_of(row(), 5), run_of(lost), *runs_of(row(), 5), run_of(lost)])
    assert fates(receipts) == ["sent"] * 5 + ["bad"] + ["sent"] * 5 + ["bad"]
    assert "nowhere" in receipts[5].detail
    assert len(rabbit.arrived()) == 10
