"""A whole beat in this process, on a real broker that makes trouble: what the ledger says then."""

from __future__ import annotations

import sqlite3
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from kombu import Queue

from celery_qbeat import wiring
from celery_qbeat.engine import Engine
from celery_qbeat.settings import read_settings
from tests.contract.making_runs import TASK, make_app, take_all
from tests.servers import RabbitMQ, Redis, wait_for

pytestmark = [pytest.mark.chaos, pytest.mark.slow]


class Beat:
    """An engine with rows that are all due at once."""

    def __init__(self, broker: str, folder: Path, **settings: Any) -> None:
        self.file = folder / "q.sqlite3"
        settings |= {"qbeat_database_url": f"sqlite:///{self.file}", "qbeat_functions": [TASK]}
        self.app = make_app(broker, folder, **settings)
        self.engine: Engine = wiring.build(self.app, read_settings(self.app.conf))
        self.engine.open()

    def rows(self, count: int, **columns: str) -> None:
        names = ["id", "fn", "schedule_kind", "schedule", "overlap", *columns]
        marks = ", ".join("?" * len(names))
        scope = columns.get("worker", "any")
        with sqlite3.connect(self.file) as connection:
            for number in range(count):
                values = [f"{scope}{number}", TASK, "interval", "3600", "allow", *columns.values()]
                connection.execute(f"INSERT INTO qbeat_jobs ({', '.join(names)}) VALUES ({marks})", values)

    def scope(self, name: str, queue: str) -> None:
        with sqlite3.connect(self.file) as connection:
            connection.execute("INSERT INTO qbeat_workers (name, queue) VALUES (?, ?)", (name, queue))

    def verdicts(self, like: str = "%") -> Counter[str]:
        query = "SELECT verdict FROM qbeat_runs WHERE job_id LIKE ? AND job_id <> '_builtin.prune'"
        with sqlite3.connect(self.file) as connection:
            return Counter(verdict for (verdict,) in connection.execute(query, (like,)))

    def tick_until(self, done: Callable[[], bool]) -> None:
        def ticked() -> bool:
            self.engine.tick()
            return done()

        wait_for(ticked, 40, every=0.05)


@pytest.fixture(params=["redis", "rabbitmq"])
def server(request: pytest.FixtureRequest) -> Iterator[Redis | RabbitMQ]:
    if request.param == "rabbitmq":
        request.getfixturevalue("rabbitmq_server")
    with (Redis() if request.param == "redis" else RabbitMQ()).start() as made:
        yield made


def test_a_broker_that_hangs_before_a_burst_leaves_no_doubt(server: Redis | RabbitMQ, tmp_path: Path) -> None:
    beat = Beat(server.url, tmp_path)
    beat.rows(1, description="first")
    beat.tick_until(lambda: beat.verdicts() == {"sent": 1})
    beat.scope("late", "celery")
    beat.rows(120, worker="late")
    server.freeze()
    for _ in range(3):
        beat.engine.tick()
    assert beat.verdicts() == {"sent": 1}, "nothing is claimed"
    server.thaw()
    beat.tick_until(lambda: beat.verdicts().total() == 121)
    beat.engine.close()
    assert beat.verdicts() == {"sent": 121}
    assert len(take_all(beat.app)) == 121


def test_a_scope_whose_queue_is_a_key_of_kombu_is_refused(redis_url: str, tmp_path: Path) -> None:
    beat = Beat(redis_url, tmp_path)
    beat.scope("evil", "unacked_index")
    beat.rows(3, worker="evil")
    beat.rows(5)
    beat.tick_until(lambda: beat.verdicts().total() == 8)
    beat.engine.close()
    assert beat.verdicts("evil%") == {"refused": 3}
    assert beat.verdicts("any%") == {"sent": 5}


def test_a_full_queue_of_rabbitmq_holds_its_own_jobs_alone(rabbitmq_url: str, tmp_path: Path) -> None:
    beat = Beat(rabbitmq_url, tmp_path)
    arguments = {"x-max-length": 2, "x-overflow": "reject-publish"}
    with beat.app.connection_for_write() as connection:
        Queue("full", queue_arguments=arguments)(connection.default_channel).declare()
    beat.app.conf.task_queues = [Queue("full", queue_arguments=arguments), Queue("celery")]
    beat.scope("slow", "full")
    beat.rows(10, worker="slow")
    beat.rows(20)
    beat.tick_until(lambda: beat.verdicts("any%").total() == 20)
    for _ in range(5):
        beat.engine.tick()
    assert beat.verdicts("any%") == {"sent": 20}
    assert beat.verdicts("slow%") == {"sent": 2}, "and nothing is in doubt"
    beat.engine.close()
