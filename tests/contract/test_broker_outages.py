"""Brokers that go away, hang, refuse: what is said of each run then is true."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from celery import Celery
from kombu import Queue

from celery_qbeat.dispatchers import CeleryDispatcher
from celery_qbeat.dispatchers.confirms import BLOCKED
from celery_qbeat.jobs import Verdict
from celery_qbeat.ports import Receipt
from tests.contract.making_runs import (
    INSTANCE,
    Desk,
    entry,
    fates,
    fresh_id,
    make_app,
    row,
    run_of,
    runs_of,
    take_all,
    yes,
)
from tests.servers import RabbitMQ, Redis, wait_for

pytestmark = pytest.mark.chaos

Broker = Redis | RabbitMQ


@pytest.fixture(scope="module")
def redis_with_memory() -> Iterator[Redis]:
    with Redis("--appendfsync", "always", persist=True).start() as server:
        yield server


@pytest.fixture(scope="module")
def own_rabbit(rabbitmq_server: RabbitMQ) -> Iterator[RabbitMQ]:
    with RabbitMQ().start() as server:
        yield server


class Bench:
    def __init__(self, server: Broker, folder: Path) -> None:
        self.server = server
        self.app: Celery = make_app(server.url, folder)
        self.dispatcher = CeleryDispatcher(self.app, namespace="test", instance=INSTANCE)

    def send(self, shipments: Any, trusted: Callable[[], bool] = yes) -> list[Receipt]:
        return list(self.dispatcher.send(shipments, trusted))

    def arrived(self, queue: str = "celery") -> list[str]:
        return [message.headers["id"] for message in take_all(self.app, queue)]


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


@pytest.fixture
def redis(redis_with_memory: Redis, tmp_path: Path) -> Iterator[Bench]:
    made = Bench(redis_with_memory, tmp_path)
    yield made
    made.dispatcher.close()
    made.arrived()


class Bomb:
    """Trusted for ever, but with the `at`-th question something happens."""

    def __init__(self, at: int, blast: Callable[[], None]) -> None:
        self.left = at
        self.blast = blast

    def __call__(self) -> bool:
        self.left -= 1
        if self.left == 0:
            self.blast()
        return True


def check_story(receipts: list[Receipt], arrived: list[str]) -> None:
    """Nothing twice, nothing that was not sent, all that was; and after the first doubt nothing is sent."""
    assert len(arrived) == len(set(arrived))
    by_fate = {fate: {r.task_id for r in receipts if r.fate.value == fate} for fate in ("sent", "not sent", "doubt")}
    assert by_fate["sent"] <= set(arrived)
    assert not by_fate["not sent"] & set(arrived)
    assert all(receipt.detail for receipt in receipts if receipt.fate.value != "sent")
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
    assert fates(bench.send([run_of(row())])) == ["sent"], "and works again at once"
    check_story(receipts, bench.arrived()[:-1])


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
    monkeypatch.setattr("celery_qbeat.dispatchers.completions.PAUSE_S", 0.1)
    monkeypatch.setattr("celery_qbeat.dispatchers.completions.PAUSES_PER_WAIT", 0)
    caplog.set_level(logging.INFO, logger="celery_qbeat")
    server: Broker = request.getfixturevalue(kind)
    desk = Desk(server.url, tmp_path)
    run = fresh_id()
    desk.report(run)
    assert desk.take() == [(run, Verdict.SUCCEEDED)]
    getattr(server, outage)()
    desk.completions.ack()
    assert desk.take() == []
    assert desk.completions.still_running([run]) is None
    server.start() if outage == "stop" else server.thaw()
    wait_for(lambda: desk.take() or "is back" in caplog.text)
    desk.completions.ack()
    again = fresh_id()
    desk.report(again)
    assert (again, Verdict.SUCCEEDED) in wait_for(desk.take)
    desk.completions.ack()
    lines = [record.getMessage().partition(" (")[0] for record in caplog.records]
    assert lines == [
        "completions: the broker is away, ends of runs are not read",
        "completions: the broker is back",
    ]
    desk.completions.close()
    desk.completions.close()


# ---------------------------------------------------------------- Redis


@pytest.mark.parametrize("option", ["maxmemory", "replica"])
def test_a_redis_that_refuses_to_write_means_surely_not_sent(redis: Bench, option: str) -> None:
    assert fates(redis.send(runs_of(row(), 2))) == ["sent"] * 2
    assert isinstance(redis.server, Redis)
    with redis.server.client() as client:
        client.config_set("maxmemory", 1) if option == "maxmemory" else client.replicaof("127.0.0.1", 1)
        receipts = redis.send(runs_of(row(), 30))
        client.config_set("maxmemory", 0) if option == "maxmemory" else client.replicaof("NO", "ONE")
    assert fates(receipts) == ["not sent"] * 30
    assert any(word in receipts[0].detail for word in ("maxmemory", "read only"))
    assert fates(redis.send(runs_of(row(), 2))) == ["sent"] * 2
    assert len(redis.arrived()) == 4


def test_a_queue_key_of_another_type_hurts_its_own_runs_alone(redis: Bench) -> None:
    assert isinstance(redis.server, Redis)
    assert fates(redis.send([run_of(row(queue="broken"))])) == ["sent"]
    with redis.server.client() as client:
        client.set("broken", "not a list")
        receipts = redis.send([run_of(row()), run_of(row(queue="broken")), run_of(row())])
        client.delete("broken")
    assert fates(receipts) == ["sent", "not sent", "sent"]
    assert "WRONGTYPE" in receipts[1].detail or "wrong kind" in receipts[1].detail


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


def test_a_message_that_the_broker_nacks_is_in_doubt(rabbit: Bench) -> None:
    full = Queue("full", queue_arguments={"x-max-length": 1, "x-overflow": "reject-publish"})
    rabbit.app.conf.task_queues = [full, Queue("celery")]
    receipts = rabbit.send([*runs_of(row(queue="full"), 3), run_of(row())])
    assert fates(receipts) == ["sent", "doubt", "doubt", "sent"]
    assert "nack" in receipts[1].detail


def test_while_the_broker_blocks_publishers_nothing_more_is_sent(rabbit: Bench) -> None:
    assert isinstance(rabbit.server, RabbitMQ)
    assert fates(rabbit.send(runs_of(row(), 1))) == ["sent"]
    rabbit.server._evaluate("vm_memory_monitor:set_vm_memory_high_watermark({absolute, 1}).")
    try:
        first = rabbit.send(runs_of(row(), 60))
        assert set(fates(first)) == {"doubt", "not sent"}
        second = rabbit.send(runs_of(row(), 60))
        assert {(receipt.fate.value, receipt.detail) for receipt in second} == {("not sent", BLOCKED)}
    finally:
        rabbit.server._evaluate("vm_memory_monitor:set_vm_memory_high_watermark({absolute, 1000000000}).")
    wait_for(lambda: fates(rabbit.send([run_of(row())])) == ["sent"], 20)
    doubtful = {receipt.task_id for receipt in first if receipt.fate.value == "doubt"}
    surely_not = {receipt.task_id for receipt in [*first, *second] if receipt.fate.value == "not sent"}
    arrived = rabbit.arrived()
    assert len(arrived) == len(set(arrived))
    assert not surely_not & set(arrived)
    assert len(doubtful) <= 50


def test_an_entry_with_an_exchange_that_is_missing_does_not_touch_its_neighbours(rabbit: Bench) -> None:
    lost = entry(exchange="nowhere", routing_key="x")
    receipts = rabbit.send([*runs_of(row(), 5), run_of(lost), *runs_of(row(), 5), run_of(lost)])
    assert fates(receipts) == ["sent"] * 5 + ["bad"] + ["sent"] * 5 + ["bad"]
    assert "nowhere" in receipts[5].detail
    assert len(rabbit.arrived()) == 10
