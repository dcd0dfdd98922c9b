"""The gate of a beat that is meant to be alone."""

from __future__ import annotations

import uuid

from celery_qbeat.ports import Lease


class StandaloneGate:
    """Always holds, with one term for its whole life, until it yields: then it stands by for good.

    Two standalone beats on one database are a mistake. The newer one has the newer epoch; were the older one to
    come back after a while, the two would take turns for ever.
    """

    def __init__(self) -> None:
        self._lease: Lease | None = Lease(term=uuid.uuid4().hex)

    def hold(self) -> Lease | None:
        """The same lease each time; None after `yield_`."""
        return self._lease

    def yield_(self) -> None:
        """Stand by from now on: a newer beat is at work."""
        self._lease = None

    def let_go(self) -> bool:
        """False: there is nobody to try in its place."""
        return False

    def release(self) -> None:
        """There is nobody to give it to."""

    def describe(self) -> str:
        return "standalone"
