"""Brokers that answer and refuse: what a refusal concerns, and that it leaves no doubt."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import redis as redis_py
from kombu import Queue

from celery_qbeat.dispatchers.celery.publishers.redis_pipeline import MARKER
from tests.contract.making_brokers import Bench, Scissors
from tests.contract.making_runs import entry, fates, row, run_of, runs_of, scoped, take_all
from tests.servers import RabbitMQ, Redis, wait_for


@pytest.fixture(scope="module")
def refusing_redis() -> Iterator[Redis]:
    with Redis("--appendfsync", "always", persist=True).start() as server:
        yield server


@pytest.fixture
def redis(refusing_redis: Redis, tmp_path: Path) -> Iterator[Bench]:
    made = Bench(refusing_redis, tmp_path)
    yield made
    made.dispatcher.close()
    with refusing_redis.client() as client:
        client.flushall()


@pytest.fixture
def client(refusing_redis: Redis) -> Iterator[redis_py.Redis]:
    with refusing_redis.client() as made:
        yield made


@pytest.fixture
def rabbit(rabbitmq_server: RabbitMQ, rabbitmq_url: str, tmp_path: Path) -> Iterator[Bench]:
    made = Bench(rabbitmq_server, tmp_path, rabbitmq_url)
    yield made
    made.dispatcher.close()


# ---------------------------------------------------------------- Redis

Switch = Callable[[redis_py.Redis], object]


def _quota(client: redis_py.Redis) -> None:
    client.config_set("min-replicas-to-write", 1)


REFUSALS: dict[str, tuple[Switch, Switch, str]] = {
    "full": (lambda c: c.config_set("maxmemory", 1), lambda c: c.config_set("maxmemory", 0), "maxmemory"),
    "a replica": (lambda c: c.replicaof("127.0.0.1", 1), lambda c: c.replicaof("NO", "ONE"), "read only"),
    "without replicas": (_quota, lambda c: c.config_set("min-replicas-to-write", 0), "NOREPLICAS"),
}


@pytest.mark.parametrize("kind", REFUSALS)
@pytest.mark.parametrize("asked", [True, False])
def test_a_redis_that_takes_no_writes_is_not_ready(
    redis: Bench, client: redis_py.Redis, kind: str, asked: bool
) -> None:
    begin, end, word = REFUSALS[kind]
    assert fates(redis.send(runs_of(row(), 2))) == ["sent"] * 2
    begin(client)
    try:
        if asked:
            assert word in redis.dispatcher.unavailable_reason()
        receipts = redis.send(runs_of(row(), 30))
    finally:
        end(client)
    assert fates(receipts) == ["not sent"] * 30
    assert word in receipts[0].detail
    wait_for(lambda: redis.dispatcher.unavailable_reason() == "", 10)
    assert fates(redis.send(runs_of(row(), 2))) == ["sent"] * 2
    assert len(redis.arrived()) == 4


def test_a_redis_that_refuses_between_question_and_messages_leaves_no_doubt(
    redis: Bench, client: redis_py.Redis
) -> None:
    assert fates(redis.send(runs_of(row(), 2))) == ["sent"] * 2
    assert redis.dispatcher.unavailable_reason() == ""
    client.config_set("maxmemory", 1)
    receipts = redis.send(runs_of(row(), 50))
    client.config_set("maxmemory", 0)
    assert fates(receipts) == ["not sent"] * 50
    assert {receipt.detail for receipt in receipts} == {receipts[0].detail}
    assert len(redis.arrived()) == 2


@pytest.fixture
def acl(client: redis_py.Redis) -> Iterator[Callable[..., object]]:
    """Change what the user `beat` may do."""
    yield lambda *rules: client.execute_command("ACL", "SETUSER", "beat", *rules)
    client.acl_deluser("beat")


def test_a_password_that_changed_is_a_redis_that_is_away(
    redis: Bench, client: redis_py.Redis, acl: Callable[..., object], tmp_path: Path
) -> None:
    acl("on", ">old", "~*", "&*", "+@all")
    bench = Bench(redis.server, tmp_path, redis.server.url.replace("redis://", "redis://beat:old@"))
    assert fates(bench.send(runs_of(row(), 1))) == ["sent"]
    acl("<old", ">new")
    client.execute_command("CLIENT", "KILL", "USER", "beat")
    wait_for(lambda: "invalid username-password pair" in bench.dispatcher.unavailable_reason(), 10)
    assert set(fates(bench.send(runs_of(row(), 30)))) == {"not sent"}
    acl(">old")
    wait_for(lambda: bench.dispatcher.unavailable_reason() == "", 10)
    assert fates(bench.send(runs_of(row(), 1))) == ["sent"]
    bench.dispatcher.close()


def test_a_queue_that_the_user_may_not_write_to_concerns_itself_alone(
    redis: Bench, acl: Callable[..., object], tmp_path: Path
) -> None:
    acl("on", ">p", "~celery*", "~_kombu.*", "&*", "+@all")
    bench = Bench(redis.server, tmp_path, redis.server.url.replace("redis://", "redis://beat:p@"))
    assert bench.dispatcher.unavailable_reason() == "", "it may not write our own key either"
    receipts = bench.send([run_of(row()), run_of(row(queue="private")), *runs_of(row(), 30)])
    bench.dispatcher.close()
    assert fates(receipts) == ["sent", "refused"] + ["sent"] * 30
    assert receipts[1].queue == "private"
    assert "no permissions" in receipts[1].detail.lower()


def test_a_queue_key_of_another_type_fails_its_own_runs_alone(redis: Bench, client: redis_py.Redis) -> None:
    client.set("broken", "not a list")
    receipts = redis.send([run_of(row()), run_of(row(queue="broken")), *runs_of(row(), 30)])
    assert fates(receipts) == ["sent", "bad"] + ["sent"] * 30
    assert "key 'broken' is no list" in receipts[1].detail


@pytest.mark.parametrize("answered", [0, 5, 19])
def test_what_redis_answered_before_the_connection_broke_is_no_doubt(
    redis: Bench, tmp_path: Path, answered: int
) -> None:
    proxy = Scissors(redis.server.port, answered)
    bench = Bench(redis.server, tmp_path, proxy.url)
    receipts = bench.send(runs_of(row(), 45))
    proxy.close()
    bench.dispatcher.close()
    assert fates(receipts) == ["sent"] * answered + ["doubt"] * (20 - answered) + ["not sent"] * 25
    assert len(redis.arrived()) == 20


def test_a_connection_that_alone_is_silent_is_given_up(
    redis: Bench, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("celery_qbeat.dispatchers.celery.publishers.publisher.HALF_OPEN_S", 0.5)
    proxy = Scissors(redis.server.port, 5, half_open=True)
    bench = Bench(redis.server, tmp_path, proxy.url)
    receipts = bench.send(runs_of(row(), 45))
    assert fates(receipts) == ["sent"] * 5 + ["unconfirmed"] * 15 + ["not sent"] * 25
    wait_for(lambda: bench.dispatcher.unavailable_reason() == "", 20)
    late = bench.dispatcher.late_results()
    assert [receipt.task_id for receipt in late] == [receipt.task_id for receipt in receipts[5:20]]
    assert set(fates(late)) == {"doubt"}
    bench.dispatcher.close()
    proxy.close()


def test_a_redis_that_was_emptied_is_another_incarnation(redis: Bench, client: redis_py.Redis) -> None:
    known = redis.dispatcher.memory_id()
    assert known
    assert fates(redis.send(runs_of(row(), 2))) == ["sent"] * 2
    assert redis.dispatcher.memory_id() == known
    assert client.ttl(MARKER) > 0
    client.flushall()
    changed = redis.dispatcher.memory_id()
    assert changed not in ("", known)
    assert redis.dispatcher.memory_id() == changed


def test_a_marker_that_somebody_spoiled_stops_nothing(redis: Bench, client: redis_py.Redis) -> None:
    client.lpush(MARKER, "junk")
    assert redis.dispatcher.unavailable_reason() == ""
    assert redis.dispatcher.memory_id() != ""
    assert fates(redis.send(runs_of(row(), 2))) == ["sent"] * 2


# ---------------------------------------------------------------- RabbitMQ


def test_a_message_that_its_full_queue_rejects_was_surely_not_sent(rabbit: Bench) -> None:
    full = Queue("full", queue_arguments={"x-max-length": 1, "x-overflow": "reject-publish"})
    rabbit.app.conf.task_queues = [full, Queue("celery")]
    receipts = rabbit.send([*runs_of(row(queue="full"), 3), run_of(row())])
    assert fates(receipts) == ["sent", "refused", "refused", "sent"]
    assert receipts[1].queue == "full"
    assert "nack" in receipts[1].detail
    assert rabbit.dispatcher.unavailable_reason() == ""


def test_a_deleted_queue_is_another_incarnation(rabbit: Bench) -> None:
    assert fates(rabbit.send(runs_of(row(queue="gone"), 1))) == ["sent"]
    known = rabbit.dispatcher.memory_id()
    assert rabbit.dispatcher.memory_id() == known != ""
    with rabbit.app.connection_for_write() as connection:
        connection.default_channel.queue_delete("gone")
    assert fates(rabbit.send([run_of(row(queue="gone"))])) == ["not sent"]
    assert rabbit.dispatcher.memory_id() not in ("", known)


# ---------------------------------------------------------------- any broker


@pytest.mark.parametrize("kind", ["redis", "rabbit"])
@pytest.mark.parametrize("queue", ["unacked_index", "_kombu.binding.celery", "qbeat.done.default", "a\x06\x163"])
def test_a_reserved_name_is_no_queue(kind: str, queue: str, request: pytest.FixtureRequest) -> None:
    bench: Bench = request.getfixturevalue(kind)
    shipments = [run_of(entry(queue=queue)), run_of(row(scope=scoped(queue=queue))), run_of(row())]
    receipts = bench.send(shipments)
    assert fates(receipts) == ["bad", "bad", "sent"]
    assert "is reserved" in receipts[0].detail
    assert len(take_all(bench.app)) == 1
