"""Options in a database URL: they reach the driver as it wants them, and a bad one is named in one sentence."""

from __future__ import annotations

import socket
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any

import pytest
import sqlalchemy as sa

from celery_qbeat.core.jobs import Verdict
from celery_qbeat.errors import SettingsError
from celery_qbeat.ports import Plan, RunOutcome
from celery_qbeat.stores import SqlStore, driver_options, open_store
from tests.contract.store_rigs import T0, SqlRig, emptied
from tests.servers import MariaDB, PostgreSQL


@pytest.fixture
def closed_port() -> Iterator[int]:
    """A port that refuses connections."""
    with socket.socket() as reserved:
        reserved.bind(("127.0.0.1", 0))
        yield reserved.getsockname()[1]


def asked(store: SqlStore, query: str) -> Any:
    return store.link.read(lambda connection: connection.exec_driver_sql(query).scalar_one())


def driver_connection(store: SqlStore) -> Any:
    return store.link.read(lambda connection: connection.connection.driver_connection)


def test_options_reach_psycopg(postgres_server: PostgreSQL) -> None:
    store = open_store(
        f"{postgres_server.url}?prepare_threshold=2&keepalives_idle=30&sslmode=disable&connect_timeout=3"
        "&application_name=shop&options=-c%20work_mem%3D1MB&target_session_attrs=read-write"
    )
    raw = driver_connection(store)
    assert raw.prepare_threshold == 2
    assert raw.info.get_parameters() | {"keepalives_idle": "30", "sslmode": "disable"} == raw.info.get_parameters()
    assert asked(store, "SHOW application_name") == "shop"
    assert asked(store, "SHOW work_mem") == "1MB"
    store.close()


@pytest.mark.parametrize("value", ["none", "None", ""])
def test_prepared_statements_stay_off_when_the_url_says_so(postgres_server: PostgreSQL, value: str) -> None:
    store = open_store(f"{postgres_server.url}?prepare_threshold={value}")
    assert driver_connection(store).prepare_threshold is None
    store.close()


@pytest.mark.parametrize(
    "hosts", ["host=127.0.0.1,127.0.0.1&port={closed},{port}", "host=127.0.0.1:{closed}&host=127.0.0.1:{port}"]
)
def test_the_second_host_of_a_url_is_tried(postgres_server: PostgreSQL, closed_port: int, hosts: str) -> None:
    query = hosts.format(closed=closed_port, port=postgres_server.port)
    store = open_store(f"postgresql://postgres@/postgres?{query}&connect_timeout=4")
    assert asked(store, "SHOW port") == str(postgres_server.port)
    store.close()


def test_options_reach_pymysql(mariadb_server: MariaDB) -> None:
    store = open_store(
        f"mysql+pymysql://root@127.0.0.1:{mariadb_server.port}/test?charset=utf8mb4&read_timeout=7&write_timeout=8"
        "&connect_timeout=3&max_allowed_packet=1000000&local_infile=false&init_command=SET%20%40shop%20%3D%205"
    )
    raw = driver_connection(store)
    assert (raw._read_timeout, raw._write_timeout, raw.connect_timeout, raw.max_allowed_packet) == (7, 8, 3, 1_000_000)
    assert asked(store, "SELECT @shop") == 5
    store.close()


def test_tls_options_of_pymysql_arrive_together() -> None:
    url = sa.make_url("mysql+pymysql://h/d?ssl_ca=/ca.pem&ssl_verify_cert=true&ssl_verify_identity=no")
    assert driver_options.read(url) == {
        "ssl": None,
        "ssl_ca": "/ca.pem",
        "ssl_verify_cert": True,
        "ssl_verify_identity": False,
    }


