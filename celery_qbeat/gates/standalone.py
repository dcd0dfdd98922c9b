"""The gate of a beat that is meant to be alone."""

from __future__ import annotations

import uuid

from celery_qbeat.errors import NotBound
from celery_qbeat.ports import LockLease


class StandaloneGate:
    """Holds with one term for each database that it is bound to, until it yields: then it stands by for good.

    Two standalone beats on one database are a mistake. The newer one has the newer epoch; were the older one to
    come back after a while, the two would take turns for ever.
    """

    def __init__(self) -> None:
        self._instance = ""
        self._lease: LockLease | None = None

    def bind(self, instance: str) -> None:
        """Another database than before is held under a new term, whatever was yielded of the old one."""
        if instance != self._instance:
            self._instance = instance
            self._lease = LockLease(term=uuid.uuid4().hex)

    def acquire_or_renew(self) -> LockLease | None:
        """The same lease each time; None after `yield_`."""
        if not self._instance:
            raise NotBound
        return self._lease

    def resign_until_replaced(self) -> None:
        """Stand by from now on: a newer beat is at work."""
        self._lease = None

    def reason(self) -> str:
        return "another beat is the writer"

    def step_aside(self) -> bool:
        """False: there is nobody to try in its place."""
        return False

    def release(self) -> None:
        """There is nobody to give it to."""

    def describe(self) -> str:
        return "standalone"
