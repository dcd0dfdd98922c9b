"""Asks workers and queues which of them has a run: a question in one tick, the answers in later ones.

Nothing here waits for an answer, nor for a broker that is gone. A worker that is busy without a pool (`solo`) does not
answer at all, so each round also counts who could have answered: see `Answers.silent`.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, cast

from celery.events.event import get_exchange
from kombu.entity import Queue
from kombu.messaging import Consumer
from kombu.utils.json import dumps

from celery_qbeat.core.worker_answers import Answers, Holder, WorkerSeen
from celery_qbeat.dispatchers.celery import broker
from celery_qbeat.dispatchers.celery.compressed_channels import leave_compressed
from celery_qbeat.dispatchers.celery.publishers.publisher import text
from celery_qbeat.dispatchers.celery.queue_search import look_into
from celery_qbeat.process.safe_logging import get_logger

log = get_logger()

ANSWER_S = 1.8
"""How long after a question answers to it are waited for, in seconds."""

DRAIN_S = 0.05
"""The most that one tick spends on reading answers, in seconds."""

PAUSE_S = 2.0
PAUSES_PER_WAIT = 4

REFUSED_S = 60.0
"""How long nobody is asked after the broker refused a question, in seconds."""

GOODBYES_KEPT_S = 3_600.0

COUNTING = frozenset({"redis", "amqp"})
"""Kinds of brokers that count who could answer. On the others nothing is concluded from silence, and so there is
nothing to listen for between two questions."""

NEEDED = ("query_task", "scheduled", "active_queues")
"""The commands that a worker must have answered. `query_task` alone does not know what waits for its time."""

COMMANDS = (*NEEDED, "stats")


class _Once:
    """A pool of one producer that publishes without trying again: kombu's mailbox would try for ever."""

    def __init__(self, producer: Any) -> None:
        self._producer = producer

    @contextmanager
    def acquire(self) -> Iterator[_Once]:
        yield self

    def publish(self, body: Any, **options: Any) -> Any:
        return self._producer.publish(body, **{**options, "retry": False})


@dataclass(slots=True)
class _Round:
    """A question under way; `replies`: by worker and command, whatever they sent."""

    task_ids: frozenset[str]
    queue_of: Mapping[str, str]
    queues: Mapping[str, Any]
    asked_at: float
    tickets: dict[str, str] = field(default_factory=dict)
    listeners: int | None = None
    replies: dict[str, dict[str, list[Any]]] = field(default_factory=dict)

    @property
    def complete(self) -> bool:
        """Whether all of those that received the question have answered."""
        everybody = sum(len(replies) == len(COMMANDS) for replies in self.replies.values())
        return self.listeners is not None and everybody >= self.listeners > 0


