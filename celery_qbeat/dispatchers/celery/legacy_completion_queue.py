"""The queue of ends of older versions, which all databases of a namespace share: ours are taken, the others' stay."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

from celery_qbeat.dispatchers.celery import broker
from celery_qbeat.dispatchers.celery.completion_message import read_completion
from celery_qbeat.dispatchers.celery.completion_queue import CompletionQueue, Taken
from celery_qbeat.dispatchers.celery.raw_message import ForeignMessage, RawMessage
from celery_qbeat.dispatchers.celery.redis_completion_queue import inbox_of
from celery_qbeat.ports import RunOutcome
from celery_qbeat.process.safe_logging import get_logger

log = get_logger()

LOOK_S = 5.0
"""Seconds between two looks."""

LOOK_AT_OTHERS_S = 60.0
"""The same after a look that found nothing but messages of others."""

QUIET_S = 86_400.0
"""Seconds without an end of ours after which nobody looks any more: the runs of the older version have ended."""

MOST_A_LOOK = 1_000


class LegacyCompletionQueue:
    """Reads on a channel of its own, which is closed after each look; messages of others are put back before.

    On Redis messages are read where they stand, so nothing needs to be put back. Its methods raise the connection's
    errors.
    """

    def __init__(self, connection: Any, address: broker.Address) -> None:
        self._connection = connection
        self._address = address
        self._driver: str = connection.transport.driver_type
        self._channel: Any = None
        self._inbox: CompletionQueue | None = None
        self._ours: list[Taken] = []
        self._others: list[Taken] = []
        self._again = float("-inf")
        self._until = time.monotonic() + QUIET_S
        self._told = False

    def take(self, instance: str, until: float) -> Sequence[RunOutcome]:
        """Ends of this database's runs, when a look is due; takes about until then on the monotonic clock."""
        now = time.monotonic()
        if now < self._again or now >= min(until, self._until):
            return []
        self._again = now + LOOK_S
        self.leave()
        ends: list[RunOutcome] = []
        self._inbox = self._open()
        if self._inbox is not None:
            for taken in self._messages(self._inbox, until):
                try:
                    ends.append(read_completion(taken.message, instance))
                except ForeignMessage:
                    self._others.append(taken)
                    self._tell(taken.message)
                else:
                    self._ours.append(taken)
        if ends:
            self._until = now + QUIET_S
        else:
            self._again = now + (LOOK_AT_OTHERS_S if self._others else LOOK_S)
            self.leave()
        return ends

    def ack(self) -> None:
        """All that `take` gave is safe in the database."""
        ours, self._ours = self._ours, []
        if ours and self._inbox is not None:
            self._inbox.ack(ours)
        self.leave()

    def leave(self) -> None:
        """Leave in the queue what was not acknowledged."""
        back, self._ours, self._others = [*self._ours, *self._others], [], []
        channel, inbox, self._channel, self._inbox = self._channel, self._inbox, None, None
        if inbox is not None and back:
            inbox.requeue(back)
        if channel is not None:
            channel.close()

    def _open(self) -> CompletionQueue | None:
        """The queue, or None when there is none. It is not declared: only messages of an older version lead to it."""
        if self._driver == "redis":
            queue = broker.done_queue(self._address)(self._connection.default_channel)
            return inbox_of(self._connection, queue, remove_large=False)
        self._channel = self._connection.channel()
        queue = broker.done_queue(self._address)(self._channel)
        if self._driver == "amqp":
            try:
                queue.queue_declare(passive=True)
            except self._connection.channel_errors as error:
                log.debug("completions: there is no queue %s: %s", self._address.key, error)
                self._channel, self._until = None, float("-inf")
                return None
        return inbox_of(self._connection, queue)

    def _messages(self, inbox: CompletionQueue, until: float) -> Sequence[Taken]:
        """Messages that can be read, the oldest ones."""
        found: list[Taken] = []
        for _ in range(MOST_A_LOOK):
            try:
                taken = inbox.get()
            except ForeignMessage as reason:
                # Whoever put it there may know what it is.
                log.debug("completions: left in %s: a message (%s)", self._address.key, reason)
                continue
            if taken is None:
                break
            found.append(taken)
            if time.monotonic() >= until:
                break
        return found

    def _tell(self, message: RawMessage) -> None:
        """Once: whose ends are left there."""
        if not self._told:
            self._told = True
            log.warning(
                "completions: %s, the queue of older versions, has ends of other databases' runs (the first is from "
                "worker %.80r); they are left there",
                self._address.key,
                message.headers.get("origin", "unknown"),
            )
