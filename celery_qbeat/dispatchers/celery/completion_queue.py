"""The queue of ends as its one reader sees it: nothing is decoded, and many messages cost one round trip.

Messages stay with the broker until `ack`: what a beat that died has read comes again.
"""

from __future__ import annotations

import math
import time
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from amqp import spec

from celery_qbeat.dispatchers.celery.compressed_channels import leave_compressed
from celery_qbeat.dispatchers.celery.raw_message import MOST_ENVELOPE_BYTES, ForeignMessage, RawMessage, from_amqp
from celery_qbeat.dispatchers.celery.unread_backlog import Backlog

MOST_ASKED = 128
"""How many messages RabbitMQ is asked for in one round trip."""


@dataclass(frozen=True, slots=True)
class Taken:
    """A message, and what its inbox needs to find it again: a delivery tag, kombu's message, or list and bytes."""

    message: RawMessage
    handle: Any = None
    key: str = ""
    raw: bytes = b""


class CompletionQueue(ABC):
    """Reads a bound queue, without decoding anything. Its methods raise the connection's errors.

    `unmeasured`: why messages are fetched whose size is not known, where that need not be so.
    """

    def __init__(self, queue: Any) -> None:
        self._queue = queue
        self.backlog = Backlog()
        self.unmeasured = ""

    @property
    def pending(self) -> bool:
        """Whether messages were fetched that `get` has not given yet; then a round must not end."""
        return False

    @abstractmethod
    def begin(self) -> None:
        """A round of reading begins."""

    @abstractmethod
    def get(self) -> Taken | None:
        """The next message, None when the queue is empty. Raises NotOurs for what is no message, and drops it."""

    @abstractmethod
    def reject(self, taken: Taken) -> None:
        """This message shall go, at the latest when a round ends and nothing before it is unacknowledged."""

    @abstractmethod
    def end(self) -> None:
        """The round is over."""

    def count(self, *, emptied: bool) -> None:
        """Note how much is left after a round; `emptied`: nothing is."""
        if emptied:
            self.backlog.empty(time.monotonic())
        elif self.backlog.counted_out:
            self.backlog.count(time.monotonic(), self.unread())

    @abstractmethod
    def unread(self) -> Mapping[str, float]:
        """At least the number of messages that wait in each list (`Taken.key`); infinite where nobody knows."""

    @abstractmethod
    def ack(self, taken: Sequence[Taken]) -> None:
        """These messages are dealt with, in the order in which they were read."""

    @abstractmethod
    def requeue(self, taken: Sequence[Taken]) -> None:
        """Leave these messages to others."""


class VirtualCompletionQueue(CompletionQueue):
    """Reads with kombu's own methods, on any of its virtual transports."""

    def __init__(self, queue: Any) -> None:
        super().__init__(queue)
        leave_compressed(queue.channel)

    def begin(self) -> None:
        """Nothing is kept between rounds."""

    def get(self) -> Taken | None:
        try:
            message = self._queue.get(no_ack=False)
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise ForeignMessage("no message") from error
        if message is None:
            return None
        headers = {**message.headers, "compression": message.compression}
        body = message.body.encode() if isinstance(message.body, str) else bytes(message.body or b"")
        return Taken(RawMessage(body, str(message.content_type), str(message.content_encoding), headers), message)

    def reject(self, taken: Taken) -> None:
        taken.handle.reject()

    def end(self) -> None:
        """Nothing is kept between rounds."""

    def unread(self) -> Mapping[str, float]:
        return {"": math.inf}

    def ack(self, taken: Sequence[Taken]) -> None:
        for item in taken:
            item.handle.ack()

    def requeue(self, taken: Sequence[Taken]) -> None:
        for item in taken:
            item.handle.requeue()


class AmqpCompletionQueue(CompletionQueue):
    """Asks RabbitMQ for many messages before it reads the first answer.

    RabbitMQ answers one after the other, and says when the queue is empty. It cannot say how large a message is before
    it sends it, so after a large one messages are asked for one by one.
    """

    def __init__(self, queue: Any) -> None:
        super().__init__(queue)
        self._channel = queue.channel
        # py-amqp would decode each body with whatever codec its sender names.
        self._channel.auto_decode = False
        self._asked = 1
        self._arrived: deque[tuple[int, Any]] = deque()
        self._open: set[int] = set()
        self._rejected_up_to = 0

    @property
    def pending(self) -> bool:
        return bool(self._arrived)

    def begin(self) -> None:
        self._asked = 1

    def get(self) -> Taken | None:
        if not self._arrived:
            self._fetch()
        if not self._arrived:
            return None
        tag, message = self._arrived.popleft()
        self.backlog.read("")
        self._open.add(tag)
        return Taken(from_amqp(message), tag)

    def reject(self, taken: Taken) -> None:
        self._open.discard(taken.handle)
        self._rejected_up_to = taken.handle

    def end(self) -> None:
        if self._rejected_up_to and not self._open:
            self._ack_up_to(self._rejected_up_to)

    def unread(self) -> Mapping[str, float]:
        return {"": self._queue.queue_declare(passive=True)[1]}

    def ack(self, taken: Sequence[Taken]) -> None:
        tags = [item.handle for item in taken]
        self._open.difference_update(tags)
        if self._open:
            for tag in tags:
                self._channel.basic_ack(tag)
        else:
            self._ack_up_to(max(self._rejected_up_to, *tags))

    def requeue(self, taken: Sequence[Taken]) -> None:
        for item in taken:
            self._open.discard(item.handle)
            self._channel.basic_reject(item.handle, requeue=True)

    def _ack_up_to(self, tag: int) -> None:
        self._channel.basic_ack(tag, multiple=True)
        self._rejected_up_to = 0

    def _fetch(self) -> None:
        channel, asked = self._channel, self._asked
        for _ in range(asked):
            channel.send_method(spec.Basic.Get, "Bsb", (0, self._queue.name, False))
        sizes = [0]
        for _ in range(asked):
            reply = channel.wait([spec.Basic.GetOk, spec.Basic.GetEmpty], returns_tuple=True)
            # The tag, four facts that do not matter here, the message. A queue that is empty has one fact at most.
            if len(reply) > 1:
                tag, message = reply[0], reply[-1]
                sizes.append(len(message.body))
                if sizes[-1] > MOST_ENVELOPE_BYTES:
                    message.body = message.body[: MOST_ENVELOPE_BYTES + 1]
                self._arrived.append((tag, message))
        self._asked = 1 if max(sizes) > MOST_ENVELOPE_BYTES else min(2 * asked, MOST_ASKED)
