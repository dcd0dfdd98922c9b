"""The wire to Redis: a window of letters is pushed in one round trip, and each push has its own answer."""

from __future__ import annotations

import re
import time
import uuid
from collections import deque
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, cast

import redis
from kombu.utils.json import dumps
from redis.exceptions import (
    AuthenticationError,
    AuthorizationError,
    BusyLoadingError,
    NoPermissionError,
    ReadOnlyError,
    ResponseError,
)

from celery_qbeat.core.plurals import quantity
from celery_qbeat.dispatchers.celery.messages import TaskMessage
from celery_qbeat.dispatchers.celery.overrides import NotTaken
from celery_qbeat.dispatchers.celery.publishers.publisher import Publisher, Trust, text, unsent
from celery_qbeat.ports import PublishOutcome, PublishResult

REFUSALS = (ResponseError, BusyLoadingError, AuthenticationError, AuthorizationError)
"""What Redis answers when it did not do as asked. redis-py counts some of them as lost connections."""

MARKER = "qbeat:broker"
"""A key that is set in the broker's database while nobody has emptied it."""

MARKER_TTL_S = 30 * 86_400

Command = tuple[Any, ...]


@dataclass(frozen=True, slots=True)
class _Push:
    task_id: str
    queue: str
    key: str
    payload: bytes


