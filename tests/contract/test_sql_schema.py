"""Making the tables, finding them wrong, and saying what to do."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa
from alembic import command
from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext
from alembic.script import ScriptDirectory

from celery_qbeat.errors import SchemaError, SettingsError, Unavailable
from celery_qbeat.stores import open_store, tables, triggers, upgrade
from celery_qbeat.stores.schema import SCHEMA_VERSION
from tests.contract.store_rigs import made


@contextmanager
def connected(url: str) -> Iterator[sa.Connection]:
    """An autocommit connection, closed at the end."""
    engine = sa.create_engine(url, isolation_level="AUTOCOMMIT")
    try:
        with engine.connect() as connection:
            yield connection
    finally:
        engine.dispose()


def execute(url: str, *statements: str) -> None:
    with connected(url) as connection:
        for statement in statements:
            connection.exec_driver_sql(statement)


def refusal(url: str, **options: Any) -> str:
    """Why the store does not open."""
    store = open_store(url, **options)
    try:
        with pytest.raises(SchemaError) as caught:
            store.open()
    finally:
        store.close()
    return str(caught.value)


def test_the_migrations_make_what_the_metadata_says(database_url: str) -> None:
    made(database_url)
    with connected(database_url) as connection:
        options = {"compare_type": True, "compare_server_default": True, "version_table": upgrade.VERSION_TABLE}
        context = MigrationContext.configure(connection, opts=options)
        assert compare_metadata(context, tables.metadata_of(connection.dialect.name)) == []


def test_checks_and_numbers_are_as_the_metadata_says(database_url: str) -> None:
    made(database_url)
    with connected(database_url) as connection:
        inspector = sa.inspect(connection)
        expected = set() if connection.dialect.name == "postgresql" else {"qbeat_jobs_enabled"}
        if connection.dialect.name == "sqlite":
            expected |= {"qbeat_jobs_args", "qbeat_jobs_kwargs"}
            ddl = connection.exec_driver_sql("SELECT sql FROM sqlite_master WHERE name = 'qbeat_changes'").scalar_one()
            assert "AUTOINCREMENT" in ddl
        found = {check["name"] for check in inspector.get_check_constraints("qbeat_jobs")}
        assert expected <= found
        made_by_triggers = triggers_of(connection)
    assert {"qbeat_jobs_ins", "qbeat_jobs_upd", "qbeat_jobs_del", "qbeat_requests_ins"} <= made_by_triggers


def triggers_of(connection: sa.Connection) -> set[str]:
    query = {
        "sqlite": "SELECT name FROM sqlite_master WHERE type = 'trigger'",
        "postgresql": "SELECT tgname FROM pg_trigger WHERE NOT tgisinternal",
        "mysql": "SELECT trigger_name FROM information_schema.triggers WHERE trigger_schema = DATABASE()",
    }[connection.dialect.name]
    return set(connection.exec_driver_sql(query).scalars())


def test_migrating_again_changes_nothing_but_tells_readers_to_look(database_url: str) -> None:
    made(database_url)
    execute(database_url, "INSERT INTO qbeat_jobs (id, fn, schedule_kind, schedule) VALUES ('a', 'f', 'every', '1m')")
    store = open_store(database_url)
    store.open()
    list(store.load())
    instance = store.instance
    other = open_store(database_url)
    other.migrate()
    other.close()
    assert store.read_changes().reload
    [(row, _)] = [pair for part in store.load() for pair in part.rows]
    assert row["id"] == "a"
    store.open()
    assert store.instance == instance
    store.close()


def test_a_new_database_has_the_row_that_prunes_it_and_who_deletes_it_is_rid_of_it(database_url: str) -> None:
    store = open_store(database_url, create_tables=True)
    store.open()
    [(row, _)] = [pair for part in store.load() for pair in part.rows]
    assert (row["id"], row["fn"], row["schedule_kind"], row["schedule"]) == (
        "_builtin.prune",
        "_builtin.prune",
        "every",
        "1h",
    )
    execute(database_url, "DELETE FROM qbeat_jobs")
    store.migrate()
    assert [part for part in store.load() if part.rows] == []
    store.close()


def test_opening_with_tables_at_hand_migrates_nothing(database_url: str) -> None:
    made(database_url)
    store = open_store(database_url, create_tables=True)
    store.open()
    list(store.load())
    again = open_store(database_url, create_tables=True)
    again.open()
    again.close()
    assert not store.read_changes().reload
    store.close()


def test_the_users_own_alembic_and_tables_are_left_alone(database_url: str) -> None:
    execute(
        database_url,
        "CREATE TABLE alembic_version (version_num VARCHAR(32) NOT NULL)",
        "INSERT INTO alembic_version VALUES ('users-own')",
        "CREATE TABLE shop_orders (id INTEGER)",
    )
    made(database_url)
    with connected(database_url) as connection:
        assert connection.exec_driver_sql("SELECT version_num FROM alembic_version").scalars().all() == ["users-own"]
        head = ScriptDirectory.from_config(upgrade.config(connection)).get_current_head()
        assert connection.exec_driver_sql("SELECT version_num FROM qbeat_alembic_version").scalars().all() == [head]


def test_missing_tables_are_told_with_the_command_that_makes_them(database_url: str) -> None:
    said = refusal(database_url)
    assert "run celery -A proj qbeat migrate" in said
    if database_url.startswith("sqlite"):
        assert not Path(sa.make_url(database_url).database or "").exists()


def test_a_single_missing_table_is_named(database_url: str) -> None:
    made(database_url)
    execute(database_url, "DROP TABLE qbeat_history")
    said = refusal(database_url)
    assert "qbeat_history" in said
    assert "migrate" in said


def test_other_schema_versions_are_refused_each_with_its_remedy(database_url: str) -> None:
    made(database_url)
    execute(database_url, "UPDATE qbeat_meta SET schema_version = 99")
    assert "install the newer celery_qbeat" in refusal(database_url)
    store = open_store(database_url)
    with pytest.raises(SchemaError, match="newer"):
        store.migrate()
    store.close()
    execute(database_url, "UPDATE qbeat_meta SET schema_version = 0")
    assert "run celery -A proj qbeat migrate" in refusal(database_url)


def test_requests_of_the_first_schema_are_runs_by_hand_after_a_migration(database_url: str) -> None:
    engine = sa.create_engine(database_url, poolclass=sa.NullPool)
    with engine.begin() as connection:
        command.upgrade(upgrade.config(connection), "0001")
        upgrade.install(connection, view=False)
    execute(database_url, "INSERT INTO qbeat_requests (job_id, asked_us) VALUES ('old', 1)")
    assert f"schema version 1, this celery_qbeat needs {SCHEMA_VERSION}: run celery -A proj qbeat migrate" in refusal(
        database_url
    )
    made(database_url)
    store = open_store(database_url)
    store.open()
    assert [(request.action, request.task_id) for request in store.pending_requests()] == [("run", "")]
    store.close()


VIEW_OF_VERSION_2 = """
CREATE VIEW qbeat_status AS
SELECT j.id, j.enabled, j.fn, j.schedule_kind, j.schedule, j.timezone, j.worker, s.last_run_us, s.next_run_us,
 s.last_verdict, COALESCE(s.late_after_us < 1, {no}) AS late, s.problem, s.last_succeeded_us, s.last_error,
 s.failures_in_a_row, s.runs
