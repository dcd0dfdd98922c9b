"""How letters travel: one at a time on any transport, several in one round trip on Redis.

What counts is to know afterwards. A letter that never reached the transport was surely not sent; one of which the
transport did not say that it has it is in doubt. So each wire notes how far a letter came.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, cast

from kombu.utils.json import dumps
from redis.exceptions import ResponseError

from celery_qbeat.dispatchers.broker import lost, open_
from celery_qbeat.dispatchers.letters import Letter, post
from celery_qbeat.ports import Fate, Receipt

Trust = Callable[[], bool]


class Wire:
    """One letter at a time. `trouble` says why nothing more can be sent now; empty while all is well."""

    window = 1

    def __init__(self, app: Any, connection: Any) -> None:
        self.trouble = ""
        self._app = app
        self._connection = connection
        self._lost = lost(connection)
        self._channel: Any = None
        self._producer: Any = None
        self._declared: set[str] = set()
        self._reached = False

    def open(self) -> None:
        """Connect, or prove that the connection still works: what fails here was surely not sent. Sets `trouble`."""
        self.trouble = ""
        try:
            open_(self._connection)
            channel = self._current_channel()
            if channel is not self._channel:
                self._adopt(channel)
            self._probe()
        except self._lost as error:
            self._lose(error)

    def carry(self, letters: Sequence[Letter], trusted: Trust) -> list[Receipt]:
        """A receipt for each letter, in order; at most `window` letters."""
        return [self._one(letter, trusted) for letter in letters]

    def close(self) -> None:
        """Give the connection back. Never raises."""
        self._forget()
        try:
            self._connection.release()
        except self._lost:
            self._connection.collect(0.1)

    # ------------------------------------------------------------------

    def _current_channel(self) -> Any:
        return self._connection.default_channel

    def _probe(self) -> None:
        """Ask the server for any answer, where that is possible."""

    def _adopt(self, channel: Any) -> None:
        self._channel = channel
        self._producer = self._app.amqp.Producer(channel, auto_declare=False)
        self._declared.clear()
        publish = channel.basic_publish

        def noted(*args: Any, **kwargs: Any) -> Any:
            self._reached = True
            return publish(*args, **kwargs)

        channel.basic_publish = noted

    def _one(self, letter: Letter, trusted: Trust) -> Receipt:
        if self.trouble or not trusted():
            return unsent(letter, self.trouble)
        try:
            self._post(letter)
        except self._lost as error:
            self._lose(error)
            return Receipt(letter.task_id, Fate.DOUBT if self._reached else Fate.NOT_SENT, self.trouble)
        except Exception as error:
            return Receipt(letter.task_id, Fate.DOUBT if self._reached else Fate.BAD, text(error))
        return Receipt(letter.task_id, Fate.SENT)

    def _post(self, letter: Letter) -> None:
        self._reached = False
        queue = letter.queue
        post(self._app, self._producer, letter, declare=queue not in self._declared)
        if queue is not None:
            self._declared.add(queue)

    def _lose(self, error: BaseException) -> None:
        self.trouble = text(error)
        self._forget()
        self._connection.collect(0.1)

    def _forget(self) -> None:
        self._channel = self._producer = None
        self._declared.clear()


class RedisWire(Wire):
    """Collects what kombu would push, letter by letter, and pushes a window of it in one round trip.

    Small windows: when Redis goes away in the middle, the whole window is in doubt.
    """

    window = 20

    def __init__(self, app: Any, connection: Any) -> None:
        super().__init__(app, connection)
        self._client: Any = None
        self._refusals: tuple[type[BaseException], ...] = (*self._lost, ResponseError)
        self._pushes: list[tuple[str, str, bytes]] = []
        self._current = ""
        self._at_once = False

    def carry(self, letters: Sequence[Letter], trusted: Trust) -> list[Receipt]:
        receipts: dict[str, Receipt] = {}
        self._pushes.clear()
        for letter in letters:
            self._collect(letter, trusted, receipts)
        waiting = [letter for letter in letters if letter.task_id not in receipts]
        if waiting:
            receipts |= self._push(waiting, trusted)
        return [receipts[letter.task_id] for letter in letters]

    def _probe(self) -> None:
        try:
            self._client.ping()
        except ResponseError as error:
            self.trouble = text(error)

    def _adopt(self, channel: Any) -> None:
        super()._adopt(channel)
        with channel.conn_or_acquire() as client:
            self._client = client
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
            self._pushes.append((self._current, channel._q_for_pri(queue, priority), payload))

        def broadcast(*args: Any, **kwargs: Any) -> None:
            self._at_once = True
            fanout(*args, **kwargs)

        channel._put, channel._put_fanout = collect, broadcast

    def _collect(self, letter: Letter, trusted: Trust, receipts: dict[str, Receipt]) -> None:
        """Without an entry in `receipts` afterwards, the letter waits in `_pushes`."""
        name = self._current = letter.task_id
        if self.trouble or not trusted():
            receipts[name] = unsent(letter, self.trouble)
            return
        before, self._at_once = len(self._pushes), False
        try:
            self._post(letter)
        except self._refusals as error:
            collected = len(self._pushes) > before
            del self._pushes[before:]
            self._refused(error)
            doubtful = self._at_once and not collected
            receipts[name] = Receipt(name, Fate.DOUBT if doubtful else Fate.NOT_SENT, self.trouble)
        except Exception as error:
            del self._pushes[before:]
            receipts[name] = Receipt(name, Fate.DOUBT if self._at_once else Fate.BAD, text(error))
        else:
            if len(self._pushes) == before:
                receipts[name] = Receipt(name, Fate.SENT)

    def _refused(self, error: BaseException) -> None:
        if isinstance(error, self._lost):
            self._lose(error)
        else:
            self.trouble = text(error)

    def _push(self, waiting: Sequence[Letter], trusted: Trust) -> dict[str, Receipt]:
        if not self.trouble:
            self._probe_again()
        if self.trouble or not trusted():
            return {letter.task_id: unsent(letter, self.trouble) for letter in waiting}
        pipeline = self._client.pipeline(transaction=False)
        for _, key, payload in self._pushes:
            pipeline.lpush(key, payload)
        try:
            answers = pipeline.execute(raise_on_error=False)
        except self._lost as error:
            self._lose(error)
            return {letter.task_id: Receipt(letter.task_id, Fate.DOUBT, self.trouble) for letter in waiting}
        return self._read(answers)

    def _probe_again(self) -> None:
        """Between the pushes of a long batch, too, a Redis that just went away leaves no doubt."""
        try:
            self._probe()
        except self._lost as error:
            self._lose(error)

    def _read(self, answers: Sequence[Any]) -> dict[str, Receipt]:
        by_letter: dict[str, list[Any]] = {}
        for (task_id, _, _), answer in zip(self._pushes, answers, strict=True):
            by_letter.setdefault(task_id, []).append(answer)
        return {task_id: _verdict(task_id, given) for task_id, given in by_letter.items()}


def _verdict(task_id: str, answers: Sequence[Any]) -> Receipt:
    refusals = [answer for answer in answers if isinstance(answer, Exception)]
    if not refusals:
        return Receipt(task_id, Fate.SENT)
    fate = Fate.NOT_SENT if len(refusals) == len(answers) else Fate.DOUBT
    return Receipt(task_id, fate, text(refusals[0]))


def unsent(letter: Letter, why: str) -> Receipt:
    return Receipt(letter.task_id, Fate.NOT_SENT, why)


def text(error: BaseException) -> str:
    """The kind and the first line of an error."""
    lines = str(error).strip().splitlines()
    return f"{type(error).__name__}: {lines[0]}" if lines else type(error).__name__
