"""Sends runs through what users and SDKs hang on Celery: `apply_async`, `send_task` and `Scheduler.apply_entry`.

Such a run travels alone. It goes over the dispatcher's own connection: the override gets a producer that notes what
became of its messages, and each message is with the broker before the override goes on, so that an override that locks
can unlock after a failure.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from types import FunctionType
from typing import Any, Protocol

from celery import signals
from celery.result import EagerResult, denied_join_result

from celery_qbeat.core.jobs import Job
from celery_qbeat.ports import PublishOutcome, PublishResult
from celery_qbeat.process.safe_logging import get_logger

log = get_logger()

MOST_LEFT_S = 4_000_000.0
"""The longest life of a message that every broker takes, in seconds: RabbitMQ closes the channel over one that is too
long, and leaves its neighbours in doubt. Of a longer one the worker alone sees when it is over."""

DECLINING = frozenset({"celery_once", "celery_singleton"})
"""Packages whose exceptions mean that the task is queued already, not that something is wrong."""


class NotTaken(Exception):
    """The broker did not take a message, or there was none; `receipt` says why."""

    def __init__(self, receipt: PublishResult) -> None:
        super().__init__(receipt.detail or receipt.outcome.value)
        self.receipt = receipt


@dataclass(frozen=True, slots=True)
class Call:
    """What a run is to Celery's `apply_async`. `options` has the headers and the callbacks, too."""

    task_id: str
    task: str
    args: Sequence[Any]
    kwargs: Mapping[str, Any]
    options: Mapping[str, Any]


class EntryHook(Protocol):
    """Celery's `Scheduler.apply_entry`, for SDKs that patch it."""

    def hooked(self) -> bool:
        """Whether somebody overrides or patches it."""

    def apply(self, job: Job, call: Call, producer: OverrideProducer) -> None:
        """Send this run through it, over this producer, which is told the result."""


class OverrideProducer:
    """The producer of the dispatcher's connection, as an override gets it."""

    def __init__(
        self, producer: Any, task_id: str, trusted: Callable[[], bool], confirm: Callable[[], None] = lambda: None
    ) -> None:
        self._producer = producer
        self._task_id = task_id
        self._trusted = trusted
        self._confirm = confirm
        self.failure: Exception | None = None
        self.result: Any = None
        self.error: BaseException | None = None

    def __getattr__(self, name: str) -> Any:
        return getattr(self._producer, name)

    def publish(self, body: Any, *args: Any, **options: Any) -> Any:
        """Publish and wait for the broker's answer. Raises what the connection raises, and NotTaken."""
        if "correlation_id" not in options:
            # An event of Celery's, not a task.
            return self._producer.publish(body, *args, **options)
        try:
            if not self._trusted():
                # The override may have waited for long, and another beat may be the writer by now.
                raise NotTaken(PublishResult(self._task_id, PublishOutcome.NOT_SENT))
            if (options.get("expiration") or 0) > MOST_LEFT_S:
                options["expiration"] = None
            result = self._producer.publish(body, *args, **options)
            self._confirm()
        except Exception as error:
            self.failure = error
            raise
        return result


