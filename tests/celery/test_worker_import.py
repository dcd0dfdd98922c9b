"""`import celery_qbeat.worker`: ends that callbacks cannot tell reach the ledger at once, and tasks know their slot."""

from __future__ import annotations

import json
import pickle
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any, get_args

import pytest
from celery import states
from celery.app.task import Context
from celery.exceptions import Ignore, Reject
from kombu.message import Message

from celery_qbeat import worker
from celery_qbeat.core.identity import run_token
from celery_qbeat.core.jobs import Verdict
from celery_qbeat.dispatchers.celery import broker
from celery_qbeat.dispatchers.celery.completion_message import Outcome, read_completion
from celery_qbeat.dispatchers.celery.raw_message import ForeignMessage
from celery_qbeat.ports import RunOutcome
from tests.celeryproc import Code, Project
from tests.contract.making_runs import INSTANCE, fresh_id, make_app
from tests.servers import RabbitMQ, Redis, wait_for

pytestmark = [pytest.mark.slow, pytest.mark.timeout(240)]

TASKS = """
@app.task(bind=True)
def when(self):
    from celery_qbeat.worker import slot

    write(self, [slot(self).isoformat()], {})


@app.task(bind=True)
def replaced(self):
    raise self.replace(record.si("in its place"))


@app.task(bind=True)
def replaced_in_other_words(self):
    try:
        self.replace(record.si("in its place"))
    except Ignore:
        raise Ignore("not now")


@app.task(time_limit=1)
def too_long():
    time.sleep(60)
"""

INSTALL = """
import celery_qbeat.worker

celery_qbeat.worker.install(app)
"""

# (task, columns, how it ends, with which detail)
CASES: dict[str, tuple[str, dict[str, Any], str, str]] = {
    "ignored": ("ignore", {}, "ignored", ""),
    "unknown": ("nowhere", {}, "unknown task", ""),
    "revoked": ("record", {"queue": "later"}, "revoked", "revoked"),
    "expired": ("record", {"queue": "later", "expires_seconds": 1}, "expired", "expired"),
    "terminated": ("sleep", {"args": "[60]"}, "revoked", "terminated"),
    "rejected": ("record", {"queue": "picky"}, "failed", "the worker rejected its message"),
    "replaced": ("replaced", {}, "succeeded", ""),
    "replaced-in-other-words": ("replaced_in_other_words", {}, "succeeded", ""),
    "retried": ("retry", {"args": "[2]"}, "succeeded", ""),
    "failed": ("fail", {}, "failed", "ValueError: this task always fails"),
    "too-long": ("too_long", {}, "failed", "TimeLimitExceeded: TimeLimitExceeded(1,)"),
    "when": ("when", {}, "succeeded", ""),
}

PREFORK_ONLY = {"expired", "terminated", "rejected", "too-long"}
"""RabbitMQ itself drops what expired, a thread can be neither terminated nor limited, and one worker that reads no JSON
is enough."""

STAGES = {"redis-prefork": frozenset(CASES), "rabbitmq-threads": CASES.keys() - PREFORK_ONLY}


ACCEPT = "QBEAT_TEST_ACCEPT"


