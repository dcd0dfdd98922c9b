"""From due slots to messages: decide, claim, publish, mark. The database is told before the broker is."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from celery_qbeat.agenda import Entry
from celery_qbeat.engine import report
from celery_qbeat.engine.desk import Desk, Parts, batched
from celery_qbeat.engine.settler import resendable
from celery_qbeat.errors import Doubt, Unavailable
from celery_qbeat.flights import Airborne
from celery_qbeat.jobs import Job, Run, Verdict
from celery_qbeat.planning import Claim, Due, by_hand, decide, lease_until
from celery_qbeat.ports import End, Fate, Receipt, Release, Request, Shipment


@dataclass(frozen=True, slots=True)
class _Won:
    """A claim that the database granted, and what the job's entry was before; a run by hand leaves that alone."""

    claim: Claim
    job: Job | None
    before: Entry | None

    def without(self, lost: frozenset[str]) -> _Won:
        """What is left when the ledger already had some of the runs."""
        if not lost:
            return self
        return replace(self, claim=replace(self.claim, runs=tuple(r for r in self.claim.runs if r.task_id not in lost)))

    @property
    def claimed(self) -> list[Run]:
        return [run for run in self.claim.runs if run.verdict is Verdict.CLAIMED]

    def shipments(self) -> list[Shipment]:
        if self.job is None:
            return []
        hand = self.claim.expected_us is None
        return [Shipment(self.job, run, hand) for run in self.claimed]

    def release(self, unsent: Sequence[Run], now: int) -> Release:
        """`unsent`: the last ones of what was claimed, oldest first."""
        ids = tuple(run.task_id for run in unsent)
        if self.before is None:
            return Release(self.claim.job_id, ids, None, None)
        ran = self.before.state.last_run_us if len(unsent) == len(self.claimed) else now
        return Release(self.claim.job_id, ids, self._back_to(unsent[0]), self.claim.next_us, ran)

    def _back_to(self, first: Run) -> int | None:
        """The oldest slot that has no verdict when `first` and all after it have none."""
        if self.job is not None and self.job.schedule.relative:
            return first.slot_us
        decided = self.decided_before(first)
        return self.claim.expected_us if decided is None or self.job is None else self.job.schedule.next_after(decided)

    def decided_before(self, first: Run) -> int | None:
        """The newest slot of this claim that keeps its verdict when `first` and all after it lose theirs."""
        return max((run.slot_us for run in self.claim.runs if run.slot_us < first.slot_us), default=None)


def _still_due(claim: Claim, now: int) -> bool:
    return claim.next_us is not None and claim.next_us <= now


