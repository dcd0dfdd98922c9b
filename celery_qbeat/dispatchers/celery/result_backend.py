"""The result backend as a second source of ends: it knows of revoked, expired and unknown tasks."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

from sqlalchemy import LargeBinary, select, type_coerce

from celery_qbeat.core.jobs import Verdict
from celery_qbeat.dispatchers.celery.broker import DONE_TASK, TIMEOUT_S
from celery_qbeat.dispatchers.celery.publishers.publisher import text
from celery_qbeat.ports import RunOutcome
from celery_qbeat.process.safe_logging import get_logger

log = get_logger()

PAUSE_S = 30.0
BATCH = 500
MOST_TEXT = 255

Meta = tuple[str, str, Any, str]
"""Task id, state, result (JSON) and traceback, as the backend has them."""


class ResultBackendReader:
    """Reads the app's result backend over a client of its own; asks nothing of a backend that it cannot ask in batches.

    Only results in JSON are read: reading a pickle would run code that somebody else wrote.
    """

    def __init__(self, app: Any) -> None:
        self._app = app
        self._read: Callable[[Sequence[str]], Iterable[Meta]] | None = None
        self._backend: Any = None
        self._prepared = False
        self._away = False
        self._ask_again = float("-inf")

    def ends(self, task_ids: Sequence[str]) -> Mapping[str, RunOutcome]:
        """What is known of the ends of these tasks. Empty when the backend is away, which is logged once."""
        if not task_ids or time.monotonic() < self._ask_again:
            return {}
        found: dict[str, RunOutcome] = {}
        try:
            self._prepare()
            if self._read is None:
                return {}
            for start in range(0, len(task_ids), BATCH):
                for meta in self._read(task_ids[start : start + BATCH]):
                    end = _end(*meta)
                    if end is not None:
                        found[end.task_id] = end
        except Exception as error:
            # Any driver's own exception; what is known by then is true all the same.
            self._say_away(error)
            return found
        self._say_back()
        return found

    def close(self) -> None:
        """Forget the backend; its client closes its sockets when it is collected."""
        self._backend = self._read = None
        self._prepared = False

    def _prepare(self) -> None:
        if self._prepared:
            return
        # Not `app.backend`: that client may wait for two minutes.
        backend = self._app._get_backend()
        kinds = {base.__module__ for base in type(backend).__mro__}
        if "celery.backends.database" in kinds:
            self._read = self._from_database
        elif kinds & {"celery.backends.redis", "celery.backends.cache", "celery.backends.filesystem"}:
            _bound(backend)
            self._read = self._from_keys if backend.serializer == "json" else None
        self._backend, self._prepared = backend, True

    def _from_keys(self, task_ids: Sequence[str]) -> Iterator[Meta]:
        keys = [self._backend.get_key_for_task(task_id) for task_id in task_ids]
        values = self._backend.mget(keys)
        if isinstance(values, Mapping):
            values = [values.get(key, values.get(key.decode())) for key in keys]
        for task_id, value in zip(task_ids, values, strict=True):
            meta = self._backend.decode(value) if value else None
            if isinstance(meta, dict):
                yield task_id, str(meta.get("status")), meta.get("result"), str(meta.get("traceback") or "")

    def _from_database(self, task_ids: Sequence[str]) -> Iterator[Meta]:
        table = self._backend.task_cls
        # The raw bytes: older Celery declares the column as a pickle, and would load it.
        result = type_coerce(table.result, LargeBinary)
        statement = select(table.task_id, table.status, result, table.traceback).where(table.task_id.in_(task_ids))
        session = self._backend.ResultSession()
        try:
            rows = session.execute(statement).all()
        finally:
            session.close()
        for task_id, status, value, traceback in rows:
            yield task_id, status, _json(value), traceback or ""

    def _say_away(self, error: Exception) -> None:
        self._ask_again = time.monotonic() + PAUSE_S
        if not self._away:
            self._away = True
            log.warning("completions: the result backend does not answer (%s)", text(error))

    def _say_back(self) -> None:
        if self._away:
            self._away = False
            log.warning("completions: the result backend is back")


def _bound(backend: Any) -> None:
    options = getattr(backend, "connparams", None)
    if isinstance(options, dict):
        options["retry_on_timeout"] = False
        for name in ("socket_timeout", "socket_connect_timeout"):
            # A Unix socket knows no connect timeout.
            if name in options:
                options[name] = min(options[name] or TIMEOUT_S, TIMEOUT_S)


def _json(value: Any) -> Any:
    data = bytes(value) if value is not None else b""
    return json.loads(data) if data[:1] == b"{" else None


def _end(task_id: str, status: str, result: Any, traceback: str) -> RunOutcome | None:
    if status == "SUCCESS":
        return RunOutcome(task_id, Verdict.SUCCEEDED)
    if status not in ("FAILURE", "REVOKED"):
        return None
    kind, reason = _reason(result, traceback)
    detail = f"{kind}: {reason}" if kind and reason else kind or reason
    if status == "REVOKED":
        return RunOutcome(task_id, Verdict.EXPIRED if reason == "expired" else Verdict.REVOKED, reason[:MOST_TEXT])
    if kind == "NotRegistered" and reason == DONE_TASK:
        # Celery stored this in place of the task's own error.
        return RunOutcome(
            task_id, Verdict.FAILED, "why is not known: the worker did not send our callback (task_always_eager?)"
        )
    verdict = Verdict.UNKNOWN_TASK if kind == "NotRegistered" else Verdict.FAILED
    return RunOutcome(task_id, verdict, detail[:MOST_TEXT])


def _reason(result: Any, traceback: str) -> tuple[str, str]:
    """The error's type and the first line of its message."""
    if isinstance(result, dict) and isinstance(result.get("exc_type"), str):
        said = result.get("exc_message")
        first = next(iter(said), None) if isinstance(said, (list, tuple)) else said
        lines = "" if first is None else str(first).strip()
        return result["exc_type"], lines.splitlines()[0] if lines else ""
    kind, _, said = _error_line(traceback).partition(": ")
    return kind.rpartition(".")[2], said


def _error_line(traceback: str) -> str:
    """The first line after the last frame. A message may go on for more lines; those of frames are indented."""
    lines = traceback.strip().splitlines()
    frames = [number for number, line in enumerate(lines) if line.startswith('  File "')]
    after = lines[frames[-1] + 1 :] if frames else []
    return next((line for line in after if not line.startswith(" ")), lines[-1] if lines else "")
