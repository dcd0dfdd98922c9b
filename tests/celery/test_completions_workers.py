"""What a beat learns from unmodified workers: each kind of end, with real workers on real brokers."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import celery
import pytest
from celery import Celery

from celery_qbeat.core.jobs import Verdict
from celery_qbeat.dispatchers import CeleryCompletions, CeleryDispatcher
from celery_qbeat.dispatchers.celery.completions import NO_REASON
from celery_qbeat.ports import RunOutcome, UnfinishedRun
from tests.celeryproc import Code, Project
from tests.contract.making_runs import INSTANCE, asked, fates, make_app, row, run_of, yes
from tests.servers import RabbitMQ, Redis, wait_for

TASKS = """
import os
import signal


@app.task(ignore_result=True)
def quiet():
    return "x" * 300_000


@app.task(soft_time_limit=1)
def soft():
    time.sleep(3)


@app.task(time_limit=1)
def hard():
    time.sleep(3)


@app.task
def die():
    os.kill(os.getpid(), signal.SIGKILL)


@app.task(bind=True)
def replaced(self):
    raise self.replace(record.si("in its place"))


@app.task(bind=True, max_retries=None)
def postponed(self):
    write(self, [], {})
    raise self.retry(countdown=60)


@app.task
def unserialisable():
    return object()
