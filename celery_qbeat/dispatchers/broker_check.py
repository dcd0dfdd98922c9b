"""Whether the broker takes messages, for commands and pages: an answer within a bounded time."""

from __future__ import annotations

import threading
from dataclasses import dataclass
from typing import Any

from celery_qbeat.dispatchers import broker
from celery_qbeat.dispatchers.celery import CeleryDispatcher
from celery_qbeat.dispatchers.wires import text

ANSWER_S = 3.0
"""Seconds to wait for the broker's answer, whatever it or the name server does."""


@dataclass(frozen=True, slots=True)
class BrokerCheck:
    """The broker's URL without its password, and why it takes no messages; `trouble` is empty when it does."""

    url: str
    trouble: str


def check_broker(app: Any) -> BrokerCheck:
    """Ask the broker of this app as the beat does before it claims. Sends nothing. Waits for `ANSWER_S` at most.

    In a thread: resolving a name or a failover list of several addresses takes longer than any one socket's limit. A
    thread that waits longer ends by the limits of its sockets.
    """
    try:
        url = broker.describe(app.connection_for_write())
    except Exception as error:
        # An unknown transport, or one whose package is not installed: kombu raises what it likes.
        return BrokerCheck("its broker_url", text(error))
    answers: list[str] = []

    def ask() -> None:
        dispatcher = CeleryDispatcher(app, namespace="", instance=lambda: "", link_ends=False)
        try:
            answers.append(dispatcher.ready())
        except Exception as error:
            # What a transport cannot do with its settings concerns the broker, too.
            answers.append(text(error))
        finally:
            dispatcher.close()

    thread = threading.Thread(target=ask, name="qbeat-broker-check", daemon=True)
    thread.start()
    thread.join(ANSWER_S)
    # A list that is still empty: the thread waits.
    return BrokerCheck(url, answers[0] if answers else f"no answer within {ANSWER_S:g} s")
