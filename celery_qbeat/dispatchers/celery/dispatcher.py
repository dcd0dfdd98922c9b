"""Publishes runs as Celery tasks."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from celery import signals

from celery_qbeat.dispatchers.celery import broker
from celery_qbeat.dispatchers.celery.messages import CompletionLinks, MessageBuilder, TaskMessage
from celery_qbeat.dispatchers.celery.overrides import EntryHook
from celery_qbeat.dispatchers.celery.publishers.confirming import ConfirmingPublisher
from celery_qbeat.dispatchers.celery.publishers.publisher import Publisher, text
from celery_qbeat.dispatchers.celery.publishers.redis_pipeline import RedisPipelinePublisher
from celery_qbeat.ports import OutgoingRun, PublishOutcome, PublishResult


class CeleryDispatcher:
    """Sends like `app.send_task`, over a connection of its own that never waits long and tries nothing twice.

    `namespace` and `instance` name the queue by which workers report ends, see `broker.done_address`; `instance` is a
    function because the store knows it only once it is open. `link_ends=False`: messages without callbacks; then only
    leases and a result backend tell of ends. `hook`: Celery's `apply_entry`, for SDKs that patch it.
    """

    def __init__(
        self,
        app: Any,
        *,
        namespace: str,
        instance: Callable[[], str],
        link_ends: bool = True,
        hook: EntryHook | None = None,
    ) -> None:
        self._app = app
        self._instance = instance
        self._namespace = namespace
        self._link_ends = link_ends
        self._hook = hook
        self._wire: Publisher | None = None
        self._writer: MessageBuilder | None = None
        self._linked_instance = ""
        self._just_asked = False

    @property
    def ends(self) -> bool:
        """Whether workers can report the ends of runs over this kind of broker."""
        return broker.done_exchange(self._app.connection_for_write()) is not None

    def unavailable_reason(self) -> str:
        """See `ports.Dispatcher`. Redis must also be able to write, and RabbitMQ must not block publishers."""
        wire, _ = self._opened(probe=True)
        self._just_asked = wire.trouble == ""
        return wire.trouble

    def memory_id(self) -> str:
        """See `ports.Dispatcher`.

        On Redis: the server's `run_id` and a key of ours that vanishes with its data (`FLUSHALL`, an empty restart). On
        RabbitMQ: the number of connections made and of queues found missing, as the server does not say more.
        """
        if self.unavailable_reason():
            return ""
        return "" if self._wire is None else self._wire.incarnation

    def send(self, shipments: Sequence[OutgoingRun], trusted: Callable[[], bool]) -> Sequence[PublishResult]:
        """See `ports.Dispatcher`. A NOT_SENT without a detail means lost trust.

        When a connection is lost while several letters are under way (up to 20 on Redis, 50 on RabbitMQ), those that
        the broker did not answer are in `DOUBT`.
        """
        if not shipments:
            return []
        wire, writer = self._opened(probe=not self._just_asked)
        self._just_asked = False
        writer.look_for_overrides()
        # A receiver of these signals expects that the message is out by then.
        watched = signals.after_task_publish.receivers or signals.task_sent.receivers
        size = 1 if watched and isinstance(wire, RedisPipelinePublisher) else wire.window
        receipts: list[PublishResult] = []
        for start in range(0, len(shipments), size):
            receipts.extend(self._send_some(wire, writer, shipments[start : start + size], trusted))
        return receipts

    def late_results(self) -> Sequence[PublishResult]:
        """See `ports.Dispatcher`. Redis and RabbitMQ answer late when they hung or were blocked."""
        return [] if self._wire is None else self._wire.late_results()

    def close(self) -> None:
        """Give the connection back. Never raises."""
        if self._wire is not None:
            self._wire.close()
            self._wire = None
        self._just_asked = False

    def describe(self) -> str:
        return broker.describe(self._app.connection_for_write())

    def _opened(self, *, probe: bool) -> tuple[Publisher, MessageBuilder]:
        instance = self._instance()
        if self._wire is None or self._writer is None or self._linked_instance != instance:
            self.close()
            connection = broker.connect(self._app.connection_for_write)
            address = broker.done_address(connection, self._namespace, instance) if self._link_ends else None
            self._writer = MessageBuilder(
                self._app, CompletionLinks(self._app, address) if address is not None else None, self._hook
            )
            self._linked_instance = instance
            self._wire = _wire(self._app, connection)
        self._wire.open(probe=probe)
        return self._wire, self._writer

    def _send_some(
        self, wire: Publisher, writer: MessageBuilder, shipments: Sequence[OutgoingRun], trusted: Callable[[], bool]
    ) -> list[PublishResult]:
        instance = self._instance()
        letters: list[TaskMessage] = []
        receipts: dict[str, PublishResult] = {}
        for shipment in shipments:
            try:
                letters.append(writer.build(shipment, instance, trusted))
            except Exception as error:
                task_id = shipment.run.task_id
                receipts[task_id] = PublishResult(task_id, PublishOutcome.BAD, text(error))
        receipts |= {receipt.task_id: receipt for receipt in wire.publish(letters, trusted)}
        return [receipts[shipment.run.task_id] for shipment in shipments]


def _wire(app: Any, connection: Any) -> Publisher:
    transport = connection.transport
    if transport.driver_type == "redis":
        return RedisPipelinePublisher(app, connection)
    if transport.driver_name == "py-amqp":
        return ConfirmingPublisher(app, connection)
    return Publisher(app, connection)
