"""A claimed run becomes a Celery message: built by Celery itself, with nothing in it that a row could misuse."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from numbers import Real
from typing import Any

from celery.beat import BeatLazyFunc
from celery.utils.time import maybe_make_aware

from celery_qbeat.core.identity import run_token
from celery_qbeat.core.jobs import Job, Run
from celery_qbeat.core.privileges import reserved_queue
from celery_qbeat.dispatchers.celery.broker import DONE_TASK, Address
from celery_qbeat.dispatchers.celery.overrides import MOST_LEFT_S, Call, EntryHook, Override, goes_through_override
from celery_qbeat.ports import OutgoingRun

TASK_OPTIONS = (
    *("queue", "routing_key", "exchange", "priority", "expires", "serializer"),
    *("delivery_mode", "compression", "time_limit", "soft_time_limit"),
)
"""What a task's decorator says about its messages; Celery's own beat obeys it too."""

_MESSAGE_OPTIONS = (
    *("countdown", "eta", "time_limit", "soft_time_limit", "shadow", "chain", "chord", "group_id", "group_index"),
    *("root_id", "parent_id", "reply_to", "retries", "ignore_result"),
)
"""Options of `send_task` that become a part of the message; the others say how it travels."""

_OURS = (
    *("task_id", "producer", "publisher", "connection", "router", "result_cls", "add_to_parent", "route_name"),
    *("task_type", "retry", "retry_policy", "replaced_task_nesting", "stamped_headers", "declare", "mandatory"),
)
"""Options that an entry of `beat_schedule` cannot set, since the dispatcher does."""

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


@dataclass(frozen=True, slots=True)
class TaskMessage:
    """A message that is ready but for its encoding, and how it travels; with an `override`, that one makes it anew."""

    task_id: str
    task_name: str
    message: Any
    options: Mapping[str, Any]
    override: Override | None = None

    @property
    def queue_name(self) -> str | None:
        """The name of the queue that it must find there."""
        queue = self.options.get("queue")
        return None if queue is None else str(getattr(queue, "name", queue))

    @property
    def is_direct(self) -> bool:
        """Whether it goes straight into its queue, through no exchange that might be missing."""
        queue, explicit = self.options.get("queue"), self.options.get("exchange") or self.options.get("routing_key")
        return not explicit and getattr(getattr(queue, "exchange", None), "type", "") == "direct"


class CompletionLinks:
    """The callbacks by which workers report the end of a run: immutable signatures of a task that nobody has."""

    def __init__(self, app: Any, address: Address) -> None:
        options = {
            "exchange": address.exchange,
            "routing_key": address.key,
            "declare": [],
            "serializer": "json",
            "ignore_result": True,
        }
        signature = app.signature(DONE_TASK, args=(), kwargs={}, immutable=True, options=options)
        self._template: dict[str, Any] = dict(signature)

    def links_for(self, task_id: str, instance: str) -> tuple[dict[str, Any], dict[str, Any]]:
        """For the success of a run, and for its failure."""
        token = run_token(instance, task_id)
        told = {"v": 1, "run": task_id, "token": token}
        success, failure = {**told, "outcome": "success"}, {**told, "outcome": "failure"}
        return {**self._template, "kwargs": success}, {**self._template, "kwargs": failure}


class MessageBuilder:
    """Makes messages; `ends` None: without callbacks. Some settings of the app are read once, as Celery itself does:
    asking for one costs as much as encoding a message. `hook`: Celery's `apply_entry`, if there is a beat."""

    def __init__(self, app: Any, ends: CompletionLinks | None, hook: EntryHook | None = None) -> None:
        self._app = app
        self._ends = ends
        self._hook = hook
        self._eager: bool = app.conf.task_always_eager
        self._hooked = False
        self._overridden: dict[str, bool] = {}
        self._events: bool = app.conf.task_send_sent_event
        self._default_queue: Any = app.conf.task_default_queue

    def look_for_overrides(self) -> None:
        """Find out anew, before a batch, what goes through code of the app: an SDK may have patched it since."""
        self._overridden.clear()
        self._hooked = self._hook is not None and not self._eager and self._hook.hooked()

    def build(self, shipment: OutgoingRun, instance: str, trusted: Callable[[], bool]) -> TaskMessage:
        """The message for a run. Raises whatever Celery, a router or the payload raises: then nothing can be sent.

        `trusted` is asked again before an override of the app publishes.
        """
        app, job, run = self._app, shipment.job, shipment.run
        options = _options(app, job)
        given = dict(options) if self._has_override(job.fn) else None
        args, kwargs = _payload(job)
        fields = {name: options.pop(name) for name in _MESSAGE_OPTIONS if name in options}
        links, errors = self._callbacks(options, run.task_id, instance)
        expires = options.pop("expires", None)
        headers = {**(options.pop("headers", None) or {}), **_headers(job, run)}
        if not job.from_code:
            fields |= _representations(job.args, job.kwargs)
        fields.setdefault("reply_to", app.thread_oid)
        travel = self._route(options, job.fn, args, kwargs)
        if expires is not None and (left := _seconds_left(app, expires)) <= MOST_LEFT_S:
            travel["expiration"] = max(0.0, left)
        message = app.amqp.create_task_message(
            run.task_id,
            job.fn,
            args,
            kwargs,
            expires=expires,
            callbacks=links,
            errbacks=errors,
            create_sent_event=self._events,
            **{"ignore_result": None, **fields},
        )
        override = None
        if given is not None:
            given |= {"headers": headers, "link": links, "link_error": errors}
            override = Override(app, job, Call(run.task_id, job.fn, args, kwargs, given), trusted, self._active_hook)
        return TaskMessage(run.task_id, job.fn, message, {**travel, "headers": headers}, override)

    def _callbacks(self, options: dict[str, Any], task_id: str, instance: str) -> tuple[Any, Any]:
        """Those of the entry, taken out of its options, and those that report the end."""
        links = [*_listed(options.pop("link", None))]
        errors = [*_listed(options.pop("link_error", None))]
        if self._ends is not None:
            success, failure = self._ends.links_for(task_id, instance)
            links.append(success)
            errors.append(failure)
        return links or None, errors or None

    @property
    def _active_hook(self) -> EntryHook | None:
        return self._hook if self._hooked else None

    def _has_override(self, fn: str) -> bool:
        if self._hooked:
            return True
        found = self._overridden.get(fn)
        if found is None:
            found = self._overridden[fn] = not self._eager and goes_through_override(self._app, fn)
        return found

    def _route(self, options: dict[str, Any], fn: str, args: Any, kwargs: Any) -> dict[str, Any]:
        router = self._app.amqp.router
        if not router.routes:
            # What the router does, without asking the settings.
            options.setdefault("queue", self._default_queue)
        travel: dict[str, Any] = router.route(options, fn, args, kwargs, self._app.tasks.get(fn))
        queue = travel.get("queue")
        if queue is not None and (reserved := reserved_queue(str(getattr(queue, "name", queue)))):
            raise ValueError(reserved)
        return travel