FROM qbeat_jobs j LEFT JOIN qbeat_state s ON s.job_id = j.id
"""


def test_the_view_of_the_second_schema_is_replaced(database_url: str) -> None:
    with sa.create_engine(database_url, poolclass=sa.NullPool).begin() as connection:
        command.upgrade(upgrade.config(connection), "0002")
        upgrade.install(connection, view=False)
        no = "false" if connection.dialect.name == "postgresql" else "0"
        connection.exec_driver_sql(VIEW_OF_VERSION_2.format(no=no))
    made(database_url)
    with connected(database_url) as connection:
        columns = list(connection.exec_driver_sql("SELECT * FROM qbeat_status").keys())
    assert columns[:3] == ["id", "enabled", "fn"]
    assert columns[15:17] == ["runs", "state"]


def test_tables_of_django_are_migrated_by_django(database_url: str) -> None:
    made(database_url)
    execute(database_url, "UPDATE qbeat_meta SET owner = 'django'")
    store = open_store(database_url, create_tables=True)
    with pytest.raises(SchemaError, match=r"belong to django: run manage\.py migrate"):
        store.migrate()
    store.open()
    store.close()
    execute(database_url, "UPDATE qbeat_meta SET schema_version = 0")
    assert "manage.py migrate" in refusal(database_url)


def test_a_lost_row_of_meta_is_told(database_url: str) -> None:
    made(database_url)
    execute(database_url, "DELETE FROM qbeat_meta")
    assert "qbeat_meta has lost its row" in refusal(database_url)


def test_a_lost_row_of_the_leader_is_made_anew_above_all_batches(database_url: str) -> None:
    made(database_url)
    execute(
        database_url,
        "DELETE FROM qbeat_leader",
        f"INSERT INTO qbeat_batches (batch_id, epoch, claimed_us, n) VALUES ({7 << 20 | 3}, 7, 0, 1)",
    )
    store = open_store(database_url)
    store.open()
    assert store.take_epoch("here:1", 0) == 8
    store.close()


def test_lost_triggers_are_found_and_a_migration_makes_them_anew(database_url: str) -> None:
    made(database_url)
    backend = sa.make_url(database_url).get_backend_name()
    lost = {
        # What Alembic's batch mode and Django's AlterField do.
        "sqlite": [
            "DROP VIEW qbeat_status",
            "ALTER TABLE qbeat_jobs RENAME TO old_jobs",
            "CREATE TABLE qbeat_jobs AS SELECT * FROM old_jobs",
            "DROP TABLE old_jobs",
        ],
        "postgresql": ["ALTER TABLE qbeat_jobs DISABLE TRIGGER USER"],
        "mysql": ["DROP TRIGGER qbeat_jobs_upd"],
    }[backend]
    execute(database_url, *lost)
    said = refusal(database_url)
    assert "edits of qbeat_jobs would not be noticed" in said
    assert "run celery -A proj qbeat migrate" in said
    store = open_store(database_url)
    store.migrate()
    store.open()
    store.close()


def test_the_canary_leaves_nothing_behind(database_url: str) -> None:
    made(database_url)
    with connected(database_url) as connection:
        for table in ("qbeat_jobs", "qbeat_workers", "qbeat_requests"):
            assert connection.exec_driver_sql(f"SELECT COUNT(*) FROM {table}").scalar_one() == 0
        log = connection.exec_driver_sql("SELECT op FROM qbeat_changes").scalars().all()
    assert log == ["T"]


def test_triggers_and_view_can_be_dropped_and_made_again(database_url: str) -> None:
    made(database_url)
    with connected(database_url) as connection:
        for _ in range(2):
            for statement in triggers.drop(connection.dialect.name):
                connection.exec_driver_sql(statement)
        assert triggers_of(connection) == set()
        for _ in range(2):
            for statement in triggers.create(connection.dialect.name):
                connection.exec_driver_sql(statement)
        connection.exec_driver_sql("SELECT * FROM qbeat_status")
    made(database_url)


@pytest.mark.parametrize("bad", ["[1,", "nonsense", ""])
def test_args_that_are_no_json_are_refused_by_the_table(database_url: str, bad: str) -> None:
    made(database_url)
    columns = "INSERT INTO qbeat_jobs (id, fn, schedule_kind, schedule, args) VALUES ('a', 'f', 'every', '1m', '{}')"
    execute(database_url, columns.format('[1, {"b": null}]'))
    with pytest.raises(sa.exc.DBAPIError):
        execute(database_url, columns.replace("'a'", "'b'").format(bad))


@pytest.mark.parametrize("bad", ["'false'", "5", "NULL"])
def test_sqlite_refuses_what_is_no_boolean(sqlite_url: str, bad: str) -> None:
    made(sqlite_url)
    columns = "INSERT INTO qbeat_jobs (id, fn, schedule_kind, schedule, enabled)"
    with pytest.raises(sa.exc.IntegrityError):
        execute(sqlite_url, f"{columns} VALUES ('a', 'f', 'every', '1m', {bad})")


def test_the_status_view_shows_jobs_with_their_state_and_who_is_late(database_url: str) -> None:
    made(database_url)
    columns = "INSERT INTO qbeat_jobs (id, fn, schedule_kind, schedule) VALUES"
    execute(
        database_url,
        *(f"{columns} ('{name}', 'f', 'every', '1m')" for name in ("late", "fine", "unknown", "never")),
        "INSERT INTO qbeat_state (job_id, late_after_us, problem, runs) VALUES ('late', 1, 'a problem', 3)",
        "INSERT INTO qbeat_state (job_id, late_after_us, last_verdict) VALUES ('fine', 9999999999999999, 'succeeded')",
        "INSERT INTO qbeat_state (job_id) VALUES ('unknown')",
    )
    with connected(database_url) as connection:
        found = connection.exec_driver_sql("SELECT * FROM qbeat_status ORDER BY id").mappings().all()
    assert {row["id"]: bool(row["late"]) for row in found} == {
        "fine": False,
        "late": True,
        "never": False,
        "unknown": False,
    }
    late = next(row for row in found if row["id"] == "late")
    assert (late["problem"], late["runs"], late["schedule"], late["fn"]) == ("a problem", 3, "1m", "f")
    assert set(late) == {
        *("id", "enabled", "fn", "schedule_kind", "schedule", "timezone", "worker", "last_run_us", "next_run_us"),
        *("last_verdict", "late", "problem", "last_succeeded_us", "last_error", "failures_in_a_row", "runs"),
        *("state", "running_task_id", "running_since_us", "last_run", "next_run", "last_succeeded", "running_since"),
    }


# ---------------------------------------------------------------- URLs and files


@pytest.mark.parametrize(
    ("url", "said"),
    [
        ("nonsense", "write it like postgresql://"),
        ("oracle://u@h/d", "'oracle' is not supported; use sqlite, postgresql, mysql, mariadb"),
        ("sqlite://", "must be a file"),
        ("sqlite:///:memory:", "must be a file"),
        ("mysql+mysqlconnector://h/d", "needs a driver that is not installed"),
    ],
)
def test_a_url_that_cannot_be_used_is_told(url: str, said: str) -> None:
    with pytest.raises(SettingsError, match=r"^qbeat_database_url: ") as caught:
        open_store(url)
    assert said in str(caught.value)


def test_a_password_is_never_shown() -> None:
    assert "secret" not in open_store("postgresql://me:secret@host/db").describe()
    assert "secret" not in open_store("mysql+pymysql://me:secret@host/db").describe()
    assert "secret" not in open_store("postgresql://host/db?password=secret&user=me").describe()


def test_urls_without_a_driver_get_one() -> None:
    assert open_store("postgres://h/d").describe().startswith("postgresql+psycopg://")
    assert open_store("mariadb://h/d").describe().startswith("mariadb+")


def test_a_folder_that_is_missing_is_named(tmp_path: Path) -> None:
    said = refusal(f"sqlite:///{tmp_path}/nowhere/qbeat.sqlite3", create_tables=True)
    assert f"the folder {tmp_path}/nowhere" in said
    assert "create it" in said


def test_a_relative_path_stays_where_it_was_when_the_process_moves(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    store = open_store("sqlite:///qbeat.sqlite3", create_tables=True)
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    store.open()
    store.close()
    assert (tmp_path / "qbeat.sqlite3").exists()


def test_a_file_that_is_no_database_is_told(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("not a database, but long enough to be read as the head of one" * 20)
    assert "not a database" in refusal(f"sqlite:///{tmp_path}/notes.txt")


def test_a_sqlite_file_is_opened_for_safety_and_for_others(sqlite_url: str) -> None:
    made(sqlite_url)
    store = open_store(sqlite_url)
    store.open()
    pragma = store.link.read(
        lambda connection: [
            connection.exec_driver_sql(f"PRAGMA {name}").scalar_one()
            for name in ("journal_mode", "synchronous", "busy_timeout")
        ]
    )
    assert pragma == ["wal", 2, 1000]
    store.close()


def test_nothing_is_connected_before_open() -> None:
    for url in ("postgresql://127.0.0.1:1/none", "mysql+pymysql://127.0.0.1:1/none"):
        store = open_store(url)
        store.describe()
        with pytest.raises(Unavailable):
            store.open()
        store.close()
