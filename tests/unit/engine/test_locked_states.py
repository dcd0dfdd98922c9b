"""Somebody holds a lock on the state of a job while its row changes or goes: its due slot still gets a verdict."""

from __future__ import annotations

from collections.abc import Sequence

from celery_qbeat.ports import Claim
from celery_qbeat.testing import MemoryStore
from tests.unit.engine.rig import Rig


class LockedStore(MemoryStore):
    """Claims pass over the jobs that are `locked`, as SKIP LOCKED does."""

    locked: frozenset[str] = frozenset()

    def claim(self, epoch: int, batch_id: int, claims: Sequence[Claim], now_us: int) -> frozenset[str]:
        free = [claim for claim in claims if claim.job_id not in self.locked]
        passed_over = {claim.job_id for claim in claims} & self.locked
        return super().claim(epoch, batch_id, free, now_us) | passed_over


def due_and_locked() -> tuple[Rig, LockedStore]:
    store = LockedStore()
    rig = Rig(store=store)
    rig.insert("j", "interval", "10")
    rig.insert("other", "interval", "10")
    rig.run(15)
    store.locked = frozenset({"j"})
    rig.clock.advance(7)
    return rig, store


def test_a_run_by_hand_of_a_job_whose_state_is_locked_waits_and_keeps_nobody_else_waiting() -> None:
    rig, store = due_and_locked()
    store.ask("j", rig.clock.now_us() + 1)
    store.ask("other", rig.clock.now_us() + 2)
    rig.run(5)
    assert len(rig.slots("other")) == 4
    assert [request.job_id for request in store.database.requests.values()] == ["j"]
    store.locked = frozenset()
    rig.run(5)
    assert store.database.requests == {}
    assert len(rig.slots("j")) == 4


def test_a_changed_row_whose_state_is_locked_is_planned_when_its_due_slot_got_its_verdict() -> None:
    rig, store = due_and_locked()
    store.update("j", schedule="30")
    rig.run(5)
    assert rig.verdicts("j") == ["sent", "sent"]
    assert len(rig.slots("other")) == 3
    store.locked = frozenset()
    rig.run(5)
    assert rig.verdicts("j") == ["sent", "sent", "missed"]
    rig.run(60)
    assert rig.verdicts("j").count("sent") > 2


def test_a_row_that_goes_while_its_state_is_locked_leaves_its_due_slot_with_a_verdict() -> None:
    rig, store = due_and_locked()
    store.delete("j")
    rig.run(5)
    store.locked = frozenset()
    rig.run(5)
    assert rig.verdicts("j") == ["sent", "sent", "missed"]
    assert "j" not in store.database.state
