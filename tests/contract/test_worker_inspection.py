"""Questions to workers and queues, without workers: what is found in queues, and what hostile answers do."""

from __future__ import annotations

import json
import tracemalloc
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from celery import Celery
from celery.events.event import get_exchange
from kombu.entity import Queue
from kombu.messaging import Consumer, Producer

from celery_qbeat.core.worker_answers import Answers, QueueSeen
from celery_qbeat.dispatchers import CeleryCompletions, CeleryDispatcher
from celery_qbeat.dispatchers.celery import queue_search
from celery_qbeat.ports import OutgoingRun
from tests.contract.making_runs import INSTANCE, asked, fates, make_app, row, run_of, runs_of, yes
from tests.servers import Redis, wait_for


class Bench:
    """A beat's two ends of a broker, and somebody who takes messages out of it."""

    def __init__(self, url: str, folder: Path, **settings: Any) -> None:
        self.app: Celery = make_app(url, folder, **settings)
        self.dispatcher = CeleryDispatcher(self.app, namespace="test", instance=lambda: INSTANCE)
        self.completions = CeleryCompletions(self.app, namespace="test", instance=lambda: INSTANCE)

    def send(self, *shipments: OutgoingRun) -> None:
        assert set(fates(self.dispatcher.send(shipments, yes))) == {"sent"}

    def ask(self, *shipments: OutgoingRun) -> Answers:
        answers = asked(self.completions, {shipment.run.task_id: shipment.job for shipment in shipments})
        assert answers is not None
        return answers

    def close(self) -> None:
        self.completions.close()
        self.dispatcher.close()


@pytest.fixture
def redis_bench(redis_server: Redis, tmp_path: Path) -> Iterator[Bench]:
    with redis_server.client() as client:
        client.flushall()
    bench = Bench(redis_server.url, tmp_path, broker_transport_options={"queue_order_strategy": "priority"})
    yield bench
    bench.close()


@pytest.fixture
def rabbit_bench(rabbitmq_url: str, tmp_path: Path) -> Iterator[Bench]:
    bench = Bench(rabbitmq_url, tmp_path)
    yield bench
    bench.close()


def seen(answers: Answers, queue: str) -> QueueSeen:
    return answers.queues[queue]


def test_messages_in_lists_of_redis_are_found_whatever_their_priority(redis_bench: Bench) -> None:
    low, high = run_of(row("low", queue="q", priority=9)), run_of(row("high", queue="q", priority=0))
    other, nowhere = run_of(row("other")), run_of(row("nowhere", queue="q"))
    redis_bench.send(low, high, other)
    answers = redis_bench.ask(low, high, other, nowhere)
    assert seen(answers, "q").ready == {low.run.task_id, high.run.task_id}
    assert (seen(answers, "q").waiting, seen(answers, "q").searched) == (2, True)
    assert seen(answers, "celery").ready == {other.run.task_id}
    assert answers.queue_of[nowhere.run.task_id] == "q"
    assert answers.listeners == 0
    assert not answers.nobody_has(nowhere.run.task_id), "no worker reads the queue"


def test_a_message_of_redis_that_is_not_acknowledged_is_found(redis_bench: Bench) -> None:
    sent = run_of(row(queue="q"))
    redis_bench.send(sent)
    with redis_bench.app.connection_for_read() as connection:
        assert Queue("q")(connection.default_channel).get() is not None
        answers = redis_bench.ask(sent)
        assert (seen(answers, "q").ready, seen(answers, "q").delivered) == (frozenset(), {sent.run.task_id})


