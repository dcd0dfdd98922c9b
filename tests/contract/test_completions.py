"""The queue of ends, on every kind of broker: what counts, what is dropped, what survives."""

from __future__ import annotations

import json
import logging
import pickle
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from celery.backends.database.models import Task as TaskRow
from celery.exceptions import NotRegistered
from sqlalchemy import LargeBinary

from celery_qbeat.core.identity import run_token
from celery_qbeat.core.jobs import Verdict
from celery_qbeat.dispatchers import CeleryCompletions
from celery_qbeat.dispatchers.celery.completions import NO_REASON
from celery_qbeat.ports import RunOutcome, UnfinishedRun
from tests.contract.making_runs import BUDGET_S, INSTANCE, QUEUE, Desk, fresh_id, make_app
from tests.servers import RabbitMQ, Redis, wait_for

# Celery's own result backend for Redis.
pytestmark = pytest.mark.filterwarnings("ignore:Call to deprecated setex:DeprecationWarning")


@pytest.fixture(scope="module")
def rabbit_url(rabbitmq_server: RabbitMQ) -> Iterator[str]:
    with rabbitmq_server.virtual_host() as url:
        yield url


@pytest.fixture(params=["redis", "amqp", "filesystem", "memory"])
def desk(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Desk]:
    fixture = {"redis": "redis_url", "amqp": "rabbit_url"}.get(request.param)
    url = request.getfixturevalue(fixture) if fixture else f"{request.param}://"
    made = Desk(url, tmp_path)
    yield made
    made.take()
    made.completions.acknowledge()
    made.completions.close()


def test_before_anything_ended_there_is_nothing(desk: Desk) -> None:
    assert desk.take() == []
    desk.completions.acknowledge()


def test_ends_are_taken_once_acknowledged_they_are_gone(desk: Desk) -> None:
    assert desk.take() == []
    good, bad = fresh_id(), fresh_id()
    desk.report(good)
    desk.report(bad, "failure")
    assert sorted(desk.take()) == sorted([(good, Verdict.SUCCEEDED), (bad, Verdict.FAILED)])
    desk.completions.acknowledge()
    desk.completions.acknowledge()
    assert desk.take() == []
    desk.completions.close()
    second = desk.another()
    assert second.receive(BUDGET_S) == []
    second.close()


@pytest.mark.parametrize("desk", ["redis", "amqp"], indirect=True)
def test_what_was_taken_and_not_acknowledged_comes_again_after_a_clean_end(desk: Desk) -> None:
    run = fresh_id()
    desk.report(run)
    assert desk.take() == [(run, Verdict.SUCCEEDED)]
    desk.completions.close()
    second = desk.another()
    assert wait_for(lambda: [end.task_id for end in second.receive(BUDGET_S)]) == [run]
    second.acknowledge()
    second.close()


def test_messages_of_the_first_protocol_count_too(desk: Desk) -> None:
    run = fresh_id()
    kwargs = {"v": 1, "run": run, "outcome": "success", "token": run_token(INSTANCE, run)}
    desk.write({"task": "celery_qbeat.done", "id": fresh_id(), "args": [], "kwargs": kwargs})
    assert desk.take() == [(run, Verdict.SUCCEEDED)]


@pytest.mark.parametrize("compression", ["gzip", "bzip2", "lzma"])
def test_ends_that_an_app_compresses_are_read(desk: Desk, compression: str) -> None:
    run = fresh_id()
    kwargs = {"v": 1, "run": run, "outcome": "success", "token": run_token(INSTANCE, run)}
    desk.write([[], kwargs, {}], compression=compression)
    assert desk.take() == [(run, Verdict.SUCCEEDED)]


def test_the_budget_ends_a_take_and_the_rest_comes_with_the_next(desk: Desk) -> None:
    runs = [fresh_id() for _ in range(5)]
    for run in runs:
        desk.report(run)
    taken: list[str] = []
    for _ in range(5):
        (end,) = desk.completions.receive(0.0)
        taken.append(end.task_id)
        desk.completions.acknowledge()
    assert sorted(taken) == sorted(runs)
    assert desk.take() == []


