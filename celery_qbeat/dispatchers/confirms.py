"""The wire to RabbitMQ: what counts as sent is what the broker confirmed."""

from __future__ import annotations

import time
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

from celery_qbeat.dispatchers.broker import TIMEOUT_S
from celery_qbeat.dispatchers.letters import Letter
from celery_qbeat.dispatchers.wires import Trust, Wire, text, unsent
from celery_qbeat.ports import Fate, Receipt

BLOCKED = "the broker has blocked publishers (an alarm for memory or disk)"


class ConfirmWire(Wire):
    """Publishes a window of letters and then waits for the broker's confirms, all together.

    Only letters that go straight into a queue share a window: the error for any other, such as a missing exchange,
    closes the channel and would leave its neighbours in doubt.
    """

    window = 50

    def __init__(self, app: Any, connection: Any) -> None:
        super().__init__(app, connection)
        self._number = 0
        self._open_numbers: dict[int, str] = {}
        self._receipts: dict[str, Receipt] = {}
        self._returned: set[str] = set()
        self._current = ""
        self._blocked = False

    def carry(self, letters: Sequence[Letter], trusted: Trust) -> list[Receipt]:
        self._receipts = {}
        for letter in letters:
            self._carry_one(letter, trusted)
        self._settle()
        return [self._receipts[letter.task_id] for letter in letters]

    def _current_channel(self) -> Any:
        if self._channel is not None and self._channel.is_open:
            return self._channel
        return self._connection.channel()

    def _probe(self) -> None:
        if self._blocked:
            with suppress(TimeoutError):
                self._connection.drain_events(timeout=0.01)
        if self._blocked:
            self.trouble = BLOCKED
        else:
            # Harmless when repeated, and answered by the broker.
            self._channel.confirm_select()

    def _adopt(self, channel: Any) -> None:
        self._number = 0
        self._open_numbers.clear()
        super()._adopt(channel)
        amqp = self._connection.connection
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

    def _carry_one(self, letter: Letter, trusted: Trust) -> None:
        alone = not letter.plain or letter.queue not in self._declared
        if alone:
            self._settle()
        if self._channel is None and not self.trouble:
            self.open()
        if self.trouble or not trusted():
            self._receipts[letter.task_id] = unsent(letter, self.trouble)
            return
        self._current = letter.task_id
        try:
            self._post(letter)
        except self._lost as error:
            self._lose(error)
            if not self._reached:
                self._receipts[letter.task_id] = unsent(letter, self.trouble)
        except Exception as error:
            fate = Fate.DOUBT if self._reached else Fate.BAD
            self._receipts[letter.task_id] = Receipt(letter.task_id, fate, text(error))
            self._drop_channel_after(error)
        if alone:
            self._settle()

    def _settle(self) -> None:
        """Wait until the broker has answered for every letter, for a bounded time; the rest is in doubt."""
        deadline = time.monotonic() + TIMEOUT_S
        try:
            while self._open_numbers and self._channel is not None:
                self._connection.drain_events(timeout=max(0.01, deadline - time.monotonic()))
        except TimeoutError:
            self.trouble = BLOCKED if self._blocked else f"no confirm within {TIMEOUT_S:g} s"
            if not self._blocked:
                self._lose(TimeoutError(self.trouble))
        except self._lost as error:
            self._lose(error)
        except self._connection.channel_errors as error:
            self._refuse(error)
        self._doubt_the_rest()

    def _refuse(self, error: BaseException) -> None:
        """The broker closed the channel over one letter; when it was the only one, it is known which."""
        if len(self._open_numbers) == 1:
            (task_id,) = self._open_numbers.values()
            self._receipts[task_id] = Receipt(task_id, Fate.BAD, text(error))
            self._open_numbers.clear()
        self._doubt_the_rest(text(error))
        self._leave_channel()

    def _doubt_the_rest(self, why: str = "") -> None:
        for task_id in self._open_numbers.values():
            self._receipts[task_id] = Receipt(task_id, Fate.DOUBT, why or self.trouble)
        self._open_numbers.clear()

    def _drop_channel_after(self, error: BaseException) -> None:
        if isinstance(error, self._connection.channel_errors):
            self._doubt_the_rest(text(error))
            self._leave_channel()

    def _leave_channel(self) -> None:
        """py-amqp opens it anew by itself, but without confirms."""
        self._connection.maybe_close_channel(self._channel)
        self._forget()

    def _answered(self, number: int, multiple: bool) -> list[str]:
        numbers = [n for n in self._open_numbers if n <= number] if multiple else [number]
        return [task_id for n in numbers if (task_id := self._open_numbers.pop(n, None)) is not None]

    def _on_ack(self, number: int, multiple: bool) -> None:
        for task_id in self._answered(number, multiple):
            if task_id in self._returned:
                self._receipts[task_id] = Receipt(task_id, Fate.NOT_SENT, "its queue is gone")
                # The next attempt declares it again.
                self._declared.clear()
                self._connection.declared_entities.clear()
            else:
                self._receipts[task_id] = Receipt(task_id, Fate.SENT)
        self._returned.clear()

    def _on_nack(self, number: int, multiple: bool) -> None:
        for task_id in self._answered(number, multiple):
            self._receipts[task_id] = Receipt(task_id, Fate.DOUBT, "the broker could not handle it (nack)")

    def _on_return(self, _error: Any, _exchange: str, _routing_key: str, message: Any) -> None:
        self._returned.add(message.properties.get("correlation_id", ""))

    def _on_blocked(self, _reason: str) -> None:
        self._blocked = True

    def _on_unblocked(self) -> None:
        self._blocked = False