def publish_message(app: Any, producer: Any, letter: TaskMessage, *, declare: bool) -> None:
    """Encode and publish, as `app.send_task` does, with its signals and events and all settings of the app.

    `declare`: make sure that the queue is there.
    """
    options = letter.options if declare else {**letter.options, "declare": []}
    app.amqp.send_task_message(producer, letter.task_name, letter.message, retry=False, **options)


def resolve_queue_name(app: Any, job: Job) -> str | None:
    """The queue to which a run of this job goes; None where only the broker's bindings tell, or nothing does."""
    try:
        args, kwargs = _payload(job)
        travel = app.amqp.router.route(_options(app, job), job.fn, args, kwargs, app.tasks.get(job.fn))
    except Exception:
        # Whatever a router raises: then nothing could be sent either, and its run is in no queue that is known.
        return None
    queue = travel.get("queue")
    if queue is None or travel.get("exchange") or travel.get("routing_key"):
        return None
    return str(getattr(queue, "name", queue))


def _options(app: Any, job: Job) -> dict[str, Any]:
    task = app.tasks.get(job.fn)
    options = {name: value for name in TASK_OPTIONS if (value := getattr(task, name, None)) is not None}
    if job.from_code:
        own = {name: value for name, value in (job.options or {}).items() if not name.startswith("__")}
        return {name: value for name, value in {**options, **own}.items() if name not in _OURS}
    queue = job.queue or job.scope.queue
    if queue:
        options = {name: value for name, value in options.items() if name not in ("exchange", "routing_key")}
        options["queue"] = queue
    if job.priority is not None:
        options["priority"] = job.priority
    if job.expires_s is not None:
        options["expires"] = job.expires_s
    return options


def _payload(job: Job) -> tuple[Any, Any]:
    if not job.from_code:
        return json.loads(job.args), json.loads(job.kwargs)
    options = job.options or {}
    args, kwargs = options.get("__args__") or (), options.get("__kwargs__") or {}
    return [_now(value) for value in args], {name: _now(value) for name, value in kwargs.items()}


def _now(value: Any) -> Any:
    return value() if isinstance(value, BeatLazyFunc) else value


def _listed(value: Any) -> list[Any]:
    if value is None:
        return []
    return list(value) if isinstance(value, (list, tuple)) else [value]


def _headers(job: Job, run: Run) -> dict[str, Any]:
    return {
        "celery_beat_task": True,
        "periodic_task_name": job.name,
        "qbeat_job": job.id,
        "qbeat_slot": _instant(run.slot_us),
        "qbeat_slot_us": run.slot_us,
    }


@lru_cache(maxsize=64)
def _instant(us: int) -> str:
    return (_EPOCH + timedelta(microseconds=us)).isoformat()


def _representations(args: str, kwargs: str) -> dict[str, str]:
    """What logs and events show of the arguments; Celery's own walk over them costs more than all the rest."""
    return {"argsrepr": _short(args), "kwargsrepr": _short(kwargs)} if len(args) + len(kwargs) <= 512 else {}


@lru_cache(maxsize=1024)
def _short(text: str) -> str:
    return repr(json.loads(text))


def _seconds_left(app: Any, expires: Any) -> float:
    if isinstance(expires, Real):
        return float(expires)
    moment = datetime.fromisoformat(expires) if isinstance(expires, str) else expires
    left: timedelta = maybe_make_aware(moment, app.timezone) - app.now()
    return left.total_seconds()
