"""What the simulation must find: the safeguards, each broken on purpose."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from celery_qbeat.engine import Engine
from celery_qbeat.engine.dispatch import SlotDispatch
from celery_qbeat.ports import Claim, OutgoingRun, PublishOutcome, PublishResult
from celery_qbeat.testing.database import Database
from tests.simulation.history import Mutant
from tests.simulation.observer import SECOND_CLOCK
from tests.simulation.store import Link, SimStore


class WithoutFence(SimStore):
    """The epoch is not checked."""

    def _fence(self, epoch: int) -> None:
        return


class Blind(dict[Any, Any]):
    """Never has what it is asked for."""

    def __contains__(self, key: object) -> bool:
        return False

    def __delitem__(self, key: Any) -> None:
        self.pop(key, None)


class WithoutUniqueLedger(SimStore):
    """A slot can get a second line in the ledger."""

    def __init__(self, database: Database, link: Link) -> None:
        super().__init__(database, link)
        database.by_slot, database.by_task = Blind(database.by_slot), Blind(database.by_task)


class WithoutCompareAndSet(SimStore):
    """A claim wins whatever the slot and the row are by now."""

    def _may(self, claim: Claim) -> bool:
        return claim.job_id in self.database.state


class WithoutRowCheck(SimStore):
    """A claim wins though its row was changed or disabled meanwhile."""

    def _may(self, claim: Claim) -> bool:
        state = self.database.state.get(claim.job_id)
        return state is not None and claim.expected_us in (None, state.next_run_us)


class WithoutSecondClock(SimStore):
    """The time of the database is not known."""

    def clock_us(self) -> int | None:
        return None


class PublishesFirst(SlotDispatch):
    """The broker is told before the database is."""

    def _claim(self, wanted: Sequence[Any], now: int) -> tuple[int, list[Any], frozenset[str]]:
        self._deps.dispatcher.send([shipment for item in wanted for shipment in item.shipments()], lambda: True)
        return super()._claim(wanted, now)

    def _ship(
        self, batch_id: int, won: Sequence[Any], shipments: Sequence[OutgoingRun], now: int, trusted: Callable[[], bool]
    ) -> bool:
        receipts = [PublishResult(shipment.run.task_id, PublishOutcome.SENT) for shipment in shipments]
        if shipments:
            self._marker.record_results(batch_id, shipments, receipts, now, closes=True)
        self._leader.flush_pending_writes()
        return True


class PublishingFirst(Engine):
    def _assemble(self) -> None:
        super()._assemble()
        self._sender = PublishesFirst(self._deps, self.leader, self._leadership.renew)


class AlwaysTrusting(Engine):
    """Publishes on when its lock may be another's."""

    def _trusted(self) -> bool:
        return True


BY_SECOND_CLOCK = {"without the second clock": Mutant(store=WithoutSecondClock)} if SECOND_CLOCK else {}

MUTANTS: Mapping[str, Mutant] = {
    **BY_SECOND_CLOCK,
    "without the fence": Mutant(store=WithoutFence),
    "without the unique ledger": Mutant(store=WithoutUniqueLedger),
    "without compare-and-set": Mutant(store=WithoutCompareAndSet),
    "without the check of the row": Mutant(store=WithoutRowCheck),
    "publishing before claiming": Mutant(engine=PublishingFirst),
    "publishing without trust": Mutant(engine=AlwaysTrusting),
}
