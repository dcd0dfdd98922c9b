"""Strangers fill the queue of ends: with how little work it is read, and that an end behind their messages counts."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from kombu import Producer

from celery_qbeat.dispatchers import CeleryCompletions, check_broker
from celery_qbeat.dispatchers.broker import done_address
from celery_qbeat.dispatchers.broker_check import MANY_UNREAD
from celery_qbeat.dispatchers.inbox import MOST_ASKED, AmqpInbox
from celery_qbeat.engine import Limits
from celery_qbeat.jobs import Verdict
from celery_qbeat.testing import MemoryStore
from tests.contract.making_runs import BUDGET_S, INSTANCE, QUEUE, Desk, fresh_id
from tests.servers import RabbitMQ, Redis, wait_for
from tests.unit.engine.rig import Rig

FORGED = [[], {"v": 1, "run": fresh_id(), "outcome": "success", "token": "0" * 24}, {}]
LARGE = b"x" * 8_000_000


@pytest.fixture(scope="module")
def rabbit_url(rabbitmq_server: RabbitMQ) -> Iterator[str]:
    with rabbitmq_server.virtual_host() as url:
        yield url


@pytest.fixture(params=["redis", "amqp", "filesystem", "memory"])
def desk(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Desk]:
    fixture = {"redis": "redis_url", "amqp": "rabbit_url"}.get(request.param)
    made = Desk(request.getfixturevalue(fixture) if fixture else f"{request.param}://", tmp_path)
    made.take()
    yield made
    made.take()
    made.completions.ack()
    made.completions.close()


def flood(desk: Desk, body: Any = FORGED, count: int = 1_000, **options: Any) -> None:
    with desk.app.connection_for_write() as connection:
        address = done_address(connection, "test", INSTANCE)
        assert address is not None
        producer = Producer(connection)
        for _ in range(count):
            options = {"serializer": "json", **options}
            producer.publish(body, exchange=address.exchange, routing_key=address.key, **options)


def take_in_slices(desk: Desk) -> tuple[list[tuple[str, Verdict]], list[float]]:
    """Everything, one message or one round trip at a time; and how old unread ends could be after each slice."""
    found, ages = [], []
    while not ages or ages[-1] > 0:
        found += [(end.task_id, end.verdict) for end in desk.completions.take(0.0)]
        ages.append(desk.completions.unread_s())
        desk.completions.ack()
    return found, ages


def test_an_end_behind_forged_ones_is_unread_until_it_is_taken(desk: Desk) -> None:
    assert desk.completions.unread_s() == 0.0
    flood(desk, count=300)
    run = fresh_id()
    desk.report(run)
    flood(desk, count=100)
    found, ages = take_in_slices(desk)
    assert found == [(run, Verdict.SUCCEEDED)]
    assert len(ages) > 3
    assert desk.take() == []


@pytest.mark.parametrize("desk", ["redis", "amqp"], indirect=True)
def test_what_arrives_later_does_not_make_older_ends_unread(desk: Desk) -> None:
    flood(desk, count=100)
    desk.completions.take(0.0)
    ages = []
    for _ in range(100):
        flood(desk, count=2)
        for _ in range(3):
            desk.completions.take(0.0)
        ages.append(desk.completions.unread_s())
    assert ages[-1] < sum(1 for age in ages if age) * max(ages)
    flood(desk, count=1)
    assert desk.completions.take(BUDGET_S) == []
    assert desk.completions.unread_s() == 0.0


def test_while_the_queue_cannot_be_read_ends_may_be_unread(redis_url: str, tmp_path: Path) -> None:
    desk = Desk(redis_url, tmp_path)
    fresh = CeleryCompletions(desk.app, namespace="test", instance=lambda: INSTANCE)
    assert fresh.unread_s() > 0
    assert fresh.take(BUDGET_S) == []
    assert fresh.unread_s() == 0.0
    fresh.close()
    desk.completions.close()


def test_forged_ends_on_rabbitmq_cost_no_round_trip_each(
    rabbit_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    desk = Desk(rabbit_url, tmp_path)
    flood(desk, count=10 * MOST_ASKED)
    run = fresh_id()
    desk.report(run)
    trips: list[int] = []
    fetch = AmqpInbox._fetch

    def counted(inbox: AmqpInbox) -> None:
        trips.append(inbox._asked)
        fetch(inbox)

    monkeypatch.setattr(AmqpInbox, "_fetch", counted)
    acks: list[Any] = []
    channel = desk.completions._queue.channel
    send = channel.basic_ack
    monkeypatch.setattr(channel, "basic_ack", lambda *args, **options: acks.append(args) or send(*args, **options))
    assert desk.take() == [(run, Verdict.SUCCEEDED)]
    desk.completions.ack()
    assert len(trips) < 25
    assert len(acks) == 1
    assert desk.take() == []
    desk.completions.close()


def test_what_was_asked_for_and_not_read_goes_back_to_rabbitmq(rabbit_url: str, tmp_path: Path) -> None:
    desk = Desk(rabbit_url, tmp_path)
    runs = [fresh_id() for _ in range(40)]
    for run in runs:
        desk.report(run)
    desk.completions.take(0.0)
    desk.completions.close()
    second = desk.another()
    found: list[str] = []

    def all_came() -> bool:
        found.extend(end.task_id for end in second.take(BUDGET_S))
        return len(found) == len(runs)

    wait_for(all_came)
    assert found == runs
    second.ack()
    second.close()


@pytest.mark.parametrize("desk", ["redis", "amqp"], indirect=True)
def test_large_messages_are_dropped_and_counted(desk: Desk, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    flood(desk, LARGE, 5, serializer=None, content_type="application/json", content_encoding="utf-8")
    flood(desk, count=3)
    run = fresh_id()
    desk.report(run)
    assert desk.take() == [(run, Verdict.SUCCEEDED)]
    desk.completions.ack()
    (line,) = [record.getMessage() for record in caplog.records if record.name == "celery_qbeat"]
    assert line.startswith(f"completions: dropped 8 messages in {QUEUE} that did not come from a run of ours")
    assert line.endswith("(5 too large, 3 with a wrong token)")
    flood(desk)
    assert desk.take() == []
    assert len([record for record in caplog.records if record.name == "celery_qbeat"]) == 1, "once a minute"


def test_large_messages_never_leave_redis(redis_url: str, redis_server: Redis, tmp_path: Path) -> None:
    desk = Desk(redis_url, tmp_path)
    run = fresh_id()
    with redis_server.client() as client:
        for _ in range(5):
            client.lpush(QUEUE, LARGE)
        desk.report(run)
        before = int(client.info("stats")["total_net_output_bytes"])
        assert desk.take() == [(run, Verdict.SUCCEEDED)]
        sent = int(client.info("stats")["total_net_output_bytes"]) - before
        desk.completions.ack()
        assert client.llen(QUEUE) == 0
    assert sent < len(LARGE)
    desk.completions.close()


def test_a_redis_user_without_scripts_reads_ends_too(
    redis_url: str, redis_server: Redis, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with redis_server.client() as client:
        rights = {"keys": ["*"], "channels": ["*"], "categories": ["+@all", "-@scripting"]}
        client.acl_setuser("reader", enabled=True, passwords=["+secret"], **rights)
        desk = Desk(redis_url.replace("redis://", "redis://reader:secret@"), tmp_path)
        run = fresh_id()
        flood(desk, LARGE, 1, serializer=None, content_type="application/json", content_encoding="utf-8")
        desk.report(run)
        assert desk.take() == [(run, Verdict.SUCCEEDED)]
        desk.completions.ack()
        assert client.llen(QUEUE) == 0
        client.acl_deluser("reader")
    assert caplog.text.count("runs no scripts for this user (ACL: +eval)") == 1
    desk.completions.close()


@pytest.mark.parametrize("desk", ["redis", "amqp"], indirect=True)
def test_status_says_how_many_messages_wait(desk: Desk) -> None:
    assert check_broker(desk.app, namespace="test", instance=INSTANCE).unread == 0
    flood(desk, count=MANY_UNREAD)
    check = check_broker(desk.app, namespace="test", instance=INSTANCE)
    assert (check.unread, check.trouble) == (MANY_UNREAD, "")
    assert "; the queue of ends holds 1,000 messages: no beat reads it" in check.sentence
    assert check_broker(desk.app, namespace="nobody", instance=fresh_id()).unread in (0, None)
    assert check_broker(desk.app).unread is None


def test_where_nobody_counts_messages_status_says_nothing(tmp_path: Path) -> None:
    desk = Desk("memory://", tmp_path)
    assert check_broker(desk.app, namespace="test", instance=INSTANCE).unread is None
    desk.completions.close()


def test_an_end_behind_60_000_forged_ones_keeps_its_run_from_being_lost(
    redis_url: str, redis_server: Redis, tmp_path: Path
) -> None:
    desk = Desk(redis_url, tmp_path)
    rig = Rig(store=MemoryStore(instance=INSTANCE), completions=desk.completions, limits=Limits(drain_s=0.02))
    rig.insert("j", "interval", "60", overlap="skip", max_run_seconds=300)
    rig.tick()
    flood(desk, count=1)
    with redis_server.client() as client:
        forged = client.lindex(QUEUE, 0)
        for _ in range(60):
            client.lpush(QUEUE, *[forged] * 1_000)
        desk.report(rig.sent_id())
        rig.clock.advance(1_000)
        seen = {rig.verdicts()[0]}
        while "succeeded" not in seen and client.llen(QUEUE):
            rig.tick()
            # Slower than the real clock, by which the completions count: a tick takes at least `drain_s`.
            rig.clock.advance(0.01)
            seen.add(rig.verdicts()[0])
    assert seen == {"sent", "succeeded"}
    desk.completions.close()
