"""Looks into queues for runs, without taking anything out of them and within bounds."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping
from typing import Any

import redis

from celery_qbeat.core.worker_answers import QueueSeen

MOST_MESSAGES = 2_000
MOST_BYTES = 4 * 1024 * 1024
PAGE = 100

_UUID = re.compile(rb"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}")


def look_into(connection: Any, queues: Mapping[str, Collection[str]]) -> dict[str, QueueSeen]:
    """What is known of each queue (name -> task ids wanted in it). Empty for brokers that cannot be asked.

    Raises the connection's errors.
    """
    transport = connection.transport
    if transport.driver_type == "redis":
        return _RedisSearch(connection.default_channel).search(queues)
    if transport.driver_type == "amqp":
        return {queue: _declared(connection, queue) for queue in queues}
    return {}


def _declared(connection: Any, queue: str) -> QueueSeen:
    """By a passive declare: it changes nothing, and a missing queue closes the channel, so each has its own.

    RabbitMQ gives counts alone. With no message ready, every message of the queue is delivered and unacknowledged: it
    belongs to a consumer. A consumer whose connection has ended gives its messages back at once (they would be ready
    again), so each belongs to a living consumer. If all consumers belong to workers that answer, those workers have
    received it and say so: as `query_task` while it is reserved or running, as `scheduled` while it waits for its time.
    That also holds for `acks_late` and for the prefetch buffer.
    """
    channel = connection.channel()
    try:
        _, ready, readers = channel.queue_declare(queue=queue, passive=True)
        return QueueSeen(waiting=ready, readers=readers, searched=ready == 0)
    except connection.channel_errors as error:
        if getattr(error, "reply_code", None) == 404:
            return QueueSeen(waiting=0, readers=0, searched=True)
        return QueueSeen()
    finally:
        channel.close()


class _RedisSearch:
    """Searches lists from their oldest end, and the hash of unacknowledged messages.

    A message of a worker that was killed stays in that hash until the visibility timeout is over and is delivered
    again then, so a run that is in it is not lost. A message moves from the list to the hash in two steps: between
    them it is nowhere, which is one reason why a single round of questions proves nothing.
    """

    def __init__(self, channel: Any) -> None:
        self._channel = channel
        # kombu's own client adds the key prefix to some commands and not to others.
        self._client: Any = redis.Redis(connection_pool=channel.pool)
        self._prefix = getattr(channel, "global_keyprefix", "") or ""
        self._messages, self._bytes = MOST_MESSAGES, MOST_BYTES

    def search(self, queues: Mapping[str, Collection[str]]) -> dict[str, QueueSeen]:
        try:
            unacked, complete = self._found(self._unacked())
        except redis.ResponseError:
            unacked, complete = set(), False
        seen = {}
        for queue, ids in queues.items():
            try:
                seen[queue] = self._queue(queue, frozenset(ids), unacked, complete)
            except redis.ResponseError:
                # A key of another type: of this queue nothing is known, and of the others it is.
                seen[queue] = QueueSeen()
        return seen

    def _queue(self, queue: str, wanted: frozenset[str], unacked: set[str], complete: bool) -> QueueSeen:
        steps = self._channel.priority_steps
        keys = [f"{self._prefix}{self._channel._q_for_pri(queue, step)}" for step in steps]
        found, whole = self._found(self._listed(keys))
        waiting = sum(self._client.llen(key) for key in keys)
        return QueueSeen(waiting, ready=wanted & found, delivered=wanted & unacked, searched=whole and complete)

    def _found(self, messages: Iterator[bytes]) -> tuple[set[str], bool]:
        """Every UUID in these messages, and whether all of them were read."""
        found: set[str] = set()
        for message in messages:
            found.update(match.decode() for match in _UUID.findall(message))
            self._messages -= 1
            self._bytes -= len(message)
            if self._messages <= 0 or self._bytes <= 0:
                return found, False
        return found, True

    def _listed(self, keys: list[str]) -> Iterator[bytes]:
        for key in keys:
            passed = 0
            while page := self._client.lrange(key, -passed - PAGE, -passed - 1):
                yield from reversed(page)
                passed += len(page)
                if len(page) < PAGE:
                    break

    def _unacked(self) -> Iterator[bytes]:
        key = f"{self._prefix}{self._channel.unacked_key}"
        for _, message in self._client.hscan_iter(key, count=PAGE):
            yield message
