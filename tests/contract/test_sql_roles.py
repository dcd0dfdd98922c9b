"""What a beat may run with when it may create nothing, and what an editor of rows needs."""

from __future__ import annotations

from collections.abc import Iterator

import psycopg
import pymysql
import pytest
import sqlalchemy as sa

from celery_qbeat.core.jobs import Run, Verdict
from celery_qbeat.errors import SchemaError
from celery_qbeat.ports import Claim, ClaimRelease, Plan, RunOutcome
from celery_qbeat.stores import SqlStore, open_store
from tests.contract.store_rigs import SECOND, T0, made
from tests.servers import MariaDB, PostgreSQL

# As in the docstring of stores/schema.py.
BEAT = {
    "SELECT": ("qbeat_jobs", "qbeat_workers"),
    "SELECT, INSERT, UPDATE, DELETE": ("qbeat_state", "qbeat_runs", "qbeat_batches", "qbeat_history", "qbeat_changes"),
    "SELECT, DELETE": ("qbeat_requests",),
    "SELECT, INSERT, UPDATE": ("qbeat_leader",),
    "SELECT, UPDATE": ("qbeat_meta",),
}
EDITOR = {
    "SELECT, INSERT, UPDATE, DELETE": ("qbeat_jobs", "qbeat_workers"),
    "SELECT, INSERT": ("qbeat_requests",),
    "SELECT": ("qbeat_status", "qbeat_state", "qbeat_runs", "qbeat_leader"),
}
ROW = "INSERT INTO qbeat_jobs (id, fn, schedule_kind, schedule) VALUES ('{}', 'f', 'every', '1m')"


def grants(rights: dict[str, tuple[str, ...]], to: str) -> list[str]:
    return [f"GRANT {right} ON {table} TO {to}" for right, names in rights.items() for table in names]


def whole_life(store: SqlStore, insert: str) -> None:
    """Everything a beat does."""
    store.open()
    epoch = store.take_epoch("here:1", T0)
    list(store.load())
    editor = sa.create_engine(insert, isolation_level="AUTOCOMMIT")
    with editor.connect() as connection:
        for name in ("a", "b"):
            connection.exec_driver_sql(ROW.format(name))
        connection.exec_driver_sql("INSERT INTO qbeat_workers (name) VALUES ('w')")
        connection.exec_driver_sql("INSERT INTO qbeat_requests (job_id, asked_us) VALUES ('a', 1)")
        connection.exec_driver_sql("SELECT * FROM qbeat_status")
    editor.dispose()
    changes = store.read_changes()
    assert set(changes.rows) == {"a", "b"}
    assert changes.asked
    revs = {job_id: found[0]["rev"] for job_id, found in changes.rows.items() if found}
    store.write_plans(epoch, [Plan(job_id, T0, T0, "key", spec="s", record=True) for job_id in revs], T0)
    claims = [
        Claim(job_id, rev, T0, T0 + SECOND, (Run(job_id, T0, f"task-{job_id}", Verdict.CLAIMED, lease_until_us=T0),))
        for job_id, rev in revs.items()
    ]
    batch = (epoch << 20) + 1
    assert store.claim(epoch, batch, claims, T0) == frozenset()
    store.release_claims(epoch, batch, [ClaimRelease("b", ("task-b",), T0, T0 + SECOND)])
    store.mark_sent(epoch, batch, ["task-a"], T0, closes=True)
    assert store.record_outcomes(epoch, [RunOutcome("task-a", Verdict.SUCCEEDED)], T0) == {"task-a": "a"}
    store.record_heartbeat(epoch, T0)
    store.close_batches(epoch, T0)
    store.delete_requests(epoch, [request.id for request in store.pending_requests()])
    store.delete_states(epoch, ["b"], T0)
    assert not store.has_drifted()
    later = T0 + 2 * 365 * 86_400 * SECOND
    assert sum(store.prune(dict.fromkeys(Verdict, later), later)) > 0
    store.close()


