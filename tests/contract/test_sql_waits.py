"""Servers that keep the connection and never answer: no call waits for ever, and each says what it knows."""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from types import FrameType
from typing import Any

import pytest
import sqlalchemy as sa

from celery_qbeat.errors import Doubt, Unavailable
from celery_qbeat.ports import Claim, Plan
from celery_qbeat.stores import SqlStore, connection, open_store, watchdog
from tests.contract.store_rigs import SECOND, T0, SqlRig, made
from tests.servers import MariaDB, PostgreSQL, SlowProxy, wait_for

PROMISE_S = 10.0
SLACK_S = 8.0
"""For slow machines: what matters is that a call ends at all, not after a minute."""

SERVERS = pytest.mark.parametrize("kind", ["postgresql", "mariadb"])


class Scene:
    """A store whose server is behind a proxy."""

    def __init__(self, kind: str, request: pytest.FixtureRequest, stack: ExitStack) -> None:
        server: PostgreSQL | MariaDB = request.getfixturevalue(
            {"postgresql": "postgres_server", "mariadb": "mariadb_server"}[kind]
        )
        name = server.create_database()
        stack.callback(server.drop_database, name)
        self.direct = made(server.url_of(name))
        self.proxy = stack.enter_context(SlowProxy(server.port))
        self.url = self.direct.replace(f":{server.port}/", f":{self.proxy.port}/")
        self.store = open_store(self.url)
        stack.callback(self.store.close)
        self.store.open()
        self.epoch = self.store.take_epoch("here:1", T0)
        self.store.write_plans(self.epoch, [Plan("code:a", T0, T0, "key")], T0)
        list(self.store.load())

    def claim(self) -> object:
        run = SqlRig.run(self, "code:a")  # type: ignore[arg-type]
        claims = [Claim("code:a", None, T0, T0 + SECOND, (run,))]
        return self.store.claim(self.epoch, self.epoch << 20, claims, T0)

    def beat(self) -> None:
        self.store.record_heartbeat(self.epoch, T0)


@pytest.fixture
def scene(kind: str, request: pytest.FixtureRequest) -> Iterator[Scene]:
    if "impatient" in request.fixturenames:
        # Before the first connection, whose watchdog sleeps as long as no limit can be reached.
        request.getfixturevalue("impatient")
    with ExitStack() as stack:
        yield Scene(kind, request, stack)


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """The limits, shortened."""
    for module in (connection, watchdog):
        monkeypatch.setattr(module, "ANSWER_S", 1.0)


@contextmanager
def within(seconds: float) -> Iterator[None]:
    began = time.monotonic()
    yield
    assert time.monotonic() - began < seconds


@SERVERS
@pytest.mark.usefixtures("impatient")
def test_a_proxy_that_forwards_nothing_is_given_up(scene: Scene) -> None:
    calls: list[Callable[[], object]] = [
        scene.store.read_changes,
        lambda: scene.store.write_plans(scene.epoch, [Plan("code:b", T0, T0, "key")], T0),
    ]
    for call in calls:
        scene.proxy.hang()
        with within(1 + SLACK_S), pytest.raises(Unavailable, match="no answer"):
            call()
        # The second call waits for a new connection.
        with within(1 + SLACK_S), pytest.raises(Unavailable, match="no answer"):
            scene.store.workers()
        scene.proxy.flow()
        list(scene.store.load())
    scene.claim()


@SERVERS
@pytest.mark.usefixtures("impatient")
def test_a_claim_without_an_answer_is_in_doubt_or_not_done(scene: Scene, kind: str) -> None:
    scene.store.workers()
    scene.proxy.hang()
    # PostgreSQL's is one message; of MariaDB's the first statement hangs, long before the COMMIT.
    expected = Doubt if kind == "postgresql" else Unavailable
    with within(1 + SLACK_S), pytest.raises(expected, match="no answer"):
        scene.claim()
    scene.proxy.flow()
    scene.store.workers()


@pytest.mark.slow
@SERVERS
def test_a_frozen_server_costs_ten_seconds_at_most(kind: str, request: pytest.FixtureRequest) -> None:
    server: PostgreSQL | MariaDB = request.getfixturevalue(f"own_{'postgres' if kind == 'postgresql' else kind}")()
    store = open_store(made(server.url))
    store.open()
    epoch = store.take_epoch("here:1", T0)
    server.freeze()
    for _ in range(2):
        with within(PROMISE_S + SLACK_S), pytest.raises(Unavailable, match="no answer"):
            store.workers()
    server.thaw()
    wait_for(lambda: _done(lambda: store.record_heartbeat(epoch, T0)), what="the thawed server")
    store.close()


