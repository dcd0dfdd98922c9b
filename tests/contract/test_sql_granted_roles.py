"""The roles of docs/databases.md with the statements as they stand there."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any

import psycopg
import pytest
import sqlalchemy as sa

from celery_qbeat.errors import SchemaError
from celery_qbeat.stores import open_store
from tests.contract.store_rigs import made
from tests.contract.test_sql_roles import whole_life
from tests.servers import MariaDB, PostgreSQL

DOCS = Path(__file__).parents[2] / "docs" / "databases.md"
ROLES = ("beat", "row_editor", "scope_admin", "runner", "reader")
TEAMS = ("team_shop", "team_mail")
INSERT = "INSERT INTO qbeat_jobs (id, fn, schedule_kind, schedule, worker) VALUES ('{}', 'f', 'every', '1m', '{}')"
REQUEST = "INSERT INTO qbeat_requests (job_id, asked_us) VALUES ('{}', 1)"

Connect = Callable[[str], sa.Connection]


def statements(heading: str) -> list[list[str]]:
    """The SQL under a heading of the page: a list of statements for each block."""
    [part] = re.findall(rf"^### {heading}\n(.*?)(?=^##|\Z)", DOCS.read_text(), re.MULTILINE | re.DOTALL)
    blocks = re.findall(r"```sql\n(.*?)```", part, re.DOTALL)
    return [[one.strip() for one in block.split(";") if one.strip()] for block in blocks]


@pytest.fixture
def postgres_as(postgres_server: PostgreSQL, postgres_url: str) -> Iterator[Callable[[str], str]]:
    """`postgres_as(role)`: the URL of a database in which each role has its documented rights."""
    made(postgres_url)
    with postgres_server.connect(sa.make_url(postgres_url).database or "") as owner:
        for role in (*ROLES, *TEAMS):
            owner.execute(f"CREATE ROLE {role} LOGIN")
        [grants] = statements("PostgreSQL")
        for grant in grants:
            owner.execute(grant)
        yield lambda role: postgres_url.replace("postgres@", f"{role}@")
        for role in (*ROLES, *TEAMS):
            owner.execute(f"DROP OWNED BY {role}")
            owner.execute(f"DROP ROLE {role}")


@pytest.fixture
def mariadb_as(mariadb_server: MariaDB, mariadb_url: str) -> Iterator[Callable[[str], str]]:
    made(mariadb_url)
    with mariadb_server.connect(sa.make_url(mariadb_url).database) as owner, owner.cursor() as cursor:
        for role in ROLES:
            cursor.execute(f"CREATE USER {role}")
        [grants] = statements("MariaDB and MySQL")
        for grant in grants:
            cursor.execute(grant)
        yield lambda role: mariadb_url.replace("root@", f"{role}@")
        for role in ROLES:
            cursor.execute(f"DROP USER {role}")


@pytest.fixture(params=["postgres_as", "mariadb_as"])
def connect(request: pytest.FixtureRequest) -> Iterator[Connect]:
    """`connect(role)`: an autocommit connection with the rights of that role alone."""
    url_of = request.getfixturevalue(request.param)
    with ExitStack() as stack:

        def connected(role: str) -> sa.Connection:
            engine = sa.create_engine(url_of(role), isolation_level="AUTOCOMMIT", poolclass=sa.NullPool)
            return stack.enter_context(engine.connect())

        yield connected


def refused(connection: sa.Connection, *texts: str) -> None:
    for text in texts:
        with pytest.raises(sa.exc.DBAPIError, match="denied"):
            connection.exec_driver_sql(text)


def changes(connection: sa.Connection) -> list[tuple[Any, ...]]:
    query = "SELECT job_id, op FROM qbeat_changes WHERE job_id IS NOT NULL ORDER BY version"
    return [tuple(row) for row in connection.exec_driver_sql(query)]


def test_a_row_editor_edits_jobs_and_nothing_else(connect: Connect) -> None:
    editor = connect("row_editor")
    editor.exec_driver_sql(INSERT.format("a", ""))
    editor.exec_driver_sql("UPDATE qbeat_jobs SET schedule = '2m' WHERE id = 'a'")
    editor.exec_driver_sql("DELETE FROM qbeat_jobs WHERE id = 'a'")
    assert changes(connect("beat")) == [("a", "I"), ("a", "U"), ("a", "D")]
    refused(
        editor,
        "INSERT INTO qbeat_workers (name) VALUES ('w')",
        REQUEST.format("a"),
        "SELECT * FROM qbeat_status",
        "SELECT * FROM qbeat_runs",
        "DELETE FROM qbeat_changes",
        "TRUNCATE qbeat_jobs",
    )


def test_a_scope_admin_edits_scopes_and_nothing_else(connect: Connect) -> None:
    admin = connect("scope_admin")
    admin.exec_driver_sql("INSERT INTO qbeat_workers (name) VALUES ('w')")
    admin.exec_driver_sql("UPDATE qbeat_workers SET queue = 'q' WHERE name = 'w'")
    admin.exec_driver_sql("DELETE FROM qbeat_workers WHERE name = 'w'")
    assert changes(connect("beat")) == [("w", "W")] * 3
    refused(
        admin, INSERT.format("a", "w"), "SELECT * FROM qbeat_jobs", REQUEST.format("a"), "DELETE FROM qbeat_changes"
    )


def test_a_runner_asks_and_sees_nothing(connect: Connect) -> None:
    runner = connect("runner")
    runner.exec_driver_sql(REQUEST.format("a"))
    assert changes(connect("beat")) == [("a", "R")]
    refused(
        runner,
        "SELECT * FROM qbeat_requests",
        "DELETE FROM qbeat_requests",
        "SELECT * FROM qbeat_jobs",
        INSERT.format("b", ""),
        "INSERT INTO qbeat_changes (op) VALUES ('T')",
    )


def test_a_reader_sees_status_and_ledger_but_no_arguments(connect: Connect) -> None:
    connect("row_editor").exec_driver_sql(INSERT.format("a", ""))
    reader = connect("reader")
    assert reader.exec_driver_sql("SELECT id FROM qbeat_status").scalars().all() == ["a"]
    assert reader.exec_driver_sql("SELECT * FROM qbeat_runs").all() == []
    refused(
        reader, "SELECT args FROM qbeat_jobs", "SELECT * FROM qbeat_jobs", "DELETE FROM qbeat_runs", REQUEST.format("a")
    )


def test_a_beat_of_postgresql_lives_with_the_documented_grants(
    postgres_as: Callable[[str], str], postgres_url: str
) -> None:
    whole_life(open_store(postgres_as("beat")), postgres_url)


def test_a_beat_of_mariadb_lives_with_the_documented_grants(mariadb_as: Callable[[str], str], mariadb_url: str) -> None:
    whole_life(open_store(mariadb_as("beat")), mariadb_url)


def test_a_temporary_table_hides_edits_of_mariadb_until_the_comparison(
    mariadb_server: MariaDB, mariadb_as: Callable[[str], str], mariadb_url: str
) -> None:
    """Why the page says not to grant CREATE TEMPORARY TABLES."""
    name = sa.make_url(mariadb_url).database
    with mariadb_server.connect(name) as owner, owner.cursor() as cursor:
        cursor.execute(f"GRANT CREATE TEMPORARY TABLES ON {name}.* TO row_editor")
    store = open_store(mariadb_as("beat"))
    store.open()
    list(store.load())
    columns = "version INT AUTO_INCREMENT PRIMARY KEY, job_id TEXT, op TEXT, at_us BIGINT"
    with sa.create_engine(mariadb_as("row_editor"), isolation_level="AUTOCOMMIT").connect() as editor:
        editor.exec_driver_sql(f"CREATE TEMPORARY TABLE qbeat_changes ({columns})")
        editor.exec_driver_sql(INSERT.format("a", ""))
    assert not store.read_changes().rows
    assert store.has_drifted()
    store.close()


@pytest.fixture
def team(postgres_server: PostgreSQL, postgres_as: Callable[[str], str], postgres_url: str) -> Iterator[Any]:
    """A connection of the role `team_shop`, in a database where the scope `mail` has a row, too."""
    with postgres_server.connect(sa.make_url(postgres_url).database or "") as owner:
        once, for_shop = statements("Teams with row-level security")
        for statement in [*once, *for_shop, *(one.replace("shop", "mail") for one in for_shop)]:
            owner.execute(statement)
        for name in ("shop", "mail"):
            owner.execute(INSERT.format(f"{name}.a", name))
    plain = postgres_as("team_shop").replace("+psycopg", "")
    with closing(psycopg.connect(plain, autocommit=True)) as connection:
        yield connection


def test_a_team_sees_and_edits_the_rows_of_its_scope_alone(team: Any, postgres_url: str) -> None:
    team.execute(INSERT.format("shop.b", "shop"))
    assert team.execute("UPDATE qbeat_jobs SET schedule = '2m'").rowcount == 2
    assert team.execute("SELECT id FROM qbeat_jobs ORDER BY id").fetchall() == [("shop.a",), ("shop.b",)]
    assert team.execute("SELECT id FROM shop_status ORDER BY id").fetchall() == [("shop.a",), ("shop.b",)]
    assert team.execute("DELETE FROM qbeat_jobs").rowcount == 2
    with psycopg.connect(postgres_url.replace("+psycopg", "")) as owner:
        assert owner.execute("SELECT id FROM qbeat_jobs").fetchall() == [("mail.a",)]


@pytest.mark.parametrize(
    "text",
    [
        INSERT.format("shop.b", "mail"),
        INSERT.format("shop.b", ""),
        "UPDATE qbeat_jobs SET worker = 'mail'",
        INSERT.format("mail.a", "shop") + " ON CONFLICT (id) DO UPDATE SET worker = 'shop', fn = 'g'",
        REQUEST.format("mail.a"),
        REQUEST.format("code:nightly"),
        "INSERT INTO qbeat_requests (job_id, asked_us, action, task_id) VALUES ('shop.a', 1, 'release', 't')",
        "SELECT * FROM qbeat_status",
        "SELECT * FROM mail_status",
        "TRUNCATE qbeat_jobs",
        "INSERT INTO qbeat_workers (name) VALUES ('shop')",
    ],
)
def test_a_team_is_refused_what_belongs_to_others(team: Any, text: str) -> None:
    with pytest.raises(psycopg.errors.InsufficientPrivilege):
        team.execute(text)


def test_a_beat_with_its_policies_sees_every_row_and_request(team: Any, postgres_as: Callable[[str], str]) -> None:
    store = open_store(postgres_as("beat"))
    store.open()
    assert {row["id"] for part in store.load() for row, _ in part.rows} == {"shop.a", "mail.a"}
    team.execute(REQUEST.format("shop.a"))
    assert store.read_changes().asked
    assert [request.job_id for request in store.pending_requests()] == ["shop.a"]
    assert not store.has_drifted()
    store.close()


def test_a_beat_that_no_policy_is_for_does_not_start(
    team: Any, postgres_as: Callable[[str], str], postgres_server: PostgreSQL
) -> None:
    url = postgres_as("beat")
    with postgres_server.connect(sa.make_url(url).database or "") as owner:
        owner.execute("DROP POLICY beat ON qbeat_jobs")
        owner.execute("DROP POLICY beat ON qbeat_requests")
        store = open_store(url)
        with pytest.raises(SchemaError, match="no row of qbeat_jobs, qbeat_requests"):
            store.open()
        owner.execute("CREATE POLICY everybody ON qbeat_jobs USING (true)")
        with pytest.raises(SchemaError, match="no row of qbeat_requests, because"):
            store.open()
        store.close()
