"""How often a call waits for the server. A database that is far away dispatches steadily as long as these stay few."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack

import pytest

from celery_qbeat.core.jobs import Verdict
from celery_qbeat.ports import Claim, Plan, RunOutcome
from celery_qbeat.stores import open_store
from tests.contract.store_rigs import SECOND, T0, SqlRig, emptied
from tests.servers import SlowProxy


class Counted:
    """A store behind a proxy that counts."""

    def __init__(self, url: str, stack: ExitStack) -> None:
        port = int(url.rpartition(":")[2].partition("/")[0])
        self.proxy = stack.enter_context(SlowProxy(port))
        self.store = open_store(url.replace(f":{port}/", f":{self.proxy.port}/"))
        stack.callback(self.store.close)

    def trips(self, call: Callable[[], object]) -> int:
        before = self.proxy.round_trips
        call()
        return self.proxy.round_trips - before


@pytest.fixture
def counted(request: pytest.FixtureRequest) -> Iterator[Counted]:
    with ExitStack() as stack:
        yield Counted(emptied(request.getfixturevalue(request.param)), stack)


POSTGRESQL = pytest.mark.parametrize("counted", ["postgres_home"], indirect=True)
MARIADB = pytest.mark.parametrize("counted", ["mariadb_home"], indirect=True)


def spent(counted: Counted) -> dict[str, int]:
    """Round trips by what a beat does."""
    store, trips = counted.store, counted.trips
    found = {"start": trips(store.open)}
    epochs: list[int] = []
    found["take_epoch"] = trips(lambda: epochs.append(store.take_epoch("here:1", T0)))
    epoch = epochs[0]
    store.write_plans(epoch, [Plan("code:a", T0, T0, "key")], T0)
    list(store.load())
    found["idle tick"] = trips(store.read_changes) + trips(lambda: store.record_heartbeat(epoch, T0))
    run = SqlRig.run(counted, "code:a")  # type: ignore[arg-type]
    claims = [Claim("code:a", None, T0, T0 + SECOND, (run,))]
    found["claim"] = trips(lambda: store.claim(epoch, epoch << 20, claims, T0))
    found["sent"] = trips(lambda: store.mark_sent(epoch, epoch << 20, [run.task_id], T0, closes=True))
    found["conclude"] = trips(lambda: store.record_outcomes(epoch, [RunOutcome(run.task_id, Verdict.SUCCEEDED)], T0))
    found["requests"] = trips(store.pending_requests)
    store.close()
    found["reconnect"] = trips(store.workers)
    return found


def within(found: dict[str, int], limits: dict[str, int]) -> bool:
    return found.keys() == limits.keys() and all(found[what] <= most for what, most in limits.items())


@POSTGRESQL
def test_round_trips_to_postgresql_are_few(counted: Counted) -> None:
    assert within(
        spent(counted),
        {
            "start": 17,
            "take_epoch": 5,
            "idle tick": 2,
            "claim": 1,
            "sent": 1,
            "conclude": 7,
            "requests": 1,
            "reconnect": 4,
        },
    )


@MARIADB
def test_round_trips_to_mariadb_are_few(counted: Counted) -> None:
    limits = {"start": 22, "take_epoch": 5, "idle tick": 2, "claim": 9, "sent": 7, "conclude": 7, "requests": 1}
    assert within(spent(counted), limits | {"reconnect": 7})


@POSTGRESQL
def test_a_connection_in_use_is_not_asked_whether_it_lives(counted: Counted) -> None:
    """Only one that was idle for long, or on which something arrived."""
    counted.store.open()
    epoch = counted.store.take_epoch("here:1", T0)
    for _ in range(3):
        assert counted.trips(lambda: counted.store.record_heartbeat(epoch, T0)) == 1
