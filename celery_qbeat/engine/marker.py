"""What the broker made of published runs, to be written to the database."""

from __future__ import annotations

from collections.abc import Sequence

from celery_qbeat.engine import report
from celery_qbeat.engine.broker_watch import BrokerWatch
from celery_qbeat.engine.desk import Desk, Parts
from celery_qbeat.flights import Airborne
from celery_qbeat.jobs import Job, Verdict
from celery_qbeat.ports import End, Fate, Receipt, Shipment


def unpublished(receipt: Receipt) -> End:
    """The end of a run that no broker ever had."""
    return End(receipt.task_id, Verdict.FAILED, f"could not be published: {receipt.detail}")


class Marker:
    """Turns receipts into what is owed to the database."""

    def __init__(self, parts: Parts, desk: Desk, watch: BrokerWatch) -> None:
        self._parts = parts
        self._desk = desk
        self._watch = watch

    def mark(
        self,
        batch_id: int,
        chunk: Sequence[Shipment],
        receipts: Sequence[Receipt],
        now: int,
        *,
        closes: bool,
        refused: list[Shipment] | None = None,
    ) -> list[Shipment]:
        """Note what happened to a chunk, to be paid; the shipments that the broker did not take.

        `refused`: is added what a queue refused, to be given back; without it, such runs fail.
        """
        desk, store = self._desk, self._parts.store
        unsent: list[Shipment] = []
        sent: list[str] = []
        ends: list[End] = []
        open_before = len(refused or ())
        for shipment, receipt in zip(chunk, receipts, strict=True):
            job, run, fate = shipment.job, shipment.run, receipt.fate
            if fate is Fate.NOT_SENT:
                unsent.append(shipment)
            elif fate is Fate.REFUSED and refused is not None and not shipment.by_hand:
                self._refused(job, receipt, now)
                refused.append(shipment)
            elif fate in (Fate.BAD, Fate.REFUSED):
                report.unsendable(job, run, receipt.detail)
                ends.append(unpublished(receipt))
            elif fate is Fate.DECLINED:
                report.declined(job, run, receipt.detail)
                ends.append(End(receipt.task_id, Verdict.SKIPPED, receipt.detail))
            elif fate is Fate.SENT:
                report.sent(job, run)
                sent.append(run.task_id)
                self._accepted(job)
            elif fate is Fate.UNCONFIRMED:
                desk.unconfirmed[run.task_id] = (batch_id, shipment)
            else:
                self._doubtful(batch_id, shipment, ends)
            in_doubt = fate is Fate.DOUBT and job.on_doubt == "resend"
            if in_doubt or fate in (Fate.SENT, Fate.UNCONFIRMED):
                desk.flights.add(Airborne(run.task_id, job.id, run.slot_us, now, run.lease_until_us or now))
        self._watch.note(receipts[-1])
        pending = unsent or len(refused or ()) > open_before or any(r.fate is Fate.UNCONFIRMED for r in receipts)
        done = closes and not pending
        if sent or done:
            desk.owed.append(lambda epoch: store.sent(epoch, batch_id, sent, now, closes=done))
        if ends:
            desk.owed.append(lambda epoch: store.conclude(epoch, ends, now))
        return unsent

    def _refused(self, job: Job, receipt: Receipt, now: int) -> None:
        if self._desk.refusals.refused(job, receipt.queue, receipt.detail, now):
            report.queue_refuses(receipt.queue, receipt.detail)

    def _accepted(self, job: Job) -> None:
        desk = self._desk
        if desk.refusals:
            for job_id in desk.refusals.accepted(job):
                desk.agenda.wake(job_id)

    def _doubtful(self, batch_id: int, shipment: Shipment, ends: list[End]) -> None:
        job, run = shipment.job, shipment.run
        resend = job.on_doubt == "resend"
        report.in_doubt(job.id, run.slot_us, run.task_id, resend)
        if resend:
            self._desk.resends[run.task_id] = (batch_id, shipment)
        else:
            ends.append(End(run.task_id, Verdict.IN_DOUBT, "the broker went away while it was being sent"))
