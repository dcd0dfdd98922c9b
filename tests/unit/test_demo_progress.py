"""Who starts the demo sees that it is at work."""

from __future__ import annotations

import threading

from celery_qbeat.demo.progress import Progress
from tests.servers.waiting import wait_for


def test_the_step_is_said_at_once_and_again_until_the_end() -> None:
    lines: list[str] = []
    progress = Progress(lines.append, every_s=0.01)
    progress.begin("making the tables")
    assert lines[0] == "making the tables ..."
    wait_for(lambda: sum(line.endswith("s: still making the tables") for line in lines) >= 2)
    progress.begin("starting the beat")
    wait_for(lambda: any(line.endswith("s: still starting the beat") for line in lines))
    progress.end()
    wait_for(lambda: all(thread.name != "qbeat-demo-progress" for thread in threading.enumerate()))
    said = len(lines)
    progress.end()
    assert len(lines) == said
