"""The scheduler as users run it: real beats, real workers, rows edited from outside."""

from __future__ import annotations

import shutil
import sqlite3
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from celery_qbeat.stores import open_store
from tests.celeryproc import Code, Project
from tests.servers.waiting import wait_for

pytestmark = pytest.mark.slow

MINIMAL = "INSERT INTO qbeat_jobs (id, fn, schedule_kind, schedule) VALUES ('{}', '{}', '{}', '{}')"


def database_of(project: Project) -> Path:
    return Path(project.database_url.removeprefix("sqlite:///"))


def make_tables(project: Project) -> None:
    store = open_store(project.database_url, create_tables=True)
    store.open()
    store.close()


def by_hand(project: Project, *statements: str) -> None:
    """Edit with the `sqlite3` command where there is one, as a person does."""
    if shutil.which("sqlite3"):
        subprocess.run(
            ["sqlite3", "-cmd", ".timeout 5000", database_of(project), *statements], check=True, capture_output=True
        )
    else:
        with sqlite3.connect(database_of(project)) as connection:
            for statement in statements:
                connection.execute(statement)


@pytest.mark.parametrize("name", ["celery_qbeat.Scheduler", "qbeat"])
def test_without_any_setting_a_row_in_the_sqlite_file_runs_on_a_worker(project: Project, name: str) -> None:
    project.worker("--pool=solo")
    beat = project.beat(scheduler=name)
    line = beat.wait_output(
        r"beat: writer \(standalone, epoch 1\); database sqlite:///.*celery-qbeat\.sqlite3; rows .*"
    )
    assert "0 bad" in line.group()
    assert "alembic" not in beat.output()
    by_hand(project, MINIMAL.format("shop.hello", "proj.tasks.record", "interval", "1"))
    records = project.wait_records(2)
    assert {record["task"] for record in records} == {"proj.tasks.record"}
    sent = beat.wait_output(r"sent: job='shop.hello' fn='proj.tasks.record' slot=\S+Z late=\d+ms task_id=(\S+)")
    assert sent.group(1) == records[0]["id"]
    beat.terminate()
    assert beat.wait_exit() == 0


def test_embedded_in_a_worker_it_runs_with_the_long_option(project: Project) -> None:
    project.configure(qbeat_poll_interval=0.2)
    make_tables(project)
    by_hand(project, MINIMAL.format("j", "proj.tasks.record", "interval", "1"))
    worker = project.worker("-B", "--scheduler", "celery_qbeat.Scheduler", "--pool=solo")
    project.wait_records(2)
    worker.terminate()
    assert worker.wait_exit() == 0


def test_edits_from_outside_are_seen_within_a_poll_and_fire_nothing_by_themselves(project: Project) -> None:
    project.configure(qbeat_poll_interval=0.2)
    make_tables(project)
    by_hand(project, MINIMAL.format("slow", "proj.tasks.record", "every", "7d"))
    project.worker()
    beat = project.beat()
    project.wait_records(1)
    by_hand(project, "UPDATE qbeat_jobs SET args = '[1]', description = 'x' WHERE id = 'slow'")
    beat.wait_output("rows: 1 changed, 0 gone")
    by_hand(project, "UPDATE qbeat_jobs SET schedule_kind = 'interval', schedule = '1' WHERE id = 'slow'")
    records = project.wait_records(3)
    assert [record["args"] for record in records[:3]] == [[], [1], [1]]
    by_hand(project, "DELETE FROM qbeat_jobs WHERE id = 'slow'")
    beat.wait_output("rows: 0 changed, 1 gone")
    by_hand(project, MINIMAL.format("other", "proj.tasks.fail", "interval", "3600"))
    project.wait_records(1, "fail")
    assert beat.running


def test_only_exactly_registered_and_unprivileged_tasks_ever_run(project: Project) -> None:
    project.configure(qbeat_poll_interval=0.2, result_expires=None)
    make_tables(project)
    inner = '[{"task": "proj.tasks.record", "args": [], "kwargs": {}, "options": {}}, [[1]]]'
    forbidden = {
        "os": "os.system",
        "map": "celery.map",
        "blank": "proj.tasks.record ",
        "upper": "PROJ.TASKS.RECORD",
        "cyrillic": "proj.tasks.rec\u043erd",
        "newline": "proj.tasks.record\nos.system",
        "prefix": "proj.tasks.recordx",
        "_builtin.prune2": "_builtin.prune",
    }
    with sqlite3.connect(database_of(project)) as connection:
        insert = "INSERT INTO qbeat_jobs (id, fn, schedule_kind, schedule, args) VALUES (?, ?, 'interval', '1', ?)"
        for job_id, fn in forbidden.items():
            connection.execute(insert, (job_id, fn, inner if job_id == "map" else "[]"))
        connection.execute(insert, ("allowed", "proj.tasks.fail", "[]"))
        connection.execute(insert, ("vip", "proj.tasks.record", "[]"))
        connection.execute("UPDATE qbeat_jobs SET queue = 'vip' WHERE id = 'vip'")
    project.worker("-Q", "celery,vip")
    project.beat()
    project.wait_records(3, "fail")
    assert project.records("record") == []
    problems = dict(project.sql("SELECT id, problem FROM qbeat_status WHERE problem <> ''"))
    assert problems.keys() == forbidden.keys() | {"vip"}
    assert "queue: 'vip' is not allowed" in problems["vip"]
    refused = project.sql("SELECT DISTINCT job_id FROM qbeat_runs WHERE verdict = 'refused'")
    assert {row[0] for row in refused} == forbidden.keys() | {"vip"}
    by_hand(project, "UPDATE qbeat_jobs SET fn = 'celery.map' WHERE id = 'allowed'")
    wait_for(lambda: project.sql("SELECT 1 FROM qbeat_runs WHERE job_id = 'allowed' AND verdict = 'refused'"))
    after = len(project.records("fail"))
    wait_for(
        lambda: (
            project.sql("SELECT count(*) FROM qbeat_runs WHERE job_id = 'allowed' AND verdict = 'refused'")[0][0] > 1
        )
    )
    assert len(project.records("fail")) == after