@pytest.fixture
def postgres_roles(postgres_server: PostgreSQL, postgres_url: str) -> Iterator[tuple[str, str]]:
    """URLs of a beat and of an editor, each with its rights alone."""
    made(postgres_url)
    name = sa.make_url(postgres_url).database or ""
    with postgres_server.connect(name) as connection:
        for role, rights in (("plain_beat", BEAT), ("editor", EDITOR)):
            connection.execute(f"CREATE ROLE {role} LOGIN")
            connection.execute(f"GRANT USAGE ON SCHEMA public TO {role}")
            for grant in grants(rights, role):
                connection.execute(grant)
    yield (
        postgres_url.replace("postgres@", "plain_beat@"),
        postgres_url.replace("postgres@", "editor@"),
    )
    with postgres_server.connect(name) as connection:
        for role in ("plain_beat", "editor"):
            connection.execute(f"DROP OWNED BY {role}")
            connection.execute(f"DROP ROLE {role}")


@pytest.fixture
def mariadb_roles(mariadb_server: MariaDB, mariadb_url: str) -> Iterator[tuple[str, str]]:
    made(mariadb_url)
    name = sa.make_url(mariadb_url).database or ""
    users = ("plain_beat", "editor")
    with mariadb_server.connect(name) as connection, connection.cursor() as cursor:
        for user, rights in zip(users, (BEAT, EDITOR), strict=True):
            cursor.execute(f"CREATE USER '{user}'@'127.0.0.1'")
            for grant in grants(rights, f"'{user}'@'127.0.0.1'"):
                cursor.execute(grant)
    beat, editor = (mariadb_url.replace("root@", f"{user}@") for user in users)
    yield beat, editor
    with mariadb_server.connect() as connection, connection.cursor() as cursor:
        for user in users:
            cursor.execute(f"DROP USER '{user}'@'127.0.0.1'")


def test_a_beat_of_postgresql_needs_the_rights_of_the_documentation_and_no_more(
    postgres_roles: tuple[str, str],
) -> None:
    beat, editor = postgres_roles
    whole_life(open_store(beat), editor)


def test_a_beat_of_mariadb_needs_the_rights_of_the_documentation_and_no_more(
    mariadb_roles: tuple[str, str],
) -> None:
    beat, editor = mariadb_roles
    whole_life(open_store(beat), editor)


def test_a_role_without_rights_is_told_which_table_it_may_not_read(
    postgres_server: PostgreSQL, postgres_roles: tuple[str, str]
) -> None:
    beat, _ = postgres_roles
    with postgres_server.connect(sa.make_url(beat).database or "") as connection:
        connection.execute("REVOKE SELECT ON qbeat_runs FROM plain_beat")
    store = open_store(beat)
    with pytest.raises(SchemaError, match=r"qbeat_runs cannot be read \(permission denied.*grant this role"):
        store.open()
    with pytest.raises(SchemaError, match="permission denied"):
        store.migrate()
    store.close()


def test_a_role_that_may_not_edit_still_sees_disabled_triggers(
    postgres_server: PostgreSQL, postgres_roles: tuple[str, str]
) -> None:
    beat, _ = postgres_roles
    with postgres_server.connect(sa.make_url(beat).database or "") as connection:
        connection.execute("ALTER TABLE qbeat_workers DISABLE TRIGGER USER")
    store = open_store(beat)
    with pytest.raises(SchemaError, match="edits of qbeat_workers would not be noticed"):
        store.open()
    store.close()


def test_an_editor_cannot_write_what_the_machine_writes(
    postgres_roles: tuple[str, str], mariadb_roles: tuple[str, str]
) -> None:
    for _, editor in (postgres_roles, mariadb_roles):
        engine = sa.create_engine(editor, isolation_level="AUTOCOMMIT")
        with engine.connect() as connection:
            for table in ("qbeat_state", "qbeat_runs", "qbeat_leader", "qbeat_changes"):
                with pytest.raises(sa.exc.DBAPIError, match="denied"):
                    connection.exec_driver_sql(f"DELETE FROM {table}")
        engine.dispose()


