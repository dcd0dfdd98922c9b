"""What the gate in Redis promises beside what every gate does (`test_gates.py`)."""

from __future__ import annotations

import logging
import os
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from celery_qbeat.errors import SettingsError, Unavailable
from celery_qbeat.gates import RedisGate
from tests.contract.making_gates import BEATS, INSTANCE, LOCK, GateMaker, Stopwatch, held
from tests.servers import Redis, wait_for

# ---------------------------------------------------------------- two beats, one Redis


def test_only_one_of_two_beats_holds(redis_url: str, gate_at: GateMaker) -> None:
    first, second = gate_at(redis_url), gate_at(redis_url)
    term = held(first).term
    assert second.acquire_or_renew() is None
    assert held(first).term == term


def test_two_namespaces_share_one_redis(redis_url: str, gate_at: GateMaker) -> None:
    held(gate_at(redis_url))
    other = RedisGate(redis_url, "other", 3.0, 0.1, "here:2", clock=Stopwatch())
    other.bind(INSTANCE)
    held(other)
    other.release()


def test_after_a_release_the_other_holds_at_once(redis_url: str, gate_at: GateMaker) -> None:
    first, second = gate_at(redis_url), gate_at(redis_url)
    held(first)
    assert second.acquire_or_renew() is None
    first.release()
    held(second)


def test_a_lock_that_was_let_go_is_anybodys(redis_url: str, gate_at: GateMaker) -> None:
    first, second = gate_at(redis_url), gate_at(redis_url)
    term = held(first).term
    assert first.step_aside()
    assert held(first).term != term
    assert first.step_aside()
    held(second)
    assert first.acquire_or_renew() is None
    assert not first.step_aside()
    held(second)


def test_release_leaves_the_lock_of_another_alone(redis_url: str, gate_at: GateMaker) -> None:
    first, second = gate_at(redis_url), gate_at(redis_url)
    held(first)
    second.acquire_or_renew()
    second.release()
    third = gate_at(redis_url)
    assert third.acquire_or_renew() is None


def test_after_yielding_a_beat_waits_until_another_had_the_lock(redis_url: str, gate_at: GateMaker) -> None:
    first, second = gate_at(redis_url), gate_at(redis_url)
    held(first)
    first.resign_until_replaced()
    assert first.acquire_or_renew() is None
    held(second)
    assert first.acquire_or_renew() is None
    second.release()
    held(first)


def test_after_yielding_a_beat_that_stays_alone_holds_again_after_one_ttl(redis_url: str, gate_at: GateMaker) -> None:
    clock = Stopwatch()
    gate = gate_at(redis_url, clock=clock)
    term = held(gate).term
    gate.resign_until_replaced()
    clock.ahead += 2.5
    assert gate.acquire_or_renew() is None
    clock.ahead += 0.6
    assert held(gate).term != term


def test_trust_ends_a_margin_before_the_ttl_counted_from_the_start_of_the_call(
    redis_url: str, gate_at: GateMaker
) -> None:
    gate = gate_at(redis_url, ttl_s=3.0, margin_s=0.7)
    before = time.monotonic()
    lease = held(gate)
    assert before + 2.3 <= lease.trusted_until <= time.monotonic() + 2.3


def test_a_renewal_extends_trust_and_the_lock(redis_server: Redis, redis_url: str, gate_at: GateMaker) -> None:
    gate = gate_at(redis_url)
    first = held(gate)
    with redis_server.client() as client:
        client.pexpire(LOCK, 50)
        second = held(gate)
        assert second.trusted_until > first.trusted_until
        assert client.pttl(LOCK) > 2000


@pytest.mark.parametrize("loss", ["flushall", "delete", "script flush and delete"])
def test_a_lost_lock_that_the_same_beat_makes_again_is_a_new_term(
    redis_server: Redis, redis_url: str, gate_at: GateMaker, loss: str
) -> None:
    gate = gate_at(redis_url)
    term = held(gate).term
    with redis_server.client() as client:
        if loss == "flushall":
            client.flushall()
        else:
            if loss.startswith("script"):
                client.script_flush()
            client.delete(LOCK)
    assert held(gate).term not in ("", term)


