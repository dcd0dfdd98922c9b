"""Whether the broker can be reached: it is asked before anything is claimed."""

from __future__ import annotations

from collections.abc import Callable

from celery_qbeat.engine import log_events
from celery_qbeat.engine.leader_state import Dependencies, LeaderState
from celery_qbeat.ports import PublishOutcome, PublishResult

ASK_AGAIN_S = 10.0
"""The longest pause in seconds before a broker is asked again that let the last question wait for its time limit."""

RENEW_AFTER_S = 0.2
"""The lock is renewed when the broker took longer than this to answer, in seconds."""


class BrokerWatch:
    """Asks the broker once a pass, and says in the log when it goes away and comes back."""

    def __init__(self, parts: Dependencies, desk: LeaderState, renew: Callable[[], None]) -> None:
        self._deps = parts
        self._leader = desk
        self._renew = renew
        self._answer: bool | None = None
        self._ask_again = float("-inf")

    def begin(self) -> None:
        """A new pass: what the broker said before does not count."""
        self._answer = None

    @property
    def away(self) -> bool:
        """Whether it was asked in this pass and nothing can be sent."""
        return self._answer is False

    def can_send(self, trusted: Callable[[], bool]) -> bool:
        """Whether the broker answers; asked once a pass, and less often when it hangs."""
        if self._answer is None:
            self._answer = self._ask() and trusted()
        return self._answer

    def _ask(self) -> bool:
        clock = self._deps.clock
        started = clock.monotonic()
        if started < self._ask_again:
            return False
        why = self._deps.dispatcher.unavailable_reason()
        took = clock.monotonic() - started
        if why:
            self._ask_again = started + took + min(took, ASK_AGAIN_S)
            if not self._leader.broker_away:
                log_events.broker_away(why)
                self._leader.broker_away = True
        elif took > RENEW_AFTER_S:
            self._renew()
        return not why

    def notice_empty(self) -> None:
        """Look whether the broker still has its memory; if not, all runs in flight are checked."""
        desk = self._leader
        if desk.broker_away:
            return
        memory = self._deps.dispatcher.memory_id()
        if memory and desk.broker_memory not in ("", memory) and desk.in_flight:
            log_events.broker_lost_memory(len(desk.in_flight))
            desk.recheck_all_runs()
        desk.broker_memory = memory or desk.broker_memory

    def note(self, last: PublishResult) -> None:
        """Learn from the last receipt of a chunk."""
        desk = self._leader
        alive = last.outcome in (PublishOutcome.SENT, PublishOutcome.REFUSED)
        away = (
            last.outcome in (PublishOutcome.NOT_SENT, PublishOutcome.UNCONFIRMED, PublishOutcome.UNKNOWN)
            and last.detail != ""
        )
        if away and not desk.broker_away:
            log_events.broker_away(last.detail)
        elif desk.broker_away and alive:
            log_events.broker_back()
        if away or alive:
            desk.broker_away = away
