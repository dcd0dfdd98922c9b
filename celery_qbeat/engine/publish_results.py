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
        unsent: list[OutgoingRun] = []
        sent: list[str] = []
        outcomes: list[RunOutcome] = []
        open_before = len(refused or ())
        for outgoing, result in zip(chunk, receipts, strict=True):
            if result.outcome is PublishOutcome.NOT_SENT:
                unsent.append(outgoing)
            elif result.outcome is PublishOutcome.REFUSED and refused is not None and not outgoing.by_hand:
                self._refused(outgoing.job, result, now)
                refused.append(outgoing)
            elif result.outcome is PublishOutcome.SENT:
                log_events.sent(outgoing.job, outgoing.run)
                sent.append(result.task_id)
                self._accepted(outgoing.job)
            elif result.outcome is PublishOutcome.UNCONFIRMED:
                self._leader.unconfirmed[result.task_id] = (batch_id, outgoing)
            else:
                self._record_failed(batch_id, outgoing, result, outcomes)
            self._add_in_flight(outgoing, result, now)
        self._watch.note(receipts[-1])
        waiting = any(result.outcome is PublishOutcome.UNCONFIRMED for result in receipts)
        done = closes and not (unsent or waiting or len(refused or ()) > open_before)
        self._write_later(batch_id, sent, outcomes, now, closes=done)
        return unsent

    def _record_failed(
        self, batch_id: int, outgoing: OutgoingRun, result: PublishResult, outcomes: list[RunOutcome]
    ) -> None:
        if result.outcome in (PublishOutcome.BAD, PublishOutcome.REFUSED):
            log_events.unsendable(outgoing.job, outgoing.run, result.detail)
            outcomes.append(unpublished(result))
        elif result.outcome is PublishOutcome.DECLINED:
            log_events.declined(outgoing.job, outgoing.run, result.detail)
            outcomes.append(RunOutcome(result.task_id, Verdict.SKIPPED, result.detail))
        else:
            self._doubtful(batch_id, outgoing, outcomes)

    def _add_in_flight(self, outgoing: OutgoingRun, result: PublishResult, now: int) -> None:
        """What was sent, may have been, or will be sent again keeps its job from running beside itself."""
        job, run = outgoing.job, outgoing.run
        in_doubt = result.outcome is PublishOutcome.UNKNOWN and job.on_doubt == "resend"
        if in_doubt or result.outcome in (PublishOutcome.SENT, PublishOutcome.UNCONFIRMED):
            lease_until = run.lease_until_us or now
            self._leader.in_flight.add(InFlightRun(run.task_id, job.id, run.slot_us, now, lease_until))

    def _write_later(
        self, batch_id: int, sent: list[str], outcomes: list[RunOutcome], now: int, *, closes: bool
    ) -> None:
        store, writes = self._deps.store, self._leader.pending_writes
        if sent or closes:
            writes.append(lambda epoch: store.mark_sent(epoch, batch_id, sent, now, closes=closes))
        if outcomes:
            writes.append(lambda epoch: store.record_outcomes(epoch, outcomes, now))

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
