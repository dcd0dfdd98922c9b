"""What `check` and `status` say of the lock in Redis and of the beats beside it."""

from __future__ import annotations

import pytest
from redis import Redis

from celery_qbeat.core.liveness import Role, role_of
from celery_qbeat.gates import RedisGate, lock_key
from celery_qbeat.process.clock import SystemClock
from tests.unit.making_cli import Cli, migrated


@pytest.fixture
def cli(sqlite_url: str, redis_url: str) -> Cli:
    """Tables with a beat that lives, and a lock in Redis that nobody holds."""
    migrated(sqlite_url)
    made = Cli(sqlite_url, qbeat_redis_url=redis_url)
    made.beat_seen(holder="elsewhere:1")
    return made


def gate(cli: Cli, holder: str) -> RedisGate:
    made = RedisGate(cli.app.conf.qbeat_redis_url, "default", 10, 1, holder, clock=SystemClock())
    made.bind(cli.instance)
    return made


def set_lock(cli: Cli, redis_url: str, value: str, *, ttl_ms: int | None) -> str:
    key = lock_key("default", cli.instance)
    with Redis.from_url(redis_url) as client:
        client.set(key, value, px=ttl_ms)
    return key


@pytest.mark.parametrize(
    ("value", "ttl_ms", "said"),
    [
        ("f" * 32 + ":1", None, "holds it, without an end: no beat made this lock, delete the key"),
        ("junk", 60_000, "a value that no beat wrote holds it, for"),
        ("junk", None, "a value that no beat wrote holds it, without an end: delete the key"),
    ],
)
def test_a_lock_that_no_beat_made_is_told(cli: Cli, redis_url: str, value: str, ttl_ms: int | None, said: str) -> None:
    key = set_lock(cli, redis_url, value, ttl_ms=ttl_ms)
    for command in ("check", "status"):
        result = cli.run(command)
        assert result.exit_code == 1
        assert said in result.stdout.replace("\n", " ").replace("  ", "")
        assert cli.json(command, code=1)["lock_trouble"].endswith(key)


def test_a_lock_that_a_beat_holds_is_well(cli: Cli) -> None:
    writer = gate(cli, "elsewhere:1")
    assert writer.acquire_or_renew() is not None
    for command in ("check", "status"):
        assert cli.json(command)["lock_trouble"] == ""
    writer.release()
    assert cli.json("check")["lock"] is None


def test_check_ends_with_1_when_the_redis_of_the_lock_is_away(cli: Cli) -> None:
    cli.app.conf.qbeat_redis_url = "redis://127.0.0.1:1/0"
    assert "Redis is away" in cli.json("check", code=1)["redis_away"]
    assert "lock: gate: Redis is away" in cli.run("check").stdout


def test_a_killed_writer_is_no_standby(cli: Cli, redis_url: str) -> None:
    writer, standby = gate(cli, "elsewhere:1"), gate(cli, "elsewhere:2")
    assert writer.acquire_or_renew() is not None
    assert standby.acquire_or_renew() is None
    roles = {beat["holder"]: beat["role"] for beat in cli.json("status")["beats"]}
    assert roles == {"elsewhere:1": "writer", "elsewhere:2": "standby"}
    with Redis.from_url(redis_url) as client:
        # As it ends by itself some time after the writer was killed.
        client.delete(lock_key("default", cli.instance))
    roles = {beat["holder"]: beat["role"] for beat in cli.json("status")["beats"]}
    assert roles == {"elsewhere:1": "silent", "elsewhere:2": "standby"}
    assert "it was killed, or is cut off" in cli.ok("status").replace("\n", " ")
    for one in (writer, standby):
        one.release()


def test_a_beat_that_is_silent_for_long_is_no_standby() -> None:
    assert role_of(False, 14.9, was_writer=False) is Role.STANDBY
    assert role_of(False, 15.1, was_writer=False) is Role.SILENT
    assert role_of(True, 15.1, was_writer=False) is Role.WRITER