def test_the_answer_that_never_came_cannot_hide_a_new_term(
    redis_server: Redis, redis_url: str, gate_at: GateMaker
) -> None:
    """The call that makes the lost key again times out after Redis did its part; the next call finds its own key."""
    gate = gate_at(redis_url)
    term = held(gate).term
    with redis_server.client() as client:
        client.flushall()
    gate._call(take=True)
    assert held(gate).term != term


def test_two_holders_by_a_deleted_key_end_with_one(redis_server: Redis, redis_url: str, gate_at: GateMaker) -> None:
    first, second = gate_at(redis_url), gate_at(redis_url)
    old = held(first)
    with redis_server.client() as client:
        client.delete(LOCK)
    new = held(second)
    assert old.term != new.term
    assert old.trusted_until > time.monotonic(), "both believe at this moment: the epoch's part"
    assert first.acquire_or_renew() is None
    assert held(second).term == new.term


def test_a_lock_key_of_another_type_pauses_and_does_not_raise(
    redis_server: Redis, redis_url: str, gate_at: GateMaker, caplog: pytest.LogCaptureFixture
) -> None:
    with redis_server.client() as client:
        client.rpush(LOCK, "what is this")
        gate = gate_at(redis_url)
        assert gate.acquire_or_renew() is None
        assert "jobs paused" in caplog.text
        client.delete(LOCK)
        wait_for(gate.acquire_or_renew)


# ---------------------------------------------------------------- status


def test_beats_lists_the_writer_first_and_the_standbys(redis_url: str, gate_at: GateMaker) -> None:
    standby, writer = gate_at(redis_url, "standby:2"), gate_at(redis_url, "writer:1")
    held(writer)
    assert standby.acquire_or_renew() is None
    beats = standby.beats()
    assert [(beat.holder, beat.writer) for beat in beats] == [("writer:1", True), ("standby:2", False)]
    assert all(0 <= beat.seen_s < 5 for beat in beats)
    assert all(abs(beat.since_us / 1e6 - time.time()) < 60 for beat in beats)


def test_the_holder_of_the_lock_is_named_with_the_time_it_has_left(redis_url: str, gate_at: GateMaker) -> None:
    writer, onlooker = gate_at(redis_url, "wörk:1"), gate_at(redis_url, "cli")
    assert onlooker.lock_holder() is None
    held(writer)
    holding = onlooker.lock_holder()
    assert holding is not None
    assert holding.holder == "wörk:1"
    assert 1 < holding.left_s <= 3
    assert [beat.holder for beat in onlooker.beats()] == ["wörk:1"], "looking is not announcing"


def test_a_beat_that_left_is_not_listed(redis_url: str, gate_at: GateMaker) -> None:
    first, second = gate_at(redis_url, "a"), gate_at(redis_url, "b")
    first.acquire_or_renew()
    second.acquire_or_renew()
    first.release()
    assert [beat.holder for beat in second.beats()] == ["b"]


@pytest.mark.real_clock("Redis compares the times with its own")
def test_a_beat_that_died_is_forgotten_after_a_while(redis_server: Redis, redis_url: str, gate_at: GateMaker) -> None:
    gate = gate_at(redis_url, "alive")
    with redis_server.client() as client:
        client.zadd(BEATS, {'["x", "dead long ago", 1]': time.time() * 1000 - 61_000})
        client.zadd(BEATS, {'["y", "dead lately", 1]': time.time() * 1000 - 30_000})
        gate.acquire_or_renew()
        assert {beat.holder for beat in gate.beats()} == {"alive", "dead lately"}
        assert 0 < client.pttl(BEATS) <= 60_000


# ---------------------------------------------------------------- Redis goes away


