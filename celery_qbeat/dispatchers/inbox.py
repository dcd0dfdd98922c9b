"""The queue of ends as its one reader sees it: nothing is decoded, and many messages cost one round trip.

Messages stay with the broker until `ack`: what a beat that died has read comes again.
"""

from __future__ import annotations

import math
import time
from abc import ABC, abstractmethod
from collections import Counter, deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

import redis
from amqp import spec

from celery_qbeat.dispatchers.backlog import Backlog
from celery_qbeat.dispatchers.raw_message import MOST_ENVELOPE_BYTES, NotOurs, RawMessage, from_amqp, from_redis

WINDOW = 50
"""How many messages one look at Redis brings."""

MOST_ASKED = 128
"""How many messages RabbitMQ is asked for in one round trip."""

MOST_REJECTED = 500
"""After this many messages that shall go they are removed, before the round goes on."""

MOST_REMOVED_BYTES = 16 * 1024 * 1024
"""Redis copies a message to measure it; after this many bytes of too large ones a look ends."""

# Measures messages where they are. One that is too large never leaves the server: it is removed (ARGV[3] is '1') or
# passed over. LINDEX counts from the end from which workers' messages are read.
# Answers the number of those that were too large, and the others.
_LOOK = """
local index, most, remove = -1 - tonumber(ARGV[1]), tonumber(ARGV[4]), ARGV[3] == '1'
local found, large, bytes = {}, 0, 0
while #found + large < tonumber(ARGV[2]) and bytes < tonumber(ARGV[5]) do
  local raw = redis.call('LINDEX', KEYS[1], index)
  if not raw then break end
  if #raw <= most then
    found[#found + 1] = raw
    index = index - 1
  else
    large = large + 1
    bytes = bytes + #raw
    if remove then redis.call('LREM', KEYS[1], -1, raw) else index = index - 1 end
  end
end
return {large, found}
"""


@dataclass(frozen=True, slots=True)
class Taken:
    """A message, and what its inbox needs to find it again: a delivery tag, kombu's message, or list and bytes."""

    message: RawMessage
    handle: Any = None
    key: str = ""
    raw: bytes = b""


class Inbox(ABC):
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


class VirtualInbox(Inbox):
    """Reads with kombu's own methods, on any of its virtual transports."""

    def __init__(self, queue: Any) -> None:
        super().__init__(queue)
        _leave_compressed(queue.channel)

    def begin(self) -> None:
        """Nothing is kept between rounds."""

    def get(self) -> Taken | None:
        try:
            message = self._queue.get(no_ack=False)
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise NotOurs("no message") from error
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


class AmqpInbox(Inbox):
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


class RedisInbox(Inbox):
    """Looks at messages where they stand, and removes those that were dealt with by their content.

    kombu moves each message into a second place and out of it again, three round trips. Here a reader that dies leaves
    all in place, and one that wakes up late removes nothing that it has not read. `remove_large` False: messages that
    are too large stay, too.
    """

    def __init__(self, queue: Any, *, remove_large: bool = True) -> None:
        super().__init__(queue)
        channel = queue.channel
        # kombu's own client adds the key prefix to some commands and not to others.
        self._client = redis.Redis(connection_pool=channel.pool)
        names = (channel._q_for_pri(queue.name, priority) for priority in channel.priority_steps)
        self._keys = [f"{channel.global_keyprefix}{name}" for name in names]
        self._remove_large = remove_large
        self._window: deque[tuple[str, bytes | None]] = deque()
        self._passed: Counter[str] = Counter()
        self._rejected: list[Taken] = []

    def begin(self) -> None:
        self._window.clear()
        self._passed.clear()

    def get(self) -> Taken | None:
        if not self._window:
            self._look()
        if not self._window:
            return None
        key, raw = self._window.popleft()
        self.backlog.read(key)
        if raw is None:
            raise NotOurs("too large")
        self._passed[key] += 1
        try:
            return Taken(from_redis(raw), key=key, raw=raw)
        except NotOurs:
            self._rejected.append(Taken(RawMessage(b""), key=key, raw=raw))
            raise

    def reject(self, taken: Taken) -> None:
        self._rejected.append(taken)

    def end(self) -> None:
        rejected, self._rejected = self._rejected, []
        if rejected:
            self._remove(rejected)

    def unread(self) -> Mapping[str, float]:
        pipeline = self._client.pipeline(transaction=False)
        for key in self._keys:
            pipeline.llen(key)
        return dict(zip(self._keys, pipeline.execute(), strict=True))

    def ack(self, taken: Sequence[Taken]) -> None:
        self._remove(taken)

    def requeue(self, taken: Sequence[Taken]) -> None:
        """They have not left their list."""

    def _look(self) -> None:
        """The oldest messages, behind those that this round has read already."""
        if len(self._rejected) >= MOST_REJECTED:
            self._passed.subtract(item.key for item in self._rejected)
            self.end()
        if not self.unmeasured:
            try:
                self._measure()
                return
            except redis.ResponseError as error:
                if not _is_refused(error):
                    raise
                self.unmeasured = "Redis runs no scripts for this user"
        pipeline = self._client.pipeline(transaction=False)
        for key in self._keys:
            pipeline.lrange(key, -self._passed[key] - WINDOW, -self._passed[key] - 1)
        for key, found in zip(self._keys, pipeline.execute(), strict=True):
            self._window.extend((key, raw) for raw in reversed(found))

    def _measure(self) -> None:
        pipeline = self._client.pipeline(transaction=False)
        for key in self._keys:
            sizes = (MOST_ENVELOPE_BYTES, MOST_REMOVED_BYTES)
            pipeline.eval(_LOOK, 1, key, self._passed[key], WINDOW, int(self._remove_large), *sizes)
        for key, (large, found) in zip(self._keys, pipeline.execute(), strict=True):
            self._window.extend((key, None) for _ in range(large))
            self._window.extend((key, raw) for raw in found)
            if not self._remove_large:
                self._passed[key] += large

    def _remove(self, taken: Sequence[Taken]) -> None:
        pipeline = self._client.pipeline(transaction=False)
        for item in taken:
            pipeline.lrem(item.key, -1, cast(Any, item.raw))
        pipeline.execute()


def inbox_of(connection: Any, queue: Any, *, remove_large: bool = True) -> Inbox:
    """The way to read this bound queue. `remove_large` False: what is too large may belong to others."""
    if connection.transport.driver_type == "redis":
        return RedisInbox(queue, remove_large=remove_large)
    return AmqpInbox(queue) if connection.transport.driver_type == "amqp" else VirtualInbox(queue)


def _is_refused(error: redis.ResponseError) -> bool:
    return isinstance(error, redis.exceptions.NoPermissionError) or "unknown command" in str(error).lower()


def _leave_compressed(channel: Any) -> None:
    """Make kombu leave bodies on this channel as they are: a small one can become gigabytes."""
    if not issubclass(channel.Message, _LeftCompressed):
        channel.Message = type("Message", (_LeftCompressed, channel.Message), {})


class _LeftCompressed:
    """In front of a channel's own class of messages: hides the header that asks for decompression."""

    compression: Any = None

    def __init__(self, payload: Any, channel: Any = None, **options: Any) -> None:
        headers = {**(payload.get("headers") or {})}
        self.compression = headers.pop("compression", None)
        super().__init__({**payload, "headers": headers}, channel=channel, **options)  # type: ignore[call-arg]

    def serializable(self) -> dict[str, Any]:
        """For the return into the queue."""
        data: dict[str, Any] = super().serializable()  # type: ignore[misc]
        return {**data, "headers": {**data["headers"], "compression": self.compression}} if self.compression else data
