"""Runs that nobody has any more, and runs that only look as if nobody had them, with real workers and brokers."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from celery_qbeat.core.privileges import Privileges
from celery_qbeat.dispatchers import CeleryCompletions, CeleryDispatcher
from celery_qbeat.engine import Dependencies, Engine, Limits
from celery_qbeat.gates import StandaloneGate
from celery_qbeat.process.clock import SystemClock
from celery_qbeat.testing import MemoryStore
from tests.celeryproc import Process, Project
from tests.contract.making_runs import make_app
from tests.servers import RabbitMQ, Redis, wait_for

PATIENCE_S = 90.0
SHORT = Limits(poll_s=0.1, ask_again_s=0.3, silent_s=3.0, warn_again_s=0.5)

TASKS = """
import os


@app.task(bind=True)
def hold(self, path):
    write(self, [path], {})
    while not os.path.exists(path):
        time.sleep(0.05)


@app.task(bind=True, acks_late=True)
def hold_late(self, path):
    write(self, [path], {})
    while not os.path.exists(path):
        time.sleep(0.05)


@app.task(bind=True, max_retries=None)
def postponed(self):
    write(self, [], {})
    raise self.retry(countdown=300)


@app.task(bind=True)
def in_two_steps(self, path):
    from celery import chain

    write(self, [path], {})
    raise self.replace(chain(hold.si(path).set(queue="main"), record.si("second").set(queue="main")))