class Sender:
    """Claims what is due and publishes what was won."""

    def __init__(self, parts: Parts, desk: Desk, renew: Callable[[], None]) -> None:
        self._parts = parts
        self._desk = desk
        self._renew = renew

    def dispatch(self, now: int, trusted: Callable[[], bool]) -> bool:
        """One batch; whether more is due at once."""
        desk = self._desk
        # A broker that was away is asked with one job before a whole batch is claimed and released again.
        limit = 1 if desk.broker_away else self._parts.limits.batch
        entries = desk.agenda.due(now, limit)
        wanted = self._decide_all(entries, now)
        if not wanted:
            return bool(entries)
        try:
            batch_id, won, _ = self._claim(wanted, now)
        except Unavailable:
            for item in wanted:
                desk.agenda.again(item.claim.job_id)
            raise
        for item in won:
            self._move_on(item, now)
        all_sent = self._publish(batch_id, won, now, trusted)
        more = len(entries) == limit or any(_still_due(item.claim, now) for item in won)
        return more and bool(won) and all_sent

    def _decide_all(self, entries: Sequence[Entry], now: int) -> list[_Won]:
        """What to claim. Of jobs with a backlog only as many as fit beside the others, which are published first."""
        agenda, room = self._desk.agenda, self._parts.limits.batch
        single: list[_Won] = []
        several: list[_Won] = []
        for entry in entries:
            claim = self._decide(entry, now)
            if claim is None:
                agenda.wait(entry)
            elif len(claim.runs) <= 1:
                single.append(_Won(claim, entry.job, replace(entry)))
            elif room > 0:
                room -= len(claim.runs)
                several.append(_Won(claim, entry.job, replace(entry)))
            else:
                agenda.again(entry.id)
        return single + several

    def run_by_hand(self, now: int, trusted: Callable[[], bool]) -> bool:
        """Answer the requests for single runs; False: the broker surely took nothing, and the rest waits."""
        desk, store = self._desk, self._parts.store
        if not desk.asked:
            return True
        again = False
        for request in store.requests():
            entry = desk.agenda.entries.get(request.job_id)
            if entry is None:
                report.unknown_request(request)
            else:
                claimed = self._claim_by_hand(entry, request, now)
                if claimed is None:
                    again = True
                    continue
                if not self._publish(*claimed, now, trusted):
                    return False
            desk.remember_answer(request)
            store.answer(desk.epoch, [request.id])
        desk.asked = again
        return True

    def resend(self, now: int, trusted: Callable[[], bool]) -> bool:
        """Publish again, under the same task id, what may or may not have been sent and its row wants resent.

        False: the broker surely took nothing, and the rest waits.
        """
        desk = self._desk
        for batch_id, doubtful in list(desk.resends.values()):
            run = doubtful.run
            job = resendable(self._parts, desk, run.job_id, by_hand=doubtful.by_hand)
            if job is None:
                self._drop(run, "its row changed before it could be sent again", now)
                continue
            if job.grace_us is not None and now - run.slot_us - run.late_us > job.grace_us:
                self._drop(run, "its grace was over before it could be sent again", now)
                continue
            shipment = replace(doubtful, job=job, run=replace(run, lease_until_us=lease_until(job, now)))
            receipt = self._parts.dispatcher.send([shipment], trusted)[0]
            if receipt.fate is Fate.NOT_SENT:
                self._broker(receipt, 1)
                return False
            if receipt.fate is Fate.DOUBT:
                self._broker(receipt, 1)
            elif receipt.fate is Fate.BAD:
                self._drop(run, f"it could not be sent again: {receipt.detail}", now)
            else:
                del desk.resends[run.task_id]
                self._mark(batch_id, [shipment], [receipt], now, closes=False)
                desk.pay()
        return True

    def _drop(self, run: Run, why: str, now: int) -> None:
        desk, store = self._desk, self._parts.store
        report.in_doubt(run.job_id, run.slot_us, run.task_id, False)
        desk.land(run.task_id)
        ends = [End(run.task_id, Verdict.IN_DOUBT, f"perhaps sent; {why}")]
        desk.owed.append(lambda epoch: store.conclude(epoch, ends, now))
        desk.pay()

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
        return decide(due, self._desk.moment(now))

    def _claim_by_hand(self, entry: Entry, request: Request, now: int) -> tuple[int, list[_Won]] | None:
        """What `_publish` wants; None: not now, for the row has gone or somebody holds a lock on its state."""
        desk, job = self._desk, entry.job
        if job is None:
            refusal = entry.problem
        elif not job.scope.enabled:
            refusal = "its worker scope is disabled"
        else:
            refusal = self._parts.privileges.refusal(job)
        busy = desk.flights.busy(entry.id)
        claim = by_hand(
            entry.id,
            job,
            request.asked_us,
            busy=busy,
            refusal=refusal,
            moment=desk.moment(now),
            remembered=(request.job_id, request.asked_us) in desk.answered,
        )
        batch_id, won, lost = self._claim([_Won(claim, job, None)], now)
        # The ledger has the slot: the request was dealt with before, and only the answer to it was lost.
        return (batch_id, won) if won or claim.runs[0].task_id in lost else None

    def _claim(self, wanted: Sequence[_Won], now: int) -> tuple[int, list[_Won], frozenset[str]]:
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
                won.append(item.without(lost))
        return batch_id, won, lost

    def _move_on(self, item: _Won, now: int) -> None:
        claim = item.claim
        newest = claim.runs[-1].slot_us if claim.runs else None
        ran = now if item.claimed else None
        self._desk.agenda.moved(claim.job_id, claim.next_us, now, last_run_us=ran, last_slot_us=newest)

    def _publish(self, batch_id: int, won: Sequence[_Won], now: int, trusted: Callable[[], bool]) -> bool:
        """Whether nothing had to be given back."""
        chores = self._parts.chores
        inside = [item for item in won if item.job is not None and item.job.fn in chores and not item.job.from_code]
        outside = [item for item in won if item not in inside] if inside else won
        shipments = [shipment for item in outside for shipment in item.shipments()]
        self._start_chores(batch_id, inside, now, closes=not shipments)
        return self._ship(batch_id, won, shipments, now, trusted)

    def _ship(
        self,
        batch_id: int,
        won: Sequence[_Won],
        shipments: Sequence[Shipment],
        now: int,
        trusted: Callable[[], bool],
    ) -> bool:
        def may_send() -> bool:
            may = trusted()
            # After the question: the worst moment to freeze is between its answer and the message.
            self._parts.fail_point("sending")
            return may

        unsent: list[Shipment] = []
        chunks = deque(batched(shipments, self._parts.limits.chunk))
        try:
            while chunks and not unsent:
                chunk = chunks.popleft()
                if shipments[0] is not chunk[0]:
                    self._renew()
                receipts = self._parts.dispatcher.send(chunk, may_send)
                self._parts.fail_point("published")
                unsent = self._mark(batch_id, chunk, receipts, now, closes=not chunks)
                self._desk.pay()
                self._parts.fail_point("marked")
        finally:
            # Also when the database went away: what was not sent for sure is given back when it returns.
            unsent.extend(shipment for chunk in chunks for shipment in chunk)
            if unsent:
                self._give_back(batch_id, won, unsent, now)
        self._desk.pay()
        return not unsent

    def _mark(
        self, batch_id: int, chunk: Sequence[Shipment], receipts: Sequence[Receipt], now: int, *, closes: bool
    ) -> list[Shipment]:
        """Note what happened to a chunk, to be paid; the shipments that surely were not sent."""
        desk, store = self._desk, self._parts.store
        unsent: list[Shipment] = []
        sent: list[str] = []
        ends: list[End] = []
        for shipment, receipt in zip(chunk, receipts, strict=True):
            job, run = shipment.job, shipment.run
            if receipt.fate is Fate.NOT_SENT:
                unsent.append(shipment)
                continue
            if receipt.fate is Fate.BAD:
                report.unsendable(job, run, receipt.detail)
                ends.append(End(run.task_id, Verdict.FAILED, f"could not be published: {receipt.detail}"))
                continue
            if receipt.fate is Fate.SENT:
                report.sent(job, run)
                sent.append(run.task_id)
            else:
                self._doubtful(batch_id, shipment, ends)
            if receipt.fate is Fate.SENT or job.on_doubt == "resend":
                desk.flights.add(Airborne(run.task_id, job.id, run.slot_us, now, run.lease_until_us or now))
        self._broker(receipts[-1], len(unsent))
        done = closes and not unsent
        if sent or done:
            desk.owed.append(lambda epoch: store.sent(epoch, batch_id, sent, now, closes=done))
        if ends:
            desk.owed.append(lambda epoch: store.conclude(epoch, ends, now))
        return unsent

    def _doubtful(self, batch_id: int, shipment: Shipment, ends: list[End]) -> None:
        job, run = shipment.job, shipment.run
        resend = job.on_doubt == "resend"
        report.in_doubt(job.id, run.slot_us, run.task_id, resend)
        if resend:
            self._desk.resends[run.task_id] = (batch_id, shipment)
        else:
            ends.append(End(run.task_id, Verdict.IN_DOUBT, "the broker went away while it was being sent"))

    def _give_back(self, batch_id: int, won: Sequence[_Won], unsent: Sequence[Shipment], now: int) -> None:
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

    def _broker(self, last: Receipt, held_back: int) -> None:
        desk = self._desk
        away = last.fate in (Fate.NOT_SENT, Fate.DOUBT) and last.detail != ""
        if away and not desk.broker_away:
            report.broker_away(last.detail, held_back)
        elif desk.broker_away and last.fate is Fate.SENT:
            report.broker_back()
        if away or last.fate is Fate.SENT:
            desk.broker_away = away

    def _start_chores(self, batch_id: int, won: Sequence[_Won], now: int, *, closes: bool) -> None:
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
