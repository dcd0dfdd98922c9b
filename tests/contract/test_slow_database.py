"""A long way to the database: few round trips, and a lock that is kept through all of them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa

from celery_qbeat.engine import Engine
from celery_qbeat.settings import Settings
from celery_qbeat.wiring import build
from tests.contract.making_runs import make_app
from tests.contract.store_rigs import made
from tests.servers import MariaDB, PostgreSQL, SlowProxy, wait_for

JOB = (
    "INSERT INTO qbeat_jobs (id, fn, schedule_kind, schedule, overlap) "
    "VALUES ('{}', 'celery.ping', 'interval', '1', 'allow')"
)
TTL_S = 2.0

pytestmark = pytest.mark.real_clock("the beat compares its clock with the server's")


class Far:
    """A beat whose database is behind a slow proxy, and a person beside the database."""

    def __init__(self, server: PostgreSQL | MariaDB, redis_url: str, folder: Path, stack: ExitStack) -> None:
        name = server.create_database()
        stack.callback(server.drop_database, name)
        direct = made(server.url_of(name))
        self.proxy = stack.enter_context(SlowProxy(server.port))
        self.person = stack.enter_context(
            sa.create_engine(direct, isolation_level="AUTOCOMMIT", poolclass=sa.NullPool).connect()
        )
        for number in range(3):
            self.person.exec_driver_sql(JOB.format(f"j{number}"))
        settings = Settings(
            database_url=direct.replace(f":{server.port}/", f":{self.proxy.port}/"),
            redis_url=redis_url,
            lock_ttl=TTL_S,
            poll_interval=0.1,
            functions=("celery.ping",),
        )
        self.engine: Engine = build(make_app(redis_url, folder), settings)
        stack.callback(self.engine.close)
        self.engine.open()

    def trips(self, work: Callable[[], Any]) -> int:
        before = self.proxy.round_trips
        work()
        return self.proxy.round_trips - before

    def sent(self) -> int:
        query = "SELECT count(*) FROM qbeat_runs WHERE sent_us IS NOT NULL"
        return int(self.person.exec_driver_sql(query).scalar_one())

    def epoch(self) -> int:
        return int(self.person.exec_driver_sql("SELECT epoch FROM qbeat_leader").scalar_one())

    def tick_until_sent(self, more: int) -> None:
        wanted = self.sent() + more

        def tick() -> bool:
            self.engine.tick()
            return self.sent() >= wanted

        wait_for(tick, 90, every=0.05, what=f"{more} more runs")


@pytest.fixture(params=["postgres_server", "mariadb_server"])
def far(request: pytest.FixtureRequest, redis_url: str, tmp_path: Path) -> Iterator[Far]:
    with ExitStack() as stack:
        yield Far(request.getfixturevalue(request.param), redis_url, tmp_path, stack)


@pytest.mark.slow
def test_calls_that_outlast_the_lock_keep_it(far: Far) -> None:
    """On MariaDB one claim takes 9 round trips, longer than the lock lives."""
    far.proxy.delay_s = TTL_S / 8
    far.tick_until_sent(3)
    epoch = far.epoch()
    far.tick_until_sent(6)
    assert far.epoch() == epoch
    verdicts = far.person.exec_driver_sql("SELECT DISTINCT verdict FROM qbeat_runs").scalars().all()
    assert verdicts == ["sent"]


def test_a_takeover_and_a_tick_take_few_round_trips(far: Far) -> None:
    far.person.exec_driver_sql("UPDATE qbeat_jobs SET schedule = '86400'")
    takeover = far.trips(far.engine.tick)
    # On MariaDB the numbers of the log are settled first.
    wait_for(lambda: far.trips(far.engine.tick) == 1, every=0.05, what="a tick with one round trip")
    # Connecting, epoch, clock, load, plans, claims and marks of three new jobs, runs in flight, batches, requests.
    # A slow machine adds heartbeats.
    assert takeover <= 55
