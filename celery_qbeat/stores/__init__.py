"""Stores: the tables of SQLite, PostgreSQL, MySQL and MariaDB behind `ports.Store`."""

from __future__ import annotations

import re

import sqlalchemy as sa
from sqlalchemy.exc import ArgumentError

from celery_qbeat.core.safe_text import WRITE_IT_ENCODED
from celery_qbeat.errors import SettingsError
from celery_qbeat.stores.database import Database, shown
from celery_qbeat.stores.mysql import MySQL
from celery_qbeat.stores.postgresql import PostgreSQL
from celery_qbeat.stores.sql_store import SqlStore
from celery_qbeat.stores.sqlite import SQLite

__all__ = ["DATABASES", "SqlStore", "open_store", "parsed_url", "shown"]

DATABASES: dict[str, type[Database]] = {
    "sqlite": SQLite,
    "postgresql": PostgreSQL,
    "mysql": MySQL,
    "mariadb": MySQL,
}
"""By the name of SQLAlchemy's dialect. A new database is one file and one line here."""

_OPTION_WITH_AT = re.compile(r"[?&]([\w-]+=[^&@/?#:]*@[^&@/?#:]*|\w*pass\w*=[^&]*)(?=&|$)")


def parsed_url(url: str) -> sa.URL:
    """The parts of an SQLAlchemy URL. Raises SettingsError, which never shows it: there may be a password in it."""
    example = "postgresql://user:password@host:5432/database"
    try:
        parsed = sa.make_url("postgresql" + url[8:] if url.startswith("postgres:") else url)
    except (ArgumentError, ValueError):
        raise SettingsError(
            f"qbeat_database_url: this is not a database URL; write it like {example}; {WRITE_IT_ENCODED}"
        ) from None
    if parsed.get_backend_name() != "sqlite" and _has_second_at(url):
        raise SettingsError(f"qbeat_database_url: an @ follows the host; write it like {example}; {WRITE_IT_ENCODED}")
    return parsed


def _has_second_at(url: str) -> bool:
    """Whether an `@` follows the one that ends the password: then the password has a raw one in it, as a rule.

    One in the value of an option, as in `/db?application_name=beat@host`, is in its place.
    """
    rest = url.partition("://")[2].partition("@")[2]
    path, _, query = rest.partition("?")
    return "@" in path or "@" in (_OPTION_WITH_AT.sub("", f"?{query}") if "/" in path else query)


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
