"""The Celery processes of the tests: what other tests rely on when they start, freeze and kill one."""

from __future__ import annotations

import signal
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest
import sqlalchemy

from tests.celeryproc import Code, Project
from tests.servers import wait_for

STOCK = "celery.beat:PersistentScheduler"
EVERY_HALF_SECOND = {"beat_schedule": {"often": {"task": "proj.tasks.record", "schedule": 0.5, "args": ["x"]}}}


@pytest.fixture(params=["filesystem", "redis", "amqp"])
def broker(request: pytest.FixtureRequest) -> str:
    """The URL of each kind of broker in turn."""
    if request.param == "filesystem":
        return "filesystem://"
    url: str = request.getfixturevalue({"redis": "redis_url", "amqp": "rabbitmq_url"}[request.param])
    return url


def test_a_stock_beat_and_a_worker_run_a_task_over_each_broker(
    broker: str, make_project: Callable[..., Project]
) -> None:
    project = make_project(broker, EVERY_HALF_SECOND, headers=True)
    worker = project.worker()
    beat = project.beat(scheduler=STOCK)
    first = project.wait_records(2, "record")[0]
    assert first["task"] == "proj.tasks.record"
    assert first["args"] == ["x"]
    assert first["kwargs"] == {}
    assert first["event"] == "started"
    assert first["delivery"]["routing_key"] == "celery"

    beat.freeze()
    assert beat.running
    beat.thaw()
    beat.terminate()
    assert beat.wait_exit() == 0
    worker.terminate()
    assert worker.wait_exit() == 0


def test_every_task_of_the_template_ends_as_its_name_says(project: Project) -> None:
    project.worker()
    for name, args in {"fail": "[]", "sleep": "[0.01]", "retry": "[2]", "ignore": "[]"}.items():
        sent = project.cli("call", f"proj.tasks.{name}", f"--args={args}")
        assert sent.returncode == 0, sent.stderr
    project.wait_records(1, "fail")
    assert [r["event"] for r in project.wait_records(2, "sleep")] == ["started", "finished"]
    assert len({r["id"] for r in project.wait_records(3, "retry")}) == 1
    project.wait_records(1, "ignore")


def test_killing_a_worker_ends_its_pool_too(make_project: Callable[..., Project]) -> None:
    worker = make_project().worker(concurrency=3)
    pool = psutil.Process(worker.pid).children(recursive=True)
    assert len(pool) >= 3
    worker.freeze()
    worker.kill()
    assert worker.wait_exit() == -signal.SIGKILL
    wait_for(lambda: not any(p.is_running() and p.status() != psutil.STATUS_ZOMBIE for p in pool), what="pool ends")


def test_a_process_that_ends_early_shows_its_output(make_project: Callable[..., Project]) -> None:
    project = make_project("pigeon://")
    with pytest.raises(AssertionError, match=r"(?s)worker-1 ended and had not printed.*No such transport: pigeon"):
        project.worker()


def test_settings_are_literals_or_code(make_project: Callable[..., Project]) -> None:
    project = make_project(settings={"task_queues": Code("[__import__('kombu').Queue('other')]")})
    project.configure(task_default_queue="other")
    with pytest.raises((AssertionError, SyntaxError, ValueError)):
        project.configure(task_routes=object())
    project.configure(task_routes={})
    assert "other" in project.worker().wait_output(r"\.> other.*").group()


def test_extra_tasks_and_the_environment_reach_the_worker(make_project: Callable[..., Project]) -> None:
    source = (
        "import os\n\n"
        '@app.task(bind=True, name="shop.cleanup")\n'
        'def cleanup(self):\n    write(self, [os.environ["SHOP"]], {})\n'
    )
    project = make_project(tasks=source)
    project.environment["SHOP"] = "open"
    project.worker()
    assert project.cli("call", "shop.cleanup").returncode == 0
    assert project.wait_records(1, "shop.cleanup")[0]["args"] == ["open"]


def test_sql_runs_on_the_projects_database(make_project: Callable[..., Project], sqlite_url: str) -> None:
    project = make_project(settings={"qbeat_database_url": sqlite_url})
    project.sql("CREATE TABLE t (n int)")
    project.sql("INSERT INTO t VALUES (:n)", n=7)
    assert project.sql("SELECT n FROM t") == [(7,)]
    assert Path(sqlalchemy.make_url(sqlite_url).database or "").exists()