NAMED = [
    ("postgresql", "prepare_threshold=often", "the option 'prepare_threshold' must be a whole number or 'none'"),
    ("postgresql", "row_factory=dict", "the option 'row_factory' cannot be set in a URL"),
    ("postgresql", "colour=blue", "the driver psycopg does not know the option 'colour'"),
    ("postgresql", "sslmode=bogus", 'invalid sslmode value: "bogus"'),
    ("postgresql", "keepalives_idle=soon", "keepalives_idle"),
    ("postgresql", "connect_timeout=soon", "connect_timeout"),
    ("postgresql", "target_session_attrs=any-one", "target_session_attrs"),
    ("postgresql", "options=-c%20no_such_setting%3D1", "no_such_setting"),
    ("mysql", "read_timeout=soon", "the option 'read_timeout' must be a whole number, not 'soon'"),
    ("mysql", "local_infile=perhaps", "the option 'local_infile' must be true or false"),
    ("mysql", "cursorclass=Cursor", "the option 'cursorclass' cannot be set in a URL"),
    ("mysql", "colour=blue", "the driver pymysql does not know the option 'colour'"),
    ("mysql", "charset=klingon", "the option 'charset' must be a character set that PyMySQL knows"),
    ("mysql", "ssl_ca=/no/such/file.pem", "a file that its ssl_* options name cannot be read"),
    ("mysql", "ssl_verify_cert=1&ssl_cipher=x", "'ssl_cipher' together with 'ssl_verify_cert'"),
    ("sqlite", "colour=blue", "colour"),
    ("sqlite", "timeout=long", "timeout"),
]


@pytest.mark.parametrize(("kind", "option", "said"), NAMED)
def test_a_bad_option_is_named_in_one_sentence(
    kind: str, option: str, said: str, postgres_server: PostgreSQL, mariadb_server: MariaDB, sqlite_url: str
) -> None:
    url = {
        "postgresql": postgres_server.url,
        "mysql": f"mysql+pymysql://root@127.0.0.1:{mariadb_server.port}/test",
        "sqlite": sqlite_url,
    }[kind]
    with pytest.raises(SettingsError) as caught:
        open_store(f"{url}?{option}", create_tables=True).open()
    assert str(caught.value).startswith("qbeat_database_url: ")
    assert said in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("driver", ["psycopg2", "pg8000"])
def test_other_drivers_of_postgresql_do_all_of_it(driver: str, postgres_home: str) -> None:
    pytest.importorskip(driver)
    emptied(postgres_home)
    with ExitStack() as stack:
        rig = SqlRig(postgres_home.replace("+psycopg", f"+{driver}"), stack)
        rig.start()
        store, epoch = rig.store, rig.epoch
        store.write_plans(epoch, [Plan('we"ird\\job', T0, T0, "key")], T0)
        task_ids = rig.claimed("a", "b")
        store.mark_sent(epoch, rig.last_batch, task_ids, T0, closes=True)
        assert set(store.record_outcomes(epoch, [RunOutcome(task_ids[0], Verdict.SUCCEEDED)], T0).values()) == {"a"}
        store.record_heartbeat(epoch, T0)
        assert [part.orphans for part in store.load() if part.orphans]
        assert not store.has_drifted()
        assert asked(store, "SHOW lock_timeout") == "0"
        assert asked(store, "SHOW enable_nestloop") == "on"


@pytest.mark.parametrize(
    ("url", "module", "advice"),
    [
        ("postgresql://h/d", "psycopg", "pip install celery_qbeat[postgresql]"),
        (
            "postgresql+psycopg2://h/d",
            "psycopg2",
            "pip install psycopg2-binary, or write postgresql+psycopg:// and pip install celery_qbeat[postgresql]",
        ),
        (
            "postgresql+pg8000://h/d",
            "pg8000",
            "pip install pg8000, or write postgresql+psycopg:// and pip install celery_qbeat[postgresql]",
        ),
        ("mysql+pymysql://h/d", "pymysql", "pip install celery_qbeat[mysql]"),
        (
            "mariadb+mysqldb://h/d",
            "MySQLdb",
            "pip install mysqlclient, or write mariadb+pymysql:// and pip install celery_qbeat[mysql]",
        ),
    ],
)
def test_the_advice_names_the_driver_of_the_url(
    url: str, module: str, advice: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(SettingsError) as caught:
        open_store(url)
    assert str(caught.value).endswith(f": {advice}")
