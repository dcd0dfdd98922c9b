"""More runs outlive their leases than one check ends."""

from __future__ import annotations

from tests.unit.engine.rig import Rig


def test_leases_that_end_faster_than_a_check_can_end_them_do_not_pile_up() -> None:
    rig = Rig()
    for number in range(200):
        rig.insert(f"j{number}", "interval", "1", overlap="allow", max_run_seconds=5)
    rig.run(45)
    assert len(rig.outbox.sent) > 8_000
    # Those of the last five seconds still have a lease; the others wait for a check, but not for their turn in many.
    assert len(rig.engine.leader.in_flight) < 200 * (5 + 15 + 5)
