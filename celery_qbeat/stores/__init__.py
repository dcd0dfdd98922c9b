"""Stores: the tables of SQLite, PostgreSQL, MySQL and MariaDB behind `ports.Store`."""

from __future__ import annotations

import sqlalchemy as sa
from sqlalchemy.exc import ArgumentError

from celery_qbeat.errors import SettingsError
from celery_qbeat.stores.database import Database, shown
from celery_qbeat.stores.mysql import MySQL
from celery_qbeat.stores.postgresql import PostgreSQL
from celery_qbeat.stores.sql import SqlStore
from celery_qbeat.stores.sqlite import SQLite

__all__ = ["DATABASES", "SqlStore", "open_store", "parsed_url", "shown"]

DATABASES: dict[str, type[Database]] = {
    "sqlite": SQLite,
    "postgresql": PostgreSQL,
    "mysql": MySQL,
    "mariadb": MySQL,
}
"""By the name of SQLAlchemy's dialect. A new database is one file and one line here."""


def parsed_url(url: str) -> sa.URL:
    """The parts of an SQLAlchemy URL. Raises SettingsError, which never shows it: there may be a password in it."""
    try:
        return sa.make_url("postgresql" + url[8:] if url.startswith("postgres:") else url)
    except (ArgumentError, ValueError):
        example = "postgresql://user:password@host:5432/database"
        raise SettingsError(
            f"qbeat_database_url: this is not a database URL; write it like {example}, "
            "in the password %40 for @, %3A for : and %2F for /"
        ) from None


def open_store(url: str, *, create_tables: bool = False) -> SqlStore:
    """The store behind an SQLAlchemy URL. Connects to nothing before `open`, which makes the tables if told to.

    Raises SettingsError for a URL that cannot be used.
    """
    parsed = parsed_url(url)
    kind = DATABASES.get(parsed.get_backend_name())
    if kind is None:
        raise SettingsError(
            f"qbeat_database_url: {parsed.get_backend_name()!r} is not supported; use {', '.join(DATABASES)}"
        )
    if parsed.get_backend_name() == "sqlite" and parsed.database in (None, "", ":memory:"):
        raise SettingsError("qbeat_database_url: a SQLite database must be a file, like sqlite:///celery-qbeat.sqlite3")
    return SqlStore(parsed, kind(), create_tables=create_tables)
