"""An upgrade: ends that arrive in the queue of older versions, which all databases of a namespace shared."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from kombu import Producer

from celery_qbeat.core.identity import database_id, run_token
from celery_qbeat.core.jobs import Verdict
from celery_qbeat.dispatchers import CeleryCompletions
from celery_qbeat.dispatchers.celery import legacy_completion_queue
from celery_qbeat.dispatchers.celery.broker import (
    DONE_TASK,
    MOST_NAME,
    Address,
    declare_again,
    done_address,
    done_queue,
    old_done_address,
)
from tests.contract.making_runs import BUDGET_S, INSTANCE, Desk, fresh_id, make_app, take_all
from tests.servers import RabbitMQ, Redis

OLD = "qbeat.done.test"
OTHER = "0b9a8c7d-1111-4222-8333-444455556666"


@pytest.fixture(scope="module")
def rabbit_url(rabbitmq_server: RabbitMQ) -> Iterator[str]:
    with rabbitmq_server.virtual_host() as url:
        yield url


@pytest.fixture(params=["redis", "amqp", "filesystem", "memory"])
def desk(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Desk]:
    monkeypatch.setattr(legacy_completion_queue, "LOOK_S", 0.0)
    monkeypatch.setattr(legacy_completion_queue, "LOOK_AT_OTHERS_S", 0.0)
    fixture = {"redis": "redis_url", "amqp": "rabbit_url"}.get(request.param)
    url = request.getfixturevalue(fixture) if fixture else f"{request.param}://"
    made = Desk(url, tmp_path)
    report_to_old(made)
    take_all(made.app, OLD)
    made.completions.close()
    yield made
    take_all(made.app, OLD)
    made.completions.close()


def report_to_old(desk: Desk, instance: str = INSTANCE, body: Any = None) -> str:
    """What a worker does for a run that an older version sent, whose beat declared the queue."""
    run = fresh_id()
    kwargs = {"v": 1, "run": run, "outcome": "success", "token": run_token(instance, run)}
    with desk.app.connection_for_write() as connection:
        address = old_done_address(connection, "test")
        assert address is not None
        declare_again(done_queue(address)(connection.default_channel))
        Producer(connection).publish(
            [[], kwargs, {}] if body is None else body,
            exchange=address.exchange,
            routing_key=address.key,
            serializer="json",
            headers={"origin": "gen7@worker-of-theirs"},
        )
    return run


def left_in_old(desk: Desk) -> list[Any]:
    return [message.payload for message in take_all(desk.app, OLD)]


def test_ends_of_runs_that_an_older_version_sent_are_taken(desk: Desk) -> None:
    old, new = report_to_old(desk), fresh_id()
    desk.report(new)
    assert sorted(desk.take()) == sorted([(old, Verdict.SUCCEEDED), (new, Verdict.SUCCEEDED)])
    desk.completions.acknowledge()
    assert desk.take() == []
    assert left_in_old(desk) == []


def test_what_was_not_acknowledged_comes_again(desk: Desk) -> None:
    run = report_to_old(desk)
    assert desk.take() == [(run, Verdict.SUCCEEDED)]
    assert desk.take() == [(run, Verdict.SUCCEEDED)]
    desk.completions.acknowledge()
    assert desk.take() == []


def test_messages_of_others_stay_in_the_old_queue(desk: Desk, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    theirs = {report_to_old(desk, OTHER) for _ in range(3)}
    report_to_old(desk, body={"what": "is this"})
    ours = report_to_old(desk)
    for _ in range(2):
        assert desk.take() == [(ours, Verdict.SUCCEEDED)]
    desk.completions.acknowledge()
    assert desk.take() == []
    desk.completions.acknowledge()
    left = left_in_old(desk)
    assert {payload[1]["run"] for payload in left if isinstance(payload, list)} == theirs
    assert len(left) == 4
    (line,) = [record.getMessage() for record in caplog.records if record.name == "celery_qbeat"]
    assert line == (
        "completions: qbeat.done.test, the queue of older versions, has ends of other databases' runs (the first is "
        "from worker 'gen7@worker-of-theirs'); they are left there"
    )


def test_after_messages_of_others_the_next_look_is_later(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(legacy_completion_queue, "LOOK_AT_OTHERS_S", 600.0)
    report_to_old(desk, OTHER)
    assert desk.take() == []
    report_to_old(desk)
    assert desk.take() == []


def test_a_queue_that_stayed_quiet_is_not_read_any_more(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(legacy_completion_queue, "QUIET_S", -1.0)
    desk.completions = desk.another()
    report_to_old(desk)
    assert desk.take() == []


def test_without_an_old_queue_none_is_made(rabbit_url: str, tmp_path: Path) -> None:
    desk = Desk(rabbit_url, tmp_path)
    desk.completions.close()
    desk.completions = CeleryCompletions(desk.app, namespace="nobody", instance=lambda: INSTANCE)
    for _ in range(2):
        assert desk.completions.receive(BUDGET_S) == []
    with desk.app.connection_for_read() as connection, pytest.raises(connection.channel_errors):
        done_queue(Address("amq.direct", "qbeat.done.nobody"))(connection.default_channel).queue_declare(passive=True)
    desk.completions.close()


def test_an_old_queue_that_cannot_be_read_stops_nothing(
    redis_url: str,
    redis_server: Redis,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(legacy_completion_queue, "LOOK_S", 0.0)
    with redis_server.client() as client:
        client.set(OLD, "no list")
    desk = Desk(redis_url, tmp_path)
    for _ in range(3):
        run = fresh_id()
        desk.report(run)
        assert desk.take() == [(run, Verdict.SUCCEEDED)]
        desk.completions.acknowledge()
    desk.completions.close()
    assert [line.partition(":")[2][:34] for line in caplog.messages] == [" the queue of older versions is no"]


def test_two_databases_of_one_namespace_read_their_own_ends(desk: Desk) -> None:
    theirs = CeleryCompletions(desk.app, namespace="test", instance=lambda: OTHER)
    assert theirs.receive(BUDGET_S) == []
    run = fresh_id()
    desk.report(run)
    assert theirs.receive(BUDGET_S) == []
    assert desk.take() == [(run, Verdict.SUCCEEDED)]
    desk.completions.acknowledge()
    theirs.close()


def test_a_reader_whose_tables_got_another_identity_reads_that_ones_queue(redis_url: str, tmp_path: Path) -> None:
    identity = [OTHER]
    desk = Desk(redis_url, tmp_path)
    completions = CeleryCompletions(desk.app, namespace="test", instance=lambda: identity[0])
    assert completions.receive(BUDGET_S) == []
    identity[0] = INSTANCE
    run = fresh_id()
    desk.report(run)
    assert [end.task_id for end in completions.receive(BUDGET_S)] == [run]
    completions.acknowledge()
    completions.close()
    desk.completions.close()


@pytest.mark.parametrize("namespace", ["default", "x" * 64])
def test_the_name_of_the_queue_is_short_and_says_nothing_of_the_instance(namespace: str, tmp_path: Path) -> None:
    app = make_app("redis://", tmp_path)
    address = done_address(app.connection_for_write(), namespace, INSTANCE)
    assert address is not None
    assert address.key.startswith("qbeat.done." + namespace[:52])
    assert address.key.endswith("." + database_id(INSTANCE))
    assert len(address.key) <= MOST_NAME
    assert INSTANCE[:8] not in address.key


def test_the_name_of_callbacks_is_that_of_the_worker_module() -> None:
    from celery_qbeat import worker

    assert worker.DONE_TASK == DONE_TASK
