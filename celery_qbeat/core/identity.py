"""Names that follow from the instance of a database: of a slot's run, of its secret, of the database itself. Pure."""

from __future__ import annotations

import uuid
from functools import lru_cache
from hashlib import blake2b


def task_id(instance: str, job_id: str, slot_us: int) -> str:
    """The broker's task id of a slot: the same on every beat, for ever."""
    return str(uuid.uuid5(_uuid(instance), f"{job_id}@{slot_us}"))


def request_task_id(instance: str, job_id: str, request_id: int, asked_us: int) -> str:
    """The broker's task id of a run that somebody asked for: a request is never run twice, whatever its slot is."""
    return str(uuid.uuid5(_uuid(instance), f"{job_id}@request {request_id} of {asked_us}"))


@lru_cache(maxsize=16)
def _uuid(text: str) -> uuid.UUID:
    return uuid.UUID(text)


def run_token(instance: str, task: str) -> str:
    """A secret of a run, known to those who can read `qbeat_meta` and to the messages of the run itself."""
    return blake2b(task.encode(), key=instance.encode(), digest_size=12).hexdigest()


def database_id(instance: str) -> str:
    """The public name of a database, 16 hexadecimal digits: in the lock's key, the queue of ends and the log.

    Not the instance itself: whoever knows that can make the token of any run.
    """
    return blake2b(b"database", key=instance.encode(), digest_size=8).hexdigest()
