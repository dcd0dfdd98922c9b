"""Calls of a MemoryStore that fail when told to."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from inspect import isgeneratorfunction
from typing import Any, Concatenate, Literal, ParamSpec, TypeVar, cast

from celery_qbeat.errors import QbeatError, Unavailable
from celery_qbeat.testing.database import Database

P = ParamSpec("P")
R = TypeVar("R")
S = TypeVar("S", bound="Faults")


def call(method: Callable[Concatenate[S, P], R]) -> Callable[Concatenate[S, P], R]:
    """A call of the server: one at a time, and it may be made to fail before or after its work is done."""
    name = method.__name__

    @wraps(method)
    def once(self: S, *args: P.args, **kwargs: P.kwargs) -> R:
        with self.database.lock:
            self._fail(name, "before")
            result = method(self, *args, **kwargs)
            self._fail(name, "after")
            return result

    @wraps(method)
    def parts(self: S, *args: P.args, **kwargs: P.kwargs) -> Any:
        self._fail(name, "before")
        yield from method(self, *args, **kwargs)  # type: ignore[misc]
        self._fail(name, "after")

    return cast("Callable[Concatenate[S, P], R]", parts if isgeneratorfunction(method) else once)


class Faults:
    """Makes single calls fail, or all of them."""

    database: Database

    def __init__(self) -> None:
        self.cut_off = False
        """Whether this session alone cannot reach the server."""
        self._faults: dict[tuple[str, str], list[QbeatError | type[QbeatError]]] = {}

    def fail_next(
        self,
        method: str,
        when: Literal["before", "after"] = "before",
        error: QbeatError | type[QbeatError] = Unavailable,
    ) -> None:
        """Make this session's next call of `method` raise; `after`: the work was done, but the caller is not told."""
        if not hasattr(self, method):
            raise ValueError(f"a store has no method {method!r}")
        self._faults.setdefault((method, when), []).append(error)

    @property
    def down(self) -> bool:
        """The server is away, for every session."""
        return self.database.down

    @down.setter
    def down(self, value: bool) -> None:
        self.database.down = value

    def _fail(self, method: str, when: str) -> None:
        if self.database.down and method != "close":
            raise Unavailable("the database is down")
        if self.cut_off and method != "close":
            raise Unavailable("the database cannot be reached")
        waiting = self._faults.get((method, when))
        if waiting:
            raise waiting.pop(0)
