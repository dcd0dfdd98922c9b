"""The test servers themselves: what other tests rely on when they freeze, kill and restart one."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import amqp
import psutil
import psycopg
import pytest
import redis
import sqlalchemy

from tests.servers import MariaDB, PostgreSQL, RabbitMQ, Redis, Server, ServerBroken, wait_for
from tests.servers import postgresql as postgresql_module
from tests.servers import redis as redis_module
from tests.servers.tree import has_ended


def remember(server: Server) -> None:
    """Store something that must survive a crash."""
    if isinstance(server, Redis):
        with server.client() as client:
            client.set("kept", "yes")
    elif isinstance(server, RabbitMQ):
        with server.connect() as connection:
            channel = connection.channel()
            channel.queue_declare("kept", durable=True, auto_delete=False)
            channel.basic_publish_confirm(amqp.Message("yes", delivery_mode=2), routing_key="kept")
        # The message is on disk, its queue not before the log of the server's own tables is written.
        logs = {".LOG", ".DCD", ".DCL"}
        wait_for(
            lambda: any(b"kept" in file.read_bytes() for file in server.folder.rglob("*") if file.suffix in logs),
            what="the queue is on disk",
        )
    else:
        run_sql(server, "CREATE TABLE kept (answer varchar(9))", "INSERT INTO kept VALUES ('yes')")


def recall(server: Server) -> str:
    """What `remember` stored."""
    if isinstance(server, Redis):
        with server.client() as client:
            answer = client.get("kept")
        return answer.decode() if isinstance(answer, bytes) else ""
    if isinstance(server, RabbitMQ):
        with server.connect() as connection:
            message = connection.channel().basic_get("kept", no_ack=True)
        return str(message.body) if message else ""
    return str(run_sql(server, "SELECT answer FROM kept"))


def run_sql(server: Server, *statements: str) -> Any:
    engine = sqlalchemy.create_engine(server.url, poolclass=sqlalchemy.NullPool)
    with engine.begin() as connection:
        for statement in statements:
            result = connection.execute(sqlalchemy.text(statement))
        return result.scalar() if result.returns_rows else None


@pytest.fixture(params=["redis", "postgresql", "mariadb", pytest.param("rabbitmq", marks=pytest.mark.slow)])
def own_server(request: pytest.FixtureRequest) -> Server:
    """One server of each kind in turn, the test's own."""
    if request.param == "redis":
        server: Server = request.getfixturevalue("own_redis")(persist=True)
        return server
    fixture = {"postgresql": "own_postgres", "mariadb": "own_mariadb", "rabbitmq": "own_rabbitmq"}[request.param]
    factory: Callable[[], Server] = request.getfixturevalue(fixture)
    return factory()


def test_a_server_freezes_thaws_crashes_comes_back_with_its_data_and_leaves_nothing_behind(
    own_server: Server,
) -> None:
    remember(own_server)
    port = own_server.port

    own_server.freeze()
    assert own_server.running
    assert not own_server.alive()
    own_server.thaw()
    wait_for(own_server.alive, what="the thawed server answers")

    own_server.kill()
    assert not own_server.running
    assert not own_server.alive()
    own_server.start()
    assert own_server.port == port
    assert own_server.alive()

    assert recall(own_server) == "yes"

    tree = [psutil.Process(own_server.pid), *psutil.Process(own_server.pid).children(recursive=True)]
    own_server.freeze()
    own_server.close()
    assert [process for process in tree if not has_ended(process)] == []
    assert not own_server.folder.exists()


@pytest.mark.parametrize("fixture", ["redis_server", "postgres_server", "mariadb_server", "rabbitmq_server"])
def test_a_server_listens_on_the_loopback_address_only_and_not_on_its_default_port(
    fixture: str, request: pytest.FixtureRequest
) -> None:
    server: Server = request.getfixturevalue(fixture)
    processes = [psutil.Process(server.pid), *psutil.Process(server.pid).children(recursive=True)]
    listening = []
    for process in processes:
        with suppress(psutil.NoSuchProcess):  # PostgreSQL's helpers come and go
            sockets = process.net_connections("inet")
            listening += [socket.laddr for socket in sockets if socket.status == psutil.CONN_LISTEN]
    assert server.port in {address.port for address in listening}
    assert {address.ip for address in listening} == {"127.0.0.1"}
    assert {address.port for address in listening}.isdisjoint({6379, 5432, 3306, 5672, 4369, 25672})


def test_a_server_that_was_stopped_politely_keeps_its_data(own_postgres: Callable[..., PostgreSQL]) -> None:
    server = own_postgres()
    remember(server)
    server.restart()
    assert recall(server) == "yes"
    assert "database system is shut down" in server.log.read_text()


def test_a_redis_without_persistence_forgets_at_a_crash(own_redis: Callable[..., Redis]) -> None:
    server = own_redis()
    remember(server)
    server.kill()
    server.start()
    assert recall(server) == ""


