"""A beat that freezes while it takes over: what it does afterwards must be measured by the time when it woke."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise

from celery_qbeat.testing import MemoryStore
from tests.unit.engine.rig import SECOND, Rig


class FreezingStore(MemoryStore):
    """Time passes, and other things happen, before the epoch is taken."""

    meanwhile: Callable[[], None]

    def take_epoch(self, holder: str, now_us: int, known: int = 0, above: int = 0, silence_us: int = 0) -> int:
        meanwhile, self.meanwhile = self.meanwhile, lambda: None
        meanwhile()
        return super().take_epoch(holder, now_us, known, above, silence_us)


def test_a_beat_frozen_before_it_takes_its_epoch_does_not_run_an_interval_too_soon() -> None:
    first = Rig()
    first.insert("j", "interval", "10")
    store = FreezingStore(first.store.database)
    second = Rig(store=store, outbox=first.outbox, clock=first.clock)
    first.run(15)
    store.meanwhile = lambda: first.run(60)
    second.tick()
    second.run(60)
    slots = first.slots("j")
    assert {later - earlier for earlier, later in pairwise(slots)} == {10 * SECOND}
