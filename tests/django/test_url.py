"""DATABASES as a URL: a beat and Django find the same database."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa
from django.db import connections

from celery_qbeat.django.url import database_url
from celery_qbeat.errors import SettingsError
from celery_qbeat.stores import open_store
from tests.django.databases import add, register
from tests.servers import MariaDB, PostgreSQL

NASTY = "p@ss:w/rd?#%25 &=+'\""


def named_in_both(alias: str) -> tuple[str, str]:
    """Django writes a row; the name that is read through the URL, and the one that was written."""
    with connections[alias].cursor() as cursor:
        cursor.execute("CREATE TABLE written (name varchar(20))")
        cursor.execute("INSERT INTO written VALUES ('by Django')")
    try:
        with sa.create_engine(database_url(alias), poolclass=sa.NullPool).connect() as connection:
            found = connection.execute(sa.text("SELECT name FROM written")).scalar_one()
    finally:
        with connections[alias].cursor() as cursor:
            cursor.execute("DROP TABLE written")
        connections[alias].close()
    return str(found), "by Django"


@pytest.fixture
def socket_folder() -> Iterator[Path]:
    """A folder with a short path, that the server's user can write to."""
    folder = Path(tempfile.mkdtemp(prefix="qb"))
    folder.chmod(0o777)
    yield folder
    shutil.rmtree(folder, ignore_errors=True)


def test_the_url_leads_to_the_database_that_django_uses(database_url: str) -> None:
    found, written = named_in_both(register(database_url))
    assert found == written


def test_a_password_of_special_characters_arrives_as_it_is(mariadb_server: MariaDB) -> None:
    name = mariadb_server.create_database()
    with mariadb_server.connect() as connection, connection.cursor() as cursor:
        cursor.execute("CREATE USER 'nasty@home'@'127.0.0.1' IDENTIFIED BY %s", (NASTY,))
        cursor.execute("GRANT ALL ON *.* TO 'nasty@home'@'127.0.0.1'")
    config = {
        "ENGINE": "django.db.backends.mysql",
        "NAME": name,
        "USER": "nasty@home",
        "PASSWORD": NASTY,
        "HOST": "127.0.0.1",
        "PORT": str(mariadb_server.port),
        "OPTIONS": {"charset": "utf8mb4", "init_command": "SET sql_mode='STRICT_TRANS_TABLES'", "connect_timeout": 5},
    }
    found, written = named_in_both(add(config))
    assert found == written
    mariadb_server.drop_database(name)


def test_a_socket_of_mariadb_is_a_host_that_starts_with_a_slash(mariadb_server: MariaDB) -> None:
    name = mariadb_server.create_database()
    config = {
        "ENGINE": "django.db.backends.mysql",
        "NAME": name,
        "USER": "root",
        "HOST": str(mariadb_server.folder / "s"),
    }
    found, written = named_in_both(add(config))
    assert found == written
    mariadb_server.drop_database(name)


def test_a_socket_of_postgresql_is_a_folder(socket_folder: Path, own_postgres: Callable[..., PostgreSQL]) -> None:
    server = own_postgres(f"unix_socket_directories={socket_folder}")
    config = {
        "ENGINE": "django.db.backends.postgresql",
        "NAME": server.create_database(),
        "USER": "postgres",
        "PASSWORD": NASTY,
        "HOST": str(socket_folder),
        "PORT": server.port,
    }
    found, written = named_in_both(add(config))
    assert found == written


def test_a_role_of_postgresql_is_assumed_by_the_beat_too(postgres_url: str, postgres_server: PostgreSQL) -> None:
    with postgres_server.connect() as connection:
        connection.execute("DROP ROLE IF EXISTS jobs_owner")
        connection.execute("CREATE ROLE jobs_owner")
    alias = register(postgres_url)
    connections.databases[alias]["OPTIONS"] = {
        "assume_role": "jobs_owner",
        "application_name": "shop",
        "pool": False,
    }
    with sa.create_engine(database_url(alias), poolclass=sa.NullPool).connect() as connection:
        assert connection.execute(sa.text("SELECT current_user")).scalar_one() == "jobs_owner"
        assert connection.execute(sa.text("SHOW application_name")).scalar_one() == "shop"


def test_options_of_django_reach_the_beats_driver(postgres_url: str) -> None:
    alias = register(postgres_url)
    connections.databases[alias]["OPTIONS"] = {"prepare_threshold": 7, "keepalives_idle": 33, "sslmode": "prefer"}
    store = open_store(database_url(alias))
    raw: Any = store.link.read(lambda connection: connection.connection.driver_connection)
    assert raw.prepare_threshold == 7
    assert raw.info.get_parameters()["keepalives_idle"] == "33"
    store.close()


