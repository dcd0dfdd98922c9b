"""`status` and `check` say that the broker takes no messages."""

from __future__ import annotations

import socket
import time
from collections.abc import Callable
from contextlib import ExitStack
from typing import Any

import pytest
from click.testing import CliRunner

from celery_qbeat.cli import main
from tests.servers import RabbitMQ, Redis
from tests.servers.ports import free_port
from tests.unit.making_cli import Cli, migrated

pytestmark = pytest.mark.chaos

Broker = Redis | RabbitMQ

COMMANDS = ("status", "check")

PROCESS_S = 30
"""Seconds in which both commands end on a busy machine; without a bound they would wait for minutes."""


@pytest.fixture(params=["redis", "rabbitmq"])
def broker(request: pytest.FixtureRequest) -> Broker:
    fixture = {"redis": "own_redis", "rabbitmq": "own_rabbitmq"}[request.param]
    make: Callable[[], Broker] = request.getfixturevalue(fixture)
    return make()


@pytest.fixture
def cli(sqlite_url: str) -> Cli:
    migrated(sqlite_url)
    return Cli(sqlite_url)


def told(cli: Cli, code: int) -> list[Any]:
    """What both commands say of the broker; they must end with `code`, and within a bounded time."""
    started = time.monotonic()
    found = [cli.json(command, code=code)["broker"] for command in COMMANDS]
    assert time.monotonic() - started < PROCESS_S
    return found


def test_commands_say_whether_a_broker_answers(cli: Cli, broker: Broker) -> None:
    cli.app.conf.broker_url = broker.url
    cli.beat_seen()
    assert [answer["ok"] for answer in told(cli, 0)] == [True, True]
    broker.freeze()
    assert [answer["ok"] for answer in told(cli, 1)] == [False, False]
    broker.thaw()
    broker.kill()
    assert [answer["ok"] for answer in told(cli, 1)] == [False, False]


@pytest.mark.parametrize("url", ["redis://:hidden@127.0.0.1:{}/0", "amqp://me:hidden@127.0.0.1:{}//"])
@pytest.mark.parametrize("command", COMMANDS)
def test_a_dead_port_is_told_without_the_password(cli: Cli, url: str, command: str) -> None:
    cli.app.conf.broker_url = url.format(free_port())
    cli.beat_seen()
    result = cli.run(command)
    assert result.exit_code == 1
    assert "takes no messages" in flat(result.stdout)
    assert "hidden" not in result.output


def test_a_failover_list_of_hung_brokers_costs_three_seconds(cli: Cli) -> None:
    with ExitStack() as stack:
        # They listen, so the kernel accepts the connection, and nobody answers.
        hung = [stack.enter_context(socket.create_server(("127.0.0.1", 0))) for _ in range(4)]
        cli.app.conf.broker_url = ";".join(f"amqp://127.0.0.1:{each.getsockname()[1]}//" for each in hung)
        assert cli.json("status", code=1)["broker"]["trouble"] == "no answer within 3 s"


def test_a_broker_that_refuses_messages_is_told(cli: Cli, own_redis: Callable[..., Redis]) -> None:
    server = own_redis("--maxmemory", "1", "--maxmemory-policy", "noeviction")
    cli.app.conf.broker_url = server.url
    cli.beat_seen()
    assert "OutOfMemory" in str(cli.json("check", code=1)["broker"]["trouble"])


def test_an_unknown_transport_is_one_sentence(cli: Cli) -> None:
    cli.app.conf.broker_url = "pigeon://coop"
    assert "No such transport: pigeon" in flat(cli.run("status").stdout)


def test_without_an_app_the_broker_is_not_asked(cli: Cli) -> None:
    result = CliRunner().invoke(main, ["--database-url", cli.url, "status"])
    assert result.exit_code == 0
    assert "not asked: name the Celery app" in flat(result.stdout)


def flat(text: str) -> str:
    return " ".join(text.split())
