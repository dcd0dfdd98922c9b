"""Runs that may have been sent: published again where the row wants it, and those that the broker confirms late."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from celery_qbeat.core.jobs import Run, Verdict
from celery_qbeat.core.planning import lease_until
from celery_qbeat.engine import log_events
from celery_qbeat.engine.broker_watch import BrokerWatch
from celery_qbeat.engine.leader_state import Dependencies, LeaderState
from celery_qbeat.engine.publish_results import PublishRecorder
from celery_qbeat.engine.recovery import resendable
from celery_qbeat.ports import PublishOutcome, RunOutcome


class Resend:
    """Resolves doubt."""

    def __init__(self, parts: Dependencies, desk: LeaderState, watch: BrokerWatch, marker: PublishRecorder) -> None:
        self._deps = parts
        self._leader = desk
        self._watch = watch
        self._marker = marker

    def process_late_results(self, now: int) -> None:
        """What the broker has said meanwhile of messages that it had not confirmed."""
        desk = self._leader
        for receipt in self._deps.dispatcher.late_results():
            batch_id, shipment = desk.unconfirmed.pop(receipt.task_id, (0, None))
            if shipment is None:
                continue
            if receipt.outcome is not PublishOutcome.SENT:
                desk.remove_in_flight(receipt.task_id)
            if receipt.outcome is PublishOutcome.NOT_SENT:
                # Its slot may be older than the plan by now, so it cannot be given back.
                receipt = replace(receipt, outcome=PublishOutcome.BAD)
            # A worker could not have it before.
            run = replace(shipment.run, lease_until_us=lease_until(shipment.job, now))
            self._marker.record_results(batch_id, [replace(shipment, run=run)], [receipt], now, closes=False)
        # Only now: nobody tells a second time what is lost when the database is away.
        desk.flush_pending_writes()

    def resend(self, now: int, trusted: Callable[[], bool]) -> bool:
        """Publish again, under the same task id, what may or may not have been sent and its row wants resent.

        False: the broker surely took nothing, and the rest waits.
        """
        desk = self._leader
        for batch_id, doubtful in list(desk.resends.values()):
            run = doubtful.run
            job = resendable(self._deps, desk, run.job_id, by_hand=doubtful.by_hand)
            if job is None:
                self._drop(run, "its row changed before it could be sent again", now)
                continue
            if job.grace_us is not None and now - run.slot_us - run.late_us > job.grace_us:
                self._drop(run, "its grace was over before it could be sent again", now)
                continue
            if not self._watch.can_send(trusted):
                return False
            shipment = replace(doubtful, job=job, run=replace(run, lease_until_us=lease_until(job, now)))
            receipt = self._deps.dispatcher.send([shipment], trusted)[0]
            if receipt.outcome is PublishOutcome.NOT_SENT:
                self._watch.note(receipt)
                return False
            if receipt.outcome is PublishOutcome.UNKNOWN:
                self._watch.note(receipt)
            elif receipt.outcome in (PublishOutcome.BAD, PublishOutcome.REFUSED, PublishOutcome.DECLINED):
                self._drop(run, f"it could not be sent again: {receipt.detail}", now)
            else:
                del desk.resends[run.task_id]
                self._marker.record_results(batch_id, [shipment], [receipt], now, closes=False)
                desk.flush_pending_writes()
        return True

    def _drop(self, run: Run, why: str, now: int) -> None:
        desk, store = self._leader, self._deps.store
        log_events.in_doubt(run.job_id, run.slot_us, run.task_id, False)
        desk.remove_in_flight(run.task_id)
        ends = [RunOutcome(run.task_id, Verdict.IN_DOUBT, f"perhaps sent; {why}")]
        desk.pending_writes.append(lambda epoch: store.record_outcomes(epoch, ends, now))
        desk.flush_pending_writes()
