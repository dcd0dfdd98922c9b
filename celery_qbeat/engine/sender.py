"""From due slots to messages: decide, claim, publish, mark. The database is told before the broker is."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import replace

from celery_qbeat.agenda import Entry
from celery_qbeat.engine import report
from celery_qbeat.engine.asking import ask_schedule
from celery_qbeat.engine.broker_watch import BrokerWatch
from celery_qbeat.engine.desk import Desk, Parts, batched
from celery_qbeat.engine.manual import ManualRuns
from celery_qbeat.engine.marker import Marker
from celery_qbeat.engine.resender import Resender
from celery_qbeat.engine.won import Won
from celery_qbeat.errors import Doubt, Unavailable
from celery_qbeat.flights import Airborne
from celery_qbeat.jobs import Run, Verdict
from celery_qbeat.planning import Claim, Due, decide, decides_itself
from celery_qbeat.ports import Release, Shipment


def _still_due(claim: Claim, now: int) -> bool:
    return claim.next_us is not None and claim.next_us <= now


class Sender:
    """Claims what is due and publishes what was won."""

    def __init__(self, parts: Parts, desk: Desk, renew: Callable[[], None]) -> None:
        self._parts = parts
        self._desk = desk
        self._renew = renew
        self._watch = BrokerWatch(parts, desk, renew)
        self._marker = Marker(parts, desk, self._watch)
        self._resender = Resender(parts, desk, self._watch, self._marker)
        self._manual = ManualRuns(parts, desk, self._watch, self._claim, self._publish)

    def send_due(self, now: int, trusted: Callable[[], bool]) -> bool:
        """Send again what is in doubt, then what people asked for, then one batch of due slots.

        The broker is asked once before the first claim; nothing is claimed that it cannot take.

        Returns:
            Whether more is due at once.
        """
        self._watch.begin()
        self._resender.take_late(now)
        self._wake_waiting(now)
        reached = self._resender.resend(now, trusted) and self._manual.answer(now, trusted)
        return reached and (self._dispatch(now, trusted) or self._desk.requests_after > 0)

    def notice_empty_broker(self) -> None:
        """Check the runs in flight after the broker may have lost its messages. One round trip."""
        self._watch.notice_empty()

    def _wake_waiting(self, now: int) -> None:
        """Jobs whose queue refused them may try again."""
        desk = self._desk
        if not desk.refusals:
            return
        for queue in desk.refusals.ended(now):
            report.queue_accepts(queue)
        for job_id in desk.refusals.due(now):
            desk.agenda.wake(job_id)

    def _dispatch(self, now: int, trusted: Callable[[], bool]) -> bool:
        """One batch; whether more is due at once."""
        desk, limit = self._desk, self._parts.limits.batch
        entries = desk.agenda.due(now, limit)
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
                desk.agenda.again(item.claim.job_id)
            raise
        for item in won:
            self._move_on(item, now)
        all_sent = self._publish(batch_id, won, now, trusted)
        more = len(entries) == limit or len(wanted) < len(decided) or any(_still_due(item.claim, now) for item in won)
        return more and bool(won) and all_sent and not self._watch.away

    def _only_what_can_go(self, decided: list[Won], trusted: Callable[[], bool]) -> list[Won]:
        """Without the claims that a broker would be needed for which is away; the others stay due.

        A broker that was away and answers again is tried with one message before a whole batch is claimed.
        """
        if not any(self._needs_broker(item) for item in decided):
            return decided
        room = 0 if not self._watch.can_send(trusted) else 1 if self._desk.broker_away else len(decided)
        wanted = []
        for item in decided:
            if not self._needs_broker(item):
                wanted.append(item)
            elif room > 0:
                room -= 1
                wanted.append(item)
            else:
                self._desk.agenda.again(item.claim.job_id)
        return wanted

    def _needs_broker(self, item: Won) -> bool:
        return bool(item.claimed) and not self._is_chore(item)

    def _is_chore(self, item: Won) -> bool:
        """Whether it runs inside the beat."""
        return item.job is not None and item.job.fn in self._parts.chores and not item.job.from_code

    def _decide_all(self, entries: Sequence[Entry], now: int) -> list[Won]:
        """What to claim. Of jobs with a backlog only as many as fit beside the others, which are published first."""
        desk, room = self._desk, self._parts.limits.batch
        single: list[Won] = []
        several: list[Won] = []
        for entry in entries:
            claim = self._decide(entry, now)
            if claim is None:
                desk.wait(entry)
            elif desk.refusals and entry.job is not None and self._waits_for_queue(entry, claim, now):
                desk.agenda.hold(entry)
            elif len(claim.runs) <= 1:
                single.append(Won(claim, entry.job, replace(entry)))
            elif room > 0:
                room -= len(claim.runs)
                several.append(Won(claim, entry.job, replace(entry)))
            else:
                desk.agenda.again(entry.id)
        return single + several

    def _waits_for_queue(self, entry: Entry, claim: Claim, now: int) -> bool:
        """Whether the queue of this job refuses messages and it is not its turn to try."""
        job, refusals = entry.job, self._desk.refusals
        if job is None or not any(run.verdict is Verdict.CLAIMED for run in claim.runs) or refusals.admits(job, now):
            return False
        refusals.wait(job, claim, now)
        return True

    def _decide(self, entry: Entry, now: int) -> Claim | None:
        job, slot = entry.job, entry.next_us
        if job is None or slot is None:
            raise AssertionError(f"{entry.id!r} is due without a job or a slot")
        refusal = self._parts.privileges.refusal(job)
        busy = self._desk.flights.busy(job.id)
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
        claim = decide(due, self._desk.moment(now))
        if claim is not None and decides_itself(job):
            claim = ask_schedule(claim, job, state, now)
        return self._desk.refusals.explain(job, claim) if self._desk.refusals and claim is not None else claim

    def _claim(self, wanted: Sequence[Won], now: int) -> tuple[int, list[Won], frozenset[str]]:
        """The batch id, what the database granted, and what it did not (see `Store.claim`)."""
        desk = self._desk
        batch_id = desk.next_batch()
        try:
            lost = self._parts.store.claim(desk.epoch, batch_id, [item.claim for item in wanted], now)
        except Doubt:
            # Perhaps committed, surely not published: undo it when the database is back.
            desk.suspects.update(item.claim.job_id for item in wanted)
            self._owe_release(batch_id, [item.release(item.claimed, now) for item in wanted if item.claimed])
            raise
        self._parts.fail_point("claimed")
        won = []
        for item in wanted:
            if item.claim.job_id in lost:
                report.already_decided(item.claim)
                desk.suspects.add(item.claim.job_id)
            else:
                report.decided(item.claim)
                desk.skipped(item.claim)
                won.append(item.without(lost))
        return batch_id, won, lost

    def _move_on(self, item: Won, now: int) -> None:
        claim = item.claim
        newest = claim.runs[-1].slot_us if claim.runs else None
        ran = now if item.claimed else None
        self._desk.agenda.moved(claim.job_id, claim.next_us, now, last_run_us=ran, last_slot_us=newest)

    def _publish(self, batch_id: int, won: Sequence[Won], now: int, trusted: Callable[[], bool]) -> bool:
        """Whether nothing had to be given back."""
        inside = [item for item in won if self._is_chore(item)]
        outside = [item for item in won if item not in inside] if inside else won
        shipments = [shipment for item in outside for shipment in item.shipments()]
        self._start_chores(batch_id, inside, now, closes=not shipments)
        return self._ship(batch_id, won, shipments, now, trusted)

    def _ship(
        self,
        batch_id: int,
        won: Sequence[Won],
        shipments: Sequence[Shipment],
        now: int,
        trusted: Callable[[], bool],
    ) -> bool:
        def may_send() -> bool:
            # Code of the user that sends a run may take its time: the lock is kept between two runs.
            self._renew()
            may = trusted()
            # After the question: the worst moment to freeze is between its answer and the message.
            self._parts.fail_point("sending")
            return may

        unsent: list[Shipment] = []
        refused: list[Shipment] = []
        chunks = deque(batched(shipments, self._parts.limits.chunk))
        try:
            while chunks and not unsent:
                chunk = chunks.popleft()
                self._renew()
                receipts = self._parts.dispatcher.send(chunk, may_send)
                self._parts.fail_point("published")
                unsent = self._marker.mark(batch_id, chunk, receipts, now, closes=not chunks, refused=refused)
                self._desk.pay()
                self._parts.fail_point("marked")
        finally:
            # Also when the database went away: what was not sent for sure is given back when it returns.
            unsent.extend(shipment for chunk in chunks for shipment in chunk)
            if unsent or refused:
                self._give_back(batch_id, won, [*unsent, *refused], now)
        self._desk.pay()
        return not unsent

    def _give_back(self, batch_id: int, won: Sequence[Won], unsent: Sequence[Shipment], now: int) -> None:
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
                    self._desk.agenda.put_back(item.before, release.back_to_us, release.last_run_us, last_slot)
        self._owe_release(batch_id, releases)
        store = self._parts.store
        self._desk.owed.append(lambda epoch: store.sent(epoch, batch_id, [], now, closes=True))

    def _owe_release(self, batch_id: int, releases: Sequence[Release]) -> None:
        store = self._parts.store
        self._desk.owed.append(lambda epoch: store.release(epoch, batch_id, releases))

    def _start_chores(self, batch_id: int, won: Sequence[Won], now: int, *, closes: bool) -> None:
        desk, store = self._desk, self._parts.store
        runs = [(shipment.job, shipment.run) for item in won for shipment in item.shipments()]
        if not runs:
            return
        for job, run in runs:
            desk.flights.add(Airborne(run.task_id, job.id, run.slot_us, now, run.lease_until_us or now))
            desk.chores.append((run.task_id, job.id, self._parts.chores[job.fn](store, now)))
            report.sent(job, run)
        task_ids = [run.task_id for _, run in runs]
        desk.owed.append(lambda epoch: store.sent(epoch, batch_id, task_ids, now, closes=closes))
