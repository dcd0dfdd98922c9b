"""`tick`, `run-now` and `release`, with a broker in memory."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial

import pytest

from celery_qbeat.core.identity import database_id, run_token
from celery_qbeat.dispatchers.celery.broker import DONE_TASK
from celery_qbeat.engine import Limits
from celery_qbeat.settings import read_settings
from celery_qbeat.stores import tables
from celery_qbeat.wiring import build
from tests.servers import wait_for
from tests.unit.making_cli import HOUR, Cli, migrated


@pytest.fixture(autouse=True)
def _log_levels() -> Iterator[None]:
    """`tick` sets the level for its process."""
    log = logging.getLogger("celery_qbeat")
    before = log.level
    yield
    log.setLevel(before)


@pytest.fixture
def cli(sqlite_url: str) -> Cli:
    migrated(sqlite_url)
    return Cli(sqlite_url, broker_url="memory://")


@contextmanager
def beat(cli: Cli) -> Iterator[None]:
    """A beat of this app, in a thread."""
    engine = build(cli.app, read_settings(cli.app.conf))
    engine.open()
    over = threading.Event()

    def run() -> None:
        while not over.is_set():
            time.sleep(min(0.02, engine.tick()))

    thread = threading.Thread(target=run)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()
        engine.close()


def verdicts(cli: Cli) -> list[tuple[str, str]]:
    return [(run["job_id"], run["verdict"]) for run in cli.json("runs")]


def test_a_tick_runs_what_is_due_once_and_ends(cli: Cli) -> None:
    cli.ok("add", "x", "app.a", "--interval", "3600")
    cli.ok("add", "y", "app.b", "--every", "1d")
    cli.ok("add", "later", "app.b", "--once", "2126-01-01T00:00")
    assert cli.ok("tick").splitlines()[-1] == "2 sent"
    assert sorted(verdicts(cli)) == [("x", "sent"), ("y", "sent")]
    assert cli.ok("tick").splitlines()[-1] == "nothing was due"
    assert len(verdicts(cli)) == 2


def test_a_tick_tells_in_json_what_became_of_slots(cli: Cli) -> None:
    cli.ok("add", "x", "app.a", "--interval", "3600")
    cli.ok("add", "y", "app.unregistered", "--every", "1d")
    assert cli.json("tick") == {"ran": True, "reason": "", "verdicts": {"refused": 1, "sent": 1}}


def test_a_tick_sends_more_than_a_batch(cli: Cli) -> None:
    job = {"fn": "app.a", "schedule_kind": "interval", "schedule": "3600"}
    cli.insert(tables.jobs, *({**job, "id": f"job-{number}"} for number in range(1_100)))
    assert cli.json("tick")["verdicts"] == {"sent": 1_100}


def test_a_tick_leaves_a_beat_alone_that_is_at_work(cli: Cli) -> None:
    cli.ok("add", "x", "app.a", "--interval", "3600")
    cli.beat_seen()
    assert "a beat is at work (elsewhere:7" in cli.ok("tick")
    assert verdicts(cli) == []
    cli.beat_seen(HOUR)
    cli.ok("tick")
    assert verdicts(cli) == [("x", "sent")]


def test_a_tick_reads_all_ends_that_have_arrived(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    for number in range(5):
        cli.ok("add", f"j{number}", "app.a", "--interval", "3600")
    cli.ok("tick")
    for run in cli.json("runs"):
        told = {"v": 1, "run": run["task_id"], "outcome": "success", "token": run_token(cli.instance, run["task_id"])}
        queue = f"qbeat.done.default.{database_id(cli.instance)}"
        cli.app.send_task(DONE_TASK, kwargs=told, exchange="celery_qbeat", routing_key=queue, declare=[])
    # One end uses the budget of a pass up.
    monkeypatch.setattr("celery_qbeat.engine.Limits", partial(Limits, drain_s=0.0))
    cli.ok("tick")
    assert {run["verdict"] for run in cli.json("runs")} == {"succeeded"}


def test_a_tick_without_a_broker_says_so_and_loses_nothing(sqlite_url: str) -> None:
    migrated(sqlite_url)
    cli = Cli(sqlite_url, broker_url="redis://127.0.0.1:1/0")
    cli.ok("add", "x", "app.a", "--interval", "3600")
    result = cli.run("tick")
    assert result.exit_code == 1
    assert "Error: the broker is away" in result.stderr
    assert verdicts(cli) == []
    repaired = Cli(sqlite_url, broker_url="memory://")
    repaired.beat_seen(HOUR)
    repaired.ok("tick")
    assert verdicts(repaired) == [("x", "sent")]


def test_a_request_waits_for_a_beat_and_says_that_there_is_none(cli: Cli) -> None:
    cli.ok("add", "x", "app.a", "--daily", "02:00", "--disabled")
    result = cli.run("run-now", "x", "--wait", "0.2")
    assert result.exit_code == 1
    assert "no beat has answered within 0.2 s; the request waits for one" in result.stdout
    assert "none has ever run on these tables" in result.stdout
    assert cli.ok("run-now", "x", "--wait", "0") == "asked; the beat will run it\n"
    assert cli.json("status")["requests"] == 2
    cli.ok("tick")
    assert verdicts(cli) == [("x", "skipped"), ("x", "sent")]
    assert cli.json("status")["requests"] == 0


def test_a_run_by_hand_that_was_sent_ends_with_0(cli: Cli) -> None:
    cli.ok("add", "x", "app.a", "--daily", "02:00", "--disabled")
    with beat(cli):
        assert cli.ok("run-now", "x").startswith("sent; task id ")


@pytest.mark.parametrize("allowed", [False, True])
def test_an_entry_in_code_runs_by_hand_only_with_the_setting(sqlite_url: str, allowed: bool) -> None:
    migrated(sqlite_url)
    schedule = {"nightly": {"task": "app.a", "schedule": 86_400.0}}
    settings = {"qbeat_run_code_entries": True} if allowed else {}
    cli = Cli(sqlite_url, broker_url="memory://", beat_schedule=schedule, **settings)
    with beat(cli):
        result = cli.run("run-now", "code:nightly")
    if allowed:
        assert (result.exit_code, result.stdout[:14]) == (0, "sent; task id ")
    else:
        assert result.exit_code == 1
        assert "refused: by hand: it is an entry in code" in result.stdout
        assert "qbeat_run_code_entries = True" in result.stdout
    assert cli.json("status")["requests"] == 0


def test_a_run_by_hand_that_cannot_be_published_ends_with_1_and_the_reason(cli: Cli) -> None:
    def route(name: str, *_: object, **__: object) -> None:
        raise LookupError("no route for this task")

    cli.app.conf.task_routes = [route]
    cli.ok("add", "x", "app.a", "--daily", "02:00", "--disabled")
    with beat(cli):
        result = cli.run("run-now", "x")
    assert result.exit_code == 1
    assert "failed: could not be published: LookupError: no route for this task; task id " in result.stdout


def test_a_run_by_hand_that_no_broker_has_taken_is_not_sent(sqlite_url: str) -> None:
    migrated(sqlite_url)
    cli = Cli(sqlite_url, broker_url="redis://127.0.0.1:1/0")
    cli.ok("add", "x", "app.a", "--daily", "02:00", "--disabled")
    with beat(cli):
        for _ in range(5):
            assert cli.run("run-now", "x", "--wait", "0.3").exit_code == 1
    assert verdicts(cli) == []


def test_a_tick_waits_for_the_answers_about_a_lease_that_ended(cli: Cli) -> None:
    cli.ok("add", "x", "app.a", "--daily", "02:00", "--max-run-seconds", "1")
    cli.run("run-now", "x", "--wait", "0")
    cli.ok("tick")
    lease = cli.json("runs")[0]["lease_until_us"]
    wait_for(lambda: time.time_ns() // 1000 > lease, what="the lease ends")
    cli.ok("tick")
    assert verdicts(cli) == [("x", "lost")]


# ---------------------------------------------------------------- release


def in_flight(cli: Cli) -> str:
    """The task id of the one run in flight."""
    return str(cli.json("runs", "--verdict", "sent")[0]["task_id"])


def test_a_released_run_is_lost_and_its_job_runs_again(cli: Cli) -> None:
    cli.ok("add", "x", "app.a", "--interval", "1")
    with beat(cli):
        wait_for(lambda: ("x", "sent") in verdicts(cli), what="a run is sent")
        task_id = in_flight(cli)
        said = cli.ok("release", task_id)
        assert said.startswith(f"x {task_id}: lost: released by ")
        wait_for(lambda: verdicts(cli)[:2] == [("x", "sent"), ("x", "lost")], what="the job runs again")
        released = cli.json("release", "x")
    assert released["answered"]
    assert [run["verdict"] for run in released["runs"]] == ["lost"]
    assert released["runs"][0]["detail"].startswith("released by ")


def test_a_release_waits_for_a_beat_and_says_that_there_is_none(cli: Cli) -> None:
    cli.ok("add", "x", "app.a", "--daily", "02:00")
    cli.run("run-now", "x", "--wait", "0")
    cli.ok("tick")
    result = cli.run("release", "x", "--wait", "0.2")
    assert result.exit_code == 1
    assert "no beat has answered within 0.2 s; the request waits for one" in result.stdout
    assert cli.ok("release", "x", "--wait", "0") == "asked; the beat will end the runs\n"
    cli.ok("tick")
    assert verdicts(cli) == [("x", "lost")]
    assert cli.json("status")["requests"] == 0


def test_a_release_of_what_is_not_in_flight_says_what_would_work(cli: Cli) -> None:
    cli.ok("add", "x", "app.a", "--daily", "02:00")
    assert "'x' has no run in flight: there is nothing to release" in cli.refused("release", "x")
    assert "'y' is neither a job nor the task id of a run: `qbeat list` names the jobs" in cli.refused("release", "y")
    cli.run("run-now", "x", "--wait", "0")
    cli.ok("tick")
    task_id = in_flight(cli)
    assert "'y' is neither" in cli.refused("release", task_id, "y")
    assert cli.json("status")["requests"] == 0
    cli.run("release", "x", "--wait", "0")
    cli.ok("tick")
    assert f"run {task_id} has ended already (lost)" in cli.refused("release", task_id)