def _done(call: Callable[[], object]) -> bool:
    try:
        call()
    except Unavailable:
        return False
    return True


@SERVERS
def test_a_signal_handler_shortens_the_call_in_progress(scene: Scene) -> None:
    _shortened(scene.store, scene.store.workers, scene.proxy)
    # The process ends: the server is not asked for another connection.
    with within(0.5 + SLACK_S / 4), pytest.raises(Unavailable, match="is ending"):
        scene.store.workers()


@SERVERS
def test_a_signal_handler_shortens_a_connection_in_the_making(scene: Scene) -> None:
    scene.store.close()
    _shortened(scene.store, scene.store.workers, scene.proxy)


def _shortened(store: SqlStore, call: Callable[[], object], proxy: SlowProxy) -> None:
    def handler(_number: int, _frame: FrameType | None) -> None:
        store.limit_waits(0.5)

    before = signal.signal(signal.SIGALRM, handler)
    try:
        proxy.hang()
        signal.setitimer(signal.ITIMER_REAL, 0.5)
        with within(1 + SLACK_S / 2), pytest.raises(Unavailable, match="no answer"):
            call()
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


@SERVERS
def test_a_limit_hurts_no_call_that_is_answered(scene: Scene) -> None:
    scene.store.limit_waits(5)
    scene.claim()
    scene.store.close()
    scene.beat()


@SERVERS
@pytest.mark.usefixtures("impatient")
def test_a_migration_may_take_as_long_as_it_takes(scene: Scene, kind: str) -> None:
    sleep = sa.text("SELECT pg_sleep(2.5)" if kind == "postgresql" else "SELECT SLEEP(2.5)")

    def slow(connection: sa.Connection) -> Any:
        return connection.execute(sleep).scalar_one()

    scene.store.link.migrate(slow)
    # A step of pruning has more time than other calls, too.
    scene.store.link.write(slow, wait_s=30)
    with pytest.raises(Unavailable):
        scene.store.link.write(slow)


@SERVERS
def test_the_watchdogs_thread_ends_with_the_connection(scene: Scene) -> None:
    def watchdogs() -> list[threading.Thread]:
        return [thread for thread in threading.enumerate() if thread.name == "celery_qbeat database watchdog"]

    scene.store.workers()
    with_ours = len(watchdogs())
    assert with_ours
    scene.store.close()
    wait_for(lambda: len(watchdogs()) < with_ours, what="one thread less")
    scene.store.workers()
    assert len(watchdogs()) >= with_ours


@SERVERS
def test_every_wait_of_a_slow_server_counts_for_itself(scene: Scene, impatient: None) -> None:
    """Twenty statements of 0.15 s each are longer than the limit of one."""
    scene.proxy.delay_s = 0.15
    scene.store.open()
    scene.store.record_heartbeat(scene.epoch, T0)


def test_a_signal_ends_the_wait_for_a_locked_sqlite_file(sqlite_url: str) -> None:
    """SQLite waits inside one call of C, where Python handles no signal: so it is asked to wait a second at a time."""
    store = open_store(made(sqlite_url))
    store.open()
    epoch = store.take_epoch("here:1", T0)

    def handler(_number: int, _frame: FrameType | None) -> None:
        store.limit_waits(0.5)

    before = signal.signal(signal.SIGALRM, handler)
    with store.link.engine.connect() as person:
        person.exec_driver_sql("BEGIN IMMEDIATE")
        signal.setitimer(signal.ITIMER_REAL, 0.2)
        with within(3.5), pytest.raises(Unavailable, match="locked"):
            store.record_heartbeat(epoch, T0)
        person.exec_driver_sql("ROLLBACK")
    signal.signal(signal.SIGALRM, before)
    store.record_heartbeat(epoch, T0)
    store.close()


def test_a_locked_sqlite_file_is_waited_for(sqlite_url: str) -> None:
    store = open_store(made(sqlite_url))
    store.open()
    epoch = store.take_epoch("here:1", T0)
    with store.link.engine.connect() as person:
        person.exec_driver_sql("BEGIN IMMEDIATE")
        freed = threading.Timer(1.5, lambda: person.exec_driver_sql("ROLLBACK"))
        freed.start()
        store.record_heartbeat(epoch, T0)
        freed.join()
    store.close()