def test_a_long_queue_of_redis_is_searched_from_its_oldest_end_only(
    redis_bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(queue_search, "MOST_MESSAGES", 250)
    shipments = runs_of(row(queue="q"), 300)
    redis_bench.send(*shipments)
    answers = redis_bench.ask(*shipments)
    assert seen(answers, "q").ready == {shipment.run.task_id for shipment in shipments[:250]}
    assert not seen(answers, "q").searched
    assert not answers.nobody_has(shipments[-1].run.task_id)


def test_a_key_of_another_type_stops_no_beat(redis_bench: Bench, redis_server: Redis) -> None:
    with redis_server.client() as client:
        client.set("q", "text")
    there = run_of(row("other"))
    redis_bench.send(there)
    answers = redis_bench.ask(run_of(row(queue="q")), there)
    assert seen(answers, "q") == QueueSeen()
    assert seen(answers, "celery").ready == {there.run.task_id}


def test_rabbitmq_counts_messages_and_consumers(rabbit_bench: Bench) -> None:
    sent, missing = run_of(row("there", queue="q")), run_of(row("missing", queue="missing"))
    rabbit_bench.send(sent)
    answers = rabbit_bench.ask(sent, missing)
    assert seen(answers, "q") == QueueSeen(waiting=1, readers=0)
    assert seen(answers, "missing") == QueueSeen(waiting=0, readers=0, searched=True)
    with rabbit_bench.app.connection_for_read() as connection, consumer(connection, "q"):
        connection.drain_events(timeout=10)
        answers = rabbit_bench.ask(sent)
    assert seen(answers, "q") == QueueSeen(waiting=0, readers=1, searched=True)
    assert answers.silent("q") == 1
    assert not answers.nobody_has(sent.run.task_id), "its consumer did not answer"


def consumer(connection: Any, queue: str) -> Any:
    """Takes messages and acknowledges none."""
    return Consumer(connection.default_channel, [Queue(queue, no_declare=True)], callbacks=[lambda *_: None])


HOSTILE: list[Any] = [
    *(None, 7, "text", [], {}, {"w": None}, {"w": 7}, {"w": [None, 7, {"request": None}, {"request": {"id": 7}}]}),
    *({"w": {"x": None}}, {"w": [{"name": None}, {"name": ["q"]}]}, {"w": {"uptime": "long"}}, {"w": {"uptime": []}}),
]


@pytest.mark.parametrize("kind", ["redis", "rabbit"])
def test_hostile_answers_are_no_proof_and_stop_no_beat(kind: str, request: pytest.FixtureRequest) -> None:
    bench: Bench = request.getfixturevalue(f"{kind}_bench")
    shipment = run_of(row())
    assert bench.completions.ask_workers({shipment.run.task_id: shipment.job})
    inquiry = bench.completions._inquiry
    assert inquiry._round is not None
    oid = bench.app.control.mailbox.oid
    with bench.app.connection_for_write() as connection, connection.SimpleQueue("unused") as plain:
        for ticket in [*inquiry._round.tickets, "unknown"]:
            for body in [json.dumps(answer) for answer in HOSTILE] + ["{", ""]:
                plain.producer.publish(
                    body,
                    exchange="reply.celery.pidbox",
                    routing_key=oid,
                    content_type="application/json",
                    content_encoding="utf-8",
                    headers={"ticket": ticket},
                )
        plain.producer.publish({"w": {"ok": 1}}, exchange="reply.celery.pidbox", routing_key=oid, serializer="pickle")
    answers = bench.completions.worker_answers()
    while answers is None:
        answers = bench.completions.worker_answers()
    assert answers.holders == {}
    assert not answers.nobody_has(shipment.run.task_id)


@pytest.mark.parametrize("kind", ["redis", "rabbit"])
def test_a_gzip_bomb_among_the_goodbyes_is_not_unpacked(kind: str, request: pytest.FixtureRequest) -> None:
    bench: Bench = request.getfixturevalue(f"{kind}_bench")
    inquiry = bench.completions._inquiry
    inquiry.listen()
    events = get_exchange(inquiry._connection, name=bench.app.conf.event_exchange)
    with bench.app.connection_for_write() as connection:
        producer = Producer(connection, exchange=events, serializer="json")
        bomb = {"type": "worker-offline", "hostname": "x" * 20_000_000}
        producer.publish(bomb, routing_key="worker.offline", compression="gzip")
        producer.publish({"type": "worker-offline", "hostname": "w"}, routing_key="worker.offline")
    del bomb
    tracemalloc.start()

    def heard() -> bool:
        inquiry.listen()
        return "w" in inquiry._goodbyes

    wait_for(heard)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert list(inquiry._goodbyes) == ["w"]
    assert peak < 10_000_000
