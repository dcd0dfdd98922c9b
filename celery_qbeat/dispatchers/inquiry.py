"""Asks all workers which tasks they have, without ever waiting for a broker that is gone."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

ANSWER_S = 1.0


class _Once:
    """A pool of one producer that publishes without trying again: kombu's mailbox would try for ever.

    Each question goes out once more as the command `also`; the answers to both come back together.
    """

    def __init__(self, producer: Any, also: str) -> None:
        self._producer = producer
        self._also = also

    @contextmanager
    def acquire(self) -> Iterator[_Once]:
        yield self

    def publish(self, body: Any, **options: Any) -> Any:
        options = {**options, "retry": False}
        self._producer.publish(body, **options)
        return self._producer.publish({**body, "method": self._also, "arguments": {}}, **options)


def who_has(app: Any, connection: Any, task_ids: Sequence[str]) -> frozenset[str]:
    """The ids that a worker has received or is running, or waits to run again, by two questions to all workers.

    `query_task` alone does not know of a run that waits for its retry. Blocks for about a second after the last answer.
    Raises the connection's errors.
    """
    mailbox = app.control.mailbox(connection)
    mailbox.producer_pool = _Once(app.amqp.Producer(connection.default_channel, auto_declare=False), "scheduled")
    answers = mailbox.multi_call("query_task", {"ids": list(task_ids)}, timeout=ANSWER_S)
    return frozenset(task_ids) & frozenset(_named(answers))


def _named(answers: Any) -> Iterator[str]:
    """Of `query_task` a mapping by id, of `scheduled` a list of what waits; anybody may have sent anything."""
    for answer in answers or ():
        for tasks in answer.values() if isinstance(answer, dict) else ():
            if isinstance(tasks, dict):
                yield from (task for task in tasks if isinstance(task, str))
            elif isinstance(tasks, list):
                requests = [item.get("request") for item in tasks if isinstance(item, dict)]
                named = [request.get("id") for request in requests if isinstance(request, dict)]
                yield from (task for task in named if isinstance(task, str))
