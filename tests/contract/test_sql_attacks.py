"""What a PostgreSQL role without grants can do where PUBLIC may create objects, the default up to version 14."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import psycopg
import pytest
import sqlalchemy as sa

from celery_qbeat.errors import SchemaError
from celery_qbeat.stores import open_store, triggers
from tests.contract.store_rigs import made
from tests.servers import PostgreSQL

ROW = "INSERT INTO qbeat_jobs (id, fn, schedule_kind, schedule) VALUES ('{}', 'f', 'every', '1m')"
WARNING = "every role may create objects in schema 'public'"

Statement = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Target:
    """A database with our tables; `stranger` runs SQL as a role without grants, `owner` as the tables' owner."""

    url: str
    stranger: Statement
    owner: Statement

    def loot(self) -> set[str]:
        """The roles other than the stranger with whose rights the stranger's functions ran."""
        with psycopg.connect(self.url.replace("+psycopg", "")) as connection:
            return {name for (name,) in connection.execute("SELECT DISTINCT ran_as FROM loot").fetchall()}

    def changes(self) -> int:
        with psycopg.connect(self.url.replace("+psycopg", "")) as connection:
            return connection.execute("SELECT count(*) FROM qbeat_changes").fetchone()[0]  # type: ignore[index]

    def migrate_again(self) -> None:
        """Make triggers and view anew, with the statements alone: Alembic's own queries are not ours to mend."""
        with sa.create_engine(self.url, poolclass=sa.NullPool).begin() as connection:
            for statement in triggers.create("postgresql"):
                connection.exec_driver_sql(statement)


@pytest.fixture
def target(postgres_server: PostgreSQL, postgres_url: str) -> Iterator[Target]:
    made(postgres_url)
    name = sa.make_url(postgres_url).database or ""
    with postgres_server.connect(name) as owner:
        owner.execute("CREATE ROLE stranger LOGIN")
        owner.execute("GRANT CREATE ON SCHEMA public TO PUBLIC")
        plain = postgres_url.replace("+psycopg", "").replace("postgres@", "stranger@")
        try:
            with psycopg.connect(plain, autocommit=True) as stranger:
                stranger.execute("CREATE TABLE loot (ran_as text)")
                stranger.execute("GRANT ALL ON loot TO PUBLIC")
                yield Target(postgres_url, stranger.execute, owner.execute)  # type: ignore[arg-type]
        finally:
            owner.execute("DROP OWNED BY stranger CASCADE")
            owner.execute("DROP ROLE stranger")


def trap(name: str, result: str, value: str) -> str:
    """A function that writes down with whose rights it ran."""
    return (
        f"CREATE FUNCTION public.{name} RETURNS {result} LANGUAGE plpgsql AS $$ BEGIN "
        f"INSERT INTO public.loot SELECT current_user WHERE current_user <> 'stranger'; RETURN {value}; END $$"
    )


def operator(symbol: str, left: str, right: str, result: str, value: str) -> list[str]:
    name = {"*": "times", "=": "equal", "<": "less"}[symbol]
    return [
        trap(f"{name}({left}, {right})", result, value),
        f"CREATE OPERATOR public.{symbol} (LEFTARG = {left}, RIGHTARG = {right}, FUNCTION = public.{name})",
    ]


PLANTED = {
    "a function that takes the job's row": [trap("to_jsonb(qbeat_jobs)", "jsonb", '\'{"id": "a"}\'')],
    "a function that takes the literal as text": [trap("nextval(text)", "bigint", "1")],
    "an operator for exactly these types": operator("*", "numeric", "integer", "numeric", "1"),
}


@pytest.mark.parametrize("planted", PLANTED.values(), ids=PLANTED.keys())
def test_triggers_run_nothing_that_another_role_planted(target: Target, planted: list[str]) -> None:
    for statement in planted:
        target.stranger(statement)
    target.owner(ROW.format("a"))
    target.owner("UPDATE qbeat_jobs SET id = 'b' WHERE id = 'a'")
    target.owner("INSERT INTO qbeat_workers (name) VALUES ('w')")
    target.owner("UPDATE qbeat_workers SET name = 'v'")
    target.owner("INSERT INTO qbeat_requests (job_id, asked_us) VALUES ('b', 1)")
    target.owner("DELETE FROM qbeat_jobs")
    assert target.loot() == set()


@pytest.mark.parametrize("symbol", ["*", "=", "<"])
def test_the_status_view_calls_no_operator_that_another_role_planted(target: Target, symbol: str) -> None:
    target.owner(ROW.format("a"))
    target.owner("INSERT INTO qbeat_state (job_id, late_after_us) VALUES ('a', 1)")
    types = {"*": ("numeric", "integer", "numeric", "1"), "=": ("varchar", "varchar", "boolean", "true")}
    for statement in operator(symbol, *types.get(symbol, ("bigint", "bigint", "boolean", "true"))):
        target.stranger(statement)
    target.migrate_again()
    target.owner("SELECT * FROM qbeat_status")
    assert target.loot() == set()