def hostile() -> dict[str, tuple[Any, dict[str, Any]]]:
    run = fresh_id()
    token = run_token(INSTANCE, run)
    good = {"v": 1, "run": run, "outcome": "success", "token": token}

    def kwargs(**changes: Any) -> list[Any]:
        return [[], {**good, **changes}, {}]

    binary = {"content_encoding": "binary", "serializer": None}
    utf8 = {"content_encoding": "utf-8", "serializer": None}
    punycode = {"content_encoding": "punycode", "serializer": None}
    return {
        "a pickle": (pickle.dumps(kwargs()), {"content_type": "application/x-python-serialize", **binary}),
        "no JSON": (b"{{{", {"content_type": "application/json", "content_encoding": "utf-8", "serializer": None}),
        "no UTF-8": (
            b"\xff\xfe",
            {"content_type": "application/json", "content_encoding": "utf-8", "serializer": None},
        ),
        "another type": (b"hello", {"content_type": "text/evil", **binary}),
        "nested too deeply": (
            b"[" * 8_000,
            {"content_type": "application/json", "content_encoding": "utf-8", "serializer": None},
        ),
        "3 MB": (kwargs(x="x" * 3_000_000), {}),
        "broken compression": (
            b"no gzip",
            {"content_type": "application/json", **binary, "headers": {"compression": "application/x-gzip"}},
        ),
        "a gzip bomb": (
            zlib.compress(b" " * 10_000_000),
            {"content_type": "application/json", **utf8, "headers": {"compression": "application/x-gzip"}},
        ),
        "a codec that takes for ever": (b"x" * 10_000, {"content_type": "application/json", **punycode}),
        "a list of two": ([[], good], {}),
        "a number": (7, {}),
        "null": (None, {}),
        "kwargs a list": ([[], [1], {}], {}),
        "an extra key": (kwargs(evil=1), {}),
        "another version": (kwargs(v=2), {}),
        "an outcome that is none": (kwargs(outcome="sent"), {}),
        "a run that is no id": (kwargs(run="'; DROP TABLE qbeat_runs; --"), {}),
        "a run with a newline": (kwargs(run=run + "\n"), {}),
        "a run that is a number": (kwargs(run=7), {}),
        "no token": ([[], {"v": 1, "run": run, "outcome": "success"}, {}], {}),
        "a wrong token": (kwargs(token="0" * 24), {}),
        "a token of another run": (kwargs(token=run_token(INSTANCE, fresh_id())), {}),
        "a token of another instance": (kwargs(token=run_token(fresh_id(), run)), {}),
        "a token that is no text": (kwargs(token=None), {}),
    }


