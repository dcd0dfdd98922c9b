"""Publishes messages one at a time on any transport; `redis_pipeline.py` and `confirming.py` publish many together.

What counts is to know afterwards. A letter that never reached the transport was surely not sent; one of which the
transport did not say that it has it is in doubt. So each wire notes how far a letter came.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any

from celery_qbeat.dispatchers.celery.broker import drop, lost, open_
from celery_qbeat.dispatchers.celery.messages import TaskMessage, publish_message
from celery_qbeat.dispatchers.celery.overrides import NotTaken
from celery_qbeat.dispatchers.celery.overrides import text as text
from celery_qbeat.ports import PublishOutcome, PublishResult

Trust = Callable[[], bool]

LATE_LIMIT_S = 60.0
"""Seconds until an unconfirmed message of a broker that answers nobody is in doubt. Nothing is sent meanwhile."""

HALF_OPEN_S = 10.0
"""Seconds of silence after which a connection is given up when the broker answers on another one."""


class Publisher:
    """One letter at a time. `trouble` says why nothing more can be sent now; empty while all is well."""

    window = 1

    def __init__(self, app: Any, connection: Any) -> None:
        self.trouble = ""
        self.incarnation = ""
        self._app = app
        self._connection = connection
        self._lost = lost(connection)
        self._channel: Any = None
        self._producer: Any = None
        self._declared: set[str] = set()
        self._reached = False

    def open(self, *, probe: bool = True) -> None:
        """Connect, and prove that the broker answers: what fails here was surely not sent. Sets `trouble`.

        Args:
            probe: False skips the question when the connection exists already.
        """
        self.trouble = ""
        try:
            open_(self._connection)
            channel = self._current_channel()
            if channel is not self._channel:
                self._adopt(channel)
                probe = True
            if probe:
                self._probe()
        except (*self._lost, *self._connection.channel_errors) as error:
            # A channel error here is a refused login: AMQP has no other word for it.
            self._lose(error)

    def publish(self, letters: Sequence[TaskMessage], trusted: Trust) -> list[PublishResult]:
        """A receipt for each letter, in order; at most `window` letters."""
        return [self._one(letter, trusted) for letter in letters]

    def late_results(self) -> list[PublishResult]:
        """What became of letters that were `UNCONFIRMED`; each is told once. Never waits."""
        return []

    def close(self) -> None:
        """Give the connection back. Never raises."""
        self._forget()
        try:
            self._connection.release()
        except self._lost:
            drop(self._connection)

    # ------------------------------------------------------------------

    def _current_channel(self) -> Any:
        return self._connection.default_channel

    def _probe(self) -> None:
        """Ask the server for any answer, where that is possible."""

    def _adopt(self, channel: Any) -> None:
        self._channel = channel
        self._producer = self._app.amqp.Producer(channel, auto_declare=False)
        self._declared.clear()
        publish = channel.basic_publish

        def noted(*args: Any, **kwargs: Any) -> Any:
            self._reached = True
            return publish(*args, **kwargs)

        channel.basic_publish = noted

    def _one(self, letter: TaskMessage, trusted: Trust) -> PublishResult:
        if self.trouble or not trusted():
            return unsent(letter, self.trouble)
        try:
            self._post(letter)
        except NotTaken as error:
            return error.receipt
        except self._lost as error:
            self._lose(error)
            return PublishResult(
                letter.task_id, PublishOutcome.UNKNOWN if self._reached else PublishOutcome.NOT_SENT, self.trouble
            )
        except Exception as error:
            return PublishResult(
                letter.task_id, PublishOutcome.UNKNOWN if self._reached else PublishOutcome.BAD, text(error)
            )
        return PublishResult(letter.task_id, PublishOutcome.SENT)

    def _post(self, letter: TaskMessage) -> None:
        self._reached = False
        queue = letter.queue_name
        if letter.override is not None:
            letter.override.send(self._producer, lambda: self._confirm(letter))
        else:
            publish_message(self._app, self._producer, letter, declare=queue not in self._declared)
        if queue is not None:
            self._declared.add(queue)

    def _confirm(self, letter: TaskMessage) -> None:
        """Wait for the broker's answer to an override's message, where it gives one. Raises NotTaken."""

    def _lose(self, error: BaseException) -> None:
        self.trouble = text(error)
        self._forget()
        drop(self._connection)

    def _hopeless(self, silent_since: float) -> bool:
        """Whether a connection that owes answers is to be given up: it is silent for very long, or it alone is."""
        silent = time.monotonic() - silent_since
        return silent > LATE_LIMIT_S or (silent > HALF_OPEN_S and self._answers_others())

    def _answers_others(self) -> bool:
        other = self._connection.clone()
        try:
            open_(other)
        except (*self._lost, *self._connection.channel_errors):
            return False
        finally:
            drop(other)
        return True

    def _forget(self) -> None:
        self._channel = self._producer = None
        self._declared.clear()


def unsent(letter: TaskMessage, why: str) -> PublishResult:
    return PublishResult(letter.task_id, PublishOutcome.NOT_SENT, why)
