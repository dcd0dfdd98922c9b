"""For workers that may be changed: reports what callbacks cannot, and tells a task its nominal slot.

    import celery_qbeat.worker

in a module that the worker imports; or its name in Celery's setting `imports`. Then a run that was revoked, that
expired in its queue, whose task the worker does not know, that raised `Ignore` or `Reject`, or whose message the worker
rejects ends at once in the ledger, without waiting for its lease. Every report carries when the run started and how
long it took by the worker's clock, and a failure carries its error. The worker needs no `qbeat_` setting: where to
report, and the run's secret, are in the callbacks that came with its message. Imports Celery and nothing else.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from traceback import walk_tb
from typing import Any, cast

from celery import Task, signals, states
from celery.backends.base import Backend
from kombu.exceptions import DecodeError
from kombu.serialization import loads

__all__ = ["install", "slot"]

DONE_TASK = "celery_qbeat.done"
"""By this name a callback is known as ours; nobody has such a task."""

JSON = "application/json"

MAX_ERROR_CHARS = 500
"""A reported error is cut off after this many characters."""

_started: dict[str, tuple[int, float]] = {}
"""Task ids of the runs that this process executes: microseconds of the wall clock, and seconds of the steady one."""

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def slot(task: Any) -> datetime | None:
    """The nominal slot of the run that executes this task: when it was due, in UTC, however late it is.

    `task`: a bound task (`self`), or its request. None when no schedule sent it. A retry has the slot of its run;
    what a task starts or is replaced by has none. The same as text: `self.request.headers["qbeat_slot"]`.
    """
    headers = getattr(getattr(task, "request", task), "headers", None) or {}
    us = headers.get("qbeat_slot_us")
    return _EPOCH + timedelta(microseconds=us) if isinstance(us, int) else None


def install(app: Any = None) -> None:
    """Connect to the signals of the worker in this process, as importing this module does; again does no harm.

    For those whose linter removes an import that nobody uses. `app` may be named, and changes nothing: a process has
    one worker, and its signals say whose they are.
    """
    signals.task_revoked.connect(_revoked)
    signals.task_unknown.connect(_unknown)
    signals.task_rejected.connect(_rejected)
    signals.task_prerun.connect(_begins)
    signals.task_postrun.connect(_ran)
    signals.before_task_publish.connect(_complete_report, sender=DONE_TASK)


def _revoked(sender: Any, request: Any, terminated: bool = False, expired: bool = False, **_: Any) -> None:
    outcome = "expired" if expired else "terminated" if terminated else "revoked"
    _report(sender.app, request.errbacks, outcome)


def _unknown(sender: Any, message: Any, **_: Any) -> None:
    _report(sender.app, _errbacks(message), "unknown task")


def _rejected(sender: Any, message: Any, **_: Any) -> None:
    """A message that the worker cannot read, for example because its `accept_content` lacks JSON."""
    _report(sender.app, _errbacks(message), "rejected")


def _begins(sender: Any, task_id: str, task: Any, **_: Any) -> None:
    if any(_ours(task.request.callbacks)):
        _started[task_id] = time.time_ns() // 1000, time.monotonic()


def _ran(sender: Any, task_id: str, task: Any, retval: Any = None, state: str | None = None, **_: Any) -> None:
    try:
        _report_rare_end(sender.app, task, retval, state)
    finally:
        _started.pop(task_id, None)


def _report_rare_end(app: Any, task: Any, retval: Any, state: str | None) -> None:
    if state == states.IGNORED and not _replaced(retval):
        _report(app, task.request.errbacks, "ignored")
    elif state == states.REJECTED and not getattr(retval, "requeue", True):
        # Celery reports it itself since 5.7; twice does no harm.
        _report(app, task.request.errbacks, "failure")


def _complete_report(sender: Any, body: Any, **_: Any) -> None:
    """Add what this process knows to a report that is being published, whether by Celery's callback or by us.

    Before the publication and not after the run: then one message says all.
    """
    kwargs: Any = body.get("kwargs") if isinstance(body, Mapping) else body[1]
    if (start := _started.get(kwargs.get("run"))) is not None:
        kwargs["started_us"] = start[0]
        kwargs["took_us"] = round((time.monotonic() - start[1]) * 1_000_000)
    if kwargs.get("outcome") == "failure" and (error := _failure_cause()) is not None:
        kwargs["error"] = _error_line(error)


def _failure_cause() -> BaseException | None:
    """The exception for which Celery is calling the callbacks.

    Celery hands it to no callback of a task that the worker does not know, and it is not always being handled: a
    worker's main process makes one up for a child that died.
    """
    frame = sys._getframe(1)
    while (caller := frame.f_back) is not None:
        frame = caller
        if frame.f_code is Backend.mark_as_failure.__code__:
            return cast("BaseException | None", frame.f_locals.get("exc"))
    return sys.exc_info()[1]


def _error_line(error: BaseException) -> str:
    """The error's type and the first line of its message."""
    try:
        lines = str(error).strip().splitlines()
    except Exception:
        # The message of somebody's exception is somebody's code.
        lines = []
    name = type(error).__name__
    return (f"{name}: {lines[0]}" if lines else name)[:MAX_ERROR_CHARS]


def _replaced(error: BaseException | None) -> bool:
    """Whether this `Ignore` comes from `Task.replace`: then the run goes on, and its callbacks went along."""
    while error is not None:
        if any(frame.f_code is Task.on_replace.__code__ for frame, _ in walk_tb(error.__traceback__)):
            return True
        error = error.__context__
    return False


def _errbacks(message: Any) -> Sequence[Any]:
    """The callbacks in a message that became no request: protocol 2 (args, kwargs, embed) or 1 (a mapping)."""
    if message.content_type != JSON:
        return ()
    try:
        payload = cast(Any, loads)(message.body, message.content_type, message.content_encoding, accept={JSON})
    except DecodeError:
        # Perhaps that is why it was rejected; nobody knows whose it was.
        return ()
    embed = payload[2] if isinstance(payload, list) and len(payload) == 3 else payload
    return (embed.get("errbacks") or ()) if isinstance(embed, Mapping) else ()


def _report(app: Any, errbacks: Sequence[Any] | None, outcome: str) -> None:
    for link in _ours(errbacks):
        address = link["options"]
        app.send_task(
            DONE_TASK,
            kwargs={**link["kwargs"], "outcome": outcome},
            exchange=address["exchange"],
            routing_key=address["routing_key"],
            declare=[],
            serializer="json",
            ignore_result=True,
            add_to_parent=False,
        )


def _ours(errbacks: Sequence[Any] | None) -> Iterator[Mapping[str, Any]]:
    for link in errbacks or ():
        if isinstance(link, Mapping) and link.get("task") == DONE_TASK:
            yield link


install()
