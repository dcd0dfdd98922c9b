"""What the broker made of published runs, to be written to the database."""

from __future__ import annotations

from collections.abc import Sequence

from celery_qbeat.core.in_flight import InFlightRun
from celery_qbeat.core.jobs import Job, Verdict
from celery_qbeat.engine import log_events
from celery_qbeat.engine.broker_watch import BrokerWatch
from celery_qbeat.engine.leader_state import Dependencies, LeaderState
from celery_qbeat.ports import OutgoingRun, PublishOutcome, PublishResult, RunOutcome


def unpublished(receipt: PublishResult) -> RunOutcome:
    """The end of a run that no broker ever had."""
    return RunOutcome(receipt.task_id, Verdict.FAILED, f"could not be published: {receipt.detail}")


class PublishRecorder:
    """Turns receipts into what is owed to the database."""

    def __init__(self, parts: Dependencies, desk: LeaderState, watch: BrokerWatch) -> None:
        self._deps = parts
        self._leader = desk
        self._watch = watch

    def record_results(
        self,
        batch_id: int,
        chunk: Sequence[OutgoingRun],
        receipts: Sequence[PublishResult],
        now: int,
        *,
        closes: bool,
        refused: list[OutgoingRun] | None = None,
    ) -> list[OutgoingRun]:
        """Note what happened to a chunk, to be paid; the shipments that the broker did not take.

        `refused`: is added what a queue refused, to be given back; without it, such runs fail.
        """
        desk, store = self._leader, self._deps.store
        unsent: list[OutgoingRun] = []
        sent: list[str] = []
        ends: list[RunOutcome] = []
        open_before = len(refused or ())
        for shipment, receipt in zip(chunk, receipts, strict=True):
            job, run, fate = shipment.job, shipment.run, receipt.outcome
            if fate is PublishOutcome.NOT_SENT:
                unsent.append(shipment)
            elif fate is PublishOutcome.REFUSED and refused is not None and not shipment.by_hand:
                self._refused(job, receipt, now)
                refused.append(shipment)
            elif fate in (PublishOutcome.BAD, PublishOutcome.REFUSED):
                log_events.unsendable(job, run, receipt.detail)
                ends.append(unpublished(receipt))
            elif fate is PublishOutcome.DECLINED:
                log_events.declined(job, run, receipt.detail)
                ends.append(RunOutcome(receipt.task_id, Verdict.SKIPPED, receipt.detail))
            elif fate is PublishOutcome.SENT:
                log_events.sent(job, run)
                sent.append(run.task_id)
                self._accepted(job)
            elif fate is PublishOutcome.UNCONFIRMED:
                desk.unconfirmed[run.task_id] = (batch_id, shipment)
            else:
                self._doubtful(batch_id, shipment, ends)
            in_doubt = fate is PublishOutcome.UNKNOWN and job.on_doubt == "resend"
            if in_doubt or fate in (PublishOutcome.SENT, PublishOutcome.UNCONFIRMED):
                desk.in_flight.add(InFlightRun(run.task_id, job.id, run.slot_us, now, run.lease_until_us or now))
        self._watch.note(receipts[-1])
        pending = (
            unsent or len(refused or ()) > open_before or any(r.outcome is PublishOutcome.UNCONFIRMED for r in receipts)
        )
        done = closes and not pending
        if sent or done:
            desk.pending_writes.append(lambda epoch: store.mark_sent(epoch, batch_id, sent, now, closes=done))
        if ends:
            desk.pending_writes.append(lambda epoch: store.record_outcomes(epoch, ends, now))
        return unsent

    def _refused(self, job: Job, receipt: PublishResult, now: int) -> None:
        if self._leader.refusals.refused(job, receipt.queue, receipt.detail, now):
            log_events.queue_refuses(receipt.queue, receipt.detail)

    def _accepted(self, job: Job) -> None:
        desk = self._leader
        if desk.refusals:
            for job_id in desk.refusals.accepted(job):
                desk.agenda.unblock(job_id)

    def _doubtful(self, batch_id: int, shipment: OutgoingRun, ends: list[RunOutcome]) -> None:
        job, run = shipment.job, shipment.run
        resend = job.on_doubt == "resend"
        log_events.in_doubt(job.id, run.slot_us, run.task_id, resend)
        if resend:
            self._leader.resends[run.task_id] = (batch_id, shipment)
        else:
            ends.append(RunOutcome(run.task_id, Verdict.IN_DOUBT, "the broker went away while it was being sent"))
