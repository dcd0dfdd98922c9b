"""Signals in the middle of a dispatch, in apps with threads: real beats, real signals, nothing in doubt afterwards."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.chaos.app_threads import THREADS
from tests.chaos.scene import Scene

pytestmark = pytest.mark.slow

MakeScene = Callable[..., Scene]
ROWS = 30


def handed_over(scene: Scene, point: str) -> int:
    """A beat gets a signal at this point of its first batch, another one follows; how many the first one sent."""
    jobs = set(scene.insert(ROWS, "interval", "3600"))
    first = scene.beat(None, armed=point)
    assert first.wait_exit(60) == 0
    scene.ended.add(first)
    assert [entry for entry in scene.ledger() if entry.verdict == "claimed"] == []
    sent = len(scene.ledger())
    scene.writer(None)
    scene.wait(lambda: len(scene.ledger()) == ROWS, "every slot has its verdict")
    evidence = scene.finish()
    assert {entry.verdict for entry in evidence.ledger if entry.job in jobs} == {"sent"}
    assert len(evidence.messages) == ROWS
    return sent


@pytest.mark.parametrize("point", ["claimed:1", "sending:3", "sending:21", "published:1", "marked:1"])
def test_a_signal_in_a_dispatch_leaves_no_doubt_beside_threads(make_scene: MakeScene, point: str) -> None:
    handed_over(make_scene(tasks=THREADS), f"{point}:SIGTERM")
