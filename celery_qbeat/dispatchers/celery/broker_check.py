"""Whether the broker takes messages, for commands and pages: an answer within a bounded time."""

from __future__ import annotations

import threading
from dataclasses import dataclass
from typing import Any

from celery_qbeat.core.plurals import quantity
from celery_qbeat.dispatchers.celery import broker
from celery_qbeat.dispatchers.celery.dispatcher import CeleryDispatcher
from celery_qbeat.dispatchers.celery.publishers.publisher import text
from celery_qbeat.dispatchers.celery.redis_completion_queue import inbox_of

ANSWER_S = 3.0
"""Seconds to wait for the broker's answer, whatever it or the name server does."""


MANY_UNREAD = 1_000
"""From this many messages in the queue of ends on, `BrokerCheck.sentence` names them."""


@dataclass(frozen=True, slots=True)
class BrokerCheck:
    """The broker's URL without its password, and why it takes no messages; `trouble` is empty when it does.

    `unread`: how many messages wait in the queue of ends, which a beat empties at every poll; None: not known.
    """

    url: str
    trouble: str
    unread: int | None = None

    @property
    def sentence(self) -> str:
        """Whether the broker takes messages, in words."""
        if self.trouble:
            return f"{self.url} takes no messages: {self.trouble}"
        unread = self.unread or 0
        flood = f"; the queue of ends holds {quantity(unread, 'message')}: no beat reads it, or strangers write there"
        return f"{self.url} takes messages" + (flood if unread >= MANY_UNREAD else "")


def check_broker(app: Any, *, namespace: str = "", instance: str = "") -> BrokerCheck:
    """Ask the broker of this app as the beat does before it claims. Sends nothing. Waits for `ANSWER_S` at most.

    `namespace` and `instance` name the queue of ends; without them its messages are not counted.

    In a thread: resolving a name or a failover list of several addresses takes longer than any one socket's limit. A
    thread that waits longer ends by the limits of its sockets.
    """
    try:
        url = broker.describe(app.connection_for_write())
    except Exception as error:
        # An unknown transport, or one whose package is not installed: kombu raises what it likes.
        return BrokerCheck("its broker_url", text(error))
    answers: list[str] = []
    unread: list[int | None] = []

    def ask() -> None:
        dispatcher = CeleryDispatcher(app, namespace="", instance=lambda: "", link_ends=False)
        try:
            answers.append(dispatcher.unavailable_reason())
        except Exception as error:
            # What a transport cannot do with its settings concerns the broker, too.
            answers.append(text(error))
        finally:
            dispatcher.close()
        if instance and answers == [""]:
            unread.append(_unread_ends(app, namespace, instance))

    thread = threading.Thread(target=ask, name="qbeat-broker-check", daemon=True)
    thread.start()
    thread.join(ANSWER_S)
    # A list that is still empty: the thread waits.
    trouble = answers[0] if answers else f"no answer within {ANSWER_S:g} s"
    return BrokerCheck(url, trouble, unread[0] if unread else None)


def _unread_ends(app: Any, namespace: str, instance: str) -> int | None:
    connection = broker.connect(app.connection_for_read)
    try:
        address = broker.done_address(connection, namespace, instance)
        if address is None or connection.transport.driver_type not in ("redis", "amqp"):
            return None
        broker.open_(connection)
        queue = broker.done_queue(address)(connection.default_channel)
        return int(sum(inbox_of(connection, queue).unread().values()))
    except (*broker.lost(connection), *connection.channel_errors):
        # There is no such queue before the first beat, and some may publish but not read.
        return None
    finally:
        broker.drop(connection)