def test_a_table_put_in_the_path_of_the_triggers_is_not_used(postgres_url: str) -> None:
    made(postgres_url)
    with psycopg.connect(postgres_url.replace("+psycopg", ""), autocommit=True) as connection:
        connection.execute("CREATE TEMPORARY TABLE qbeat_changes (LIKE qbeat_changes INCLUDING ALL)")
        connection.execute(ROW.format("a"))
        assert connection.execute("SELECT count(*) FROM pg_temp.qbeat_changes").fetchone() == (0,)
        assert connection.execute("SELECT count(*) FROM public.qbeat_changes WHERE job_id = 'a'").fetchone() == (1,)


def test_tables_may_live_in_another_schema(postgres_server: PostgreSQL, postgres_url: str) -> None:
    with postgres_server.connect(sa.make_url(postgres_url).database or "") as connection:
        connection.execute('CREATE SCHEMA "Our Beat"')
    url = f'{postgres_url}?options=-csearch_path%3D"Our\\ Beat"'
    made(url)
    with postgres_server.connect(sa.make_url(postgres_url).database or "") as connection:
        connection.execute(ROW.format("a").replace("qbeat_jobs", '"Our Beat".qbeat_jobs'))
        assert connection.execute("SELECT to_regclass('public.qbeat_jobs')").fetchone() == (None,)
        assert connection.execute('SELECT count(*) FROM "Our Beat".qbeat_changes').fetchone() == (2,)
    store = open_store(url)
    store.open()
    assert [row["id"] for part in store.load() for row, _ in part.rows] == ["a"]
    store.close()


def test_an_account_that_may_not_make_triggers_is_told(mariadb_server: MariaDB, mariadb_url: str) -> None:
    # `qbeat` has TRIGGER, but no SUPER, and the binary log is on.
    store = open_store(mariadb_url.replace("root@", "qbeat@"))
    with pytest.raises(SchemaError, match="log_bin_trust_function_creators"):
        store.migrate()
    with mariadb_server.connect() as connection, connection.cursor() as cursor:
        cursor.execute("SET GLOBAL log_bin_trust_function_creators = 1")
    try:
        # What broke off is run again.
        store.migrate()
        store.open()
    finally:
        with mariadb_server.connect() as connection, connection.cursor() as cursor:
            cursor.execute("SET GLOBAL log_bin_trust_function_creators = 0")
        store.close()


def test_a_dropped_maker_of_triggers_is_told(mariadb_server: MariaDB, mariadb_url: str) -> None:
    name = sa.make_url(mariadb_url).database
    with mariadb_server.connect() as connection, connection.cursor() as cursor:
        cursor.execute("CREATE USER 'maker'@'127.0.0.1'")
        cursor.execute(f"GRANT ALL ON {name}.* TO 'maker'@'127.0.0.1'")
        cursor.execute("GRANT SUPER ON *.* TO 'maker'@'127.0.0.1'")
        made(mariadb_url.replace("root@", "maker@"))
        cursor.execute("DROP USER 'maker'@'127.0.0.1'")
    store = open_store(mariadb_url)
    with pytest.raises(
        SchemaError, match=r"account that made its triggers was dropped.*run celery -A proj qbeat migrate"
    ):
        store.open()
    with pytest.raises(pymysql.OperationalError), mariadb_server.connect(name) as connection:
        connection.cursor().execute(ROW.format("a"))
    store.migrate()
    store.open()
    store.close()


def test_a_statement_based_binary_log_is_told(mariadb_server: MariaDB, mariadb_url: str) -> None:
    made(mariadb_url)
    with mariadb_server.connect() as connection, connection.cursor() as cursor:
        cursor.execute("SET GLOBAL binlog_format = 'STATEMENT'")
    try:
        store = open_store(mariadb_url)
        with pytest.raises(SchemaError, match=r"binlog_format=STATEMENT.*MIXED or ROW"):
            store.open()
        store.close()
    finally:
        with mariadb_server.connect() as connection, connection.cursor() as cursor:
            cursor.execute("SET GLOBAL binlog_format = 'ROW'")
