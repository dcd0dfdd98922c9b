"""What every dispatcher promises, on every kind of broker, and what a message of a run looks like."""

from __future__ import annotations

import json
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from celery import Celery, signals
from celery.beat import BeatLazyFunc
from kombu import Exchange, Queue

from celery_qbeat.core.identity import run_token
from celery_qbeat.dispatchers import CeleryDispatcher
from tests.contract.making_runs import (
    INSTANCE,
    QUEUE,
    TASK,
    entry,
    fates,
    make_app,
    row,
    run_of,
    runs_of,
    scoped,
    take_all,
    yes,
)
from tests.servers import RabbitMQ

DAY = 86_400


class Bench:
    """An app, its dispatcher, and its queues."""

    def __init__(self, broker: str, folder: Path) -> None:
        self.broker = broker
        self.folder = folder
        self.queues: set[str] = set()
        self.app = make_app(broker, folder)
        self.use(self.app)

    def use(self, app: Celery, **options: Any) -> CeleryDispatcher:
        self.app = app
        self.dispatcher = CeleryDispatcher(app, namespace="test", instance=lambda: INSTANCE, **options)
        return self.dispatcher

    def configure(self, **settings: Any) -> None:
        self.dispatcher.close()
        self.use(make_app(self.broker, self.folder, **settings))

    def send(self, *shipments: Any) -> list[str]:
        return fates(self.dispatcher.send(shipments, yes))

    def one(self, shipment: Any, queue: str = "celery", **declared: Any) -> Any:
        """Send it and return the message that arrived."""
        (receipt,) = self.dispatcher.send([shipment], yes)
        assert receipt.outcome.value == "sent", receipt.detail
        self.queues.add(queue)
        (message,) = take_all(self.app, queue, **declared)
        return message


@pytest.fixture(scope="module")
def rabbit_url(rabbitmq_server: RabbitMQ) -> Iterator[str]:
    with rabbitmq_server.virtual_host() as url:
        yield url


@pytest.fixture(params=["redis", "amqp", "filesystem", "memory"])
def bench(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Bench]:
    fixture = {"redis": "redis_url", "amqp": "rabbit_url"}.get(request.param)
    url = request.getfixturevalue(fixture) if fixture else f"{request.param}://"
    made = Bench(url, tmp_path)
    yield made
    made.dispatcher.close()
    if request.param in ("amqp", "memory"):
        with made.app.connection_for_write() as connection:
            for queue in made.queues | {"celery"}:
                connection.default_channel.queue_delete(queue)


# ---------------------------------------------------------------- the port


def test_each_shipment_has_its_receipt_in_order_and_its_message(bench: Bench) -> None:
    shipments = runs_of(row(args='[1, "two"]', kwargs='{"käse": null}'), 130)
    receipts = bench.dispatcher.send(shipments, yes)
    assert [receipt.task_id for receipt in receipts] == [shipment.run.task_id for shipment in shipments]
    assert set(fates(receipts)) == {"sent"}
    messages = take_all(bench.app)
    assert {message.headers["id"] for message in messages} == {shipment.run.task_id for shipment in shipments}
    assert len(messages) == 130
    assert all(message.payload[:2] == [[1, "two"], {"käse": None}] for message in messages)


def test_nothing_to_send_connects_to_nothing(tmp_path: Path) -> None:
    dispatcher = CeleryDispatcher(
        make_app("redis://127.0.0.1:1", tmp_path), namespace="test", instance=lambda: INSTANCE
    )
    assert dispatcher.send([], yes) == []
    dispatcher.close()


@pytest.mark.parametrize("after", [0, 1, 3, 30])
def test_when_trust_ends_the_rest_is_not_sent(bench: Bench, after: int) -> None:
    left = iter([True] * after + [False] * 1000)
    receipts = bench.dispatcher.send(runs_of(row(), 60), lambda: next(left))
    sent = {receipt.task_id for receipt in receipts if receipt.outcome.value == "sent"}
    assert len(sent) <= after
    assert {message.headers["id"] for message in take_all(bench.app)} == sent
    rest = [receipt for receipt in receipts if receipt.task_id not in sent]
    assert {(receipt.outcome.value, receipt.detail) for receipt in rest} == {("not sent", "")}