def test_a_redis_answers_on_its_unix_socket(redis_server: Redis) -> None:
    with redis.Redis(unix_socket_path=str(redis_server.socket)) as client:
        assert client.ping()


def test_the_redis_of_the_wheel_serves_when_the_machine_has_none() -> None:
    binary = redis_module.binary_in_wheel()
    assert binary is not None, "the extra `test` brings redis-server"
    with Redis(binary=binary).start() as server, server.client() as client:
        version = tuple(int(part) for part in client.info("server")["redis_version"].split("."))
    assert version >= (6, 2)


def test_the_postgresql_of_the_wheel_serves_when_the_machine_has_none() -> None:
    binaries = postgresql_module.binaries_in_wheel()
    assert binaries is not None, "the extra `test` brings PostgreSQL"
    with PostgreSQL(binaries=binaries).start() as server:
        remember(server)
        assert recall(server) == "yes"


def test_each_test_gets_an_empty_database(database_url: str) -> None:
    engine = sqlalchemy.create_engine(database_url, poolclass=sqlalchemy.NullPool)
    with engine.begin() as connection:
        connection.execute(sqlalchemy.text("CREATE TABLE once_only (n int)"))
        connection.execute(sqlalchemy.text("INSERT INTO once_only VALUES (1)"))
    assert sqlalchemy.inspect(engine).get_table_names() == ["once_only"]


def test_a_database_is_dropped_even_when_a_transaction_is_still_open_in_it(
    postgres_server: PostgreSQL, mariadb_server: MariaDB
) -> None:
    for server in (postgres_server, mariadb_server):
        name = server.create_database()
        engine = sqlalchemy.create_engine(server.url_of(name))
        with engine.connect() as left_open:
            left_open.execute(sqlalchemy.text("CREATE TABLE t (n int)"))
            left_open.execute(sqlalchemy.text("INSERT INTO t VALUES (1)"))
            server.drop_database(name)
            left_open.invalidate()
        engine.dispose()


def test_the_ordinary_mariadb_user_has_no_super_right(mariadb_server: MariaDB) -> None:
    with mariadb_server.connect(user="qbeat") as connection, connection.cursor() as cursor:
        cursor.execute("SHOW GRANTS")
        grants = "".join(row[0] for row in cursor.fetchall())
    assert "TRIGGER" in grants
    assert "SUPER" not in grants


def test_mariadb_writes_a_row_based_binary_log(mariadb_server: MariaDB) -> None:
    with mariadb_server.connect() as connection, connection.cursor() as cursor:
        cursor.execute("SELECT @@log_bin, @@binlog_format")
        assert cursor.fetchone() == (1, "ROW")


def test_every_rabbitmq_test_gets_an_empty_virtual_host(rabbitmq_server: RabbitMQ) -> None:
    with rabbitmq_server.virtual_host() as first, rabbitmq_server.virtual_host() as second:
        assert first != second


def test_a_server_that_cannot_start_says_why() -> None:
    with Redis("--maxmemory", "many") as server, pytest.raises(ServerBroken, match="maxmemory"):
        server.start()


def test_waiting_returns_the_value_or_names_what_it_waited_for() -> None:
    answers = iter([0, 0, 7])
    assert wait_for(lambda: next(answers), every=0.001) == 7
    with pytest.raises(AssertionError, match=r"three rows: not within 0\.05 s; the last value was \[\]"):
        wait_for(list, deadline=0.05, every=0.01, what="three rows")


CRASH = """
import os, signal, sys
sys.path.insert(0, sys.argv[1])
from tests.servers import PostgreSQL, Redis
servers = [Redis().start(), PostgreSQL().start()]
servers[1].freeze()
print(*[server.pid for server in servers], servers[0].folder.parent, flush=True)
os.kill(os.getpid(), signal.SIGKILL)
"""


def test_servers_end_when_the_test_session_is_killed_even_frozen_ones() -> None:
    root = Path(__file__).parents[2]
    crashed = subprocess.run([sys.executable, "-c", CRASH, str(root)], capture_output=True, text=True, timeout=60)
    assert crashed.returncode == -signal.SIGKILL, crashed.stderr
    *pids, folder = crashed.stdout.split()
    wait_for(lambda: not any(psutil.pid_exists(int(pid)) for pid in pids), what="the servers are gone")
    wait_for(lambda: not Path(folder).exists(), what="their folders are gone")


def test_postgresql_takes_settings(own_postgres: Callable[..., PostgreSQL]) -> None:
    server = own_postgres("max_connections=7")
    with psycopg.connect(f"host=127.0.0.1 port={server.port} user=postgres dbname=postgres") as connection:
        assert connection.execute("SHOW max_connections").fetchone() == ("7",)
