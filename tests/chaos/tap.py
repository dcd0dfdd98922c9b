"""Takes every message off the broker's queue in the order in which it lies there, and loses none."""

from __future__ import annotations

import base64
import json
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any

import redis
from celery import Celery
from kombu.exceptions import OperationalError

from tests.chaos.evidence import Message
from tests.servers import Redis

QUEUE = "celery"
A_LOOK = 500
AWAY = (redis.exceptions.RedisError, OperationalError, OSError)


class Tap(threading.Thread):
    """A consumer that reads before it removes: a message that the broker has said to have is seen, whatever dies.

    A message seen twice, because its removal was not answered, is known by its tag. `answers(job, place)` says whether
    to report the end of a run as a worker does.
    """

    def __init__(self, broker: Redis, answers: Callable[[str, int], bool]) -> None:
        super().__init__(name="tap", daemon=True)
        self._broker = broker
        self._answers = answers
        self._app = Celery(broker=broker.url)
        self._app.conf.broker_transport_options = {"socket_timeout": 1.0, "socket_connect_timeout": 1.0}
        self._tags: set[str] = set()
        self._closing = threading.Event()
        self._looking = threading.Lock()
        self._failure: BaseException | None = None
        self.messages: list[Message] = []

    def run(self) -> None:
        try:
            while not self._closing.is_set():
                if not self._look():
                    self._closing.wait(0.02)
        except BaseException as error:
            self._failure = error
            raise

    def drained(self) -> bool:
        """Whether nothing is left at the broker. Raises what ended the tap."""
        if self._failure is not None:
            raise AssertionError("the tap failed") from self._failure
        with self._broker.client() as client:
            return client.llen(QUEUE) == 0

    @property
    def queue(self) -> str:
        """The queue of which it takes the messages."""
        return QUEUE

    @contextmanager
    def paused(self) -> Iterator[Callable[[Sequence[bytes]], None]]:
        """Take nothing meanwhile. Call what this yields with messages of the queue that are about to be destroyed."""
        with self._looking:
            yield self._take

    def close(self) -> None:
        self._closing.set()
        self.join(10)

    def _look(self) -> bool:
        """Whether something was there."""
        try:
            with self._looking, self._broker.client(timeout=1.0) as client:
                raw: list[bytes] = client.lrange(QUEUE, -A_LOOK, -1)  # type: ignore[assignment]
                fresh = self._take(raw)
                if raw:
                    client.ltrim(QUEUE, 0, -len(raw) - 1)
        except AWAY:
            self._closing.wait(0.05)
            return False
        self._answer(fresh)
        return bool(raw)

    def _take(self, raw: Sequence[bytes]) -> list[dict[str, Any]]:
        """Note the messages that were not seen before, and return them, oldest first."""
        new = [json.loads(item) for item in reversed(raw)]
        fresh = [item for item in new if item["properties"]["delivery_tag"] not in self._tags]
        self._note(fresh)
        return fresh

    def _note(self, items: list[dict[str, Any]]) -> None:
        now_us = time.time_ns() // 1000
        for item in items:
            headers, tag = item["headers"], item["properties"]["delivery_tag"]
            self._tags.add(tag)
            message = Message(headers["qbeat_job"], headers["qbeat_slot_us"], headers["id"], tag, now_us)
            self.messages.append(message)

    def _answer(self, items: list[dict[str, Any]]) -> None:
        chosen = [item for item in items if self._answers(item["headers"]["qbeat_job"], len(self._tags))]
        if not chosen:
            return
        # A worker that cannot report an end has the beat wait for the lease.
        with suppress(*AWAY), self._app.connection_for_write() as connection:
            for item in chosen:
                _, _, embed = json.loads(base64.b64decode(item["body"]))
                for callback in embed["callbacks"]:
                    self._app.signature(callback).apply_async(connection=connection, retry=False)
