"""What a beat that died left open: claimed slots of which nobody knows whether they were sent."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from celery_qbeat.engine import Limits
from celery_qbeat.errors import Unavailable
from tests.unit.engine.rig import Rig


class Died(BaseException):
    """The process ended at once."""


def dying_at(name: str, count: int = 1) -> Callable[[str], None]:
    left = [count]

    def fail_point(reached: str) -> None:
        if reached == name:
            left[0] -= 1
            if left[0] == 0:
                raise Died(name)

    return fail_point


@pytest.mark.parametrize("on_doubt", ["drop", "resend"])
@pytest.mark.parametrize("point", ["claimed", "sending", "published", "marked"])
def test_a_beat_that_dies_around_a_dispatch_leaves_nothing_open(point: str, on_doubt: str) -> None:
    rig = Rig(fail_point=dying_at(point))
    rig.insert("j", "interval", "3600", on_doubt=on_doubt)
    with pytest.raises(Died):
        rig.tick()
    rig.parts["fail_point"] = lambda _: None
    rig.restart(down_for=5)
    rig.run(30)
    sent, doubtful = len(rig.slots()), point != "marked"
    if on_doubt == "drop":
        assert rig.verdicts() == ["in doubt" if doubtful else "sent"]
        assert sent == (0 if point in ("claimed", "sending") else 1)
    else:
        assert rig.verdicts() == ["sent"]
        assert sent == (2 if point == "published" else 1)
        assert len({shipment.run.task_id for shipment in rig.outbox.sent}) == 1
    assert all(batch.sent_us is not None for batch in rig.store.database.batches.values())


@pytest.mark.parametrize("by_hand", [False, True])
@pytest.mark.parametrize(("before", "after"), [("drop", "resend"), ("resend", "drop"), ("resend", "resend")])
def test_a_doubtful_run_is_sent_again_only_if_its_row_wanted_that_when_it_was_claimed_and_wants_it_now(
    before: str, after: str, by_hand: bool
) -> None:
    rig = Rig()
    rig.insert("j", "interval", "3600", on_doubt=before, enabled=not by_hand)
    rig.tick()
    if by_hand:
        rig.store.ask("j", rig.clock.now_us())
    else:
        rig.clock.advance(3600)
    rig.parts["fail_point"] = dying_at("published")
    rig.restart()
    with pytest.raises(Died):
        rig.tick()
    rig.store.update("j", on_doubt=after)
    rig.parts["fail_point"] = lambda _: None
    rig.restart(down_for=5)
    rig.run(5)
    assert rig.verdicts()[-1] == ("sent" if before == after else "in doubt")
    assert len(rig.slots()) == (0 if by_hand else 1) + (2 if before == after else 1)


def test_a_beat_that_dies_in_a_burst_leaves_at_most_one_batch_in_doubt() -> None:
    rig = Rig(fail_point=dying_at("published", 4))
    for number in range(450):
        rig.insert(f"j{number}", "interval", "3600")
    for _ in range(3):
        rig.tick()
    with pytest.raises(Died):
        rig.tick()
    rig.parts["fail_point"] = lambda _: None
    rig.restart(down_for=5)
    rig.run(5)
    verdicts = [str(entry.verdict) for entry in rig.store.database.ledger]
    assert (verdicts.count("sent"), verdicts.count("in doubt")) == (350, 100)
    assert len(rig.outbox.sent) == 450


def test_a_beat_that_dies_between_two_chunks_leaves_those_after_the_last_mark_in_doubt() -> None:
    rig = Rig(fail_point=dying_at("published", 3), limits=Limits(chunk=2))
    for number in range(10):
        rig.insert(f"j{number}", "interval", "3600")
    with pytest.raises(Died):
        rig.tick()
    rig.parts["fail_point"] = lambda _: None
    rig.restart(down_for=5)
    rig.run(5)
    verdicts = [rig.entry(f"j{number}").verdict for number in range(10)]
    assert verdicts == ["sent"] * 4 + ["in doubt"] * 6
    assert rig.entry("j5").detail == "the beat that claimed it died before it could say whether it was sent"
    assert len(rig.outbox.sent) == 6


def test_a_doubt_is_settled_before_the_job_runs_again() -> None:
    rig = Rig(fail_point=dying_at("claimed"))
    rig.insert("j", "every", "1m", overlap="skip")
    with pytest.raises(Died):
        rig.tick()
    rig.parts["fail_point"] = lambda _: None
    rig.restart(down_for=60)
    rig.tick()
    assert rig.verdicts() == ["in doubt", "sent"]


@pytest.mark.parametrize("edit", [{"enabled": False}, {"fn": "os.system"}, {"kwargs": "{"}])
def test_a_doubtful_run_of_a_row_that_may_not_run_any_more_is_not_sent_again(edit: dict[str, Any]) -> None:
    rig = Rig(fail_point=dying_at("claimed"))
    rig.insert("j", "interval", "60", on_doubt="resend")
    with pytest.raises(Died):
        rig.tick()
    rig.parts["fail_point"] = lambda _: None
    rig.store.update("j", **edit)
    rig.restart(down_for=5)
    rig.run(5)
    assert rig.outbox.sent == []
    assert rig.verdicts()[0] == "in doubt"


def test_a_settlement_that_fails_is_made_again_and_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    rig = Rig(fail_point=dying_at("claimed"))
    rig.insert("j", "interval", "3600")
    with pytest.raises(Died):
        rig.tick()
    rig.parts["fail_point"] = lambda _: None
    rig.restart(down_for=5)
    rig.store.fail_next("record_outcomes", "before", Unavailable)
    rig.run(10)
    assert rig.verdicts() == ["in doubt"]
    assert len([message for message in caplog.messages if message.startswith("in doubt:")]) == 1
