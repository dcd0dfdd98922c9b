"""Python ignores exceptions in some places, and with them the SystemExit of a handler that runs there."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from celery_qbeat.stores import open_store
from tests.celeryproc import Project
from tests.servers import wait_for

# The beat logs a line in its tick: there a weak reference dies, and the signal arrives in its callback.
SIGTERM_IN_A_CALLBACK = """
import logging
import os
import signal
import weakref


class Referent:
    pass


def arrive(_reference):
    os.kill(os.getpid(), signal.SIGTERM)
    sum(range(1000))


def signalled(record):
    if record.getMessage().startswith("rows: 1 changed"):
        referent = Referent()
        reference = weakref.ref(referent, arrive)
        del referent
    return True


logging.getLogger("celery_qbeat").addFilter(signalled)
"""


@pytest.mark.slow
def test_a_beat_ends_though_its_signal_arrived_where_exceptions_are_ignored(
    make_project: Callable[..., Project],
) -> None:
    project = make_project(tasks=SIGTERM_IN_A_CALLBACK)
    store = open_store(project.database_url, create_tables=True)
    store.open()
    store.close()
    beat = project.beat()
    beat.wait_output("beat: writer")
    project.sql(
        "INSERT INTO qbeat_jobs (id, fn, schedule_kind, schedule) VALUES ('j', 'proj.tasks.record', 'interval', '1')"
    )
    wait_for(lambda: not beat.running, 20, what="the beat ends")
    assert beat.wait_exit() == 0
    assert "Exception ignored" not in beat.output()