def test_hostile_messages_are_dropped_told_once_and_never_quoted(desk: Desk, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    messages = hostile()
    for body, options in messages.values():
        desk.write(body, **options)
    run = fresh_id()
    desk.report(run)
    assert desk.take() == [(run, Verdict.SUCCEEDED)]
    desk.completions.acknowledge()
    assert desk.take() == []
    (line,) = [record.getMessage() for record in caplog.records if record.name == "celery_qbeat"]
    assert f"dropped {len(messages)} messages in {QUEUE}" in line
    assert "DROP TABLE" not in caplog.text


def test_what_is_no_message_at_all_does_not_stop_the_reading(
    redis_url: str, redis_server: Redis, tmp_path: Path
) -> None:
    desk = Desk(redis_url, tmp_path)
    assert desk.take() == []
    run = fresh_id()
    with redis_server.client() as client:
        for garbage in (b"\xff", b"not json", b"[]", b"{}", json.dumps({"properties": 1}).encode()):
            client.lpush(QUEUE, garbage)
    desk.report(run)
    assert desk.take() == [(run, Verdict.SUCCEEDED)]
    desk.completions.acknowledge()
    desk.completions.close()


def test_after_redis_was_emptied_the_queue_is_bound_again(
    redis_url: str, redis_server: Redis, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("celery_qbeat.dispatchers.celery.completions.DECLARE_S", 0.0)
    desk = Desk(redis_url, tmp_path)
    assert desk.take() == []
    with redis_server.client() as client:
        client.flushall()
        assert desk.take() == []
        run = fresh_id()
        desk.app.signature(
            "celery_qbeat.done",
            kwargs={"v": 1, "run": run, "outcome": "success", "token": run_token(INSTANCE, run)},
            options={"exchange": "celery_qbeat", "routing_key": QUEUE, "declare": [], "serializer": "json"},
        ).apply_async()
    assert desk.take() == [(run, Verdict.SUCCEEDED)]
    desk.completions.acknowledge()
    desk.completions.close()


def test_what_a_killed_beat_took_comes_back_on_redis(
    redis_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    desk = Desk(redis_url, tmp_path)
    desk.app.conf.broker_transport_options = {"visibility_timeout": 0}
    run = fresh_id()
    desk.report(run)
    dead = desk.another()
    assert [end.task_id for end in dead.receive(BUDGET_S)] == [run]
    second = desk.another()
    assert wait_for(lambda: [end.task_id for end in second.receive(BUDGET_S)]) == [run]
    second.acknowledge()
    second.close()
    dead._unacked.clear()
    dead._connection.collect(0.1)


def test_without_a_result_backend_nothing_is_known(desk: Desk) -> None:
    assert desk.completions.query_results([UnfinishedRun(fresh_id(), "job", 1, 2)]) == []


@pytest.mark.parametrize("kind", ["redis", "sqlite", "file"])
def test_what_a_result_backend_knows_becomes_an_end(kind: str, request: pytest.FixtureRequest, tmp_path: Path) -> None:
    (tmp_path / "results").mkdir()
    url = {
        "redis": lambda: request.getfixturevalue("redis_url"),
        "sqlite": lambda: f"db+sqlite:///{tmp_path / 'results.sqlite3'}",
        "file": lambda: f"file://{tmp_path / 'results'}",
    }[kind]()
    if kind == "sqlite" and not isinstance(TaskRow.result.type, LargeBinary):
        pytest.skip("this Celery stores pickles in SQL, which are not read")
    app = make_app("memory://", tmp_path, result_backend=url)
    ids = [fresh_id() for _ in range(8)]
    backend = app.backend
    backend.mark_as_done(ids[0], {"a": 1})
    backend.mark_as_failure(ids[1], ValueError("käse\nsecond line"), traceback="Traceback\nValueError: käse")
    backend.mark_as_revoked(ids[2], "terminated")
    backend.mark_as_revoked(ids[3], "expired")
    backend.mark_as_failure(ids[4], NotRegistered("proj.tasks.nowhere"))
    backend.mark_as_started(ids[5])
    backend.mark_as_retry(ids[6], RuntimeError("later"))
    backend.mark_as_failure(ids[7], NotRegistered("celery_qbeat.done"))
    completions = CeleryCompletions(app, namespace="test", instance=lambda: INSTANCE)
    ends = completions.query_results([UnfinishedRun(task_id, "job", 1, 2) for task_id in ids])
    assert {end.task_id: end for end in ends} == {
        end.task_id: end
        for end in (
            RunOutcome(ids[0], Verdict.SUCCEEDED),
            RunOutcome(ids[1], Verdict.FAILED, "ValueError: käse"),
            RunOutcome(ids[2], Verdict.REVOKED, "terminated"),
            RunOutcome(ids[3], Verdict.EXPIRED, "expired"),
            RunOutcome(ids[4], Verdict.UNKNOWN_TASK, "NotRegistered: proj.tasks.nowhere"),
            RunOutcome(
                ids[7],
                Verdict.FAILED,
                "why is not known: the worker did not send our callback (task_always_eager?)",
            ),
        )
    }
    completions.close()


def test_a_reported_failure_stays_one_whatever_its_reason(redis_url: str, tmp_path: Path) -> None:
    desk = Desk(redis_url, tmp_path)
    desk.app.conf.result_backend = redis_url
    ids = [fresh_id() for _ in range(3)]
    desk.app.backend.mark_as_failure(ids[0], NotRegistered("shop.asked.for.by.the.task"))
    desk.app.backend.mark_as_done(ids[1], "a second delivery")
    for run in ids:
        desk.report(run, "failure")
    assert list(desk.completions.receive(BUDGET_S)) == [
        RunOutcome(ids[0], Verdict.FAILED, "NotRegistered: shop.asked.for.by.the.task"),
        RunOutcome(ids[1], Verdict.FAILED, NO_REASON),
        RunOutcome(ids[2], Verdict.FAILED, NO_REASON),
    ]
    desk.completions.close()


def test_results_in_pickle_are_not_read(redis_url: str, tmp_path: Path) -> None:
    app = make_app(
        "memory://",
        tmp_path,
        result_backend=redis_url,
        result_serializer="pickle",
        result_accept_content=["pickle", "json"],
    )
    run = fresh_id()
    app.backend.mark_as_done(run, 1)
    completions = CeleryCompletions(app, namespace="test", instance=lambda: INSTANCE)
    assert completions.query_results([UnfinishedRun(run, "job", 1, 2)]) == []
    completions.close()


@pytest.mark.chaos
def test_a_result_backend_that_hangs_is_left_alone_for_a_while(
    request: pytest.FixtureRequest, tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    server: Redis = request.getfixturevalue("own_redis")()
    app = make_app("memory://", tmp_path, result_backend=server.url)
    run = fresh_id()
    app.backend.mark_as_done(run, 1)
    completions = CeleryCompletions(app, namespace="test", instance=lambda: INSTANCE)
    flights = [UnfinishedRun(run, "job", 1, 2)]
    assert completions.query_results(flights) == [RunOutcome(run, Verdict.SUCCEEDED)]
    server.freeze()
    assert completions.query_results(flights) == []
    assert completions.query_results(flights) == []
    server.thaw()
    assert caplog.text.count("the result backend does not answer") == 1
    completions._results._ask_again = 0
    assert completions.query_results(flights) == [RunOutcome(run, Verdict.SUCCEEDED)]
    assert "is back" in caplog.text
    completions.close()
