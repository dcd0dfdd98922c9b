"""Databases by SQLAlchemy URL for Django, and what a schema looks like from outside."""

from __future__ import annotations

import itertools
import re
from typing import Any

import pymysql
import sqlalchemy as sa
from django.db import connections

pymysql.install_as_MySQLdb()

_ENGINES = {"sqlite": "sqlite3", "postgresql": "postgresql", "mysql": "mysql"}
_aliases = itertools.count(1)


def register(url: str) -> str:
    """A new alias in DATABASES for this URL."""
    parts = sa.make_url(url)
    config: dict[str, Any] = {
        "ENGINE": f"django.db.backends.{_ENGINES[parts.get_backend_name()]}",
        "NAME": parts.database,
        "USER": parts.username or "",
        "PASSWORD": parts.password or "",
        "HOST": parts.host or "",
        "PORT": parts.port or "",
    }
    if parts.get_backend_name() == "sqlite":
        config["OPTIONS"] = {"transaction_mode": "IMMEDIATE", "timeout": 20}
    return add(config)


def add(config: dict[str, Any]) -> str:
    """A new alias in DATABASES with this configuration."""
    alias = f"db{next(_aliases)}"
    connections.databases[alias] = connections.configure_settings({"default": {}, alias: config})[alias]
    return alias


def schema(url: str) -> dict[str, set[Any]]:
    """All that defines the qbeat_ tables: columns, indexes, constraints, triggers, view and functions, as texts."""
    engine = sa.create_engine(url, poolclass=sa.NullPool)
    read = {"sqlite": _sqlite, "postgresql": _postgresql, "mysql": _mysql}[engine.dialect.name]
    with engine.connect() as connection:
        return read(connection)


def _rows(connection: sa.Connection, query: str) -> set[Any]:
    return {tuple(row) for row in connection.execute(sa.text(query))}


def _sqlite(connection: sa.Connection) -> dict[str, set[Any]]:
    found: dict[str, set[Any]] = {"columns": set(), "indexes": set()}
    tables = _rows(connection, "SELECT name, sql FROM sqlite_master WHERE type = 'table' AND name LIKE 'qbeat%'")
    for table, sql in tables:
        for column in connection.execute(sa.text(f"PRAGMA table_xinfo({table})")).mappings():
            kind, default = column["type"].lower(), column["dflt_value"]
            found["columns"].add((table, column["cid"], column["name"], kind, column["notnull"], default, column["pk"]))
        for index in connection.execute(sa.text(f"PRAGMA index_list({table})")).mappings():
            name = "" if index["name"].startswith("sqlite_autoindex") else index["name"]
            columns = connection.execute(sa.text(f"PRAGMA index_info({index['name']})")).mappings()
            found["indexes"].add((table, name, index["unique"], tuple(column["name"] for column in columns)))
        found["columns"].add((table, "AUTOINCREMENT" in sql.upper()))
    made = "SELECT name, type, sql FROM sqlite_master WHERE type IN ('trigger', 'view') AND name LIKE 'qbeat%'"
    return found | {"made": _rows(connection, made)}


def _postgresql(connection: sa.Connection) -> dict[str, set[Any]]:
    queries = {
        "columns": """
            SELECT table_name, ordinal_position, column_name, data_type, character_maximum_length, numeric_precision,
             is_nullable, column_default, is_identity, identity_generation, collation_name
            FROM information_schema.columns WHERE table_name LIKE 'qbeat%'""",
        "indexes": "SELECT indexdef FROM pg_indexes WHERE tablename LIKE 'qbeat%'",
        "constraints": """
            SELECT conrelid::regclass::text, conname, pg_get_constraintdef(oid) FROM pg_constraint
            WHERE conrelid::regclass::text LIKE 'qbeat%'""",
        "triggers": """
            SELECT pg_get_triggerdef(oid), tgenabled FROM pg_trigger
            WHERE NOT tgisinternal AND tgrelid::regclass::text LIKE 'qbeat%'""",
        "functions": "SELECT proname, prosrc, prosecdef, proconfig::text, proacl::text "
        "FROM pg_proc WHERE proname LIKE 'qbeat%'",
        "view": "SELECT pg_get_viewdef('qbeat_status'::regclass)",
        "sequences": "SELECT sequencename FROM pg_sequences WHERE sequencename LIKE 'qbeat%'",
    }
    return {name: _rows(connection, query) for name, query in queries.items()}


def _mysql(connection: sa.Connection) -> dict[str, set[Any]]:
    queries = {
        "tables": "SELECT table_name, engine, table_collation FROM information_schema.tables "
        "WHERE table_schema = DATABASE() AND table_type = 'BASE TABLE' AND table_name LIKE 'qbeat%'",
        "columns": """
            SELECT table_name, ordinal_position, column_name, column_type, collation_name, is_nullable, column_default,
             extra, column_key
            FROM information_schema.columns WHERE table_schema = DATABASE() AND table_name LIKE 'qbeat%'""",
        "indexes": """
            SELECT table_name, index_name, non_unique, seq_in_index, column_name FROM information_schema.statistics
            WHERE table_schema = DATABASE() AND table_name LIKE 'qbeat%'""",
        "triggers": """
            SELECT trigger_name, event_object_table, action_timing, event_manipulation, action_statement
            FROM information_schema.triggers WHERE trigger_schema = DATABASE()""",
        "checks": "SELECT table_name, REPLACE(check_clause, '`', '') FROM information_schema.check_constraints "
        "WHERE constraint_schema = DATABASE() AND table_name LIKE 'qbeat%'",
    }
    found = {name: _rows(connection, query) for name, query in queries.items()}
    view = "SELECT view_definition, security_type FROM information_schema.views WHERE table_schema = DATABASE()"
    return found | {"view": {(re.sub(r"`q\d+`\.", "", text), kind) for text, kind in _rows(connection, view)}}
