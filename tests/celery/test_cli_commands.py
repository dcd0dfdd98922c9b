"""`celery -A proj qbeat ...` as processes, beside real beats and workers."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable
from typing import Any

import pytest

from tests.celeryproc import Project
from tests.servers import Redis, wait_for

FIRST_TICK = {"sent": 1, "succeeded": 1}
"""Of a new database with one row more: the second is the one that prunes, which runs in the beat itself."""


def told(result: subprocess.CompletedProcess[str], code: int = 0) -> Any:
    assert result.returncode == code, result.stdout + result.stderr
    assert "Traceback" not in result.stderr
    return json.loads(result.stdout)


def sentence(result: subprocess.CompletedProcess[str], code: int = 1) -> str:
    assert result.returncode == code, result.stdout + result.stderr
    assert "Traceback" not in result.stderr + result.stdout
    return result.stderr.splitlines()[-1]


@pytest.mark.parametrize(
    "database_url",
    ["sqlite", *(pytest.param(name, marks=pytest.mark.slow) for name in ("postgresql", "mariadb"))],
    indirect=True,
)
def test_a_job_is_added_run_by_hand_checked_and_audited(project: Project, database_url: str) -> None:
    project.configure(qbeat_database_url=database_url)
    told(project.qbeat("migrate", "--json"))
    told(project.qbeat("add", "often", "proj.tasks.record", "--interval", "1", "--json"))
    columns = "id, fn, schedule_kind, schedule, args"
    project.sql(
        f"INSERT INTO qbeat_jobs ({columns}) VALUES ('rare', 'proj.tasks.record', 'daily', '02:00', :args)",
        args='["by hand"]',
    )
    project.worker()
    beat = project.beat()
    beat.wait_output("beat: writer")
    answer = told(project.qbeat("run-now", "rare", "--wait", "60", "--json"))
    assert answer["run"]["by_hand"] is True
    wait_for(lambda: any(record["args"] == ["by hand"] for record in project.records()), what="the run by hand")
    wait_for(lambda: ran(project, "often") > 4, what="runs of 'often'")
    assert told(project.qbeat("status", "--json"))["writer"]["alive"] is True
    assert told(project.qbeat("check", "--json"))["ok"] is True
    beat.terminate()
    assert beat.wait_exit() == 0
    assert told(project.qbeat("audit", "--json"))["counts"]["missing"] == 0
    second = project.sql("SELECT id FROM qbeat_runs WHERE job_id = 'often' ORDER BY slot_us")[1][0]
    project.sql("DELETE FROM qbeat_runs WHERE id = :id", id=second)
    assert told(project.qbeat("audit", "--json"), code=1)["counts"]["missing"] == 1


def ran(project: Project, job_id: str) -> int:
    query = "SELECT count(*) FROM qbeat_runs WHERE job_id = :id AND verdict = 'succeeded'"
    return int(project.sql(query, id=job_id)[0][0])


def test_status_shows_the_lock_and_a_tick_leaves_it_alone(make_project: Callable[..., Project], redis_url: str) -> None:
    project = make_project(redis_url, {"qbeat_redis_url": redis_url, "qbeat_lock_ttl": 5.0})
    told(project.qbeat("add", "x", "proj.tasks.record", "--interval", "3600", "--json"))
    assert told(project.qbeat("status", "--json"))["lock"] is None
    assert told(project.qbeat("tick", "--json"))["verdicts"] == FIRST_TICK
    first = project.beat()
    first.wait_output("beat: writer")
    second = project.beat()
    second.wait_output("follower: jobs paused")
    status = told(project.qbeat("status", "--json"))
    assert status["gate"] == "redis"
    assert status["lock"]["holder"].endswith(f":{first.pid}")
    assert 0 < status["lock"]["left_s"] <= 5
    assert [beat["writer"] for beat in status["beats"]] == [True, False]
    text = project.qbeat("status").stdout
    assert f":{first.pid} holds it" in text
    assert f":{second.pid}, seen" in text.replace("\n", "")
    refusal = project.qbeat("tick")
    assert refusal.returncode == 0
    assert "another beat holds the lock" in refusal.stdout


def test_a_tick_is_a_beat_for_system_cron(project: Project) -> None:
    told(project.qbeat("add", "x", "proj.tasks.record", "--interval", "3600", "--json"))
    for expected in (FIRST_TICK, {}):
        assert told(project.qbeat("tick", "--json"))["verdicts"] == expected
    project.worker()
    assert len(project.wait_records(1)) == 1


def test_a_tick_in_place_of_a_standalone_beat_that_was_killed_and_beside_one_that_lives(project: Project) -> None:
    told(project.qbeat("add", "x", "proj.tasks.record", "--interval", "1", "--json"))
    beat = project.beat()
    beat.wait_output("sent: job='x'")
    assert "a beat is at work" in told(project.qbeat("tick", "--json"))["reason"]
    beat.kill()
    assert told(project.qbeat("tick", "--json"))["ran"] is True


def test_what_is_wrong_is_one_sentence(make_project: Callable[..., Project]) -> None:
    project = make_project()
    assert "run celery -A proj qbeat migrate" in sentence(project.qbeat("list"))
    assert sentence(project.qbeat("preview"), code=2).startswith("Error: name a row")
    project.configure(qbeat_colour="red")
    assert "unknown setting qbeat_colour" in sentence(project.qbeat("list"))


def test_a_lock_whose_redis_is_away_is_told_and_ends_with_1(
    make_project: Callable[..., Project], own_redis: Callable[..., Redis]
) -> None:
    redis = own_redis()
    project = make_project("filesystem://", {"qbeat_redis_url": redis.url})
    told(project.qbeat("add", "x", "proj.tasks.record", "--interval", "1", "--json"))
    redis.kill()
    status = told(project.qbeat("status", "--json"), code=1)
    assert "is away" in status["redis_away"]
    assert status["jobs"]["stopped"] == 2


def test_celery_itself_starts_without_importing_what_our_commands_need(project: Project) -> None:
    (project.folder / "proj" / "__init__.py").write_text(
        (project.folder / "proj" / "__init__.py").read_text()
        + "import sys\nassert 'celery_qbeat.cli' in sys.modules\n"
        + "assert not any(name in sys.modules for name in ('sqlalchemy', 'alembic', 'pydantic'))\n"
    )
    result = project.cli("report")
    assert result.returncode == 0, result.stderr
