"""Alembic's part of a migration; `schema.migrate` says when."""

from __future__ import annotations

from pathlib import Path

import sqlalchemy as sa
from alembic import command
from alembic.config import Config

from celery_qbeat.stores import triggers

VERSION_TABLE = "qbeat_alembic_version"

_LOCK = 7_202_511
"""PostgreSQL's advisory lock during a migration: a number that others will hardly take."""


def install(connection: sa.Connection, *, view: bool = True) -> None:
    """Triggers and view, anew; see `triggers.create`."""
    schema = "public"
    if connection.dialect.name == "postgresql":
        schema = connection.exec_driver_sql("SELECT current_schema()").scalar_one()
    for statement in triggers.create(connection.dialect.name, schema, view=view):
        connection.exec_driver_sql(statement)


def config(connection: sa.Connection) -> Config:
    """Alembic's configuration for our migrations on this connection; it touches no other version table."""
    made = Config()
    made.set_main_option("script_location", str(Path(__file__).parent / "migrations").replace("%", "%%"))
    made.set_main_option("path_separator", "os")
    made.attributes["connection"] = connection
    return made


def upgrade(connection: sa.Connection) -> None:
    """Run the migrations that are missing, and make triggers and view anew."""
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
