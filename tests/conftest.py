"""Fixtures for all tests. Servers start when the first test asks for them."""

from __future__ import annotations

import logging
import os
import signal
from collections.abc import Callable, Generator, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any, NoReturn, TypeVar

import hypothesis
import pytest
from kombu.transport.memory import Channel as MemoryChannel

from tests import clock
from tests.celeryproc import Project
from tests.environments import Environments
from tests.servers import MariaDB, PgBouncer, PostgreSQL, RabbitMQ, Redis, Server, ServerMissing

for _number in (signal.SIGINT, signal.SIGQUIT, signal.SIGHUP):
    # Ignored under `nohup` or in the background of a script, and every process that a test starts inherits that.
    if signal.getsignal(_number) is signal.SIG_IGN:
        signal.signal(_number, signal.default_int_handler if _number == signal.SIGINT else signal.SIG_DFL)

S = TypeVar("S", bound=Server)
_PROJECTS = pytest.StashKey[list[Project]]()

# No test fails because an example took long to make or to run: `too_slow` is the only health check that measures time.
hypothesis.settings.register_profile(
    "any-machine", deadline=None, suppress_health_check=[hypothesis.HealthCheck.too_slow]
)
hypothesis.settings.load_profile("any-machine")
clock.set_up()


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, object, object]:
    """Each test has the wall clock that `tests.clock` gives it, from its first fixture to its last."""
    with clock.clock_of(item):
        return (yield)


def _missing(error: ServerMissing) -> NoReturn:
    if os.environ.get("QBEAT_TEST_REQUIRE_SERVERS") == "1":
        pytest.fail(f"QBEAT_TEST_REQUIRE_SERVERS=1, but {error}", pytrace=False)
    pytest.skip(str(error))


def _start(kind: Callable[..., S], *options: Any, **more: Any) -> S:
    try:
        server = kind(*options, **more)
    except ServerMissing as error:
        if kind in (Redis, PostgreSQL):
            pytest.fail(f"{error}: install the extra `test`", pytrace=False)
        _missing(error)
    return server.start()


@pytest.fixture(autouse=True)
def _log_levels() -> Iterator[None]:
    """What a command or a host sets up for its log ends with the test: other tests count lines."""
    loggers = [logging.getLogger(name) for name in (None, "celery_qbeat", "celery_qbeat.store")]
    before = [(logger.level, logger.disabled, logger.propagate) for logger in loggers]
    yield
    for logger, (level, disabled, propagate) in zip(loggers, before, strict=True):
        logger.setLevel(level)
        logger.disabled, logger.propagate = disabled, propagate


@pytest.fixture(scope="session")
def redis_server() -> Iterator[Redis]:
    """The session's Redis. Not to be stopped, killed or frozen: use `own_redis` for that."""
    with _start(Redis) as server:
        yield server


@pytest.fixture(scope="session")
def postgres_server() -> Iterator[PostgreSQL]:
    """The session's PostgreSQL. Not to be stopped, killed or frozen: use `own_postgres` for that."""
    with _start(PostgreSQL) as server:
        yield server


@pytest.fixture(scope="session")
def mariadb_server() -> Iterator[MariaDB]:
    """The session's MariaDB. Not to be stopped, killed or frozen: use `own_mariadb` for that."""
    with _start(MariaDB) as server:
        yield server


@pytest.fixture(scope="session")
def rabbitmq_server() -> Iterator[RabbitMQ]:
    """The session's RabbitMQ. Not to be stopped, killed or frozen: use `own_rabbitmq` for that."""
    with _start(RabbitMQ) as server:
        yield server


@pytest.fixture(scope="session")
def environments(tmp_path_factory: pytest.TempPathFactory) -> Environments:
    """Virtual environments with the package and some of its extras."""
    return Environments(tmp_path_factory.mktemp("environments"))


@pytest.fixture(autouse=True)
def _empty_memory_broker() -> None:
    """Kombu keeps the queues of `memory://` as long as the process lives: no test finds another one's messages."""
    MemoryChannel.queues.clear()


@pytest.fixture
def redis_url(redis_server: Redis) -> str:
    """The URL of the session's Redis, emptied."""
    with redis_server.client() as client:
        client.flushall()
    return redis_server.url


