"""What a row may run: nothing, unless it is registered and not privileged.

Names are compared exactly, code point for code point: no case folding, no trimming, no normalisation.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

from celery_qbeat.jobs import Job, Worker

NAMESPACES = ("celery.", "auth.", "db.", "system.")
"""Tasks in these namespaces are privileged; the setting `qbeat_privileged` adds more."""

RUN_OTHER_TASKS = frozenset(
    f"celery.{name}" for name in ("map", "starmap", "chunks", "group", "chord", "chord_unlock", "chain", "accumulate")
)
"""Built-in tasks that run whatever their arguments name (seen on Celery 5.3 to 5.7): never, whoever lists them."""

BUILTIN_PRUNE = "_builtin.prune"

TRUSTED = frozenset({(BUILTIN_PRUNE, BUILTIN_PRUNE)})
"""The (id, fn) pairs of the rows that the scheduler seeds itself."""

RESERVED_QUEUES = {"unacked": "kombu", "unacked_index": "kombu", "unacked_mutex": "kombu", "celeryev": "Celery"}
"""Keys of kombu in Redis, and the exchange of Celery's events; and whose they are."""

RESERVED_PREFIXES = {
    "_kombu.": "kombu",
    "amq.": "RabbitMQ",
    "celeryev.": "Celery",
    "celery-task-meta-": "Celery",
    "celery-taskset-meta-": "Celery",
    "qbeat.": "celery_qbeat",
    "qbeat:": "celery_qbeat",
}

PIDBOX_SUFFIX = ".pidbox"
"""Queues of workers' remote control."""

PRIORITY_SEPARATOR = "\x06\x16"
"""kombu joins a queue's name and a priority with this to the name of a key in Redis."""


@lru_cache(maxsize=1024)
def reserved_queue(name: str) -> str:
    """Why no job may send to the queue `name`, whatever the broker; empty when it may.

    A message in such a place would destroy what kombu, Celery, RabbitMQ or this scheduler keeps there.
    """
    by_prefix = (owner for prefix, owner in RESERVED_PREFIXES.items() if name.startswith(prefix))
    owner = RESERVED_QUEUES.get(name) or next(by_prefix, "")
    if PRIORITY_SEPARATOR in name:
        owner = "kombu"
    elif name.endswith(PIDBOX_SUFFIX):
        owner = "Celery"
    return f"queue: {name!r} is reserved by {owner}; choose another name" if owner else ""


@dataclass(frozen=True, slots=True)
class Privileges:
    """The gate's rules, read once at start.

    `registered`: names in `app.tasks`; `functions`: the setting `qbeat_functions`, exact names of tasks that the
    beat cannot import, also the way to allow single names of a privileged namespace; `namespaces` end with a dot;
    `denied` always wins; `queues`: where a row may send besides the default.
    """

    registered: frozenset[str] = frozenset()
    functions: frozenset[str] = frozenset()
    namespaces: tuple[str, ...] = NAMESPACES
    denied: frozenset[str] = frozenset()
    queues: frozenset[str] = frozenset()
    trusted: frozenset[tuple[str, str]] = TRUSTED

    def refusal(self, job: Job) -> str:
        """Why `job` may not run; empty when it may."""
        if job.from_code or (job.id, job.fn) in self.trusted:
            return ""
        return self.refused_name(job.fn, job.scope) or self.refused_queue(job.queue, job.scope)

    def refused_name(self, fn: str, scope: Worker) -> str:
        for row_id, builtin in self.trusted:
            if fn == builtin:
                return f"fn: {fn!r} is built in: only the row with the id {row_id!r} may run it"
        if fn in RUN_OTHER_TASKS or fn in self.denied:
            return f"fn: {fn!r} is privileged: no row may run it"
        if fn.startswith(self.namespaces) and fn not in self.functions:
            return f"fn: {fn!r} is privileged: no row may run tasks of this namespace"
        if fn not in self.registered and fn not in self.functions:
            return f"fn: {fn!r} is not a registered task; register it in the app or list it in qbeat_functions"
        if scope.functions and not any(_covers(pattern, fn) for pattern in scope.functions):
            return f"fn: {fn!r} is outside the functions of worker {scope.name!r}"
        return ""

    def refused_queue(self, queue: str | None, scope: Worker) -> str:
        """Why a job may not send to its own `queue`, or to that of its scope; empty when it may."""
        wanted = queue or scope.queue
        if wanted and (reserved := reserved_queue(wanted)):
            return reserved
        if queue is None or queue == scope.queue:
            return ""
        allowed = frozenset(scope.queues) if scope.queues else self.queues
        if queue in allowed:
            return ""
        known = ", ".join(sorted(allowed)) or "none"
        where = f"the queues of worker {scope.name!r}" if scope.queues else "qbeat_queues or the worker's queues"
        return f"queue: {queue!r} is not allowed (allowed: {known}); list it in {where}"

    def may_run(self) -> list[str]:
        """The names that some row could run, sorted: what a form offers."""
        names = self.registered | self.functions
        return sorted(name for name in names if not self.refused_name(name, Worker()))


def _covers(pattern: str, fn: str) -> bool:
    if pattern.endswith(".*"):
        return fn.startswith(pattern[:-1])
    return fn == pattern
