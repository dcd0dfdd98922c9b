"""Making the tables, and checking them: version, owner, rights, triggers.

One tool owns a database's schema: Alembic here, or Django; `qbeat_meta.owner` says which, and the other one refuses.

The rights that a beat needs when its role may not create anything (triggers write the log with their owner's rights):

    SELECT on qbeat_jobs, qbeat_workers
    SELECT, INSERT, UPDATE, DELETE on qbeat_state, qbeat_runs, qbeat_batches, qbeat_history, qbeat_changes
    SELECT, DELETE on qbeat_requests
    SELECT, INSERT, UPDATE on qbeat_leader
    SELECT, UPDATE on qbeat_meta

A role that edits rows needs its rights on qbeat_jobs, qbeat_workers and qbeat_requests alone, and SELECT on
qbeat_status and, on MySQL and MariaDB, on what that view reads: qbeat_jobs and qbeat_state.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn

import sqlalchemy as sa
from alembic import command
from alembic.config import Config

from celery_qbeat.errors import QbeatError, SchemaError
from celery_qbeat.stores import canary, tables, triggers
from celery_qbeat.stores.connection import Link

SCHEMA_VERSION = 1
VERSION_TABLE = "qbeat_alembic_version"
MIGRATE = {"alembic": "celery -A proj qbeat migrate", "django": "manage.py migrate"}

_LOCK = 7_202_511
"""PostgreSQL's advisory lock during a migration: a number that others will hardly take."""


@dataclass(frozen=True, slots=True)
class Identity:
    """The row of `qbeat_meta`."""

    instance: str
    version: int
    owner: str


class _Undo(QbeatError):
    """Carries the canary's answer out of a transaction that is rolled back."""


def migrate(link: Link) -> None:
    """Bring the tables to SCHEMA_VERSION, and make triggers and view anew. May be repeated.

    Raises SchemaError when Django owns the tables, when they are newer, or when the role may not create them.
    """
    found = link.read(identity)
    if found is not None:
        if found.owner != "alembic":
            raise SchemaError(f"the tables of this database belong to {found.owner}: run {_remedy(found)}")
        _refuse_newer(found)
    link.write(_upgrade)


def check(link: Link, *, trouble: str = "") -> Identity:
    """The identity of tables that can be worked with. Raises SchemaError with what to do.

    `trouble`: what is wrong with the server itself.
    """
    if trouble:
        raise SchemaError(trouble)
    found = link.read(identity)
    if found is None:
        raise SchemaError(f"the tables of celery_qbeat are missing in this database: run {MIGRATE['alembic']}")
    _refuse_newer(found)
    if found.version < SCHEMA_VERSION:
        raise SchemaError(
            f"the tables have schema version {found.version}, this celery_qbeat needs {SCHEMA_VERSION}: "
            f"run {_remedy(found)}"
        )
    for table in tables.metadata.sorted_tables:
        _probe(link, table, found)
    wrong = _sing(link)
    if wrong:
        raise SchemaError(f"{wrong}: run {_remedy(found)}, which makes them anew")
    return found


def identity(connection: sa.Connection) -> Identity | None:
    """Whose tables these are; None when there are none."""
    if not sa.inspect(connection).has_table(tables.meta.name):
        return None
    meta = tables.meta.c
    row = connection.execute(sa.select(meta.instance, meta.schema_version, meta.owner).where(meta.id == 1)).first()
    if row is None:
        raise SchemaError("qbeat_meta has lost its row with id 1: restore it from a backup, or drop the qbeat_* tables")
    return Identity(*row)


def is_current(connection: sa.Connection) -> bool:
    """Whether there is nothing to migrate."""
    found = identity(connection)
    return found is not None and found.version >= SCHEMA_VERSION


def install(connection: sa.Connection) -> None:
    """Triggers and view, anew."""
    schema = "public"
    if connection.dialect.name == "postgresql":
        schema = connection.exec_driver_sql("SELECT current_schema()").scalar_one()
    for statement in triggers.create(connection.dialect.name, schema):
        connection.exec_driver_sql(statement)


def config(connection: sa.Connection) -> Config:
    """Alembic's configuration for our migrations on this connection; it touches no other version table."""
    made = Config()
    made.set_main_option("script_location", str(Path(__file__).parent / "migrations").replace("%", "%%"))
    made.set_main_option("path_separator", "os")
    made.attributes["connection"] = connection
    return made


def _upgrade(connection: sa.Connection) -> None:
    if connection.dialect.name == "postgresql":
        # Two at once: the second waits and finds the work done.
        connection.exec_driver_sql("SET LOCAL lock_timeout = '30s'")
        connection.execute(sa.select(sa.func.pg_advisory_xact_lock(_LOCK)))
        command.upgrade(config(connection), "head")
        install(connection)
    elif connection.dialect.name == "sqlite":
        command.upgrade(config(connection), "head")
        install(connection)
    else:
        _upgrade_mysql(connection)


def _upgrade_mysql(connection: sa.Connection) -> None:
    # Every DDL statement commits there, and so does this transaction at its first one; the steps can be repeated.
    connection.exec_driver_sql("SET SESSION lock_wait_timeout = 30, wait_timeout = 600")
    name = sa.func.concat("qbeat.", sa.func.md5(sa.func.database()))
    connection.execute(sa.select(sa.func.get_lock(name, 60)))
    try:
        command.upgrade(config(connection), "head")
        install(connection)
    finally:
        connection.execute(sa.select(sa.func.release_lock(name)))
        connection.exec_driver_sql("SET SESSION lock_wait_timeout = 1, wait_timeout = 10")


def _remedy(found: Identity) -> str:
    return MIGRATE.get(found.owner, f"the migrations of {found.owner}")


def _refuse_newer(found: Identity) -> None:
    if found.version > SCHEMA_VERSION:
        raise SchemaError(
            f"the tables have schema version {found.version}, this celery_qbeat knows {SCHEMA_VERSION}: "
            "install the newer celery_qbeat that made them"
        )


def _probe(link: Link, table: sa.Table, found: Identity) -> None:
    try:
        link.read(lambda connection: connection.execute(sa.select(table).where(sa.false())).close())
    except SchemaError as error:
        raise SchemaError(
            f"{table.name} cannot be read ({error}): run {_remedy(found)}, or grant this role its rights"
        ) from error


def _sing(link: Link) -> str:
    def song(connection: sa.Connection) -> NoReturn:
        raise _Undo(canary.sing(connection) or " ")

    try:
        link.write(song)
    except _Undo as answer:
        return str(answer).strip()
