"""Stores for the contract suites (tables are made once a session, and emptied for each test), and gates."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack

import pytest

from tests.contract.making_gates import GateMaker
from tests.contract.store_rigs import RIGS, SQL_RIGS, Rig, SqlRig, made
from tests.servers import MariaDB, PostgreSQL


@pytest.fixture(scope="session")
def sqlite_home(tmp_path_factory: pytest.TempPathFactory) -> str:
    file = str(tmp_path_factory.mktemp("home") / "home.sqlite3")
    made(f"sqlite:///{file}")
    return file


@pytest.fixture(scope="session")
def postgres_home(postgres_server: PostgreSQL) -> Iterator[str]:
    name = postgres_server.create_database()
    yield made(postgres_server.url_of(name))
    postgres_server.drop_database(name)


@pytest.fixture(scope="session")
def mariadb_home(mariadb_server: MariaDB) -> Iterator[str]:
    name = mariadb_server.create_database()
    yield made(mariadb_server.url_of(name))
    mariadb_server.drop_database(name)


@pytest.fixture(params=list(RIGS))
def rig(request: pytest.FixtureRequest) -> Iterator[Rig]:
    """Each kind of store in turn, opened, empty, with an epoch."""
    with ExitStack() as stack:
        made_rig = RIGS[request.param](request, stack)
        made_rig.start()
        yield made_rig


@pytest.fixture(params=list(SQL_RIGS))
def sql_rig(request: pytest.FixtureRequest) -> Iterator[SqlRig]:
    """Each kind of SQL store in turn."""
    with ExitStack() as stack:
        made_rig = RIGS[request.param](request, stack)
        assert isinstance(made_rig, SqlRig)
        made_rig.start()
        yield made_rig


@pytest.fixture
def gate_at() -> Iterator[GateMaker]:
    """Makes gates in Redis, released at the end of the test."""
    with GateMaker() as make:
        yield make
