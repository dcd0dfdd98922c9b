"""The queue of ends as its one reader sees it: message by message, or many in one round trip on Redis.

Messages stay with the broker until `ack`: what a beat that died has read comes again.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, cast

import redis
from kombu.serialization import prepare_accept_content
from kombu.utils.json import loads

ACCEPT = ["json"]

WINDOW = 50
"""How many messages one look at Redis brings."""


@dataclass(frozen=True, slots=True)
class Taken:
    """A message; on Redis also the list in which it stands, and its bytes there."""

    message: Any
    key: str = ""
    raw: bytes = b""


class Inbox:
    """Reads a bound queue on any transport. Its methods raise the connection's errors."""

    def __init__(self, queue: Any) -> None:
        self._queue = queue

    def begin(self) -> None:
        """A round of reading begins."""

    def get(self) -> Taken | None:
        """The next message, None when there is none. What is no message at all is dropped; its error is raised."""
        message = self._queue.get(accept=ACCEPT)
        return None if message is None else Taken(message)

    def reject(self, taken: Taken) -> None:
        """This message shall go, at the latest when the round ends."""
        taken.message.reject()

    def end(self) -> None:
        """The round is over."""

    def ack(self, taken: Sequence[Taken]) -> None:
        """These messages are dealt with, in the order in which they were read."""
        if self._queue.channel.connection.client.transport.driver_type == "amqp":
            taken[-1].message.ack(multiple=True)
        else:
            for item in taken:
                item.message.ack()


class RedisInbox(Inbox):
    """Looks at messages where they stand, and removes those that were dealt with by their content.

    kombu moves each message into a second place and out of it again, three round trips. Here a reader that dies leaves
    all in place, and one that wakes up late removes nothing that it has not read.
    """

    def __init__(self, queue: Any) -> None:
        super().__init__(queue)
        channel = queue.channel
        # kombu's own client adds the key prefix to some commands and not to others.
        self._client = redis.Redis(connection_pool=channel.pool)
        names = (channel._q_for_pri(queue.name, priority) for priority in channel.priority_steps)
        self._keys = [f"{channel.global_keyprefix}{name}" for name in names]
        self._window: deque[tuple[str, bytes]] = deque()
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
        self._passed[key] += 1
        try:
            return Taken(self._message(raw), key, raw)
        except Exception:
            self._rejected.append(Taken(None, key, raw))
            raise

    def reject(self, taken: Taken) -> None:
        self._rejected.append(taken)

    def end(self) -> None:
        rejected, self._rejected = self._rejected, []
        if rejected:
            self._remove(rejected)

    def ack(self, taken: Sequence[Taken]) -> None:
        self._remove(taken)

    def _look(self) -> None:
        """The oldest messages, behind those that this round has read already."""
        pipeline = self._client.pipeline(transaction=False)
        for key in self._keys:
            pipeline.lrange(key, -self._passed[key] - WINDOW, -self._passed[key] - 1)
        for key, found in zip(self._keys, pipeline.execute(), strict=True):
            self._window.extend((key, raw) for raw in reversed(found))

    def _remove(self, taken: Sequence[Taken]) -> None:
        pipeline = self._client.pipeline(transaction=False)
        for item in taken:
            pipeline.lrem(item.key, -1, cast(Any, item.raw))
        pipeline.execute()

    def _message(self, raw: bytes) -> Any:
        channel = self._queue.channel
        message = channel.Message(cast(Any, loads)(raw.decode()), channel=channel)
        if message.errors:
            message._reraise_error()
        message.accept = cast(Any, prepare_accept_content)(ACCEPT)
        return message


def inbox_of(connection: Any, queue: Any) -> Inbox:
    """The way to read this bound queue."""
    return RedisInbox(queue) if connection.transport.driver_type == "redis" else Inbox(queue)