def test_a_bad_payload_hurts_one_run(bench: Bench) -> None:
    bad = entry(args=[object()])
    shipments = [run_of(row()), run_of(bad), *runs_of(row(), 3)]
    receipts = bench.dispatcher.send(shipments, yes)
    assert fates(receipts) == ["sent", "bad", "sent", "sent", "sent"]
    assert "object" in receipts[1].detail
    assert len(take_all(bench.app)) == 4


@pytest.mark.parametrize("what", ["a queue that may not be created", "a serializer that nobody has", "args not a list"])
def test_what_celery_refuses_is_bad_and_says_why(bench: Bench, what: str) -> None:
    bad, reason = {
        "a queue that may not be created": (row(queue="nowhere"), "nowhere"),
        "a serializer that nobody has": (entry(serializer="smoke"), "smoke"),
        "args not a list": (row(args='{"a": 1}'), "list"),
    }[what]
    bench.configure(task_create_missing_queues=False, task_queues=[Queue("celery")])
    receipts = bench.dispatcher.send([run_of(bad), run_of(row())], yes)
    assert fates(receipts) == ["bad", "sent"]
    assert reason in receipts[0].detail
    assert len(take_all(bench.app)) == 1


def test_close_may_be_called_twice_and_sending_goes_on_after_it(bench: Bench) -> None:
    assert bench.send(run_of(row())) == ["sent"]
    bench.dispatcher.close()
    bench.dispatcher.close()
    assert bench.send(run_of(row())) == ["sent"]
    assert len(take_all(bench.app)) == 2


def test_the_description_has_no_password(tmp_path: Path) -> None:
    def describe(url: str) -> str:
        return CeleryDispatcher(make_app(url, tmp_path), namespace="test", instance=lambda: INSTANCE).describe()

    assert describe("redis://:s3cret@host:1/2") == "redis://***@host:1/2"
    assert describe("filesystem://") == "filesystem://"
    failover = describe("amqp://u:s3cret@host:1//;amqp://u:s3cret@other:1//")
    assert "s3cret" not in failover
    assert "host:1" in failover


def test_brokers_that_cannot_carry_ends_are_known(tmp_path: Path) -> None:
    def ends(url: str) -> bool:
        return CeleryDispatcher(make_app(url, tmp_path), namespace="test", instance=lambda: INSTANCE).ends

    for url in ("redis://h", "sentinel://h", "amqp://h", "filesystem://", "memory://"):
        assert ends(url)
    assert not ends("zookeeper://h") if _has_zookeeper() else True


def _has_zookeeper() -> bool:
    try:
        import kazoo  # noqa: F401
    except ImportError:
        return False
    return True


# ---------------------------------------------------------------- the message


def test_the_nominal_slot_and_the_job_travel_as_headers(bench: Bench) -> None:
    slot = 1_793_000_000_123_456
    message = bench.one(run_of(row("käse.täglich"), slot))
    assert message.headers["qbeat_job"] == "käse.täglich"
    assert message.headers["qbeat_slot_us"] == slot
    assert datetime.fromisoformat(message.headers["qbeat_slot"]) == datetime.fromtimestamp(slot / 1e6, UTC)
    assert message.headers["task"] == TASK


def test_the_ends_are_linked_as_immutable_signatures_of_a_task_that_nobody_has(bench: Bench) -> None:
    shipment = run_of(row())
    embedded = bench.one(shipment).payload[2]
    for kind, outcome in (("callbacks", "success"), ("errbacks", "failure")):
        (signature,) = embedded[kind]
        assert signature["task"] == "celery_qbeat.done"
        assert signature["immutable"] is True
        assert not signature["args"]
        assert signature["kwargs"] == {
            "v": 1,
            "run": shipment.run.task_id,
            "outcome": outcome,
            "token": run_token(INSTANCE, shipment.run.task_id),
        }
        assert signature["options"] == {
            "exchange": "amq.direct" if bench.broker.startswith("amqp") else "celery_qbeat",
            "routing_key": QUEUE,
            "declare": [],
            "serializer": "json",
            "ignore_result": True,
        }