PG = {"ENGINE": "django.db.backends.postgresql", "NAME": "shop"}
MY = {"ENGINE": "django.db.backends.mysql", "NAME": "shop"}
LITE = {"ENGINE": "django.db.backends.sqlite3"}


@pytest.mark.parametrize(
    ("config", "url"),
    [
        (PG, "postgresql+psycopg:///shop"),
        (PG | {"HOST": "db", "PORT": "", "USER": "me"}, "postgresql+psycopg://me@db/shop"),
        (PG | {"PORT": "6432"}, "postgresql+psycopg:///shop?port=6432"),
        (PG | {"HOST": "a,b", "PORT": "1,2"}, "postgresql+psycopg:///shop?host=a%2Cb&port=1%2C2"),
        (
            PG | {"HOST": "db", "OPTIONS": {"sslmode": "verify-full", "sslrootcert": Path("/etc/ca.pem")}},
            "postgresql+psycopg://db/shop?sslmode=verify-full&sslrootcert=%2Fetc%2Fca.pem",
        ),
        (
            PG | {"OPTIONS": {"prepare_threshold": 5, "target_session_attrs": "read-write", "pool": True}},
            "postgresql+psycopg:///shop?prepare_threshold=5&target_session_attrs=read-write",
        ),
        (
            MY | {"OPTIONS": {"init_command": "SET @a = 1", "read_timeout": 7, "local_infile": False}},
            "mysql+pymysql:///shop?charset=utf8mb4&init_command=SET+%40a+%3D+1&read_timeout=7&local_infile=false",
        ),
        (
            MY | {"OPTIONS": {"ssl": {"ca": "/ca.pem", "check_hostname": False}}},
            "mysql+pymysql:///shop?charset=utf8mb4&ssl_ca=%2Fca.pem&ssl_check_hostname=false",
        ),
        ({"ENGINE": PG["ENGINE"], "OPTIONS": {"service": "s"}}, "postgresql+psycopg://?service=s"),
        (MY | {"HOST": "db", "PORT": 3307}, "mysql+pymysql://db:3307/shop?charset=utf8mb4"),
        (MY | {"PORT": 3307}, "mysql+pymysql://localhost:3307/shop?charset=utf8mb4"),
        (
            MY | {"OPTIONS": {"read_default_file": "/etc/my.cnf", "ssl": {"ca": "/ca.pem"}}},
            "mysql+pymysql:///shop?charset=utf8mb4&read_default_file=%2Fetc%2Fmy.cnf&ssl_ca=%2Fca.pem",
        ),
        (LITE | {"NAME": Path("/srv/shop.db")}, "sqlite:////srv/shop.db"),
        (LITE | {"NAME": "/srv/shop.db", "OPTIONS": {"timeout": 20}}, "sqlite:////srv/shop.db?timeout=20"),
        (LITE | {"NAME": "file:/srv/a?vfs=unix", "OPTIONS": {"uri": True}}, "sqlite:///file:/srv/a?vfs=unix&uri=true"),
    ],
)
def test_every_part_of_a_configuration_is_in_the_url(config: dict[str, Any], url: str) -> None:
    assert sa.make_url(database_url(add(config))) == sa.make_url(url)


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({"ENGINE": "django.db.backends.dummy"}, "django.db.backends.dummy is not supported"),
        (LITE | {"NAME": ":memory:"}, "no other process sees a database in memory"),
        (LITE | {"NAME": "file:x?mode=memory&cache=shared"}, "no other process sees a database in memory"),
        (MY | {"OPTIONS": {"ssl_mode": "REQUIRED"}}, "OPTIONS 'ssl_mode' cannot be said in a URL"),
        (MY | {"OPTIONS": {"ssl": {"context": 1}}}, "OPTIONS 'ssl context' cannot be said in a URL"),
        (MY | {"OPTIONS": {"ssl": {}}}, "OPTIONS 'ssl' cannot be said in a URL"),
        (PG | {"OPTIONS": {"context": object()}}, "OPTIONS 'context' cannot be said in a URL"),
    ],
)
def test_what_a_url_cannot_say_is_refused_in_one_sentence(config: dict[str, Any], message: str) -> None:
    alias = add(config)
    with pytest.raises(SettingsError) as caught:
        database_url(alias)
    assert message in str(caught.value)
    assert f"DATABASES[{alias!r}]" in str(caught.value)
    assert "qbeat_database_url" in str(caught.value)
    assert "\n" not in str(caught.value)


def test_an_alias_that_does_not_exist_is_named_beside_those_that_do() -> None:
    with pytest.raises(SettingsError, match=r"'jobs' is not in DATABASES \(known: default"):
        database_url("jobs")
