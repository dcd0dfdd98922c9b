"""What a row may run: nothing, unless it is registered and not privileged.

Names are compared exactly, code point for code point: no case folding, no trimming, no normalisation.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import lru_cache

from celery_qbeat.core.jobs import Job, WorkerScope

NAMESPACES = ("celery.", "auth.", "db.", "system.")
"""Tasks in these namespaces are privileged; the setting `qbeat_privileged` adds more."""

RUN_OTHER_TASKS = frozenset(
    f"celery.{name}" for name in ("map", "starmap", "chunks", "group", "chord", "chord_unlock", "chain", "accumulate")
)
"""Built-in tasks that run whatever their arguments name (seen on Celery 5.3 to 5.7): never, whoever lists them."""

BUILTIN_PREFIX = "_builtin."
"""How the ids and functions of the rows begin that the scheduler seeds itself."""

BUILTIN_PRUNE = f"{BUILTIN_PREFIX}prune"

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
    """What rows may run, read once at start.

    `registered`: names in `app.tasks`; `functions`: the setting `qbeat_functions`, exact names of tasks that the
    beat cannot import, also the way to allow single names of a privileged namespace; `namespaces` end with a dot;
    `denied` always wins; `queues`: where a row may send besides the default. `allow`: patterns of the names that
    rows may run whose scope has no functions of its own; None: all names. `reserved`: patterns of names, and the
    scopes whose rows alone may run them. A pattern is an exact name, or `prefix.*`.
    """

    registered: frozenset[str] = frozenset()
    functions: frozenset[str] = frozenset()
    namespaces: tuple[str, ...] = NAMESPACES
    denied: frozenset[str] = frozenset()
    queues: frozenset[str] = frozenset()
    trusted: frozenset[tuple[str, str]] = TRUSTED
    allow: tuple[str, ...] | None = None
    reserved: tuple[tuple[str, frozenset[str]], ...] = ()
    scope_required: bool = False

    def refusal(self, job: Job) -> str:
        """Why `job` may not run; empty when it may."""
        if job.from_code or (job.id, job.fn) in self.trusted:
            return ""
        return self.refused_name(job.fn, job.scope) or self.refused_queue(job.queue, job.scope)

    def refused_name(self, fn: str, scope: WorkerScope) -> str:
        for row_id, builtin in self.trusted:
            if fn == builtin:
                return f"fn: {fn!r} is built in: only the row with the id {row_id!r} may run it"
        if fn in RUN_OTHER_TASKS or fn in self.denied:
            return f"fn: {fn!r} is privileged: no row may run it"
        if fn.startswith(self.namespaces) and fn not in self.functions:
            return f"fn: {fn!r} is privileged: no row may run tasks of this namespace"
        if fn not in self.registered and fn not in self.functions:
            return f"fn: {fn!r} is not a registered task; register it in the app or list it in qbeat_functions"
        return self._refused_scope(scope) or self._refused_in_scope(fn, scope)

    def _refused_scope(self, scope: WorkerScope) -> str:
        if self.scope_required and not scope.name:
            return "worker: a row must name a worker scope (qbeat_scope_required)"
        return ""

    def _refused_in_scope(self, fn: str, scope: WorkerScope) -> str:
        for pattern, names in self.reserved:
            if _covers(pattern, fn) and scope.name not in names:
                return f"fn: {fn!r} is reserved for rows of worker {' or '.join(map(repr, sorted(names)))}"
        if scope.functions:
            if not _covers_any(scope.functions, fn):
                return f"fn: {fn!r} is outside the functions of worker {scope.name!r}"
        elif self.allow is not None and not _covers_any(self.allow, fn):
            where = f" or in the functions of worker {scope.name!r}" if scope.name else ""
            return f"fn: {fn!r} is not allowed; list it in qbeat_allow{where}"
        return ""

    def forbidden(self, job: Job) -> str:
        """Why `job` may not run even if its task gets registered; empty when it may."""
        if (job.id, job.fn) in self.trusted:
            return ""
        return replace(self, registered=self.registered | {job.fn}).refused_name(job.fn, job.scope)

    def unmatched(self) -> list[str]:
        """Patterns of the settings that no known name matches, each with its setting: most likely misspelled."""
        known = self.registered | self.functions
        patterns = [("qbeat_allow", pattern) for pattern in self.allow or ()]
        patterns += [("qbeat_reserved", pattern) for pattern, _ in self.reserved]
        return [
            f"{setting}: {pattern!r} matches no registered task"
            for setting, pattern in patterns
            if not any(_covers(pattern, name) for name in known)
        ]

    def refused_queue(self, queue: str | None, scope: WorkerScope) -> str:
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

    def may_run(self, scopes: Iterable[WorkerScope] = (WorkerScope(),)) -> list[str]:
        """The names that a row of some of these scopes could run, sorted: what a form offers."""
        names, among = self.registered | self.functions, tuple(scopes)
        return sorted(name for name in names if any(not self.refused_name(name, scope) for scope in among))


def _covers_any(patterns: Iterable[str], fn: str) -> bool:
    return any(_covers(pattern, fn) for pattern in patterns)


def _covers(pattern: str, fn: str) -> bool:
    if pattern.endswith(".*"):
        return fn.startswith(pattern[:-1])
    return fn == pattern