def test_without_links_there_are_no_callbacks(bench: Bench) -> None:
    bench.use(bench.app, link_ends=False)
    embedded = bench.one(run_of(row())).payload[2]
    assert embedded["callbacks"] is None
    assert embedded["errbacks"] is None


def test_the_queue_is_the_rows_else_its_scopes_else_that_of_the_routes(bench: Bench) -> None:
    bench.configure(task_routes={TASK: {"queue": "routed"}})
    cases = [
        (row(queue="vip", scope=scoped(queue="scope")), "vip"),
        (row(scope=scoped(queue="scope")), "scope"),
        (row(), "routed"),
        (row(fn="other.task"), "celery"),
    ]
    for job, queue in cases:
        assert bench.one(run_of(job), queue).headers["id"]


# Celery 5.7 deprecates the queue there, and obeys it.
@pytest.mark.filterwarnings("ignore:(?s).*task attribute:DeprecationWarning")
def test_what_the_tasks_decorator_says_holds_unless_the_row_says_otherwise(bench: Bench) -> None:
    @bench.app.task(name="proj.tasks.own", shared=False, queue="own", priority=3, expires=DAY, time_limit=7)
    def own() -> None: ...

    message = bench.one(run_of(row(fn="proj.tasks.own")), "own")
    assert message.headers["timelimit"] == [7, None]
    assert message.properties["priority"] == 3
    assert message.headers["expires"] is not None
    message = bench.one(run_of(row(fn="proj.tasks.own", queue="vip", priority=5)), "vip")
    assert message.properties["priority"] == 5


def test_expires_counts_from_now(bench: Bench) -> None:
    message = bench.one(run_of(row(expires_s=DAY)))
    expires = datetime.fromisoformat(message.headers["expires"])
    assert abs((expires - datetime.now(UTC)).total_seconds() - DAY) < 60
    assert message.properties.get("expiration", str(DAY * 1000)) == str(DAY * 1000)


def test_a_row_of_64_kib_arrives_unchanged(bench: Bench) -> None:
    text = "käse " * 8_000
    message = bench.one(run_of(row(args=json.dumps([text]))))
    assert message.payload[0] == [text]


@pytest.mark.parametrize(
    "settings", [{"task_compression": "gzip"}, {"task_protocol": 1}, {"task_serializer": "pickle"}]
)
def test_the_settings_of_the_app_count(bench: Bench, settings: dict[str, Any]) -> None:
    bench.configure(**settings)
    shipment = run_of(row(args='["x"]'))
    message = bench.one(shipment)
    payload = message.payload
    task_id = payload["id"] if "task_protocol" in settings else message.headers["id"]
    args = payload["args"] if "task_protocol" in settings else payload[0]
    assert task_id == shipment.run.task_id
    assert list(args) == ["x"]
    if "task_serializer" in settings:
        assert message.content_type == "application/x-python-serialize"
    if "task_compression" in settings:
        assert message.headers["compression"] == "application/x-gzip"


def test_signals_and_events_that_users_rely_on_are_sent(bench: Bench) -> None:
    bench.configure(task_send_sent_event=True)
    seen: list[tuple[str, str]] = []
    waiting: list[int] = []

    def before(sender: str, headers: dict[str, Any], **_: Any) -> None:
        headers["traceparent"] = "00-1"
        seen.append(("before", headers["id"]))

    def after(sender: str, headers: dict[str, Any], **_: Any) -> None:
        seen.append(("after", headers["id"]))
        if not bench.broker.startswith("amqp"):
            waiting.append(len(take_all(bench.app)))

    shipments = runs_of(row(), 3)
    signals.before_task_publish.connect(before, weak=False)
    signals.after_task_publish.connect(after, weak=False)
    try:
        assert bench.send(*shipments) == ["sent"] * 3
    finally:
        signals.before_task_publish.disconnect(before)
        signals.after_task_publish.disconnect(after)
    ids = [shipment.run.task_id for shipment in shipments]
    assert [task for when, task in seen if when == "before"] == ids
    assert [task for when, task in seen if when == "after"] == ids
    if bench.broker.startswith("amqp"):
        assert [message.headers["traceparent"] for message in take_all(bench.app)] == ["00-1"] * 3