def test_while_redis_is_away_the_old_lease_counts_until_its_trust_ends(
    own_redis: Callable[..., Redis], gate_at: GateMaker, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    server, clock = own_redis(), Stopwatch()
    gate = gate_at(server.url, clock=clock)
    lease = held(gate)
    server.stop()
    assert held(gate) == lease
    assert caplog.text == ""
    clock.ahead += 3
    assert gate.acquire_or_renew() is None
    clock.ahead += 3
    assert gate.acquire_or_renew() is None
    server.start()
    wait_for(lambda: gate.acquire_or_renew() is not None)
    assert held(gate).term != lease.term, "a restart without data lost the lock"
    lines = [record.getMessage().partition(" (")[0] for record in caplog.records]
    assert lines == ["gate: Redis is away: jobs paused", "gate: Redis is back"]


def test_a_redis_that_is_not_there_at_the_start_is_waited_for(
    own_redis: Callable[..., Redis], gate_at: GateMaker
) -> None:
    server = own_redis()
    server.stop()
    gate = gate_at(server.url)
    assert gate.acquire_or_renew() is None
    with pytest.raises(Unavailable, match="Redis is away"):
        gate.beats()
    server.start()
    wait_for(gate.acquire_or_renew)


def test_a_redis_that_hangs_does_not_hang_the_tick(own_redis: Callable[..., Redis], gate_at: GateMaker) -> None:
    server = own_redis()
    gate, other = gate_at(server.url), gate_at(server.url)
    lease = held(gate)
    server.freeze()
    started = time.monotonic()
    assert held(gate) == lease
    assert held(gate) == lease, "not asked again at once"
    assert other.acquire_or_renew() is None, "a first connection hangs no longer"
    assert time.monotonic() - started < 30
    wait_for(lambda: gate.acquire_or_renew() is None)
    assert time.monotonic() >= lease.trusted_until
    server.thaw()
    wait_for(lambda: gate.acquire_or_renew() or other.acquire_or_renew())


def test_a_release_into_a_hanging_redis_returns(own_redis: Callable[..., Redis], gate_at: GateMaker) -> None:
    server = own_redis()
    gate = gate_at(server.url)
    held(gate)
    server.freeze()
    started = time.monotonic()
    gate.release()
    assert time.monotonic() - started < 30
    server.thaw()


def test_a_lock_that_yielding_could_not_give_back_is_given_back_later(
    own_redis: Callable[..., Redis], gate_at: GateMaker
) -> None:
    server = own_redis()
    gate, other = gate_at(server.url, ttl_s=60), gate_at(server.url, ttl_s=60)
    held(gate)
    server.freeze()
    gate.resign_until_replaced()
    server.thaw()
    assert gate.acquire_or_renew() is None
    held(other)


def test_after_sigkill_of_the_holder_another_holds_within_ttl_and_poll(redis_url: str, gate_at: GateMaker) -> None:
    holder = textwrap.dedent(
        f"""
        import time
        from celery_qbeat.gates import RedisGate
        from tests.contract.making_gates import Stopwatch
        gate = RedisGate({redis_url!r}, "test", 2.0, 0.1, "victim", clock=Stopwatch())
        gate.bind({INSTANCE!r})
        while True:
            if gate.acquire_or_renew():
                print("held", flush=True)
            time.sleep(0.1)
        """
    )
    root = Path(__file__).parents[2]
    with subprocess.Popen([sys.executable, "-c", holder], stdout=subprocess.PIPE, cwd=root) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"held\n"
        gate = gate_at(redis_url, ttl_s=2.0)
        assert gate.acquire_or_renew() is None
        os.kill(process.pid, signal.SIGKILL)
        wait_for(gate.acquire_or_renew, every=0.1)


@pytest.mark.parametrize(
    ("ttl_s", "poll_s", "way"),
    [
        (2.0, 1.0, "a lock of 3 s or longer or polls of 0.666667 s or shorter"),
        (1.9, 0.1, "a lock of 2 s or longer$"),
        (10, 60, "a lock of 180 s or longer or polls of 3.33333 s or shorter"),
    ],
)
def test_a_ttl_that_the_polls_cannot_keep_is_refused_with_numbers_that_work(
    ttl_s: float, poll_s: float, way: str
) -> None:
    with pytest.raises(SettingsError, match=f"qbeat_lock_ttl: {ttl_s:g} s is too short .*{way}"):
        RedisGate("redis://", "test", ttl_s, poll_s, "here", clock=Stopwatch())