class RedisPipelinePublisher(Publisher):
    """Collects what kombu would push, letter by letter, and pushes a window of it in one round trip.

    Small windows: when Redis goes away in the middle, all pushes that it did not answer are in doubt. When it only
    hangs, they are `UNCONFIRMED` and their answers are read later. The pushes have a connection of their own: redis-py
    gives back no answer of a pipeline that broke, and may send one again.
    """

    window = 20

    def __init__(self, app: Any, connection: Any) -> None:
        super().__init__(app, connection)
        self._failures: tuple[type[BaseException], ...] = (*self._lost, *REFUSALS)
        self._redis: Any = None
        self._prefix = ""
        self._marker_allowed = True
        self._introduced = False
        self._run_id = ""
        self._pushes: list[_Push] = []
        self._unanswered: deque[_Push] = deque()
        self._answers: dict[str, list[tuple[_Push, Any]]] = {}
        self._late: list[PublishResult] = []
        self._silent_since, self._hanging = float("-inf"), False
        self._current = ""
        self._at_once = self._is_override = False

    def open(self, *, probe: bool = True) -> None:
        if self._hanging:
            self._take_answers()
        if self._hanging:
            self.trouble = self._silence()
            if self._hopeless(self._silent_since):
                self._lose(redis.TimeoutError(self.trouble))
            return
        super().open(probe=probe)

    def late_results(self) -> list[PublishResult]:
        if self._hanging:
            self._take_answers()
        late, self._late = self._late, []
        return late

    def publish(self, letters: Sequence[TaskMessage], trusted: Trust) -> list[PublishResult]:
        receipts: dict[str, PublishResult] = {}
        self._pushes.clear()
        for letter in letters:
            self._collect(letter, trusted, receipts)
        waiting = [letter for letter in letters if letter.task_id not in receipts]
        if waiting:
            receipts |= self._push(waiting, trusted)
        return [receipts[letter.task_id] for letter in letters]

    # ---------------------------------------------------------------- the broker is asked

    def _probe(self) -> None:
        """A write that changes nothing: full memory, a replica, a broken disk refuse it as they refuse messages."""
        if not self._marker_allowed:
            self._ping()
            return
        key = self._prefix + MARKER
        commands: list[Command] = [
            ("SET", key, uuid.uuid4().hex, "NX", "EX", MARKER_TTL_S),
            ("GET", key),
            ("EXPIRE", key, MARKER_TTL_S),
        ]
        if not self._introduced:
            commands.append(("INFO", "server"))
        answers, error = self._ask(commands)
        if error is not None:
            self._lose(error)
        elif isinstance(answers[0], NoPermissionError):
            # The user may write to queues alone: nothing but its messages shows more.
            self._marker_allowed = False
            self._ping()
        elif isinstance(answers[0], Exception):
            self._refused(answers[0])
        else:
            self._remember(answers)

    def _ping(self) -> None:
        answers, error = self._ask([("PING",)])
        if error is not None:
            self._lose(error)
        elif isinstance(answers[0], Exception) and not isinstance(answers[0], NoPermissionError):
            self._refused(answers[0])

    def _remember(self, answers: Sequence[Any]) -> None:
        self._introduced = True
        if len(answers) > 3 and isinstance(answers[3], bytes):
            found = re.search(rb"^run_id:(\w+)", answers[3], re.MULTILINE)
            self._run_id = found[1].decode() if found else ""
        token = answers[1].decode(errors="replace") if isinstance(answers[1], bytes) else ""
        self.incarnation = f"{self._run_id} {token}".strip()

    def _ask(self, commands: Sequence[Command]) -> tuple[list[Any], BaseException | None]:
        """The answers, an exception where Redis refused a command, and the error that ended them too early.

        A `redis.TimeoutError` means that Redis has all commands, and that the other answers may still come.
        """
        answers: list[Any] = []
        link = self._redis.connection
        try:
            link.send_packed_command(link.pack_commands(commands), check_health=False)
        except self._lost as error:
            return answers, redis.ConnectionError(text(error))
        try:
            while len(answers) < len(commands):
                answers.append(self._answer())
        except self._lost as error:
            return answers, error
        return answers, None

    def _answer(self) -> Any:
        """The next answer; an exception where Redis refused the command."""
        try:
            return self._redis.connection.read_response(disconnect_on_error=False)
        except REFUSALS as refusal:
            return refusal

    # ---------------------------------------------------------------- kombu's channel

    def _adopt(self, channel: Any) -> None:
        self._redis = redis.Redis(connection_pool=channel.pool, single_connection_client=True)
        self._redis.connection.connect()
        self._prefix = channel.global_keyprefix
        self._marker_allowed, self._introduced, self._run_id = True, False, ""
        super()._adopt(channel)
        self._take_over_pushing(channel)

    def _take_over_pushing(self, channel: Any) -> None:
        put, fanout = channel._put, channel._put_fanout

        def collect(queue: str, message: dict[str, Any], **kwargs: Any) -> None:
            if queue in getattr(channel, "_expires", ()):
                self._at_once = True
                put(queue, message, **kwargs)
                return
            priority = channel._get_message_priority(message, reverse=False)
            payload = cast(Any, dumps)(message).encode()
            key = self._prefix + channel._q_for_pri(queue, priority)
            push = _Push(self._current, queue, key, payload)
            if self._is_override:
                self._push_at_once(push)
            else:
                self._pushes.append(push)

        def broadcast(*args: Any, **kwargs: Any) -> None:
            self._at_once = True
            fanout(*args, **kwargs)

        channel._put, channel._put_fanout = collect, broadcast

    def _forget(self) -> None:
        client, self._redis = self._redis, None
        if client is not None:
            with suppress(*self._lost):
                client.connection.disconnect()
                client.close()
        super()._forget()

    # ---------------------------------------------------------------- letters

    def _collect(self, letter: TaskMessage, trusted: Trust, receipts: dict[str, PublishResult]) -> None:
        """Without an entry in `receipts` afterwards, the letter waits in `_pushes`."""
        name = self._current = letter.task_id
        if self.trouble or not trusted():
            receipts[name] = unsent(letter, self.trouble)
            return
        before, self._at_once, self._is_override = len(self._pushes), False, letter.override is not None
        try:
            self._post(letter)
        except NotTaken as error:
            receipts[name] = error.receipt
        except self._failures as error:
            collected = len(self._pushes) > before
            del self._pushes[before:]
            doubtful = self._at_once and not collected
            receipts[name] = self._failed(letter, error, doubtful=doubtful)
        except Exception as error:
            del self._pushes[before:]
            receipts[name] = PublishResult(
                name, PublishOutcome.UNKNOWN if self._at_once else PublishOutcome.BAD, text(error)
            )
        else:
            if len(self._pushes) == before:
                receipts[name] = PublishResult(name, PublishOutcome.SENT)

    def _failed(self, letter: TaskMessage, error: BaseException, *, doubtful: bool) -> PublishResult:
        """The receipt of a letter whose queue could not be declared, or that kombu sent by itself."""
        if isinstance(error, REFUSALS):
            verdict = self._judge(letter.task_id, letter.queue_name or "", error)
            return PublishResult(letter.task_id, PublishOutcome.UNKNOWN, verdict.detail) if doubtful else verdict
        self._lose(error)
        return PublishResult(
            letter.task_id, PublishOutcome.UNKNOWN if doubtful else PublishOutcome.NOT_SENT, self.trouble
        )

    def _push_at_once(self, push: _Push) -> None:
        """Push the message of an override, which must see a failure. Raises NotTaken."""
        self._ping()
        if self.trouble:
            raise NotTaken(PublishResult(push.task_id, PublishOutcome.NOT_SENT, self.trouble))
        self._at_once = True
        answers, error = self._ask([("LPUSH", push.key, push.payload)])
        if error is not None:
            self._lose(error)
            raise NotTaken(PublishResult(push.task_id, PublishOutcome.UNKNOWN, self.trouble))
        if isinstance(answers[0], Exception):
            raise NotTaken(self._judge(push.task_id, push.queue, answers[0]))

    def _push(self, waiting: Sequence[TaskMessage], trusted: Trust) -> dict[str, PublishResult]:
        if not self.trouble:
            # Between the pushes of a long batch, too, a Redis that just went away leaves no doubt.
            self._ping()
        if self.trouble or not trusted():
            return {letter.task_id: unsent(letter, self.trouble) for letter in waiting}
        answers, error = self._ask([("LPUSH", push.key, push.payload) for push in self._pushes])
        self._answers = {letter.task_id: [] for letter in waiting}
        for push, answer in zip(self._pushes, answers, strict=False):
            self._answers[push.task_id].append((push, answer))
        self._unanswered = deque(self._pushes[len(answers) :])
        if isinstance(error, redis.TimeoutError):
            return self._answer_later()
        if error is not None:
            self._lose(error)
        return self._verdicts()

    def _verdicts(self) -> dict[str, PublishResult]:
        """A receipt for each letter of a window whose answers are complete, or broke off.

        What Redis answered before the connection broke counts.
        """
        doubtful = dict.fromkeys(push.task_id for push in self._unanswered)
        given = {name: answers for name, answers in self._answers.items() if name not in doubtful}
        self._unanswered.clear()
        self._answers, self._hanging = {}, False
        receipts = {name: PublishResult(name, PublishOutcome.UNKNOWN, self.trouble) for name in doubtful}
        return receipts | {name: self._verdict(name, answers) for name, answers in given.items()}

    # ---------------------------------------------------------------- answers that come late

    def _answer_later(self) -> dict[str, PublishResult]:
        """The receipts of a window that Redis has and did not answer in time."""
        self._silent_since, self._hanging = time.monotonic(), True
        waiting = dict.fromkeys(push.task_id for push in self._unanswered)
        given = {name: answers for name, answers in self._answers.items() if name not in waiting}
        self._answers = {name: self._answers[name] for name in waiting}
        receipts = {name: self._verdict(name, answers) for name, answers in given.items()}
        self.trouble = self._silence()
        return receipts | {name: PublishResult(name, PublishOutcome.UNCONFIRMED, self.trouble) for name in waiting}

    def _silence(self) -> str:
        return f"{quantity(len(self._answers), 'message')} without an answer of Redis"

    def _take_answers(self) -> None:
        """Read what Redis has answered meanwhile, without waiting."""
        try:
            while self._unanswered and self._redis.connection.can_read(timeout=0.01):
                answer = self._answer()
                push = self._unanswered.popleft()
                self._answers[push.task_id].append((push, answer))
        except redis.TimeoutError:
            # A part of an answer; the parser keeps it.
            return
        except self._lost as error:
            self._lose(error)
        if self._hanging and not self._unanswered:
            self._late.extend(self._verdicts().values())

    def _lose(self, error: BaseException) -> None:
        super()._lose(error)
        if self._hanging:
            self._late.extend(self._verdicts().values())

    def _verdict(self, task_id: str, given: Sequence[tuple[_Push, Any]]) -> PublishResult:
        refusals = [(push.queue, answer) for push, answer in given if isinstance(answer, Exception)]
        if not refusals:
            return PublishResult(task_id, PublishOutcome.SENT)
        verdict = self._judge(task_id, *refusals[0])
        # An exchange may lead to several queues, and some of them have it.
        return (
            verdict if len(refusals) == len(given) else PublishResult(task_id, PublishOutcome.UNKNOWN, verdict.detail)
        )

    def _judge(self, task_id: str, queue: str, error: BaseException) -> PublishResult:
        """Whom a refusal concerns: this message, its queue, or all that anyone could send."""
        if "WRONGTYPE" in str(error) or "wrong kind of value" in str(error):
            return PublishResult(
                task_id, PublishOutcome.BAD, f"key {queue!r} is no list, so it cannot be a queue ({text(error)})"
            )
        if isinstance(error, NoPermissionError):
            return PublishResult(task_id, PublishOutcome.REFUSED, text(error), queue)
        self._refused(error)
        return PublishResult(task_id, PublishOutcome.NOT_SENT, self.trouble)

    def _refused(self, error: BaseException) -> None:
        """Redis answers and takes nothing; a new connection may lead to a server, or a user, that can."""
        self.trouble = text(error)
        gone = isinstance(error, (ReadOnlyError, *self._lost)) or "NOAUTH" in str(error)
        if gone and self._channel is not None:
            self._lose(error)