@dataclass
class Stage:
    """A beat, and a worker that may be changed; every case is a row that is due once."""

    project: Project
    app: Any
    worker: str
    cases: frozenset[str]
    ended: dict[str, Any] = field(default_factory=dict)

    def run(self, job_id: str) -> Any:
        """The line of the ledger, when the run was sent."""
        query = "SELECT task_id, verdict, detail, slot_us, sent_us FROM qbeat_runs WHERE job_id = :id"
        sent = f"{query} AND sent_us IS NOT NULL"
        return wait_for(lambda: self.project.sql(sent, id=job_id), 60, what=f"{job_id} is sent")[0]

    def play(self) -> None:
        for case in self.cases:
            fn, columns, *_ = CASES[case]
            row = {"id": case, "fn": f"proj.tasks.{fn}", "schedule_kind": "interval", "schedule": "3600", **columns}
            names, values = ", ".join(row), ", ".join(f":{name}" for name in row)
            self.project.sql(f"INSERT INTO qbeat_jobs ({names}) VALUES ({values})", **row)
        self.revoke(self.run("revoked").task_id)
        if "terminated" in self.cases:
            task_id = self.run("terminated").task_id
            self.project.wait_records(1, "sleep", deadline=60)
            self.revoke(task_id, terminate=True)
        if "expired" in self.cases:
            after_us = self.run("expired").sent_us + 1_100_000
            wait_for(lambda: time.time_ns() // 1000 > after_us)
        assert self.app.control.add_consumer("later", destination=[self.worker], reply=True, timeout=60, limit=1)
        wait_for(lambda: len(self.finished()) == len(self.cases), 60, what="all ended")
        self.ended = self.finished()

    def revoke(self, task_id: str, **options: Any) -> None:
        assert self.app.control.revoke(task_id, destination=[self.worker], reply=True, timeout=60, limit=1, **options)

    def finished(self) -> dict[str, Any]:
        query = "SELECT * FROM qbeat_runs WHERE finished_us IS NOT NULL"
        rows = self.project.sql(query)
        return {row.job_id: row for row in rows if row.job_id in self.cases}


@pytest.fixture(scope="module", params=list(STAGES))
def stage(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stage]:
    kind, pool = request.param.split("-")
    folder: Path = tmp_path_factory.mktemp(request.param)
    server: Redis | RabbitMQ = request.getfixturevalue(f"{kind}_server")
    settings: dict[str, Any] = {
        "qbeat_queues": ["later", "picky"],
        "qbeat_functions": ["proj.tasks.nowhere"],
        "qbeat_poll_interval": 0.2,
        "accept_content": Code(f"[__import__('os').environ.get({ACCEPT!r}, 'json')]"),
    }
    tasks = TASKS
    with ExitStack() as stack:
        if isinstance(server, Redis):
            with server.client() as client:
                client.flushall()
            url = server.url
            settings["imports"] = ["celery_qbeat.worker"]
        else:
            url = stack.enter_context(server.virtual_host())
            settings["task_routes"] = {"*": {"queue": "celery"}}
            tasks += INSTALL
        project = stack.enter_context(Project(folder / "project", url, settings, tasks=tasks))
        beat = project.beat()
        workers = [project.worker(f"--pool={pool}", "--queues=celery", concurrency=4, ready=False)]
        if "rejected" in STAGES[request.param]:
            project.environment[ACCEPT] = "yaml"
            workers.append(project.worker("--pool=solo", "--queues=picky", ready=False))
        beat.wait_output("beat: writer", 60)
        for process in workers:
            process.wait_output(r" ready\.$", 60)
        name = f"{workers[0].name}@localhost"
        made = Stage(project, make_app(url, folder), name, frozenset(STAGES[request.param]))
        made.play()
        yield made


@pytest.mark.parametrize("case", list(CASES))
def test_the_end_of_a_run_is_in_the_ledger_without_its_lease_or_a_result_backend(stage: Stage, case: str) -> None:
    if case not in stage.cases:
        pytest.skip("not on this broker or pool")
    *_, verdict, detail = CASES[case]
    assert (stage.ended[case].verdict, stage.ended[case].detail) == (verdict, detail)


@pytest.mark.parametrize("case", ["when", "failed", "retried", "ignored"])
def test_a_run_has_its_workers_start_and_duration(stage: Stage, case: str) -> None:
    run = stage.ended[case]
    assert run.sent_us - 1_000_000 < run.started_us
    assert 0 <= run.took_us < 60_000_000


def test_a_run_that_no_worker_started_has_no_duration(stage: Stage) -> None:
    assert stage.ended["unknown"].took_us is None
    assert stage.ended["revoked"].started_us is None


def test_a_task_is_told_its_nominal_slot(stage: Stage) -> None:
    (seen,) = stage.project.records("when")
    nominal = datetime(1970, 1, 1, tzinfo=UTC) + timedelta(microseconds=stage.ended["when"].slot_us)
    assert datetime.fromisoformat(seen["args"][0]) == nominal


def test_nothing_of_it_is_an_error_to_anybody(stage: Stage) -> None:
    for process in stage.project.processes:
        assert "Signal handler" not in process.output()
        assert "completions: dropped" not in process.output()


# ---------------------------------------------------------------- without processes


def message(body: Any, content_type: str = "application/json") -> Message:
    return Message(body, content_type=content_type, content_encoding="utf-8")


def kwargs_of(outcome: str, **more: Any) -> dict[str, Any]:
    run = fresh_id()
    return {"v": 1, "run": run, "outcome": outcome, "token": run_token(INSTANCE, run), **more}


class Broker:
    """An app that keeps what it shall send."""

    def __init__(self) -> None:
        self.sent: list[tuple[str, dict[str, Any]]] = []
        self.app = self

    def send_task(self, name: str, **options: Any) -> None:
        self.sent.append((name, options))


LINK = {"task": broker.DONE_TASK, "kwargs": {"v": 1}, "options": {"exchange": "e", "routing_key": "k"}}
STRANGE = {"task": "other.task", "kwargs": {}, "options": {}}


@pytest.mark.parametrize(
    "payload",
    [
        [[], {}, {"callbacks": None, "errbacks": [STRANGE, LINK], "chain": None, "chord": None}],
        {"task": "x", "id": "y", "args": [], "kwargs": {}, "errbacks": [LINK]},
    ],
    ids=["protocol 2", "protocol 1"],
)
def test_what_became_no_request_is_reported_where_its_callbacks_say(payload: Any) -> None:
    app = Broker()
    worker._unknown(app, message(json.dumps(payload).encode()))
    ((name, options),) = app.sent
    assert name == broker.DONE_TASK
    assert options["kwargs"] == {"v": 1, "outcome": "unknown task"}
    assert (options["exchange"], options["routing_key"], options["declare"]) == ("e", "k", [])


@pytest.mark.parametrize(
    ("body", "content_type"),
    [
        (b"{{{", "application/json"),
        (b"7", "application/json"),
        (b"[1, 2, 3]", "application/json"),
        (b'[[], {}, {"errbacks": [1, "x", {"task": "other"}]}]', "application/json"),
        (b'[[], {}, {"errbacks": null}]', "application/json"),
        (pickle.dumps([[], {}, {"errbacks": [LINK]}]), "application/x-python-serialize"),
        (b"hello", "text/plain"),
    ],
)
def test_of_messages_that_are_not_from_a_beat_nothing_is_reported(body: bytes, content_type: str) -> None:
    app = Broker()
    worker._unknown(app, message(body, content_type))
    worker._rejected(app, message(body, content_type))
    assert app.sent == []


@pytest.mark.parametrize("outcome", get_args(Outcome))
def test_the_beat_understands_each_outcome_from_who_knows_the_runs_secret(outcome: str) -> None:
    kwargs = kwargs_of(outcome)
    end = read_completion(message(json.dumps([[], kwargs, {}])), INSTANCE)
    assert end.task_id == kwargs["run"]
    assert end.verdict in {
        *(Verdict.SUCCEEDED, Verdict.FAILED, Verdict.REVOKED, Verdict.EXPIRED, Verdict.UNKNOWN_TASK, Verdict.IGNORED)
    }
    for wrong in (kwargs_of(outcome, token="0" * 24), kwargs_of(outcome, v=2), kwargs_of(outcome, detail="x")):
        with pytest.raises(ForeignMessage):
            read_completion(message(json.dumps([[], wrong, {}])), INSTANCE)


@pytest.mark.parametrize("outcome", ["lost", "sent", "Revoked", "", "unknown_task"])
def test_there_are_no_other_outcomes(outcome: str) -> None:
    with pytest.raises(ForeignMessage):
        read_completion(message(json.dumps([[], kwargs_of(outcome), {}])), INSTANCE)


def test_the_error_of_a_failure_becomes_one_line_without_escapes() -> None:
    kwargs = kwargs_of("failure", error="ValueError: \x1b[31mred\nforged", started_us=5, took_us=7)
    end = read_completion(message(json.dumps([[], kwargs, {}])), INSTANCE)
    assert end == RunOutcome(kwargs["run"], Verdict.FAILED, r"ValueError: \x1b[31mred\nforged", started_us=5, took_us=7)


@pytest.mark.parametrize(
    "more", [{"error": "x" * 1001}, {"error": 1}, {"took_us": -1}, {"took_us": 0.5}, {"started_us": 2**64}]
)
def test_a_report_beyond_all_bounds_is_refused(more: dict[str, Any]) -> None:
    with pytest.raises(ForeignMessage):
        read_completion(message(json.dumps([[], kwargs_of("failure", **more), {}])), INSTANCE)


class Mute(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no words")


@pytest.mark.parametrize(
    ("error", "line"),
    [
        (ValueError("first\nsecond"), "ValueError: first"),
        (KeyError(), "KeyError"),
        (Mute(), "Mute"),
        (ValueError("x" * 10_000), "ValueError: " + "x" * (worker.MAX_ERROR_CHARS - len("ValueError: "))),
    ],
    ids=["two lines", "no message", "no words", "long"],
)
def test_an_error_is_reported_as_its_type_and_first_line(error: Exception, line: str) -> None:
    assert worker._error_line(error) == line


def test_a_rejected_message_is_a_failure_that_says_so() -> None:
    kwargs = kwargs_of("rejected")
    end = read_completion(message(json.dumps([[], kwargs, {}])), INSTANCE)
    assert end == RunOutcome(kwargs["run"], Verdict.FAILED, "the worker rejected its message")


def test_the_name_of_the_callbacks_is_the_same_on_both_sides() -> None:
    assert worker.DONE_TASK == broker.DONE_TASK


def test_a_slot_is_an_aware_instant_and_none_outside_a_run_of_a_beat() -> None:
    request = Context({"id": "x", "qbeat_slot_us": 1_790_000_000_123_456})
    assert worker.slot(request) == datetime(2026, 9, 21, 14, 13, 20, 123456, tzinfo=UTC)
    assert worker.slot(Context({"id": "x"})) is None
    assert worker.slot(Context()) is None
    task = make_app("memory://", Path()).task(name="t")(fresh_id)
    assert worker.slot(task) is None


@pytest.mark.parametrize(("requeue", "told"), [(False, ["failure"]), (True, [])])
def test_a_task_that_rejects_its_message_for_good_has_failed(requeue: bool, told: list[str]) -> None:
    app = Broker()
    task = SimpleNamespace(request=Context({"id": "x", "errbacks": [LINK]}))
    worker._ran(app, "x", task, Reject("no", requeue=requeue), states.REJECTED)
    assert [options["kwargs"]["outcome"] for _, options in app.sent] == told


def test_an_ignore_of_a_tasks_own_is_no_replacement() -> None:
    with pytest.raises(Ignore) as caught:
        raise Ignore("Replaced by new task")
    assert not worker._replaced(caught.value)
    assert not worker._replaced(None)


def test_a_worker_that_imports_it_imports_nothing_else_of_ours() -> None:
    code = (
        "import sys, celery_qbeat.worker\n"
        "print(*sorted(name for name in sys.modules if name.startswith('celery_qbeat')))\n"
        "print(*(name for name in ('sqlalchemy', 'pydantic', 'redis', 'alembic') if name in sys.modules))"
    )
    found = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True).stdout
    assert found.splitlines() == ["celery_qbeat celery_qbeat.worker", ""]
