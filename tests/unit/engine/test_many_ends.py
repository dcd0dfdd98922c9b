"""More runs ended than one tick has time to take."""

from __future__ import annotations

from collections.abc import Sequence

from celery_qbeat.core.jobs import Verdict
from celery_qbeat.engine import Limits
from celery_qbeat.ports import RunOutcome
from celery_qbeat.testing import FakeClock, FakeCompletions
from tests.unit.engine.rig import Rig


class Slow(FakeCompletions):
    """Taking an end costs ten milliseconds."""

    def __init__(self, clock: FakeClock) -> None:
        super().__init__()
        self._clock = clock
        self._left = 0

    def receive(self, budget_s: float) -> Sequence[RunOutcome]:
        most = max(1, int(budget_s * 100))
        found = super().receive(budget_s)[:most]
        self._taken, self._left = len(found), len(self._waiting) - len(found)
        self._clock.advance(budget_s if len(found) == most else len(found) / 100)
        return found

    def unread_s(self) -> float:
        return float(self._left)


def test_ends_that_did_not_fit_into_a_tick_are_taken_at_once_and_not_after_a_pause() -> None:
    clock = FakeClock()
    landings = Slow(clock)
    rig = Rig(clock=clock, completions=landings, limits=Limits(drain_s=0.2))
    for number in range(50):
        rig.insert(f"j{number}", "every", "1h")
    rig.tick()
    for shipment in rig.outbox.sent:
        landings.end(shipment.run.task_id)
    pauses = []
    while rig.engine.leader.in_flight:
        pauses.append(rig.tick())
    assert pauses[:2] == [0.0, 0.0]
    assert pauses[2] > 0
    assert len(pauses) == 3
    assert {entry.verdict for entry in rig.store.ledger} == {Verdict.SUCCEEDED}


def test_a_source_of_ends_that_hangs_and_brings_nothing_does_not_make_the_beat_spin() -> None:
    clock = FakeClock()

    class Hanging(FakeCompletions):
        def take(self, budget_s: float) -> Sequence[RunOutcome]:
            clock.advance(2 * budget_s)
            return super().receive(budget_s)

    rig = Rig(clock=clock, completions=Hanging())
    rig.insert("j", "every", "1h")
    rig.tick()
    assert rig.tick() > 0