BAIT = "CREATE TEMP TABLE bait (id text, name text, job_id text, rev bigint)"


@pytest.mark.parametrize("name", triggers.POSTGRESQL_FUNCTIONS)
def test_no_role_without_grants_can_put_our_functions_on_its_table(target: Target, name: str) -> None:
    target.stranger(BAIT)
    with pytest.raises(psycopg.errors.InsufficientPrivilege, match=f"permission denied for function public.{name}"):
        target.stranger(f"CREATE TRIGGER bait AFTER INSERT ON bait FOR EACH ROW EXECUTE FUNCTION public.{name}()")


def test_a_trigger_that_was_set_on_a_foreign_table_before_writes_nothing(target: Target) -> None:
    for name in triggers.POSTGRESQL_FUNCTIONS:
        target.owner(f"GRANT EXECUTE ON FUNCTION {name}() TO PUBLIC")
    # A type of one's own, whose cast would run with the rights of the function.
    target.stranger("CREATE TYPE lure AS ENUM ('x')")
    target.stranger(trap("bite(lure)", "varchar", "'x'"))
    target.stranger("CREATE CAST (lure AS varchar) WITH FUNCTION bite(lure) AS ASSIGNMENT")
    rows = "REFERENCING NEW TABLE AS qbeat_new FOR EACH STATEMENT"
    for name in triggers.POSTGRESQL_FUNCTIONS:
        timing = "BEFORE INSERT ON {}" if name.endswith("rev") else "AFTER INSERT ON {}"
        each = f"{timing} {rows}" if name.endswith("log") else f"{timing} FOR EACH ROW"
        table = f"bait_{name}"
        target.stranger(f"CREATE TEMP TABLE {table} (id lure, name lure, job_id lure, rev lure)")
        target.stranger(f"CREATE TRIGGER bait {each.format(table)} EXECUTE FUNCTION public.{name}('id', 'D')")
    target.migrate_again()
    before = target.changes()
    for name in triggers.POSTGRESQL_FUNCTIONS:
        with pytest.raises(psycopg.Error, match=f"{name} is only for table .*qbeat_"):
            target.stranger(f"INSERT INTO bait_{name} VALUES ('x', 'x', 'x', 'x')")
    assert (target.changes(), target.loot()) == (before, set())


UNSAFE = {
    "EXECUTE for PUBLIC": ["GRANT EXECUTE ON FUNCTION {} TO PUBLIC"],
    "the path of older versions": ["ALTER FUNCTION {} SET search_path = public, pg_temp"],
    "no path": ["ALTER FUNCTION {} RESET search_path"],
    "the rights of the caller": ["ALTER FUNCTION {} SECURITY INVOKER"],
}


@pytest.mark.parametrize("change", UNSAFE.values(), ids=UNSAFE.keys())
def test_an_unsafe_trigger_function_is_refused_until_a_migration(target: Target, change: list[str]) -> None:
    for statement in change:
        target.owner(statement.format("qbeat_workers_log()"))
    store = open_store(target.url)
    with pytest.raises(SchemaError, match=r"qbeat_workers_log.*unsafe.*run celery -A proj qbeat migrate"):
        store.open()
    store.migrate()
    store.open()
    store.close()


def test_a_trigger_function_of_a_stranger_is_refused(target: Target) -> None:
    target.owner("ALTER FUNCTION qbeat_jobs_rev() OWNER TO stranger")
    store = open_store(target.url)
    with pytest.raises(SchemaError, match=r"qbeat_jobs_rev.*belongs to stranger"):
        store.open()
    store.close()


def test_a_schema_in_which_every_role_may_create_is_warned_of(target: Target, caplog: pytest.LogCaptureFixture) -> None:
    store = open_store(target.url)
    with caplog.at_level(logging.WARNING, "celery_qbeat"):
        store.open()
    assert [record.message for record in caplog.records if WARNING in record.message]
    caplog.clear()
    target.owner("REVOKE CREATE ON SCHEMA public FROM PUBLIC")
    with caplog.at_level(logging.WARNING, "celery_qbeat"):
        store.open()
    assert caplog.records == []
    store.close()


def test_migrating_leaves_the_search_path_as_it_was(target: Target) -> None:
    with sa.create_engine(target.url, poolclass=sa.NullPool).begin() as connection:
        connection.exec_driver_sql("SET LOCAL search_path = public, pg_catalog")
        for statement in triggers.create("postgresql"):
            connection.exec_driver_sql(statement)
        assert connection.exec_driver_sql("SHOW search_path").scalar_one() == "public, pg_catalog"