class Override:
    """One run on its way through the app's own code."""

    def __init__(self, app: Any, job: Job, call: Call, trusted: Callable[[], bool], hook: EntryHook | None) -> None:
        self._app = app
        self._job = job
        self._call = replace(call, options=_complete(app, call))
        self._trusted = trusted
        self._hook = hook

    def send(self, producer: Any, confirm: Callable[[], None]) -> None:
        """Make the call. `confirm` waits for the broker's answer to a message, and raises NotTaken.

        Returns when a message is out. Raises NotTaken, or what the connection raised when it took none.
        """
        ours = OverrideProducer(producer, self._call.task_id, self._trusted, confirm)
        # Without a join, Celery does not subscribe to the result, and the override cannot wait for one.
        with _published() as published, denied_join_result():
            try:
                if self._hook is None:
                    ours.result = self._apply(ours)
                else:
                    self._hook.apply(self._job, self._call, ours)
            except Exception as error:
                ours.error = error
        if not published:
            self._explain(ours)
        elif ours.error is not None:
            log.warning("%s: it is sent, and then %s", self._name, text(ours.error), exc_info=ours.error)

    def _apply(self, producer: OverrideProducer) -> Any:
        call, options = self._call, {**self._call.options, "producer": producer}
        task = self._app.tasks.get(call.task)
        if task is not None:
            return task.apply_async(call.args, call.kwargs, **options)
        return self._app.send_task(call.task, call.args, call.kwargs, **options)

    @property
    def _name(self) -> str:
        return f"apply_async of {self._call.task!r}"

    def _explain(self, producer: OverrideProducer) -> None:
        """Raise what kept the message from being sent; an eager task ran here and reports its end itself."""
        if producer.failure is not None:
            raise producer.failure
        error, result = producer.error, producer.result
        if error is not None:
            declined = type(error).__module__.partition(".")[0] in DECLINING
            detail = f"{self._name} raised {text(error)}"
            raise NotTaken(
                PublishResult(self._call.task_id, PublishOutcome.DECLINED if declined else PublishOutcome.BAD, detail)
            ) from error
        other = getattr(result, "id", None)
        if other == self._call.task_id:
            if isinstance(result, EagerResult):
                return
            detail = f"{self._name} sent nothing and returned this run's own id"
            raise NotTaken(PublishResult(self._call.task_id, PublishOutcome.BAD, detail))
        raise NotTaken(
            PublishResult(self._call.task_id, PublishOutcome.DECLINED, f"{self._name} sent nothing{_returned(result)}")
        )


def text(error: BaseException) -> str:
    """The kind and the first line of an error."""
    lines = str(getattr(error, "message", "") or error).strip().splitlines()
    return f"{type(error).__name__}: {lines[0]}" if lines else type(error).__name__


def is_overridden(owner: Any, name: str) -> bool:
    """Whether this method is not Celery's own: overridden by a class, or patched by an SDK."""
    return not _is_own(vars(owner).get(name) or getattr(type(owner), name))


def defines_override(owner: Any, name: str) -> bool:
    """The same of any class that it derives from: an SDK may have patched a method that a class of ours extends."""
    definitions = [vars(kind)[name] for kind in type(owner).__mro__ if name in vars(kind)]
    return name in vars(owner) or not all(map(_is_own, definitions))


def _is_own(found: Any) -> bool:
    # A wrapper copies the name and the module of what it wraps, but not its globals.
    return type(found) is FunctionType and found.__globals__["__name__"].startswith(("celery.", "celery_qbeat."))


def goes_through_override(app: Any, fn: str) -> bool:
    """Whether runs of this task go through code of the app that only a call reaches."""
    task = app.tasks.get(fn)
    return (task is not None and is_overridden(task, "apply_async")) or is_overridden(app, "send_task")


def _complete(app: Any, call: Call) -> dict[str, Any]:
    """The options with what `apply_async` would take from the settings and the task otherwise."""
    options = {**call.options, "task_id": call.task_id, "retry": False, "add_to_parent": False}
    if "queue" in options:
        # The queue of a row goes before the exchange of the task's decorator.
        task = app.tasks.get(call.task)
        unset = [name for name in ("exchange", "routing_key") if getattr(task, name, None) is not None]
        options = {**dict.fromkeys(unset), **options}
    return options


@contextmanager
def _published() -> Iterator[list[str]]:
    """The names of the tasks of which this thread publishes messages."""
    found: list[str] = []
    thread = threading.get_ident()

    def note(sender: Any = None, **_: Any) -> None:
        if threading.get_ident() == thread:
            found.append(str(sender))

    signals.after_task_publish.connect(note, weak=False)
    try:
        yield found
    finally:
        signals.after_task_publish.disconnect(note)


def _returned(result: Any) -> str:
    state = getattr(result, "state", "") if isinstance(result, EagerResult) else ""
    if state:
        return f" and returned a result in the state {state}"
    other = getattr(result, "id", None)
    return f" and returned task {other}, which runs already" if other else ""
