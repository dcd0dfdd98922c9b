"""The queue of ends on Redis: messages are measured where they are, and leave their list when they were dealt with."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Mapping, Sequence
from typing import Any, cast

import redis

from celery_qbeat.dispatchers.celery.completion_queue import (
    AmqpCompletionQueue,
    CompletionQueue,
    Taken,
    VirtualCompletionQueue,
)
from celery_qbeat.dispatchers.celery.raw_message import MOST_ENVELOPE_BYTES, ForeignMessage, RawMessage, from_redis

WINDOW = 50
"""How many messages one look at Redis brings."""

MOST_REJECTED = 500
"""After this many messages that shall go they are removed, before the round goes on."""

MOST_REMOVED_BYTES = 16 * 1024 * 1024
"""Redis copies a message to measure it; after this many bytes of too large ones a look ends."""

# Measures messages where they are. One that is too large never leaves the server: it is removed (ARGV[2] is '1') or
# passed over. LINDEX counts from the end from which workers' messages are read; ARGV[4] and on say how many were read.
# Answers for each list the number of those that were too large, and the others.
_LOOK = f"""
local answer = {{}}
for number, key in ipairs(KEYS) do
  local index, found, large, bytes = -1 - tonumber(ARGV[3 + number]), {{}}, 0, 0
  while #found + large < tonumber(ARGV[1]) and bytes < {MOST_REMOVED_BYTES} do
    local raw = redis.call('LINDEX', key, index)
    if not raw then break end
    if #raw <= tonumber(ARGV[3]) then
      found[#found + 1] = raw
      index = index - 1
    else
      large = large + 1
      bytes = bytes + #raw
      if ARGV[2] == '1' then redis.call('LREM', key, -1, raw) else index = index - 1 end
    end
  end
  answer[number] = {{large, found}}
end
return answer
"""


class RedisCompletionQueue(CompletionQueue):
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
            raise ForeignMessage("too large")
        self._passed[key] += 1
        try:
            return Taken(from_redis(raw), key=key, raw=raw)
        except ForeignMessage:
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
        limits = (WINDOW, int(self._remove_large), MOST_ENVELOPE_BYTES)
        passed = (self._passed[key] for key in self._keys)
        answers = cast(Any, self._client).eval(_LOOK, len(self._keys), *self._keys, *limits, *passed)
        for key, (large, found) in zip(self._keys, answers, strict=True):
            self._window.extend((key, None) for _ in range(large))
            self._window.extend((key, raw) for raw in found)
            if not self._remove_large:
                self._passed[key] += large

    def _remove(self, taken: Sequence[Taken]) -> None:
        pipeline = self._client.pipeline(transaction=False)
        for item in taken:
            pipeline.lrem(item.key, -1, cast(Any, item.raw))
        pipeline.execute()


def inbox_of(connection: Any, queue: Any, *, remove_large: bool = True) -> CompletionQueue:
    """The way to read this bound queue. `remove_large` False: what is too large may belong to others."""
    if connection.transport.driver_type == "redis":
        return RedisCompletionQueue(queue, remove_large=remove_large)
    return AmqpCompletionQueue(queue) if connection.transport.driver_type == "amqp" else VirtualCompletionQueue(queue)


def _is_refused(error: redis.ResponseError) -> bool:
    return isinstance(error, redis.exceptions.NoPermissionError) or "unknown command" in str(error).lower()
