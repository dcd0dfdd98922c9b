"""Runs that may have been sent: published again where the row wants it, and those that the broker confirms late."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from celery_qbeat.engine import report
from celery_qbeat.engine.broker_watch import BrokerWatch
from celery_qbeat.engine.desk import Desk, Parts
from celery_qbeat.engine.marker import Marker
from celery_qbeat.engine.settler import resendable
from celery_qbeat.jobs import Run, Verdict
from celery_qbeat.planning import lease_until
from celery_qbeat.ports import End, Fate


class Resender:
    """Resolves doubt."""

    def __init__(self, parts: Parts, desk: Desk, watch: BrokerWatch, marker: Marker) -> None:
        self._parts = parts
        self._desk = desk
        self._watch = watch
        self._marker = marker

    def take_late(self, now: int) -> None:
        """What the broker has said meanwhile of messages that it had not confirmed."""
        desk = self._desk
        for receipt in self._parts.dispatcher.late():
            batch_id, shipment = desk.unconfirmed.pop(receipt.task_id, (0, None))
            if shipment is None:
                continue
            if receipt.fate is not Fate.SENT:
                desk.land(receipt.task_id)
            if receipt.fate is Fate.NOT_SENT:
                # Its slot may be older than the plan by now, so it cannot be given back.
                receipt = replace(receipt, fate=Fate.BAD)
            # A worker could not have it before.
            run = replace(shipment.run, lease_until_us=lease_until(shipment.job, now))
            self._marker.mark(batch_id, [replace(shipment, run=run)], [receipt], now, closes=False)
        # Only now: nobody tells a second time what is lost when the database is away.
        desk.pay()

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
            if not self._watch.can_send(trusted):
                return False
            shipment = replace(doubtful, job=job, run=replace(run, lease_until_us=lease_until(job, now)))
            receipt = self._parts.dispatcher.send([shipment], trusted)[0]
            if receipt.fate is Fate.NOT_SENT:
                self._watch.note(receipt)
                return False
            if receipt.fate is Fate.DOUBT:
                self._watch.note(receipt)
            elif receipt.fate in (Fate.BAD, Fate.REFUSED, Fate.DECLINED):
                self._drop(run, f"it could not be sent again: {receipt.detail}", now)
            else:
                del desk.resends[run.task_id]
                self._marker.mark(batch_id, [shipment], [receipt], now, closes=False)
                desk.pay()
        return True

    def _drop(self, run: Run, why: str, now: int) -> None:
        desk, store = self._desk, self._parts.store
        report.in_doubt(run.job_id, run.slot_us, run.task_id, False)
        desk.land(run.task_id)
        ends = [End(run.task_id, Verdict.IN_DOUBT, f"perhaps sent; {why}")]
        desk.owed.append(lambda epoch: store.conclude(epoch, ends, now))
        desk.pay()
