"""What else may be in the lock's Redis: values that no beat wrote, other databases, beats of an older version."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest

from celery_qbeat.core.identity import database_id
from celery_qbeat.errors import Unavailable
from celery_qbeat.gates import RedisGate
from celery_qbeat.gates import beat_registry as beat_list_module
from tests.contract.making_gates import BEATS, INSTANCE, LOCK, OTHER, GateMaker, Stopwatch, held, hold_often, said
from tests.servers import Redis

# ---------------------------------------------------------------- junk


JUNK = [b"\xff\xfe junk", b"somebody:1", b"x", b"", b"0" * 70_000]


def put_junk(client: Any, value: bytes | None, px: int | None = None) -> None:
    """Junk in the lock's key; None: a key of another type."""
    if value is None:
        client.delete(LOCK)
        client.rpush(LOCK, "what is this")
    else:
        client.set(LOCK, value)
    if px is not None:
        client.pexpire(LOCK, px)


@pytest.mark.parametrize("value", [*JUNK, None])
def test_junk_with_a_ttl_is_waited_for_and_named_again_with_the_remedy(
    redis_server: Redis, redis_url: str, gate_at: GateMaker, caplog: pytest.LogCaptureFixture, value: bytes | None
) -> None:
    clock = Stopwatch()
    gate = gate_at(redis_url, clock=clock)
    with redis_server.client() as client:
        put_junk(client, value, px=3_600_000)
        assert hold_often(gate) == [None] * 3
        assert gate.reason() == "somebody unknown holds the lock"
        holding = gate.lock_holder()
        assert holding is not None
        assert holding.holder == ""
        assert gate.beats()
        clock.ahead += 599
        assert hold_often(gate) == [None] * 3
        assert len(said(caplog, keep=True)) == 1
        clock.ahead += 2
        assert hold_often(gate) == [None] * 3
        client.delete(LOCK)
    held(gate)
    first, again = said(caplog)
    for line in (first, again):
        assert line.startswith(f"gate: the lock {LOCK} is held by somebody unknown for 3")
        assert line.endswith(f" s more: jobs paused until it ends. To end it now: redis-cli DEL '{LOCK}'")


@pytest.mark.parametrize("value", [*JUNK, None])
def test_junk_without_a_ttl_that_does_not_change_is_taken_over(
    redis_server: Redis, redis_url: str, gate_at: GateMaker, caplog: pytest.LogCaptureFixture, value: bytes | None
) -> None:
    clock = Stopwatch()
    gate = gate_at(redis_url, clock=clock)
    with redis_server.client() as client:
        put_junk(client, value)
        assert hold_often(gate) == [None] * 3
        clock.ahead += 59
        assert gate.acquire_or_renew() is None
        clock.ahead += 2
        held(gate)
        assert 0 < client.pttl(LOCK) <= 3_000
    assert hold_often(gate)
    told, taken = said(caplog)
    assert told.startswith(f"gate: the lock {LOCK} is held by somebody unknown and has no TTL: jobs paused until")
    assert taken == f"gate: the lock {LOCK} had no TTL and did not change for 60 s: taken over"


def test_junk_that_changes_is_not_taken_over(redis_server: Redis, redis_url: str, gate_at: GateMaker) -> None:
    clock = Stopwatch()
    gate = gate_at(redis_url, ttl_s=30.0, clock=clock)
    with redis_server.client() as client:
        for number in range(4):
            client.set(LOCK, f"somebody {number}")
            assert gate.acquire_or_renew() is None
            clock.ahead += 61
        assert gate.acquire_or_renew() is None
        clock.ahead += 25
        client.set(LOCK, "another one, since the last look")
        assert gate.acquire_or_renew() is None
        clock.ahead += 89
        assert gate.acquire_or_renew() is None
        clock.ahead += 2
        held(gate)


def test_a_lock_of_a_living_beat_is_not_taken_over_though_its_ttl_was_removed(
    redis_server: Redis, redis_url: str, gate_at: GateMaker, caplog: pytest.LogCaptureFixture
) -> None:
    clock = Stopwatch()
    writer, other = gate_at(redis_url), gate_at(redis_url, clock=clock)
    held(writer)
    with redis_server.client() as client:
        for _ in range(5):
            client.persist(LOCK)
            assert hold_often(other) == [None] * 3
            holding = other.lock_holder()
            assert holding is not None
            assert holding.left_s is None
            held(writer)
            assert client.pttl(LOCK) > 0, "its holder gives it an end again"
            assert other.acquire_or_renew() is None
            clock.ahead += 61
    assert {line.partition(": jobs paused")[0] for line in said(caplog)} == {
        f"gate: the lock {LOCK} is held by a beat and has no TTL"
    }


def test_a_lock_of_a_dead_beat_without_a_ttl_is_taken_over(
    redis_server: Redis, redis_url: str, gate_at: GateMaker
) -> None:
    clock = Stopwatch()
    dead, other = gate_at(redis_url), gate_at(redis_url, clock=clock)
    held(dead)
    with redis_server.client() as client:
        client.persist(LOCK)
    assert other.acquire_or_renew() is None
    clock.ahead += 61
    held(other)
    assert dead.acquire_or_renew() is None


def test_junk_does_not_cost_its_size_at_every_poll(redis_server: Redis, redis_url: str, gate_at: GateMaker) -> None:
    gate = gate_at(redis_url)
    with redis_server.client() as client:
        client.set(LOCK, b"0" * 20_000_000, px=60_000)
        before = int(client.info("stats")["total_net_output_bytes"])
        hold_often(gate)
        assert gate.lock_holder()
        assert int(client.info("stats")["total_net_output_bytes"]) - before < 1_000_000


def test_a_list_of_beats_that_is_no_list_is_named_with_the_remedy(
    redis_server: Redis, redis_url: str, gate_at: GateMaker
) -> None:
    gate = gate_at(redis_url)
    with redis_server.client() as client:
        client.set(BEATS, "x")
        with pytest.raises(Unavailable, match=f"redis-cli DEL '{re.escape(BEATS)}'"):
            gate.beats()
        held(gate)
        holding = gate.lock_holder()
    assert holding is not None
    assert holding.left_s


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
    holding = gate.lock_holder()
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
    assert r"database x\ny (beat host\x1b[2J)" in line
    assert {beat.holder for beat in gate.beats()} == {"alive", r"a\nb"}


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


def test_two_databases_share_one_redis_and_one_namespace(redis_url: str, gate_at: GateMaker) -> None:
    ours, theirs = gate_at(redis_url), gate_at(redis_url, instance=OTHER)
    held(ours)
    held(theirs)
    theirs.release()
    held(ours)


def test_binding_to_another_database_gives_the_old_lock_back(redis_url: str, gate_at: GateMaker) -> None:
    first, second = gate_at(redis_url), gate_at(redis_url)
    held(first)
    assert second.acquire_or_renew() is None
    first.bind(OTHER)
    held(second)
    held(first)
    assert [beat.holder for beat in second.beats()] == ["here:1"]


def test_no_key_shows_what_makes_the_tokens_of_runs(redis_server: Redis, redis_url: str, gate_at: GateMaker) -> None:
    held(gate_at(redis_url))
    with redis_server.client() as client:
        stored = repr([(key, client.dump(key)) for key in client.scan_iter()])
    assert INSTANCE not in stored
    assert INSTANCE.replace("-", "") not in stored
