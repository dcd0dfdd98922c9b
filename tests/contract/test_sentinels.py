"""A list of sentinels of which the first does not answer: it costs a moment once, not seconds at each connection."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from redis.sentinel import MasterNotFoundError, Sentinel

from celery_qbeat.dispatchers import CeleryCompletions, CeleryDispatcher
from celery_qbeat.dispatchers.celery.broker import connect
from tests.contract.making_gates import GateMaker
from tests.contract.making_runs import INSTANCE, fates, make_app, row, runs_of, yes
from tests.contract.making_sentinels import SentinelServer
from tests.servers import Redis, wait_for

A_MOMENT_S = 6.0
"""Without bounds a dead sentinel took 8 s, and a frozen one 50 s."""


@pytest.fixture(params=["dead", "frozen"])
def sentinels(request: pytest.FixtureRequest, own_redis: Callable[..., Redis]) -> Iterator[str]:
    """The URL of two sentinels, the first of which is dead or frozen."""
    master = own_redis()
    with ExitStack() as stack:
        first, second = (stack.enter_context(SentinelServer(master).start()) for _ in range(2))
        manager = Sentinel([("127.0.0.1", second.port)], socket_timeout=1)

        def known() -> bool:
            try:
                return bool(manager.discover_master("qmaster"))
            except MasterNotFoundError:
                return False

        wait_for(known, 30, what="the second sentinel knows the master")
        if request.param == "dead":
            first.kill()
        else:
            first.freeze()
            stack.callback(first.thaw)
        yield f"sentinel://127.0.0.1:{first.port};sentinel://127.0.0.1:{second.port}"


def test_the_lock_is_held_after_a_moment(sentinels: str) -> None:
    with GateMaker() as make:
        started = time.monotonic()
        gate = make(f"{sentinels}/0?master_name=qmaster", ttl_s=10)
        assert gate.acquire_or_renew() is not None
        assert time.monotonic() - started < A_MOMENT_S


def test_runs_are_sent_and_ends_are_read_after_a_moment(sentinels: str, tmp_path: Path) -> None:
    app = make_app(sentinels, tmp_path, broker_transport_options={"master_name": "qmaster"})
    dispatcher = CeleryDispatcher(app, namespace="test", instance=lambda: INSTANCE)
    completions = CeleryCompletions(app, namespace="test", instance=lambda: INSTANCE)
    started = time.monotonic()
    assert fates(dispatcher.send(runs_of(row(), 1), yes)) == ["sent"]
    assert completions.receive(0.2) == []
    assert time.monotonic() - started < A_MOMENT_S
    dispatcher.close()
    completions.close()


def test_what_the_app_says_of_sentinels_stays(tmp_path: Path) -> None:
    options = {"master_name": "m", "sentinel_kwargs": {"password": "secret", "socket_timeout": 0.1}}
    app = make_app("sentinel://h:1", tmp_path, broker_transport_options=options)
    bounded = connect(app.connection_for_write).transport_options["sentinel_kwargs"]
    assert bounded["password"] == "secret"
    assert bounded["socket_timeout"] == 0.1
    assert bounded["socket_connect_timeout"] == 0.5
    assert options["sentinel_kwargs"] == {"password": "secret", "socket_timeout": 0.1}
