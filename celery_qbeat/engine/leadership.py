"""The leader lock as the engine uses it: acquired at the begin of a tick, renewed by time inside long work."""

from __future__ import annotations

from celery_qbeat.ports import FOREVER, Clock, Gate, LockLease

RENEWALS_PER_LEASE = 20
"""A lease is renewed when this part of its time has passed: the step after the renewal may take all the rest."""


class LockLost(Exception):
    """The leader lock was lost in the middle of long work."""


class Leadership:
    """Holds the lease of the leader lock. `renew` costs one look at the clock until a renewal is due."""

    def __init__(self, gate: Gate, clock: Clock) -> None:
        self._gate = gate
        self._clock = clock
        self._lease: LockLease | None = None
        self._renew_at = FOREVER

    @property
    def lease(self) -> LockLease | None:
        """The lease as of the last call; it may have expired since."""
        return self._lease

    def acquire(self) -> LockLease | None:
        """Acquire the lock or renew it; None when another beat holds it or the lock server is away."""
        asked_at = self._clock.monotonic()
        self._lease = self._gate.acquire_or_renew()
        self._plan_renewal(asked_at)
        return self._lease

    def renew(self) -> None:
        """Renew the lease when that is due. Afterwards `trusted` is false if the lock is another's by now."""
        if self._lease is None or self._clock.monotonic() < self._renew_at:
            return
        before = self._lease
        lease = self.acquire()
        if lease is None or lease.term != before.term:
            self.drop()

    def require(self) -> None:
        """Renew the lease when that is due. Raises LockLost when the lock is another's by now."""
        self.renew()
        if not self.trusted():
            raise LockLost

    def trusted(self) -> bool:
        """Whether the lease still holds."""
        return self._lease is not None and self._clock.monotonic() < self._lease.trusted_until

    def drop(self) -> None:
        """Trust the lease no longer."""
        self._lease, self._renew_at = None, FOREVER

    def _plan_renewal(self, asked_at: float) -> None:
        lease = self._lease
        if lease is None or lease.trusted_until == FOREVER:
            self._renew_at = FOREVER
        else:
            self._renew_at = asked_at + (lease.trusted_until - asked_at) / RENEWALS_PER_LEASE
