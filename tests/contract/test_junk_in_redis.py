"""What `status` and the admin's status page make of junk in the keys of the lock and of the beats."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

from celery_qbeat.gates import lock_key
from tests.servers import Redis
from tests.unit.making_cli import Cli, migrated


def strings(client: Any, lock: str, beats: str) -> None:
    client.set(lock, b"\xff\xfe")
    client.zadd(beats, dict.fromkeys([b"\xff", b'["a", "\\ud800\\n", 1]', b"[" * 3_000, b"9" * 5_000], float("inf")))
    client.zadd(beats, {b'["b", "x", 7]': float("-inf")})


def lists(client: Any, lock: str, beats: str) -> None:
    client.rpush(lock, "x")
    client.rpush(beats, "x")


def sets(client: Any, lock: str, beats: str) -> None:
    client.sadd(lock, "x")
    client.hset(beats, "x", "y")


@pytest.mark.parametrize("put", [strings, lists, sets])
def test_junk_ends_in_words_and_in_no_traceback(
    redis_server: Redis, redis_url: str, sqlite_url: str, put: Callable[[Any, str, str], None]
) -> None:
    migrated(sqlite_url)
    cli = Cli(sqlite_url, broker_url="memory://", qbeat_redis_url=redis_url)
    key = lock_key("default", cli.instance)
    with redis_server.client() as client:
        put(client, key, key.removesuffix("lock") + "beats")
        for command in (("status",), ("status", "--json"), ("check",), ("check", "--json")):
            result = cli.run(*command)
            assert result.exception is None or isinstance(result.exception, SystemExit), command
        text = "".join(cli.run("status").stdout.split())
        json.loads(cli.run("status", "--json").stdout, parse_constant=pytest.fail)
    if put is strings:
        assert "avaluethatnobeatwroteholdsit,withoutanend:deletethekey" in text
    else:
        assert f"redis-cliDEL'{key.removesuffix('lock')}beats'" in text