"""

# (task, arguments, what the messages say at last); the last on prefork and on threads, where limits do not work.
REPORTED: dict[str, tuple[str, str, Verdict, Verdict]] = {
    "success": ("record", "[]", Verdict.SUCCEEDED, Verdict.SUCCEEDED),
    "exception": ("fail", "[]", Verdict.FAILED, Verdict.FAILED),
    "a missing argument": ("sleep", "[]", Verdict.FAILED, Verdict.FAILED),
    "success after two retries": ("retry", "[2]", Verdict.SUCCEEDED, Verdict.SUCCEEDED),
    "ignore_result and 300 kB": ("quiet", "[]", Verdict.SUCCEEDED, Verdict.SUCCEEDED),
    "soft time limit": ("soft", "[]", Verdict.FAILED, Verdict.SUCCEEDED),
    "hard time limit": ("hard", "[]", Verdict.FAILED, Verdict.SUCCEEDED),
    "replaced by another task": ("replaced", "[]", Verdict.SUCCEEDED, Verdict.SUCCEEDED),
}

SILENT = {
    "Ignore": ("ignore", "celery"),
    "a task that no worker knows": ("nowhere", "celery"),
    "a queue that nobody reads": ("record", "nobody"),
    "expired in its queue": ("record", "later"),
    "revoked before it started": ("record", "later"),
}


@dataclass
class Stage:
    """A worker, and the part of a beat that sends to it and hears from it."""

    broker: str
    pool: str
    backend: str
    project: Project
    app: Celery
    dispatcher: CeleryDispatcher
    completions: CeleryCompletions
    runs: dict[str, str] = field(default_factory=dict)
    ends: dict[str, list[RunOutcome]] = field(default_factory=dict)

    def send(self, case: str, task: str, **fields: Any) -> str:
        shipment = run_of(row(f"job.{case}", f"proj.tasks.{task}", **fields))
        assert fates(self.dispatcher.send([shipment], yes)) == ["sent"]
        self.runs[case] = shipment.run.task_id
        return shipment.run.task_id

    def who_has(self, *task_ids: str) -> set[str]:
        answers = asked(self.completions, dict.fromkeys(task_ids))
        assert answers is not None
        return set(answers.holders)

    def listen(self) -> bool:
        taken = self.completions.receive(0.2)
        for end in taken:
            self.ends.setdefault(end.task_id, []).append(end)
        self.completions.acknowledge()
        return bool(taken)

    def wait_ends(self, *cases: str) -> None:
        ids = {self.runs[case] for case in cases}

        def all_there() -> bool:
            self.listen()
            return ids <= self.ends.keys()

        wait_for(all_there, what=f"the ends of {cases}")

    def heard(self, case: str) -> list[Verdict]:
        return [end.verdict for end in self.ends.get(self.runs[case], [])]

    def skip_old_results(self) -> None:
        if self.backend == "sqlite" and celery.VERSION[:2] < (5, 7):
            pytest.skip("Celery before 5.7 stores pickles in SQL, which nobody here reads")

    def look_up(self, case: str) -> list[RunOutcome]:
        return list(self.completions.query_results([UnfinishedRun(self.runs[case], "job", 1, 2)]))


STAGES = {
    "redis-prefork-results": ("redis", "prefork", "redis"),
    "redis-threads": ("redis", "threads", ""),
    "rabbitmq-prefork-results": ("rabbitmq", "prefork", "sqlite"),
    "rabbitmq-threads": ("rabbitmq", "threads", ""),
}


def _play(stage: Stage) -> None:
    """All cases at once, on one worker."""
    assert not stage.listen(), "declares the queue"
    later = run_of(row("job.later", "proj.tasks.record", queue="later"))
    stage.app.control.revoke(later.run.task_id, reply=True, timeout=60, limit=1)
    assert fates(stage.dispatcher.send([later], yes)) == ["sent"]
    stage.runs["revoked before it started"] = later.run.task_id
    stage.send("expired in its queue", "record", queue="later", expires_s=1)
    expired_at = time.monotonic() + 1.1
    for case, (task, args, *_) in REPORTED.items():
        stage.send(case, task, args=args)
    for case, (task, queue) in SILENT.items():
        if queue != "later":
            stage.send(case, task, queue=queue)
    if stage.pool == "prefork":
        stage.send("pool child killed", "die")
    if stage.backend:
        stage.send("a result that cannot be stored", "unserialisable")
    stage.wait_ends(*REPORTED)
    wait_for(lambda: time.monotonic() > expired_at)
    stage.app.control.add_consumer("later", reply=True, timeout=60, limit=1)
    # What comes after the silent ones in the same queues shows that they are done with.
    stage.send("last", "record")
    stage.send("last, later", "record", queue="later")
    stage.wait_ends("last", "last, later")
    if stage.pool == "prefork":
        stage.wait_ends("pool child killed")


@pytest.fixture(scope="module", params=list(STAGES))
def stage(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stage]:
    kind, pool, backend = STAGES[request.param]
    folder: Path = tmp_path_factory.mktemp(request.param)
    server: Redis | RabbitMQ = request.getfixturevalue(f"{kind}_server")
    with ExitStack() as stack:
        if isinstance(server, Redis):
            with server.client() as client:
                client.flushall()
            broker = server.url
        else:
            broker = stack.enter_context(server.virtual_host())
        results = {"redis": broker, "sqlite": f"db+sqlite:///{folder / 'results.sqlite3'}", "": None}[backend]
        settings: dict[str, Any] = {"result_backend": results}
        if request.param == "rabbitmq-threads":
            # With a callback addressed by queue, this made failures of successes.
            settings |= {
                "task_create_missing_queues": False,
                "task_queues": Code("[__import__('kombu').Queue('celery')]"),
            }
        project = stack.enter_context(Project(folder / "project", broker, settings, tasks=TASKS, headers=True))
        project.worker(f"--pool={pool}", "--queues=celery", concurrency=4)
        app = make_app(broker, folder, result_backend=results)
        dispatcher = CeleryDispatcher(app, namespace="test", instance=lambda: INSTANCE)
        completions = CeleryCompletions(app, namespace="test", instance=lambda: INSTANCE)
        stack.callback(completions.close)
        stack.callback(dispatcher.close)
        made = Stage(kind, pool, backend, project, app, dispatcher, completions)
        _play(made)
        yield made


@pytest.mark.parametrize("case", list(REPORTED))
def test_the_end_is_reported(stage: Stage, case: str) -> None:
    expected = REPORTED[case][2 if stage.pool == "prefork" else 3]
    assert set(stage.heard(case)) == {expected}


@pytest.mark.parametrize("case", ["success", "success after two retries", "replaced by another task", "exception"])
def test_there_is_one_report_of_a_run(stage: Stage, case: str) -> None:
    assert len(stage.heard(case)) == 1


def test_the_death_of_a_pool_child_is_reported(stage: Stage) -> None:
    if stage.pool != "prefork":
        pytest.skip("a thread that kills its process kills the worker")
    assert set(stage.heard("pool child killed")) == {Verdict.FAILED}


def test_a_result_that_cannot_be_stored_is_a_failure_in_the_end(stage: Stage) -> None:
    if not stage.backend:
        pytest.skip("without a backend nothing is stored")
    stage.skip_old_results()
    stage.wait_ends("a result that cannot be stored")
    wait_for(lambda: stage.listen() or len(stage.heard("a result that cannot be stored")) == 2)
    assert stage.heard("a result that cannot be stored") == [Verdict.SUCCEEDED, Verdict.FAILED]


def test_a_failure_says_why_when_there_is_a_result_backend(stage: Stage) -> None:
    (end,) = stage.ends[stage.runs["exception"]]
    assert end.detail == ("ValueError: this task always fails" if stage.backend else NO_REASON)


@pytest.mark.parametrize("case", list(SILENT))
def test_some_ends_are_never_reported(stage: Stage, case: str) -> None:
    stage.listen()
    assert stage.heard(case) == []


@pytest.mark.parametrize(
    ("case", "verdict", "detail"),
    [
        ("success", Verdict.SUCCEEDED, ""),
        ("exception", Verdict.FAILED, "ValueError: this task always fails"),
        ("a task that no worker knows", Verdict.UNKNOWN_TASK, "NotRegistered"),
        ("revoked before it started", Verdict.REVOKED, "revoked"),
        ("expired in its queue", Verdict.EXPIRED, "expired"),
    ],
)
def test_a_result_backend_knows_more(stage: Stage, case: str, verdict: Verdict, detail: str) -> None:
    if stage.broker == "rabbitmq" and verdict is Verdict.EXPIRED:
        assert stage.look_up(case) == [], "RabbitMQ itself drops it: no worker ever sees it"
    elif stage.backend:
        stage.skip_old_results()
        (end,) = stage.look_up(case)
        assert end.verdict is verdict
        assert end.detail.startswith(detail)
    else:
        assert stage.look_up(case) == []


@pytest.mark.parametrize("case", ["Ignore", "a queue that nobody reads"])
def test_of_some_runs_nobody_knows_anything(stage: Stage, case: str) -> None:
    assert stage.look_up(case) == []


def test_a_task_can_read_its_nominal_slot(stage: Stage) -> None:
    (seen,) = [record for record in stage.project.records("record") if record["id"] == stage.runs["success"]]
    headers = seen["headers"]
    assert headers["qbeat_job"] == "job.success"
    assert isinstance(headers["qbeat_slot_us"], int)
    assert headers["qbeat_slot"].startswith("20")


def test_a_worker_says_what_it_has_and_nobody_says_what_ended(stage: Stage) -> None:
    running = stage.send("running", "sleep", args="[2]")
    stage.project.wait_records(1, "sleep")
    ids = [running, stage.runs["success"], stage.runs["a queue that nobody reads"]]
    assert stage.who_has(*ids) == {running}
    assert stage.who_has() == set()
    stage.wait_ends("running")
    assert stage.heard("running") == [Verdict.SUCCEEDED]


def test_a_worker_has_a_run_that_waits_for_its_retry(stage: Stage) -> None:
    run = stage.send("postponed", "postponed")
    stage.project.wait_records(1, "postponed")
    wait_for(lambda: stage.who_has(run), 20, what="the worker says that it has it")
    assert stage.who_has(run, stage.runs["success"]) == {run}
    assert stage.heard("postponed") == []


def test_a_run_that_is_terminated_is_known_to_the_result_backend_alone(stage: Stage) -> None:
    if stage.pool != "prefork":
        pytest.skip("a thread cannot be terminated")
    stage.skip_old_results()
    run = stage.send("terminated", "sleep", args="[61]")
    wait_for(lambda: [record for record in stage.project.records("sleep") if record["id"] == run])
    stage.app.control.revoke(run, terminate=True)
    (end,) = wait_for(lambda: stage.look_up("terminated"))
    assert (end.verdict, end.detail) == (Verdict.REVOKED, "terminated")
    stage.listen()
    assert stage.heard("terminated") == []


def test_a_thousand_ends_arrive_in_takes_that_keep_their_budget(stage: Stage) -> None:
    if (stage.broker, stage.pool) != ("redis", "prefork"):
        pytest.skip("once is enough, on the slower broker")
    shipments = [run_of(row(f"job.{n}", "proj.tasks.quiet")) for n in range(1000)]
    assert set(fates(stage.dispatcher.send(shipments, yes))) == {"sent"}
    wanted = {shipment.run.task_id for shipment in shipments}
    slowest = 0.0

    def all_there() -> bool:
        nonlocal slowest
        started = time.monotonic()
        stage.listen()
        slowest = max(slowest, time.monotonic() - started)
        return wanted <= stage.ends.keys()

    wait_for(all_there, 60)
    assert slowest < 3, "a budget of 0.2 s, with much room for a busy machine"
    assert all([end.verdict for end in stage.ends[run]] == [Verdict.SUCCEEDED] for run in wanted)


def test_a_worker_that_is_killed_reports_nothing(
    make_project: Callable[..., Project], redis_url: str, tmp_path: Path
) -> None:
    project = make_project(redis_url)
    worker = project.worker("--pool=prefork", concurrency=1)
    app = make_app(redis_url, tmp_path)
    dispatcher = CeleryDispatcher(app, namespace="test", instance=lambda: INSTANCE)
    completions = CeleryCompletions(app, namespace="test", instance=lambda: INSTANCE)
    shipment = run_of(row("job", "proj.tasks.sleep", args="[60]"))
    assert completions.receive(0.2) == []
    assert fates(dispatcher.send([shipment], yes)) == ["sent"]
    project.wait_records(1, "sleep")
    worker.kill()
    assert completions.receive(0.5) == []
    answers = asked(completions, {shipment.run.task_id: shipment.job})
    assert answers is not None
    assert (answers.holders, answers.workers) == ({}, {})
    completions.close()
    dispatcher.close()
