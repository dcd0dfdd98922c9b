"""Tasks and apps with an `apply_async` or a `send_task` of their own, on every kind of broker."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from celery import Celery, Task
from celery.result import AsyncResult, EagerResult
from kombu import Queue, pools

from celery_qbeat.dispatchers import CeleryDispatcher
from tests.contract.making_runs import INSTANCE, entry, fates, make_app, row, run_of, runs_of, take_all, yes
from tests.servers import RabbitMQ


class Tenant(Task):  # type: ignore[misc]
    abstract = True

    def apply_async(self, args: Any = None, kwargs: Any = None, **options: Any) -> Any:
        options["headers"] = {**(options.get("headers") or {}), "tenant": "blue"}
        return super().apply_async(args, kwargs, **options)


class Moody(Task):  # type: ignore[misc]
    """Does what a test says."""

    abstract = True
    mood: Any = None

    def apply_async(self, args: Any = None, kwargs: Any = None, **options: Any) -> Any:
        return type(self).mood(super().apply_async, args, kwargs, options)


def anything(*args: Any, **kwargs: Any) -> None:
    """Takes all arguments."""


@pytest.fixture(scope="module")
def rabbit_url(rabbitmq_server: RabbitMQ) -> Iterator[str]:
    with rabbitmq_server.virtual_host() as url:
        yield url


@pytest.fixture(params=["redis", "amqp", "filesystem"])
def app(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Celery]:
    fixture = {"redis": "redis_url", "amqp": "rabbit_url"}.get(request.param)
    app = make_app(request.getfixturevalue(fixture) if fixture else "filesystem://", tmp_path)
    app.task(shared=False, name="tenant", base=Tenant)(anything)
    app.task(shared=False, name="moody", base=Moody)(anything)
    app.task(shared=False, name="plain")(anything)
    yield app
    take_all(app)
    # `Moody` may have used the pool of the app.
    pools.reset()


@pytest.fixture
def dispatcher(app: Celery) -> Iterator[CeleryDispatcher]:
    made = CeleryDispatcher(app, namespace="test", instance=lambda: INSTANCE)
    yield made
    made.close()


def test_a_task_with_its_own_apply_async_is_sent_through_it(app: Celery, dispatcher: CeleryDispatcher) -> None:
    shipment = run_of(row(fn="tenant", args="[1]", kwargs='{"x": 2}', priority=3, expires_s=60))
    receipts = dispatcher.send([run_of(row(fn="plain")), shipment, run_of(row(fn="plain"))], yes)
    assert fates(receipts) == ["sent"] * 3, receipts
    messages = {message.headers["id"]: message for message in take_all(app)}
    assert len(messages) == 3
    message = messages[shipment.run.task_id]
    assert message.headers["tenant"] == "blue"
    assert message.headers["qbeat_job"] == message.headers["periodic_task_name"] == "shop.hourly"
    args, kwargs, embed = message.payload
    assert (args, kwargs) == ([1], {"x": 2})
    assert embed["callbacks"][0]["kwargs"]["run"] == shipment.run.task_id
    assert embed["errbacks"][0]["kwargs"]["outcome"] == "failure"
    assert message.headers["expires"]
    assert message.properties["priority"] == 3


def test_an_entry_keeps_its_options_on_this_way(app: Celery, dispatcher: CeleryDispatcher) -> None:
    shipment = run_of(entry("tenant", queue="other", headers={"h": 1}, expires=10_000_000))
    assert fates(dispatcher.send([shipment], yes)) == ["sent"]
    (message,) = take_all(app, "other")
    assert (message.headers["h"], message.headers["tenant"], message.headers["id"]) == (1, "blue", shipment.run.task_id)
    assert "expiration" not in message.properties, "RabbitMQ would refuse this one"


def test_an_app_with_its_own_send_task_sends_every_task(tmp_path: Path) -> None:
    class Mine(Celery):  # type: ignore[misc]
        def send_task(self, name: str, *args: Any, **options: Any) -> Any:
            options["headers"] = {**(options.get("headers") or {}), "mine": name}
            return super().send_task(name, *args, **options)

    app = Mine("proj", broker="memory://", set_as_current=False)
    app.task(shared=False, name="plain")(anything)
    dispatcher = CeleryDispatcher(app, namespace="test", instance=lambda: INSTANCE)
    assert fates(dispatcher.send([run_of(row(fn="plain")), run_of(row(fn="in.the.workers"))], yes)) == ["sent"] * 2
    assert [message.headers["mine"] for message in take_all(app)] == ["plain", "in.the.workers"]
    dispatcher.close()


def test_a_task_without_an_override_keeps_the_fast_way(app: Celery, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("celery_qbeat.dispatchers.celery.messages.Override", None)
    dispatcher = CeleryDispatcher(app, namespace="test", instance=lambda: INSTANCE)
    app.finalize()
    assert set(fates(dispatcher.send([*runs_of(row(fn="plain"), 3), run_of(row(fn="celery.group"))], yes))) == {"sent"}
    dispatcher.close()


def outcomes() -> dict[str, tuple[Any, str, str]]:
    def other(send: Any, args: Any, kwargs: Any, options: Any) -> Any:
        return AsyncResult("another")

    def eager(send: Any, args: Any, kwargs: Any, options: Any) -> Any:
        return EagerResult(None, None, "REJECTED")

    def nothing(send: Any, args: Any, kwargs: Any, options: Any) -> Any:
        return None

    def same(send: Any, args: Any, kwargs: Any, options: Any) -> Any:
        return AsyncResult(options["task_id"])

    def raises(send: Any, args: Any, kwargs: Any, options: Any) -> Any:
        raise ConnectionError("the lock server is away")

    def later(send: Any, args: Any, kwargs: Any, options: Any) -> Any:
        send(args, kwargs, **options)
        raise ValueError("after the message")

    def elsewhere(send: Any, args: Any, kwargs: Any, options: Any) -> Any:
        return send(args, kwargs)

    return {
        "another task": (other, "declined", "sent nothing and returned task another"),
        "an eager result": (eager, "declined", "REJECTED"),
        "nothing": (nothing, "declined", "apply_async of 'moody' sent nothing"),
        "its own id": (same, "bad", "this run's own id"),
        "an error": (raises, "bad", "ConnectionError: the lock server is away"),
        "an error after the message": (later, "sent", ""),
        "another connection": (elsewhere, "sent", ""),
    }


@pytest.mark.parametrize("what", outcomes())
def test_the_receipt_tells_what_an_override_did(
    app: Celery, dispatcher: CeleryDispatcher, what: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    mood, fate, detail = outcomes()[what]
    monkeypatch.setattr(Moody, "mood", staticmethod(mood))
    first, second = dispatcher.send([run_of(row(fn="moody")), run_of(row(fn="plain"))], yes)
    assert (first.outcome.value, second.outcome.value) == (fate, "sent"), first
    assert detail in first.detail
    assert len(take_all(app)) == 1 + (fate == "sent")


def test_trust_that_ends_within_an_override_sends_nothing(
    app: Celery, dispatcher: CeleryDispatcher, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[BaseException] = []
    trust = [True]

    def slow(send: Any, args: Any, kwargs: Any, options: Any) -> Any:
        trust[0] = False
        try:
            return send(args, kwargs, **options)
        except Exception as error:
            seen.append(error)
            raise

    monkeypatch.setattr(Moody, "mood", staticmethod(slow))
    receipts = dispatcher.send([run_of(row(fn="moody")), run_of(row(fn="plain"))], lambda: trust[0])
    assert fates(receipts) == ["not sent", "not sent"]
    assert seen, "the override sees it, so that it can unlock"
    assert take_all(app) == []


def test_an_override_sees_that_the_broker_is_away(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[str] = []
    app = make_app("redis://127.0.0.1:1", tmp_path)
    app.task(shared=False, name="moody", base=Moody)(anything)
    monkeypatch.setattr(Moody, "mood", staticmethod(noting(seen)))
    dispatcher = CeleryDispatcher(app, namespace="test", instance=lambda: INSTANCE)
    assert fates(dispatcher.send([run_of(row(fn="moody"))], yes)) == ["not sent"]
    dispatcher.close()
    assert seen == [], "it is not called at all"


def noting(seen: list[str]) -> Any:
    def note(send: Any, args: Any, kwargs: Any, options: Any) -> Any:
        try:
            return send(args, kwargs, **options)
        except Exception as error:
            seen.append(type(error).__name__)
            raise

    return note


def test_an_override_sees_that_a_full_queue_rejects(
    rabbit_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    full = {"x-max-length": 0, "x-overflow": "reject-publish"}
    app = make_app(rabbit_url, tmp_path, task_queues=[Queue("full", queue_arguments=full), Queue("celery")])
    app.task(shared=False, name="moody", base=Moody)(anything)
    seen: list[str] = []
    monkeypatch.setattr(Moody, "mood", staticmethod(noting(seen)))
    dispatcher = CeleryDispatcher(app, namespace="test", instance=lambda: INSTANCE)
    receipts = dispatcher.send([run_of(row(fn="moody", queue="full")), run_of(row(fn="moody"))], yes)
    assert fates(receipts) == ["refused", "sent"], receipts
    assert seen == ["NotTaken"]
    dispatcher.close()
    take_all(app)


def test_an_override_sees_that_redis_refuses(own_redis: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    server = own_redis()
    app = make_app(server.url, tmp_path)
    app.task(shared=False, name="moody", base=Moody)(anything)
    seen: list[str] = []
    note = noting(seen)

    def fill(send: Any, args: Any, kwargs: Any, options: Any) -> Any:
        with server.client() as client:
            client.config_set("maxmemory", 1)
        return note(send, args, kwargs, options)

    monkeypatch.setattr(Moody, "mood", staticmethod(fill))
    dispatcher = CeleryDispatcher(app, namespace="test", instance=lambda: INSTANCE)
    (receipt,) = dispatcher.send([run_of(row(fn="moody"))], yes)
    assert receipt.outcome.value == "not sent", receipt
    assert len(seen) == 1
    dispatcher.close()