def test_entries_in_code_run_beside_the_rows_and_are_never_written_into_them(project: Project) -> None:
    schedule = "__import__('celery_qbeat').Schedule.every_secs(1)"
    entries = f"{{'in-code': {{'task': 'proj.tasks.record', 'schedule': {schedule}, 'kwargs': {{'x': 1}}}}}}"
    project.configure(qbeat_poll_interval=0.2, beat_schedule=Code(entries))
    project.worker()
    beat = project.beat()
    assert project.wait_records(2)[0]["kwargs"] == {"x": 1}
    assert project.sql("SELECT id FROM qbeat_jobs WHERE id LIKE '%in-code%'") == []
    assert [row[0] for row in project.sql("SELECT job_id FROM qbeat_state WHERE job_id LIKE 'code:%'")] == [
        "code:in-code"
    ]
    beat.terminate()
    beat.wait_exit()
    project.configure(beat_schedule={})
    project.beat()
    wait_for(lambda: project.sql("SELECT job_id FROM qbeat_state WHERE job_id LIKE 'code:%'") == [])


@pytest.mark.parametrize(
    ("setting", "sentence"),
    [
        ({"qbeat_pol_interval": 1}, r"unknown setting qbeat_pol_interval; did you mean qbeat_poll_interval\?"),
        ({"qbeat_poll_interval": 0.01}, r"qbeat_poll_interval = 0\.01: .*0\.05"),
        ({"qbeat_database_url": "oracle://x"}, "is not supported; use sqlite, postgresql"),
        ({"qbeat_database_url": "jobs"}, "this is not a database URL; write it like postgresql://"),
        (
            {"qbeat_database_url": "postgresql://me:word@h:port/x"},
            r"postgresql://user:password@host.*%40 for @",
        ),
        ({"qbeat_database_url": "sqlite:///jobs.sqlite3?timeout=soon"}, "qbeat_database_url: .*'soon'"),
        ({"qbeat_redis_url": "redis://localhost:1/0", "qbeat_lock_ttl": 2.0}, "qbeat_lock_ttl"),
    ],
)
def test_a_bad_setting_ends_the_start_with_one_sentence(
    make_project: Callable[..., Project], setting: dict[str, object], sentence: str
) -> None:
    project = make_project(settings=setting)
    beat = project.beat()
    assert beat.wait_exit() == 1
    beat.wait_output(f"celery_qbeat: .*{sentence}")
    assert "Traceback" not in beat.output()


def test_missing_tables_on_a_server_end_the_start_with_what_to_run(project: Project, postgres_url: str) -> None:
    project.configure(qbeat_database_url=postgres_url)
    beat = project.beat()
    assert beat.wait_exit() == 1
    beat.wait_output("celery_qbeat: .*celery -A proj qbeat migrate")
    assert "Traceback" not in beat.output()


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("postgresql://me:s3cret-word@127.0.0.1:1/jobs", r"postgresql://me:\*\*\*@127\.0\.0\.1:1/jobs"),
        ("postgresql://me@127.0.0.1:1/jobs?password=s3cret-word", r"postgresql://me@127\.0\.0\.1:1/jobs"),
    ],
)
def test_a_database_that_is_away_at_the_start_is_told_once_waited_for_and_its_password_is_never_printed(
    project: Project, url: str, shown: str
) -> None:
    project.configure(qbeat_database_url=url, qbeat_poll_interval=0.05)
    beat = project.beat("--loglevel=debug")
    beat.wait_output("database: away, nothing is dispatched until it is back")
    beat.wait_output(f"db -> {shown}")
    wait_for(lambda: beat.output().count("beat: Waking up ") > 2)
    assert beat.running
    assert "s3cret-word" not in beat.output()
    assert beat.output().count("database: away") == 1


def test_a_signal_ends_a_beat_at_once_and_with_zero(project: Project) -> None:
    beat = project.beat("--max-interval=60")
    beat.wait_output("beat: writer")
    before = time.monotonic()
    beat.terminate()
    assert beat.wait_exit() == 0
    assert time.monotonic() - before < 30
