"""The end of a beat: no call to the database waits long any more, what is owed to it is written, and all is closed."""

from __future__ import annotations

import threading

from celery_qbeat.engine import log_events
from celery_qbeat.engine.leader_state import Dependencies, LeaderState
from celery_qbeat.errors import Unavailable
from celery_qbeat.ports import FOREVER


class Shutdown:
    """Knows since when the process is to end. Safe in a signal handler."""

    def __init__(self, parts: Dependencies) -> None:
        self._deps = parts
        self._since: float | None = None

    def limit_waits(self, seconds: float) -> None:
        """From now on no call to the database waits longer than this: the process is to end.

        `FOREVER`: it goes on after all.
        """
        if seconds == FOREVER:
            self._since = None
        elif self._since is None:
            self._since = self._deps.clock.monotonic()
        self._deps.store.limit_waits(seconds)

    def write_last(self, desk: LeaderState) -> None:
        """Pay what is owed: the next beat would have to call it in doubt. Never raises for a server."""
        parts = self._deps
        if self._since is None:
            self.limit_waits(parts.limits.ending_s)
        if not desk.pending_writes:
            return
        try:
            waited = parts.clock.monotonic() - (self._since or 0.0)
            # A database that has made the end wait is not asked again: the process manager's patience is short.
            if waited > parts.limits.ending_s / 2:
                raise Unavailable("the database has not answered in time")
            desk.flush_pending_writes()
        except Exception as error:
            log_events.left_open(len(desk.pending_writes), error)

    def close(self) -> None:
        """Give the connections back, after the lock."""
        # A broker that does not answer lets each connection wait for seconds, and nothing depends on them any more.
        closing = threading.Thread(target=self._close_broker, name="celery_qbeat closing", daemon=True)
        closing.start()
        closing.join(self._deps.limits.closing_s)
        self._deps.store.close()

    def _close_broker(self) -> None:
        self._deps.dispatcher.close()
        if self._deps.completions is not None:
            self._deps.completions.close()
