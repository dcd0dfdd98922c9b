"""From due slots to messages: decide, claim, publish, mark. The database is told before the broker is."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import replace

from celery_qbeat.core.agenda import AgendaEntry
from celery_qbeat.core.in_flight import InFlightRun
from celery_qbeat.core.jobs import Run, Verdict
from celery_qbeat.core.planning import Claim, Due, decide, decides_itself
from celery_qbeat.engine import log_events
from celery_qbeat.engine.broker_watch import BrokerWatch
from celery_qbeat.engine.granted_claim import GrantedClaim
from celery_qbeat.engine.leader_state import Dependencies, LeaderState, batched
from celery_qbeat.engine.manual import ManualRuns
from celery_qbeat.engine.publish_results import PublishRecorder
from celery_qbeat.engine.resend import Resend
from celery_qbeat.engine.schedule_questions import ask_schedule
from celery_qbeat.errors import Doubt, Unavailable
from celery_qbeat.ports import ClaimRelease, OutgoingRun


def _still_due(claim: Claim, now: int) -> bool:
    return claim.next_us is not None and claim.next_us <= now


class SlotDispatch:
    """Claims what is due and publishes what was won."""

    def __init__(self, parts: Dependencies, desk: LeaderState, renew: Callable[[], None]) -> None:
        self._deps = parts
        self._leader = desk
        self._renew = renew
        self._watch = BrokerWatch(parts, desk, renew)
        self._marker = PublishRecorder(parts, desk, self._watch)
        self._resender = Resend(parts, desk, self._watch, self._marker)
        self._manual = ManualRuns(parts, desk, self._watch, self._claim, self._publish)

    def dispatch_due(self, now: int, trusted: Callable[[], bool]) -> bool:
        """Send again what is in doubt, then what people asked for, then one batch of due slots.

        The broker is asked once before the first claim; nothing is claimed that it cannot take.

        Returns:
            Whether more is due at once.
        """
        self._watch.begin()
        self._resender.process_late_results(now)
        self._wake_waiting(now)
        reached = self._resender.resend(now, trusted) and self._manual.answer(now, trusted)
        return reached and (self._dispatch(now, trusted) or self._leader.requests_after > 0)

    def notice_empty_broker(self) -> None:
        """Check the runs in flight after the broker may have lost its messages. One round trip."""
        self._watch.notice_empty()

    def _wake_waiting(self, now: int) -> None:
        """Jobs whose queue refused them may try again."""
        desk = self._leader
        if not desk.refusals:
            return
        for queue in desk.refusals.ended(now):
            log_events.queue_accepts(queue)
        for job_id in desk.refusals.due(now):
            desk.agenda.unblock(job_id)

    def _dispatch(self, now: int, trusted: Callable[[], bool]) -> bool:
        """One batch; whether more is due at once."""
        desk, limit = self._leader, self._deps.limits.batch
        entries = desk.agenda.pop_due(now, limit)
        decided = self._decide_all(entries, now)
        wanted = self._only_what_can_go(decided, trusted)
        if not wanted:
            return bool(entries) and not decided
        # The claim may take as long as the lock is trusted, when the way to the database is long.
        self._renew()
        try:
            batch_id, won, _ = self._claim(wanted, now)
        except Unavailable:
            for item in wanted:
                desk.agenda.return_due(item.claim.job_id)
            raise
        for item in won:
            self._move_on(item, now)
        all_sent = self._publish(batch_id, won, now, trusted)
        more = len(entries) == limit or len(wanted) < len(decided) or any(_still_due(item.claim, now) for item in won)
        return more and bool(won) and all_sent and not self._watch.away

    def _only_what_can_go(self, decided: list[GrantedClaim], trusted: Callable[[], bool]) -> list[GrantedClaim]:
        """Without the claims that a broker would be needed for which is away; the others stay due.

        A broker that was away and answers again is tried with one message before a whole batch is claimed.
        """
        if not any(self._needs_broker(item) for item in decided):
            return decided
        room = 0 if not self._watch.can_send(trusted) else 1 if self._leader.broker_away else len(decided)
        wanted = []
        for item in decided:
            if not self._needs_broker(item):
                wanted.append(item)
            elif room > 0:
                room -= 1
                wanted.append(item)
            else:
                self._leader.agenda.return_due(item.claim.job_id)
        return wanted

    def _needs_broker(self, item: GrantedClaim) -> bool:
        return bool(item.claimed) and not self._is_chore(item)

    def _is_chore(self, item: GrantedClaim) -> bool:
        """Whether it runs inside the beat."""
        return item.job is not None and item.job.fn in self._deps.builtin_tasks and not item.job.from_code

    def _decide_all(self, entries: Sequence[AgendaEntry], now: int) -> list[GrantedClaim]:
        """What to claim. Of jobs with a backlog only as many as fit beside the others, which are published first."""
        desk, room = self._leader, self._deps.limits.batch
        single: list[GrantedClaim] = []
        several: list[GrantedClaim] = []
        for entry in entries:
            claim = self._decide(entry, now)
            if claim is None:
                desk.wait(entry)
            elif desk.refusals and entry.job is not None and self._waits_for_queue(entry, claim, now):
                desk.agenda.block_until_accepted(entry)
            elif len(claim.runs) <= 1:
                single.append(GrantedClaim(claim, entry.job, replace(entry)))
            elif room > 0:
                room -= len(claim.runs)
                several.append(GrantedClaim(claim, entry.job, replace(entry)))
            else:
                desk.agenda.return_due(entry.id)
        return single + several

    def _waits_for_queue(self, entry: AgendaEntry, claim: Claim, now: int) -> bool:
        """Whether the queue of this job refuses messages and it is not its turn to try."""
        job, refusals = entry.job, self._leader.refusals
        if job is None or not any(run.verdict is Verdict.CLAIMED for run in claim.runs) or refusals.admits(job, now):
            return False
        refusals.wait(job, claim, now)
        return True

    def _decide(self, entry: AgendaEntry, now: int) -> Claim | None:
        job, slot = entry.job, entry.next_us
        if job is None or slot is None:
            raise AssertionError(f"{entry.id!r} is due without a job or a slot")
        refusal = self._deps.privileges.refusal(job)
        busy = self._leader.in_flight.has_run_of(job.id)
        state = entry.state
        due = Due(
            job,
            slot,
            state.first_seen_us,
            fresh=entry.fresh,
            excused=entry.excused,
            busy=busy,
            refusal=refusal,
            last_slot_us=state.last_slot_us,
            last_run_us=state.last_run_us,
        )
        claim = decide(due, self._leader.moment(now))
        if claim is not None and decides_itself(job):
            claim = ask_schedule(claim, job, state, now)
        return self._leader.refusals.explain(job, claim) if self._leader.refusals and claim is not None else claim

    def _claim(self, wanted: Sequence[GrantedClaim], now: int) -> tuple[int, list[GrantedClaim], frozenset[str]]:
        """The batch id, what the database granted, and what it did not (see `Store.claim`)."""
        desk = self._leader
        batch_id = desk.next_batch()
        try:
            lost = self._deps.store.claim(desk.epoch, batch_id, [item.claim for item in wanted], now)
        except Doubt:
            # Perhaps committed, surely not published: undo it when the database is back.
            desk.stale_job_ids.update(item.claim.job_id for item in wanted)
            self._owe_release(batch_id, [item.release(item.claimed, now) for item in wanted if item.claimed])
            raise
        self._deps.fail_point("claimed")
        won = []
        for item in wanted:
            if item.claim.job_id in lost:
                log_events.already_decided(item.claim)
                desk.stale_job_ids.add(item.claim.job_id)
            else:
                log_events.decided(item.claim)
                desk.skipped(item.claim)
                won.append(item.without(lost))
        return batch_id, won, lost

    def _move_on(self, item: GrantedClaim, now: int) -> None:
        claim = item.claim
        newest = claim.runs[-1].slot_us if claim.runs else None
        ran = now if item.claimed else None
        self._leader.agenda.record_claim(claim.job_id, claim.next_us, now, last_run_us=ran, last_slot_us=newest)

    def _publish(self, batch_id: int, won: Sequence[GrantedClaim], now: int, trusted: Callable[[], bool]) -> bool:
        """Whether nothing had to be given back."""
        inside = [item for item in won if self._is_chore(item)]
        outside = [item for item in won if item not in inside] if inside else won
        shipments = [shipment for item in outside for shipment in item.shipments()]
        self._start_chores(batch_id, inside, now, closes=not shipments)
        return self._ship(batch_id, won, shipments, now, trusted)

    def _ship(
        self,
        batch_id: int,
        won: Sequence[GrantedClaim],
        shipments: Sequence[OutgoingRun],
        now: int,
        trusted: Callable[[], bool],
    ) -> bool:
        def may_send() -> bool:
            # Code of the user that sends a run may take its time: the lock is kept between two runs.
            self._renew()
            may = trusted()
            # After the question: the worst moment to freeze is between its answer and the message.
            self._deps.fail_point("sending")
            return may

        unsent: list[OutgoingRun] = []
        refused: list[OutgoingRun] = []
        chunks = deque(batched(shipments, self._deps.limits.chunk))
        try:
            while chunks and not unsent:
                chunk = chunks.popleft()
                self._renew()
                receipts = self._deps.dispatcher.send(chunk, may_send)
                self._deps.fail_point("published")
                unsent = self._marker.record_results(batch_id, chunk, receipts, now, closes=not chunks, refused=refused)
                self._leader.flush_pending_writes()
                self._deps.fail_point("marked")
        finally:
            # Also when the database went away: what was not sent for sure is given back when it returns.
            unsent.extend(shipment for chunk in chunks for shipment in chunk)
            if unsent or refused:
                self._give_back(batch_id, won, [*unsent, *refused], now)
        self._leader.flush_pending_writes()
        return not unsent

    def _give_back(self, batch_id: int, won: Sequence[GrantedClaim], unsent: Sequence[OutgoingRun], now: int) -> None:
        left: dict[str, list[Run]] = {}
        for shipment in unsent:
            left.setdefault(shipment.job.id, []).append(shipment.run)
        releases = []
        for item in won:
            runs = left.get(item.claim.job_id)
            if runs:
                release = item.release(runs, now)
                releases.append(release)
                if release.back_to_us is not None and item.before is not None:
                    last_slot = item.decided_before(runs[0])
                    self._leader.agenda.undo_claim(item.before, release.back_to_us, release.last_run_us, last_slot)
        self._owe_release(batch_id, releases)
        store = self._deps.store
        self._leader.pending_writes.append(lambda epoch: store.mark_sent(epoch, batch_id, [], now, closes=True))

    def _owe_release(self, batch_id: int, releases: Sequence[ClaimRelease]) -> None:
        store = self._deps.store
        self._leader.pending_writes.append(lambda epoch: store.release_claims(epoch, batch_id, releases))

    def _start_chores(self, batch_id: int, won: Sequence[GrantedClaim], now: int, *, closes: bool) -> None:
        desk, store = self._leader, self._deps.store
        runs = [(shipment.job, shipment.run) for item in won for shipment in item.shipments()]
        if not runs:
            return
        for job, run in runs:
            desk.in_flight.add(InFlightRun(run.task_id, job.id, run.slot_us, now, run.lease_until_us or now))
            desk.chores.append((run.task_id, job.id, self._deps.builtin_tasks[job.fn](store, now)))
            log_events.sent(job, run)
        task_ids = [run.task_id for _, run in runs]
        desk.pending_writes.append(lambda epoch: store.mark_sent(epoch, batch_id, task_ids, now, closes=closes))
