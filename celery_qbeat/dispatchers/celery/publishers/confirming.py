"""The wire to RabbitMQ: what counts as sent is what the broker confirmed."""

from __future__ import annotations

import time
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

from celery_qbeat.core.plurals import quantity
from celery_qbeat.dispatchers.celery.broker import TIMEOUT_S
from celery_qbeat.dispatchers.celery.messages import TaskMessage
from celery_qbeat.dispatchers.celery.overrides import NotTaken
from celery_qbeat.dispatchers.celery.publishers.publisher import Publisher, Trust, text, unsent
from celery_qbeat.ports import PublishOutcome, PublishResult

BLOCKED = "the broker has blocked publishers (an alarm for memory or disk)"

BLOCKED_WAIT_S = 0.2
"""Seconds to wait for the confirms of messages that a broker took before it blocked this connection."""

BLOCKED_LIMIT_S = 600.0
"""Seconds until an unconfirmed message of a broker that said that it blocks is in doubt: the connection may be dead by
then, and nobody would say so."""

SURE_S = 1.0
"""Seconds after a confirm in which a window may be full at once. A broker says that it blocks when it is sent a
message, not before: so the first message after a pause goes alone."""


class ConfirmingPublisher(Publisher):
    """Publishes a window of letters and then waits for the broker's confirms, all together.

    Only letters that go straight into a queue share a window: the error for any other, such as a missing exchange,
    closes the channel and would leave its neighbours in doubt. Letters that the broker does not confirm in time are
    `UNCONFIRMED`: the connection is kept, nothing else is sent, and `late` tells of them.
    """

    window = 50

    def __init__(self, app: Any, connection: Any) -> None:
        super().__init__(app, connection)
        self._amqp: Any = None
        self._number = 0
        self._changes = 0
        self._open_numbers: dict[int, str] = {}
        self._letters: dict[str, TaskMessage] = {}
        self._receipts: dict[str, PublishResult] = {}
        self._late: list[PublishResult] = []
        self._unconfirmed: set[str] = set()
        self._returned: set[str] = set()
        self._current = ""
        self._blocked = False
        self._silent_since = self._confirmed_at = float("-inf")

    def open(self, *, probe: bool = True) -> None:
        if self._unconfirmed:
            self._take_answers()
        if self._unconfirmed:
            self.trouble = self._silence()
            blocked_for = time.monotonic() - self._silent_since if self._blocked else 0.0
            if blocked_for > BLOCKED_LIMIT_S or (not self._blocked and self._hopeless(self._silent_since)):
                self._lose(TimeoutError(self.trouble))
            return
        super().open(probe=probe)

    def publish(self, letters: Sequence[TaskMessage], trusted: Trust) -> list[PublishResult]:
        self._receipts = {}
        for letter in letters:
            self._carry_one(letter, trusted)
        self._settle()
        return [self._receipts[letter.task_id] for letter in letters]

    def late_results(self) -> list[PublishResult]:
        if self._unconfirmed:
            self._take_answers()
        late, self._late = self._late, []
        return late

    # ---------------------------------------------------------------- the connection

    def _current_channel(self) -> Any:
        if self._channel is not None and self._channel.is_open:
            return self._channel
        return self._connection.channel()

    def _probe(self) -> None:
        if self._blocked:
            with suppress(TimeoutError):
                self._connection.drain_events(timeout=0.01)
        if not self._blocked:
            # Harmless when repeated, and answered by the broker.
            self._channel.confirm_select()
        elif time.monotonic() > self._silent_since + BLOCKED_LIMIT_S:
            self._lose(TimeoutError(BLOCKED))
        else:
            self.trouble = BLOCKED

    def _adopt(self, channel: Any) -> None:
        self._number = 0
        super()._adopt(channel)
        amqp = self._connection.connection
        if amqp is not self._amqp:
            self._amqp, self._blocked = amqp, False
            self._may_have_lost()
        amqp.on_blocked = self._on_blocked
        amqp.on_unblocked = self._on_unblocked
        channel.events["basic_ack"].add(self._on_ack)
        channel.events["basic_nack"].add(self._on_nack)
        channel.events["basic_return"].add(self._on_return)
        publish = channel.basic_publish

        def numbered(message: Any, exchange: str = "", routing_key: str = "", **kwargs: Any) -> Any:
            self._number += 1
            if self._current:
                self._open_numbers[self._number], self._current = self._current, ""
            if exchange == "":
                # A queue that somebody deleted is noticed instead of swallowing the message.
                kwargs["mandatory"] = True
            return publish(message, exchange=exchange, routing_key=routing_key, **kwargs)

        channel.basic_publish = numbered

    def _may_have_lost(self) -> None:
        """The server restarted, or somebody deleted a queue."""
        self._changes += 1
        self.incarnation = f"{id(self)}.{self._changes}"

    def _lose(self, error: BaseException) -> None:
        super()._lose(error)
        self._doubt_the_rest(self.trouble)

    # ---------------------------------------------------------------- letters

    def _carry_one(self, letter: TaskMessage, trusted: Trust) -> None:
        alone = letter.override is not None or not letter.is_direct or letter.queue_name not in self._declared
        alone = alone or time.monotonic() > self._confirmed_at + SURE_S
        if alone:
            self._settle()
        if self._channel is None and not self.trouble:
            self.open()
        if self.trouble or not trusted():
            self._receipts[letter.task_id] = unsent(letter, self.trouble)
            return
        self._current = letter.task_id
        self._letters[letter.task_id] = letter
        try:
            self._post(letter)
            if not self._reached:
                # An override used another connection.
                self._note(PublishResult(letter.task_id, PublishOutcome.SENT))
        except NotTaken as error:
            if letter.task_id not in self._receipts:
                self._note(error.receipt)
        except self._lost as error:
            self._lose(error)
            if not self._reached:
                self._note(unsent(letter, self.trouble))
        except Exception as error:
            if not self._reached:
                self._note(PublishResult(letter.task_id, PublishOutcome.BAD, text(error)))
            elif not isinstance(error, self._connection.channel_errors):
                self._note(PublishResult(letter.task_id, PublishOutcome.UNKNOWN, text(error)))
            if isinstance(error, self._connection.channel_errors):
                self._doubt_the_rest(text(error))
                self._leave_channel()
        self._current = ""
        if alone:
            self._settle()

    def _confirm(self, letter: TaskMessage) -> None:
        self._settle()
        receipt = self._receipts.get(letter.task_id)
        if receipt is not None and receipt.outcome not in (PublishOutcome.SENT, PublishOutcome.UNCONFIRMED):
            raise NotTaken(receipt)

    def _settle(self) -> None:
        """Wait until the broker has answered for every letter, for a bounded time; the rest is unconfirmed."""
        deadline = time.monotonic() + TIMEOUT_S
        try:
            while self._waits() and self._channel is not None:
                left = BLOCKED_WAIT_S if self._blocked else deadline - time.monotonic()
                self._connection.drain_events(timeout=max(0.01, left))
        except TimeoutError:
            self._answer_later()
        except self._lost as error:
            self._lose(error)
        except self._connection.channel_errors as error:
            self._refuse(error)

    def _waits(self) -> bool:
        """Whether a letter of this window has no answer yet."""
        return len(self._open_numbers) > len(self._unconfirmed)

    def _answer_later(self) -> None:
        if not self._unconfirmed:
            self._silent_since = time.monotonic()
        waiting = set(self._open_numbers.values()) - self._unconfirmed
        self._unconfirmed |= waiting
        self.trouble = self._silence()
        self._receipts |= {name: PublishResult(name, PublishOutcome.UNCONFIRMED, self.trouble) for name in waiting}

    def _silence(self) -> str:
        return (
            BLOCKED
            if self._blocked
            else f"{quantity(len(self._unconfirmed), 'message')} without a confirm of the broker"
        )

    def _take_answers(self) -> None:
        """Read what the broker has said meanwhile, without waiting."""
        try:
            while self._unconfirmed and self._channel is not None:
                self._connection.drain_events(timeout=0.01)
        except TimeoutError:
            return
        except self._lost as error:
            self._lose(error)
        except self._connection.channel_errors as error:
            self._refuse(error)

    def _note(self, receipt: PublishResult) -> None:
        """It is known what became of a letter, in time or late."""
        self._letters.pop(receipt.task_id, None)
        if receipt.task_id in self._unconfirmed:
            self._unconfirmed.discard(receipt.task_id)
            self._late.append(receipt)
        else:
            self._receipts[receipt.task_id] = receipt

    def _refuse(self, error: BaseException) -> None:
        """The broker closed the channel over one letter; when it was the only one, it is known which."""
        if len(self._open_numbers) == 1:
            (task_id,) = self._open_numbers.values()
            self._open_numbers.clear()
            self._note(PublishResult(task_id, PublishOutcome.BAD, text(error)))
        self._doubt_the_rest(text(error))
        self._leave_channel()

    def _doubt_the_rest(self, why: str) -> None:
        for task_id in self._open_numbers.values():
            self._note(PublishResult(task_id, PublishOutcome.UNKNOWN, why))
        self._open_numbers.clear()

    def _leave_channel(self) -> None:
        """py-amqp opens it anew by itself, but without confirms."""
        self._connection.maybe_close_channel(self._channel)
        self._forget()

    # ---------------------------------------------------------------- what the broker says

    def _answered(self, number: int, multiple: bool) -> list[str]:
        numbers = [n for n in self._open_numbers if n <= number] if multiple else [number]
        return [task_id for n in numbers if (task_id := self._open_numbers.pop(n, None)) is not None]

    def _on_ack(self, number: int, multiple: bool) -> None:
        self._confirmed_at = time.monotonic()
        for task_id in self._answered(number, multiple):
            if task_id in self._returned:
                self._note(PublishResult(task_id, PublishOutcome.NOT_SENT, "its queue is gone"))
                # The next attempt declares it again.
                self._declared.clear()
                self._connection.declared_entities.clear()
                self._may_have_lost()
            else:
                self._note(PublishResult(task_id, PublishOutcome.SENT))
        self._returned.clear()

    def _on_nack(self, number: int, multiple: bool) -> None:
        """A queue that is full and rejects (`x-overflow`) says no more than this."""
        for task_id in self._answered(number, multiple):
            letter = self._letters.get(task_id)
            if letter is not None and letter.is_direct and letter.queue_name is not None:
                self._note(
                    PublishResult(
                        task_id,
                        PublishOutcome.REFUSED,
                        "the queue rejected it (basic.nack: it is full)",
                        letter.queue_name,
                    )
                )
            else:
                # An exchange may lead to several queues, and one of them may have it.
                self._note(PublishResult(task_id, PublishOutcome.UNKNOWN, "one of its queues rejected it (basic.nack)"))

    def _on_return(self, _error: Any, _exchange: str, _routing_key: str, message: Any) -> None:
        self._returned.add(message.properties.get("correlation_id", ""))

    def _on_blocked(self, _reason: str) -> None:
        self._blocked = True
        self._silent_since = time.monotonic()

    def _on_unblocked(self) -> None:
        self._blocked = False