class WorkerInspection:
    """One connection of its own, on which answers and the goodbyes of workers arrive. Connects on first use."""

    def __init__(self, app: Any) -> None:
        self._app = app
        self._connection: Any = None
        self._mailbox: Any = None
        self._consumers: list[Any] = []
        self._round: _Round | None = None
        self._goodbyes: dict[str, float] = {}
        self._listening_since = 0.0
        self._connect_again = float("-inf")
        self._refused_until = float("-inf")

    def listen(self) -> None:
        """Read what has arrived. Workers announce a shutdown once, so this must be called all the time."""
        started = time.monotonic()
        if started < self._refused_until or (self._connection is None and started < self._connect_again):
            return
        if self._connection is None and not self._counts:
            return
        try:
            self._open()
            self._drain()
        except self._errors() as error:
            self._lose(error, started)

    def ask(self, task_ids: Collection[str], queue_of: Mapping[str, str]) -> bool:
        """Begin a round; one that is under way is given up. False: the broker is away, so nobody can be asked."""
        started = time.monotonic()
        self._round = None
        if started < self._refused_until:
            self._round = _Round(frozenset(task_ids), {}, {}, float("-inf"))
            return True
        if self._connection is None and started < self._connect_again:
            return False
        try:
            self._open()
            if not self._consumers:
                return self.ask(task_ids, queue_of)
            self._drain()
            self._begin(frozenset(task_ids), queue_of)
        except self._errors() as error:
            self._lose(error, started)
            # From a broker that refuses the question nobody answers: then leases decide.
            return started < self._refused_until and self.ask(task_ids, queue_of)
        return True

    def answers(self) -> Answers | None:
        """The end of the round; None while it goes on. A connection that is lost meanwhile ends it without answers."""
        asked = self._round
        if asked is None:
            return Answers()
        self.listen()
        if self._round is None:
            return Answers()
        if not asked.complete and time.monotonic() - asked.asked_at < ANSWER_S:
            return None
        self._round = None
        return self._read(asked)

    def close(self) -> None:
        """Give the connection back. Never raises."""
        connection, self._connection = self._connection, None
        self._round, self._mailbox, self._consumers = None, None, []
        if connection is not None:
            try:
                connection.release()
            except (*broker.lost(connection), *connection.channel_errors):
                broker.drop(connection)

    # ------------------------------------------------------------------

    @cached_property
    def _counts(self) -> bool:
        return self._app.connection_for_write().transport.driver_type in COUNTING

    def _errors(self) -> tuple[type[BaseException], ...]:
        connection = self._connection
        return () if connection is None else (*broker.lost(connection), *connection.channel_errors)

    def _open(self) -> None:
        if self._connection is not None:
            return
        connection = self._connection = broker.connect(self._app.connection_for_write)
        if not connection.supports_exchange_type("fanout"):
            self._refused_until = float("inf")
            return
        broker.open_(connection)
        channel = connection.default_channel
        # Neither answers nor events are ever compressed, but by strangers.
        leave_compressed(channel)
        self._mailbox = self._app.control.mailbox(connection)
        self._mailbox.producer_pool = _Once(self._app.amqp.Producer(channel, auto_declare=False))
        if connection.transport.driver_type == "redis":
            self._count_listeners(channel)
        arrivals = [(self._mailbox.reply_queue(channel), self._replied)]
        if self._counts:
            arrivals.append((self._goodbye_queue(connection)(channel), self._left))
        accept = self._mailbox.accept
        options = {"accept": accept, "no_ack": True, "on_decode_error": _ignore}
        self._consumers = [
            cast(Any, Consumer)(channel, [queue], callbacks=[heard], **options) for queue, heard in arrivals
        ]
        for consumer in self._consumers:
            consumer.consume()
        self._listening_since = time.monotonic()

    def _goodbye_queue(self, connection: Any) -> Any:
        """Of all events of workers only the announcements of their shutdown."""
        exchange = get_exchange(connection, name=self._app.conf.event_exchange)
        # A name that rights for the queues of event receivers usually cover.
        name = f"celeryev.qbeat.{uuid.uuid4().hex}"
        return cast(Any, Queue)(
            name, exchange, routing_key="worker.offline", durable=False, exclusive=True, auto_delete=True
        )

    def _count_listeners(self, channel: Any) -> None:
        """Redis says of each message how many subscribers took it; kombu drops that number."""
        several = getattr(channel, "_get_publish_topics", None)

        def broadcast(exchange: str, message: Any, routing_key: str, **options: Any) -> None:
            one = channel._get_publish_topic
            topics = several(exchange, routing_key) if several is not None else [one(exchange, routing_key)]
            with channel.conn_or_acquire() as client:
                took = [client.publish(topic, cast(Any, dumps)(message)) for topic in topics]
            if self._round is not None:
                # With several topics a worker may listen to each: then nobody can be counted.
                self._round.listeners = max(self._round.listeners or 0, took[0]) if len(took) == 1 else None

        channel._put_fanout = broadcast

    def _begin(self, task_ids: frozenset[str], queue_of: Mapping[str, str]) -> None:
        wanted: dict[str, list[str]] = {}
        for task_id in task_ids & queue_of.keys():
            wanted.setdefault(queue_of[task_id], []).append(task_id)
        # First the queues, then the workers: what a worker takes in between, it says itself.
        queues = look_into(self._connection, wanted)
        # Where bindings are data, somebody may have emptied the place.
        broker.declare_again(self._mailbox.reply_queue(self._connection.default_channel))
        self._round = _Round(task_ids, queue_of, queues, time.monotonic())
        for command in COMMANDS:
            ticket = uuid.uuid4().hex
            self._round.tickets[ticket] = command
            arguments = {"ids": sorted(task_ids)} if command == "query_task" else {}
            self._mailbox._publish(command, arguments, reply_ticket=ticket, timeout=ANSWER_S)

    def _drain(self) -> None:
        until = time.monotonic() + DRAIN_S
        while self._consumers and time.monotonic() < until:
            try:
                self._connection.drain_events(timeout=0.001)
            except TimeoutError:
                return

    def _replied(self, body: Any, message: Any) -> None:
        """Anybody may have sent anything."""
        asked = self._round
        command = asked.tickets.get(str(message.headers.get("ticket"))) if asked is not None else None
        if asked is None or command is None or not isinstance(body, dict):
            return
        for worker, reply in body.items():
            asked.replies.setdefault(str(worker), {}).setdefault(command, []).append(reply)

    def _left(self, body: Any, message: Any) -> None:
        now = time.monotonic()
        for event in body if isinstance(body, list) else [body]:
            if isinstance(event, dict) and event.get("type") == "worker-offline":
                self._goodbyes[str(event.get("hostname"))] = now
        self._goodbyes = {name: at for name, at in self._goodbyes.items() if now - at < GOODBYES_KEPT_S}

    def _read(self, asked: _Round) -> Answers:
        now = time.monotonic()
        holders: dict[str, Holder] = {}
        workers: dict[str, WorkerSeen] = {}
        for name, replies in asked.replies.items():
            for command in ("scheduled", "query_task"):
                for task_id, state in _tasks(replies.get(command, ())):
                    if task_id in asked.task_ids:
                        holders[task_id] = Holder(name, state)
            if all(command in replies for command in NEEDED):
                workers[name] = WorkerSeen(_queues(replies["active_queues"]), _uptime(replies.get("stats", ())))
        return Answers(
            holders=holders,
            workers=workers,
            queues=asked.queues,
            queue_of=asked.queue_of,
            listeners=asked.listeners,
            goodbyes={name: now - at for name, at in self._goodbyes.items()},
            listening_s=now - self._listening_since,
        )

    def _lose(self, error: BaseException, started: float) -> None:
        log.debug("workers could not be asked: %s", text(error))
        connection = self._connection
        self._connection, self._mailbox, self._consumers, self._round = None, None, [], None
        now = time.monotonic()
        if not isinstance(error, broker.lost(connection)):
            self._refused_until = now + REFUSED_S
        self._connect_again = now + PAUSE_S + PAUSES_PER_WAIT * (now - started)
        broker.drop(connection)


def _ignore(_message: Any, error: BaseException) -> None:
    log.debug("an answer of a worker cannot be read: %s", text(error))


def _tasks(replies: Any) -> Iterator[tuple[str, str]]:
    """Of `query_task` a mapping by id, of `scheduled` a list of what waits."""
    for reply in replies:
        if isinstance(reply, dict):
            for task_id, found in reply.items():
                state = found[0] if isinstance(found, (list, tuple)) and found else ""
                yield str(task_id), str(state)
        elif isinstance(reply, list):
            requests = [item.get("request") for item in reply if isinstance(item, dict)]
            for request in requests:
                if isinstance(request, dict):
                    yield str(request.get("id")), "scheduled"


def _queues(replies: Any) -> frozenset[str]:
    listed = [queue for reply in replies if isinstance(reply, list) for queue in reply]
    return frozenset(str(queue.get("name")) for queue in listed if isinstance(queue, dict))


def _uptime(replies: Any) -> float | None:
    """Of the process of that name that came last."""
    found = [reply.get("uptime") for reply in replies if isinstance(reply, dict)]
    return min((float(up) for up in found if isinstance(up, (int, float))), default=None)