"""

QUEUES = frozenset({"main", "killed", "late", "leaving", "queue", "nobody", "other"})
NAMES = ("hold", "hold_late", "postponed", "in_two_steps", "record")


@dataclass
class Scene:
    """A beat in this process with short pauses, its broker, and real workers."""

    project: Project
    broker: str
    folder: Path
    limits: Limits = SHORT
    store: MemoryStore = field(default_factory=MemoryStore)
    workers: dict[str, Process] = field(default_factory=dict)

    def __post_init__(self) -> None:
        app = make_app(self.broker, self.folder)
        dispatcher = CeleryDispatcher(app, namespace="test", instance=lambda: self.store.instance)
        self.completions = CeleryCompletions(app, namespace="test", instance=lambda: self.store.instance)
        parts = Dependencies(
            store=self.store,
            gate=StandaloneGate(),
            dispatcher=dispatcher,
            clock=SystemClock(),
            privileges=Privileges(registered=frozenset(f"proj.tasks.{name}" for name in NAMES), queues=QUEUES),
            completions=self.completions,
            limits=self.limits,
        )
        self.engine = Engine(parts)
        self.engine.open()

    def worker(self, queue: str, *args: str, ready: bool = True) -> Process:
        options = args or ("--pool=prefork",)
        made = self.project.worker(f"--queues={queue}", "--prefetch-multiplier=4", *options, concurrency=1, ready=ready)
        self.workers[queue] = made
        return made

    def insert(self, job_id: str, task: str, queue: str, *, gate: bool = True, **columns: Any) -> None:
        args = f'["{self.gate(job_id)}"]' if gate else "[]"
        row = {"schedule_kind": "interval", "schedule": "1", "overlap": "skip", "queue": queue, "args": args}
        self.store.insert(id=job_id, fn=f"proj.tasks.{task}", **row, **columns)

    def gate(self, job_id: str) -> Path:
        """The task of this job ends when this file is there."""
        return self.folder / f"{job_id}.gate"

    def play(self, condition: Callable[[], Any], what: str) -> None:
        """Tick until it holds."""

        def ticked() -> Any:
            pause = self.engine.tick()
            time.sleep(min(0.1, pause))
            return condition()

        wait_for(ticked, PATIENCE_S, every=0.01, what=what)

    def verdicts(self, job_id: str) -> list[str]:
        return [str(entry.verdict) for entry in self.store.ledger if entry.job_id == job_id]

    def details(self, job_id: str) -> list[str]:
        return [entry.detail for entry in self.store.ledger if entry.job_id == job_id]

    def started(self, job_id: str) -> bool:
        ids = {entry.task_id for entry in self.store.ledger if entry.job_id == job_id}
        return any(record["id"] in ids for record in self.project.records())


MakeScene = Callable[..., Scene]


@pytest.fixture
def make_scene(tmp_path: Path) -> Iterator[MakeScene]:
    with ExitStack() as stack:

        def make(broker: str, **more: Any) -> Scene:
            project = stack.enter_context(Project(tmp_path / "project", broker, tasks=TASKS))
            scene = Scene(project, broker, tmp_path, **more)
            stack.callback(scene.engine.close)
            return scene

        yield make


@pytest.fixture(params=["redis", "rabbitmq"])
def broker(request: pytest.FixtureRequest) -> Iterator[str]:
    server: Redis | RabbitMQ = request.getfixturevalue(f"{request.param}_server")
    if isinstance(server, Redis):
        with server.client() as client:
            client.flushall()
        yield server.url
    else:
        with server.virtual_host() as url:
            yield url


def said(caplog: pytest.LogCaptureFixture, job_id: str, words: str) -> bool:
    return any(text.startswith(f"job '{job_id}': ") and words in text for text in caplog.messages)


@pytest.mark.slow
def test_only_the_run_of_a_killed_worker_is_lost(
    broker: str, make_scene: MakeScene, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING, logger="celery_qbeat")
    scene = make_scene(broker)
    for queue in ("main", "killed", "late", "leaving"):
        scene.worker(queue, ready=False)
    for worker in scene.workers.values():
        worker.wait_output(r" ready\.$", PATIENCE_S)
    scene.insert("postponed", "postponed", "main", gate=False)
    scene.insert("two-steps", "in_two_steps", "main")
    scene.insert("killed", "hold", "killed")
    scene.insert("late", "hold_late", "late")
    scene.insert("leaving", "hold", "leaving")
    jobs = ("postponed", "two-steps", "killed", "late", "leaving")
    scene.play(lambda: all(scene.started(job_id) for job_id in jobs), "all runs start")
    scene.insert("prefetched", "record", "main", gate=False)
    seen = {"killed": "is on worker", "late": "is on worker", "leaving": "is on worker"}
    seen |= {"postponed": "waits for its retry", "prefetched": "waits its turn on worker"}
    scene.play(lambda: all(said(caplog, *pair) for pair in seen.items()), "the causes are told")
    scene.workers["killed"].kill()
    scene.workers["late"].kill()
    leaving = scene.workers["leaving"]
    leaving.terminate()
    for queue in ("killed", "late", "leaving"):
        scene.worker(queue, ready=False)
    scene.play(lambda: scene.verdicts("killed") == ["lost", "sent"], "the run is lost and the next one is sent")
    assert scene.details("killed")[0] == "no worker has it and no queue holds it: its worker is gone"
    # As long again, so that all the others had their rounds, too.
    until = time.monotonic() + 3 * scene.limits.silent_s
    scene.play(lambda: time.monotonic() > until, "time passes")
    assert {job_id: scene.verdicts(job_id) for job_id in (*jobs, "prefetched") if job_id != "killed"} == {
        job_id: ["sent"] for job_id in (*jobs, "prefetched") if job_id != "killed"
    }
    assert leaving.running, "it finishes its run"
    scene.gate("leaving").touch()
    scene.gate("two-steps").touch()
    for job_id in ("leaving", "two-steps"):
        scene.play(lambda job_id=job_id: scene.verdicts(job_id)[0] == "succeeded", f"the run of {job_id} succeeds")


@pytest.mark.slow
def test_a_run_in_a_queue_or_in_a_busy_solo_worker_is_not_lost(
    broker: str, make_scene: MakeScene, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING, logger="celery_qbeat")
    scene = make_scene(broker)
    scene.insert("unread", "record", "nobody", gate=False)
    scene.worker("queue", "--pool=solo", "--prefetch-multiplier=1", ready=False)
    scene.insert("solo", "hold", "queue")
    scene.play(lambda: scene.started("solo"), "the run starts")
    scene.insert("behind", "record", "queue", gate=False)
    scene.play(lambda: said(caplog, "solo", "1 worker did not answer"), "the silence is told")
    scene.play(lambda: said(caplog, "behind", "1 worker did not answer"), "the silence is told")
    until = time.monotonic() + 3 * scene.limits.silent_s
    scene.play(lambda: time.monotonic() > until, "time passes")
    assert [scene.verdicts(job_id) for job_id in ("solo", "behind", "unread")] == [["sent"]] * 3
    scene.gate("solo").touch()
    scene.play(lambda: scene.verdicts("behind")[0] == "succeeded", "the waiting run succeeds")
    scene.play(lambda: said(caplog, "unread", "queue 'nobody' has no worker"), "the missing worker is told")


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["redis", "rabbitmq"])
def test_runs_that_an_emptied_broker_lost_are_ended(
    kind: str, make_scene: MakeScene, request: pytest.FixtureRequest
) -> None:
    server: Any = request.getfixturevalue(f"own_{kind}")()
    scene = make_scene(server.url)
    scene.worker("main")
    scene.insert("running", "hold", "main")
    scene.play(lambda: scene.started("running"), "the run starts")
    scene.insert("waiting", "record", "other", gate=False)
    scene.play(lambda: scene.verdicts("waiting") == ["sent"], "the message waits")
    if kind == "redis":
        with server.client() as client:
            client.flushall()
    else:
        app = make_app(server.url, scene.folder)
        with app.connection_for_write() as connection:
            connection.default_channel.queue_purge("other")
    scene.worker("other")
    scene.engine.leader.recheck_all_runs()
    scene.play(lambda: scene.verdicts("waiting")[0] == "lost", "the run that nobody has is lost")
    assert scene.details("waiting")[0] == "no worker has it and no queue holds it: the broker lost it"
    assert scene.verdicts("running") == ["sent"]
    scene.play(lambda: "succeeded" in scene.verdicts("waiting"), "the job runs again")