@pytest.fixture
def rabbitmq_url(rabbitmq_server: RabbitMQ) -> Iterator[str]:
    """The URL of a new virtual host of the session's RabbitMQ."""
    with rabbitmq_server.virtual_host() as url:
        yield url


@pytest.fixture
def sqlite_url(tmp_path: Path) -> str:
    """The URL of a SQLite file that does not exist yet."""
    return f"sqlite:///{tmp_path / 'qbeat.sqlite3'}"


@pytest.fixture
def postgres_url(postgres_server: PostgreSQL) -> Iterator[str]:
    """The URL of a new empty PostgreSQL database, dropped afterwards."""
    name = postgres_server.create_database()
    yield postgres_server.url_of(name)
    postgres_server.drop_database(name)


@pytest.fixture
def mariadb_url(mariadb_server: MariaDB) -> Iterator[str]:
    """The URL of a new empty MariaDB database, dropped afterwards."""
    name = mariadb_server.create_database()
    yield mariadb_server.url_of(name)
    mariadb_server.drop_database(name)


@pytest.fixture(params=["sqlite", "postgresql", "mariadb"])
def database_url(request: pytest.FixtureRequest) -> str:
    """The URL of a new empty database, of each kind in turn."""
    fixture = {"sqlite": "sqlite_url", "postgresql": "postgres_url", "mariadb": "mariadb_url"}[request.param]
    url: str = request.getfixturevalue(fixture)
    return url


@pytest.fixture
def own_redis() -> Iterator[Callable[..., Redis]]:
    """`own_redis(*options)` starts a Redis that the test may freeze and kill; `persist=True` keeps its data."""
    with ExitStack() as stack:
        yield lambda *options, **more: stack.enter_context(_start(Redis, *options, **more))


@pytest.fixture
def own_postgres() -> Iterator[Callable[..., PostgreSQL]]:
    """`own_postgres(*settings)` starts a PostgreSQL that the test may freeze and kill."""
    with ExitStack() as stack:
        yield lambda *options, **more: stack.enter_context(_start(PostgreSQL, *options, **more))


@pytest.fixture
def own_pgbouncer() -> Iterator[Callable[..., PgBouncer]]:
    """`own_pgbouncer(server, *lines)` starts a PgBouncer before a PostgreSQL, with transaction pooling."""
    with ExitStack() as stack:
        yield lambda *options, **more: stack.enter_context(_start(PgBouncer, *options, **more))


@pytest.fixture
def own_mariadb() -> Iterator[Callable[..., MariaDB]]:
    """`own_mariadb(*options)` starts a MariaDB that the test may freeze and kill."""
    with ExitStack() as stack:
        yield lambda *options, **more: stack.enter_context(_start(MariaDB, *options, **more))


@pytest.fixture
def own_rabbitmq() -> Iterator[Callable[..., RabbitMQ]]:
    """`own_rabbitmq(*lines)` starts a RabbitMQ that the test may freeze and kill."""
    with ExitStack() as stack:
        yield lambda *options, **more: stack.enter_context(_start(RabbitMQ, *options, **more))


@pytest.fixture
def make_project(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Callable[..., Project]]:
    """`make_project(broker, settings, ...)` writes a Celery project; at the end of the test all its processes die."""
    projects: list[Project] = []

    def make(broker: str = "filesystem://", settings: dict[str, Any] | None = None, **options: Any) -> Project:
        project = Project(tmp_path / f"project-{len(projects) + 1}", broker, settings, **options)
        projects.append(project)
        return project

    request.node.stash[_PROJECTS] = projects
    yield make
    for project in projects:
        project.close()


@pytest.fixture
def project(make_project: Callable[..., Project], redis_url: str) -> Project:
    """A Celery project on the session's Redis, emptied."""
    return make_project(redis_url)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """A failed test shows what its processes printed."""
    report = yield
    if report.when == "call" and report.failed:
        for project in item.stash.get(_PROJECTS, []):
            for process in project.processes:
                report.sections.append((f"{process.name} printed", process.output()[-20_000:]))
    return report
