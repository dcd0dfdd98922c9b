"""Entries that handlers of `beat_init` add to the scheduler, as projects do with Celery's own beat."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.celeryproc import Project

pytestmark = pytest.mark.slow

HANDLER = """
from celery.beat import ScheduleEntry
from celery.signals import beat_init
from celery_qbeat import Schedule


@beat_init.connect
def add_entries(sender, **_):
    scheduler = sender.scheduler
    scheduler.add(name="added", task="proj.tasks.record", schedule=Schedule.every_secs(1), args=["added"])
    scheduler.update_from_dict(
        {"updated": {"task": "proj.tasks.record", "schedule": Schedule.every_secs(1), "args": ["updated"]}}
    )
    scheduler.schedule["assigned"] = ScheduleEntry(
        name="assigned", task="proj.tasks.record", schedule=Schedule.every_secs(1), args=["assigned"], app=app
    )
    scheduler.schedule["bad"] = "no entry"
"""


def test_entries_that_a_handler_adds_run(make_project: Callable[..., Project], redis_url: str) -> None:
    project = make_project(redis_url, {"qbeat_poll_interval": 0.2}, tasks=HANDLER)
    project.worker("--pool=solo")
    beat = project.beat()
    beat.wait_output(r"beat_schedule entry 'bad' will not run: 'no entry' is no entry; write e.g. .*")
    project.wait_records(6)
    assert {record["args"][0] for record in project.records()} == {"added", "updated", "assigned"}
    jobs = {row[0] for row in project.sql("SELECT job_id FROM qbeat_state WHERE job_id LIKE 'code:%'")}
    assert jobs == {"code:added", "code:updated", "code:assigned"}
