"""What people asked for by hand: runs, and the release of runs. Each request is answered once, by its deletion."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

from celery_qbeat.core.agenda import AgendaEntry
from celery_qbeat.core.manual_runs import by_hand, slot_by_hand
from celery_qbeat.engine import log_events
from celery_qbeat.engine.broker_watch import BrokerWatch
from celery_qbeat.engine.granted_claim import GrantedClaim
from celery_qbeat.engine.leader_state import Dependencies, LeaderState
from celery_qbeat.engine.lease_changes import answer_request
from celery_qbeat.ports import REQUESTS_A_READ, Request

NOT_FROM_CODE = "it is an entry in code, and those run by hand only with qbeat_run_code_entries = True"


class Claim(Protocol):
    """See `Sender`: the batch id, what the database granted, and what it did not."""

    def __call__(self, wanted: Sequence[GrantedClaim], now: int) -> tuple[int, list[GrantedClaim], frozenset[str]]: ...


class Publish(Protocol):
    """See `Sender`: whether nothing had to be given back."""

    def __call__(self, batch_id: int, won: Sequence[GrantedClaim], now: int, trusted: Callable[[], bool]) -> bool: ...


class ManualRuns:
    """Answers requests, a page of them in one tick: whoever may write requests can write a million."""

    def __init__(
        self, parts: Dependencies, desk: LeaderState, watch: BrokerWatch, claim: Claim, publish: Publish
    ) -> None:
        self._deps = parts
        self._leader = desk
        self._watch = watch
        self._claim = claim
        self._publish = publish

    def answer(self, now: int, trusted: Callable[[], bool]) -> bool:
        """Answer the next page; False: the broker surely took nothing, and the rest waits."""
        desk, store = self._leader, self._deps.store
        if not desk.asked:
            return True
        requests = store.pending_requests(desk.requests_after)
        if requests and not self._watch.can_send(trusted):
            return False
        for request in requests:
            entry = desk.agenda.entries.get(request.job_id)
            if entry is None or request.action != "run":
                answer_request(self._deps, desk, request, now)
            else:
                claimed = self._claim_run(entry, request, now)
                if claimed is None:
                    desk.requests_left = True
                    continue
                if not self._publish(*claimed, now, trusted):
                    return False
            desk.remember_answer(request)
            store.delete_requests(desk.epoch, [request.id])
        if len(requests) == REQUESTS_A_READ:
            desk.requests_after = requests[-1].id
        else:
            desk.asked, desk.requests_left, desk.requests_after = desk.requests_left, False, 0
        return True

    def _claim_run(self, entry: AgendaEntry, request: Request, now: int) -> tuple[int, list[GrantedClaim]] | None:
        """What `_publish` wants; None: not now, for the row has gone or somebody holds a lock on its state."""
        desk, job, name = self._leader, entry.job, self._leader.request_name(request)
        refusal = self._refusal(entry)
        slot_us = slot_by_hand(now, desk.hand_slots.get(entry.id, 0), entry.next_us)
        claim = by_hand(
            entry.id,
            job,
            slot_us,
            name,
            busy=desk.in_flight.has_run_of(entry.id),
            refusal=refusal,
            moment=desk.moment(now),
            remembered=name in desk.answered,
        )
        batch_id, won, lost = self._claim([GrantedClaim(claim, job, None)], now)
        if won:
            desk.hand_slots[entry.id] = slot_us
            if refusal:
                log_events.refused_request(request, refusal)
        # The ledger has the run: the request was dealt with before, and only the answer to it was lost.
        return (batch_id, won) if won or name in lost else None

    def _refusal(self, entry: AgendaEntry) -> str:
        job = entry.job
        if job is None:
            return entry.problem
        if job.from_code and not self._deps.run_code_entries:
            # The table does not say who wrote into it, and code may run what no row may.
            return NOT_FROM_CODE
        return "its worker scope is disabled" if not job.scope.enabled else self._deps.privileges.refusal(job)
