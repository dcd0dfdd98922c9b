"""Asks all workers which tasks they have, without ever waiting for a broker that is gone."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

ANSWER_S = 1.0


class _Once:
    """A pool of one producer that publishes without trying again: kombu's mailbox would try for ever."""

    def __init__(self, producer: Any) -> None:
        self._producer = producer

    @contextmanager
    def acquire(self) -> Iterator[_Once]:
        yield self

    def publish(self, body: Any, **options: Any) -> Any:
        return self._producer.publish(body, **{**options, "retry": False})


def who_has(app: Any, connection: Any, task_ids: Sequence[str]) -> frozenset[str]:
    """The ids that a worker has received or is running, by one `query_task` to all workers.

    Blocks for about a second after the last answer. Raises the connection's errors.
    """
    mailbox = app.control.mailbox(connection)
    mailbox.producer_pool = _Once(app.amqp.Producer(connection.default_channel, auto_declare=False))
    answers = mailbox.multi_call("query_task", {"ids": list(task_ids)}, timeout=ANSWER_S)
    return frozenset(task_ids) & frozenset(_named(answers))


def _named(answers: Any) -> Iterator[str]:
    for answer in answers or ():
        for tasks in answer.values() if isinstance(answer, dict) else ():
            if isinstance(tasks, dict):
                yield from (task for task in tasks if isinstance(task, str))
