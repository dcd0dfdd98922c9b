"""kill -9 at each point around one dispatch, then another beat: what `drop` and `resend` promise."""

from __future__ import annotations

import signal
from collections import Counter
from collections.abc import Callable

import pytest

from celery_qbeat.errors import SettingsError
from celery_qbeat.wiring import fail_point
from tests.chaos.scene import Scene

ROWS = 15
WINDOW = 20
"""So many messages travel to Redis together: with 2 x ROWS due, a batch has a first part and a rest."""

Policy = str
Outcome = dict[Policy, Counter[tuple[str, int]]]


def outcome(scene: Scene) -> Outcome:
    """For each policy, how many slots have which verdict and arrived how often."""
    found: Outcome = {"drop": Counter(), "resend": Counter()}
    for entry in scene.ledger():
        arrived = [message for message in scene.messages if message.job == entry.job]
        assert {message.task_id for message in arrived} <= {entry.task_id}
        found[scene.traits[entry.job].on_doubt][entry.verdict, len(arrived)] += 1
    return found


def killed_at(scene: Scene, point: str) -> Outcome:
    """A beat with a batch of 30, killed there; another one settles it."""
    scene.insert(ROWS, "interval", "3600", on_doubt="drop")
    scene.insert(ROWS, "interval", "3600", on_doubt="resend")
    first = scene.beat(None, armed=point)
    assert first.wait_exit(60) == -signal.SIGKILL
    scene.ended.add(first)
    scene.writer(None)
    scene.wait(lambda: all(e.sent_us or e.verdict == "in doubt" for e in scene.ledger()), "all slots are settled")
    scene.finish()
    return outcome(scene)


@pytest.fixture
def scene(request: pytest.FixtureRequest, make_scene: Callable[..., Scene]) -> Scene:
    """On an SQLite file, or on the database whose fixture is asked for."""
    url = getattr(request, "param", "sqlite_url")
    return make_scene(request.getfixturevalue(url))


on_each_kind = pytest.mark.parametrize("scene", ["sqlite_url", "postgres_url", "mariadb_url"], indirect=True)


@pytest.mark.slow
def test_killed_after_the_claim_nothing_was_sent_and_only_resend_sends_it(scene: Scene) -> None:
    found = killed_at(scene, "claimed:1")
    assert found["drop"] == {("in doubt", 0): ROWS}
    assert found["resend"] == {("sent", 1): ROWS}


@pytest.mark.slow
@on_each_kind
def test_killed_in_the_middle_of_a_batch_nothing_is_sent_twice_under_drop(scene: Scene) -> None:
    # Each message is passed by once, and each part of the batch once more.
    found = killed_at(scene, f"sending:{WINDOW + 3}")
    assert set(found["drop"]) <= {("in doubt", 0), ("in doubt", 1)}
    assert set(found["resend"]) <= {("sent", 1), ("sent", 2)}
    arrived_before = found["drop"]["in doubt", 1] + found["resend"]["sent", 2]
    assert arrived_before == WINDOW


@pytest.mark.slow
def test_killed_after_publishing_the_slots_are_in_doubt_though_they_arrived(scene: Scene) -> None:
    found = killed_at(scene, "published:1")
    assert found["drop"] == {("in doubt", 1): ROWS}
    assert found["resend"] == {("sent", 2): ROWS}


@pytest.mark.slow
def test_killed_after_the_mark_nothing_is_in_doubt(scene: Scene) -> None:
    found = killed_at(scene, "marked:1")
    assert found == {"drop": {("sent", 1): ROWS}, "resend": {("sent", 1): ROWS}}


@pytest.mark.parametrize("order", ["published", "published:x", "published:1:SIGNOTHING", "a:b:c:d", ":"])
def test_a_fail_point_that_is_not_understood_is_refused(order: str) -> None:
    with pytest.raises(SettingsError, match=r"QBEAT_FAIL_POINT: .* write it like 'published:3'"):
        fail_point(order)


def test_without_an_order_a_fail_point_is_passed_by() -> None:
    for order in (None, "", "marked:2:SIGKILL"):
        fail_point(order)("marked")
