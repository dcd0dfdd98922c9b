"""A gate that a test opens and shuts."""

from __future__ import annotations

from celery_qbeat.errors import NotBound
from celery_qbeat.ports import FOREVER, Clock, LockLease


class OpenGate:
    """Holds while `open` is true. A reopened gate gives a new term.

    `ttl_s` bounds the trust in a lease; when it was not renewed for that long, the next one is of a new term.
    `instance`: the database that it is bound to.
    """

    def __init__(self, clock: Clock | None = None, ttl_s: float | None = None) -> None:
        self.open = True
        self.released = False
        self.instance = ""
        self._clock = clock
        self._ttl_s = ttl_s
        self._term = 0
        self._held = False
        self._until = FOREVER

    def bind(self, instance: str) -> None:
        if instance != self.instance:
            self.instance, self._held = instance, False

    def acquire_or_renew(self) -> LockLease | None:
        if not self.instance:
            raise NotBound
        if not self.open or self.released:
            self._held = False
            return None
        now = self._clock.monotonic() if self._clock is not None else 0.0
        if not self._held or now >= self._until:
            self._held = True
            self._term += 1
        if self._clock is not None and self._ttl_s is not None:
            self._until = now + self._ttl_s
        return LockLease(f"term-{self._term}", self._until)

    def resign_until_replaced(self) -> None:
        self.open = self._held = False

    def step_aside(self) -> bool:
        held, self._held = self._held, False
        return held

    def reason(self) -> str:
        return "another beat is the writer"

    def release(self) -> None:
        self.released = True

    def describe(self) -> str:
        return "open gate"
