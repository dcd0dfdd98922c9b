"""Two projects that know nothing of each other, with the default namespace, on one Redis: lock, broker, everything."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from celery_qbeat.core.identity import database_id
from tests.celeryproc import Project
from tests.servers import wait_for


def succeeded(project: Project) -> int:
    query = "SELECT count(*) FROM qbeat_runs WHERE job_id = 'often' AND verdict = 'succeeded'"
    return int(project.sql(query)[0][0])


@pytest.mark.slow
def test_two_projects_on_one_redis_both_send_and_hear_of_their_own_ends(
    make_project: Callable[..., Project], redis_url: str
) -> None:
    settings = {"qbeat_redis_url": redis_url, "qbeat_lock_ttl": 5.0}
    projects = [make_project(redis_url, {**settings, "task_default_queue": f"shop-{number}"}) for number in (1, 2)]
    for project in projects:
        # With 'skip', the second run needs the end of the first one.
        added = project.qbeat("add", "often", "proj.tasks.record", "--interval", "1")
        assert added.returncode == 0, added.stderr
        project.worker()
    beats = [project.beat() for project in projects]
    for beat in beats:
        beat.wait_output("beat: writer")
    for project in projects:
        wait_for(lambda project=project: succeeded(project) >= 3, 60, what="three runs have ended")
    assert not any("follower" in beat.output() or "dropped" in beat.output() for beat in beats)
    ids = [database_id(project.sql("SELECT instance FROM qbeat_meta")[0][0]) for project in projects]
    beats[0].wait_output(f"also used by database {ids[1]}", 30)
    beats[1].wait_output(f"also used by database {ids[0]}", 30)
    assert ids[0] in projects[0].qbeat("status").stdout
