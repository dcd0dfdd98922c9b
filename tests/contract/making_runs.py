"""Runs on their way, and the messages that came of them."""

from __future__ import annotations

import itertools
import uuid
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from celery import Celery
from kombu import Producer, Queue

from celery_qbeat.core.identity import database_id, run_token, task_id
from celery_qbeat.core.jobs import Job, Run, Verdict, WorkerScope
from celery_qbeat.core.schedules import parse
from celery_qbeat.core.worker_answers import Answers
from celery_qbeat.dispatchers import CeleryCompletions
from celery_qbeat.dispatchers.celery.broker import done_address, done_queue
from celery_qbeat.ports import Completions, OutgoingRun, PublishResult
from tests.servers import wait_for

INSTANCE = "5f0c2b9e-7f43-4a55-9a3e-0d6f1c2b3a4d"
TASK = "proj.tasks.record"
BUDGET_S = 5.0

QUEUE = f"qbeat.done.test.{database_id(INSTANCE)}"
"""The queue of ends of this instance in the namespace `test`."""

_slots = itertools.count(1_790_000_000_000_000, 60_000_000)


def make_app(broker: str, folder: Path, **settings: Any) -> Celery:
    """An app that is nobody's current app; for `filesystem://`, with its messages in `folder`."""
    app = Celery("proj", broker=broker, set_as_current=False)
    if broker.startswith("filesystem"):
        settings["broker_transport_options"] = {
            "data_folder_in": str(folder / "queues"),
            "data_folder_out": str(folder / "queues"),
            "control_folder": str(folder / "control"),
        }
        (folder / "queues").mkdir(exist_ok=True)
    app.conf.update(**settings)
    return app


def row(job_id: str = "shop.hourly", fn: str = TASK, **fields: Any) -> Job:
    """A job from a row."""
    return Job(id=job_id, fn=fn, schedule=parse("every", "1m"), plan_key="p", **{"rev": 1, **fields})


def entry(fn: str = TASK, args: Sequence[Any] = (), kwargs: dict[str, Any] | None = None, **options: Any) -> Job:
    """A job from an entry of `beat_schedule`."""
    options = {**options, "__args__": args, "__kwargs__": kwargs or {}}
    return Job(id="code:entry", fn=fn, schedule=parse("every", "1m"), plan_key="p", rev=None, options=options)


def scoped(**fields: Any) -> WorkerScope:
    return WorkerScope(name="scope", **fields)


def run_of(job: Job, slot_us: int | None = None) -> OutgoingRun:
    """The next slot of a job, claimed."""
    slot = next(_slots) if slot_us is None else slot_us
    return OutgoingRun(job, Run(job.id, slot, task_id(INSTANCE, job.id, slot), Verdict.CLAIMED))


def runs_of(job: Job, count: int) -> list[OutgoingRun]:
    return [run_of(job) for _ in range(count)]


def fates(receipts: Sequence[PublishResult]) -> list[str]:
    return [receipt.outcome.value for receipt in receipts]


def yes() -> bool:
    return True


def take_all(app: Celery, queue: str = "celery", **declared: Any) -> list[Any]:
    """All messages that wait in a queue, acknowledged."""
    found = []
    with app.connection_for_read() as connection:
        bound = Queue(queue, no_declare=True, **declared)(connection.default_channel)
        bound.no_declare = False
        bound.declare()
        while (message := bound.get(accept=["json", "pickle"])) is not None:
            found.append(message)
            message.ack()
    return found


def asked(completions: Completions, runs: Mapping[str, Job | None]) -> Answers | None:
    """The end of one round of questions; None when the broker is away."""
    if not completions.ask_workers(runs):
        return None
    found: list[Answers] = []

    def ended() -> bool:
        answers = completions.worker_answers()
        found.extend([] if answers is None else [answers])
        return bool(found)

    wait_for(ended, 20, what="the round ends")
    return found[0]


def fresh_id() -> str:
    return str(uuid.uuid4())


class Desk:
    """A reader of ends, and somebody who writes to its queue."""

    def __init__(self, broker: str, folder: Path) -> None:
        self.app: Celery = make_app(broker, folder)
        self.completions = self.another()
        # The queue is there, as it is when runs end.
        self.completions.receive(0.0)

    def another(self) -> CeleryCompletions:
        return CeleryCompletions(self.app, namespace="test", instance=lambda: INSTANCE)

    def report(self, run: str, outcome: str = "success", **more: Any) -> None:
        kwargs = {"v": 1, "run": run, "outcome": outcome, "token": run_token(INSTANCE, run), **more}
        self.write([[], kwargs, {}])

    def write(self, body: Any, **options: Any) -> None:
        with self.app.connection_for_write() as connection:
            address = done_address(connection, "test", INSTANCE)
            assert address is not None
            queue = done_queue(address)
            options = {"serializer": "json", "declare": [queue], **options}
            Producer(connection).publish(body, exchange=address.exchange, routing_key=address.key, **options)

    def take(self) -> list[tuple[str, Verdict]]:
        ends = self.completions.receive(BUDGET_S)
        return [(end.task_id, end.verdict) for end in ends]