# ---------------------------------------------------------------- entries of beat_schedule


def test_an_entry_of_the_code_has_its_python_arguments_and_options(bench: Bench) -> None:
    job = entry(
        args=(1, BeatLazyFunc(lambda: "late")),
        kwargs={"k": BeatLazyFunc(lambda: 2)},
        queue="vip",
        priority=4,
        expires=DAY,
        headers={"mine": "yes", "qbeat_job": "forged"},
        shadow="shown as",
        time_limit=9,
        link=bench.app.signature("their.callback"),
        task_id="forged",
        retry=True,
    )
    shipment = run_of(job)
    message = bench.one(shipment, "vip")
    args, kwargs, embedded = message.payload
    assert (args, kwargs) == ([1, "late"], {"k": 2})
    assert [signature["task"] for signature in embedded["callbacks"]] == ["their.callback", "celery_qbeat.done"]
    headers = message.headers
    assert headers["id"] == shipment.run.task_id
    assert headers["mine"] == "yes"
    assert headers["qbeat_job"] == "code:entry"
    assert headers["shadow"] == "shown as"
    assert headers["timelimit"] == [9, None]
    assert headers["celery_beat_task"] is True
    assert message.properties["priority"] == 4


def test_a_message_that_lives_very_long_leaves_its_neighbours_alone(bench: Bench) -> None:
    assert bench.send(run_of(row())) == ["sent"], "declares the queue"
    shipments = [run_of(row("before")), run_of(row("very.long", expires_s=10**10)), run_of(row("after"))]
    assert bench.send(*shipments) == ["sent"] * 3
    [message] = [taken for taken in take_all(bench.app) if taken.headers["qbeat_job"] == "very.long"]
    years = (datetime.fromisoformat(message.headers["expires"]) - datetime.now(UTC)).days / 365
    assert 300 < years < 330


@pytest.mark.parametrize("expires", [DAY, "text", "aware", "past"])
def test_an_entrys_expires_may_be_seconds_or_an_instant(bench: Bench, expires: Any) -> None:
    now = datetime.now(UTC).timestamp()
    value = {
        "text": datetime.fromtimestamp(now + DAY, UTC).isoformat(),
        "aware": datetime.fromtimestamp(now + DAY, UTC),
        "past": datetime.fromtimestamp(now - DAY, UTC),
    }.get(expires, expires)
    if expires == "past":
        # RabbitMQ drops it on arrival, as it should.
        assert bench.send(run_of(entry(expires=value))) == ["sent"]
        return
    message = bench.one(run_of(entry(expires=value)))
    assert abs(datetime.fromisoformat(message.headers["expires"]).timestamp() - now - DAY) < 60


def test_an_entry_may_name_an_exchange_and_a_routing_key(bench: Bench) -> None:
    exchange = Exchange("topics", type="direct")
    take_all(bench.app, "by.topic", exchange=exchange, routing_key="a.b")
    job = entry(exchange="topics", routing_key="a.b")
    message = bench.one(run_of(job), "by.topic", exchange=exchange, routing_key="a.b")
    assert message.headers["task"] == TASK


def test_an_exchange_that_is_missing_hurts_one_run_at_most(bench: Bench) -> None:
    lost = entry(exchange="nowhere", routing_key="x")
    receipts = bench.dispatcher.send([*runs_of(row(), 2), run_of(lost), *runs_of(row(), 2)], yes)
    others = fates([receipts[n] for n in (0, 1, 3, 4)])
    assert others == ["sent"] * 4
    assert receipts[2].outcome.value == ("bad" if bench.broker.startswith("amqp") else "sent")
    assert len(take_all(bench.app)) == 4
