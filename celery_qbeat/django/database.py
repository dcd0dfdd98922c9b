"""What a migration does beside the tables: triggers, view, and the rows that every database starts with."""

from __future__ import annotations

import re
import uuid
from contextlib import nullcontext
from typing import Any

from django.apps import apps as registry
from django.conf import settings
from django.db import connections, transaction
from django.db.migrations.recorder import MigrationRecorder

from celery_qbeat.core.privileges import BUILTIN_PRUNE
from celery_qbeat.errors import SchemaError
from celery_qbeat.stores import postgresql_rights, triggers
from celery_qbeat.stores.schema import SCHEMA_VERSION

LABEL = "qbeat"
PREPARING = "0002_triggers"
OWNER = "django"

_TRIGGERS = {
    "sqlite": "SELECT name FROM sqlite_master WHERE type = 'trigger' AND name LIKE 'qbeat\\_%' ESCAPE '\\'",
    "mysql": "SELECT trigger_name FROM information_schema.triggers WHERE trigger_schema = DATABASE()",
    "postgresql": "SELECT tgname FROM pg_trigger WHERE tgenabled IN ('O', 'A') AND tgrelid IN "
    "(to_regclass('qbeat_jobs'), to_regclass('qbeat_workers'), to_regclass('qbeat_requests'))",
}


def dialect_of(connection: Any) -> str:
    """SQLAlchemy's name for the kind of database. Raises SchemaError for one that celery_qbeat does not know."""
    if connection.vendor not in _TRIGGERS:
        raise SchemaError(
            f"DATABASES[{connection.alias!r}]: {connection.vendor} is not supported; "
            "celery_qbeat works in sqlite3, postgresql and mysql databases"
        )
    name: str = connection.vendor
    return name


def refuse_foreign(_apps: Any, schema_editor: Any) -> None:
    """Before the first table: tables that another tool made are left alone."""
    connection = schema_editor.connection
    dialect_of(connection)
    if "qbeat_meta" in connection.introspection.table_names():
        raise SchemaError(
            "qbeat_meta exists already: `celery qbeat migrate` made these tables. Let Django take them over with "
            f"`manage.py migrate {LABEL} --fake`, or use another database"
        )


def create_triggers(_apps: Any, schema_editor: Any) -> None:
    """Triggers, view and first rows; may run again."""
    prepare(schema_editor.connection)


def make_view(_apps: Any, schema_editor: Any) -> None:
    """Triggers and view anew, also where an older view is there."""
    connection = schema_editor.connection
    _run(connection, triggers.create(dialect_of(connection), _schema(connection)))


def drop_view(_apps: Any, schema_editor: Any) -> None:
    """The way back; the view of an older version is not made again."""
    _run(schema_editor.connection, ["DROP VIEW IF EXISTS qbeat_status"])


def drop_triggers(_apps: Any, schema_editor: Any) -> None:
    """The way back."""
    connection = schema_editor.connection
    _run(connection, triggers.drop(dialect_of(connection), _schema(connection)))


def prepare(connection: Any) -> None:
    """What a migrated database has beside its tables: what is missing of it is made."""
    dialect = dialect_of(connection)
    if not _complete(connection):
        made = triggers.create(dialect, _schema(connection), view=_has_columns_of_view(connection))
        _run(connection, made)
    with connection.cursor() as cursor:
        _seed(cursor)


def after_migrate(using: str, apps: Any = registry, **_: Any) -> None:
    """After `migrate` and `flush`: SQLite drops triggers when it rebuilds a table, flush empties all tables."""
    connection = connections[using]
    if connection.vendor in _TRIGGERS and _migrated(connection):
        from celery_qbeat.django.permissions import make_scope_permissions

        prepare(connection)
        make_scope_permissions(using, apps)


def _migrated(connection: Any) -> bool:
    if "qbeat_jobs" not in connection.introspection.table_names():
        return False
    modules = settings.MIGRATION_MODULES
    if LABEL in modules and modules[LABEL] is None:
        return True
    return (LABEL, PREPARING) in MigrationRecorder(connection).applied_migrations()


def _complete(connection: Any) -> bool:
    """Whether no trigger is missing or unsafe and the view is there."""
    if missing_triggers(connection) or unsafe_functions(connection):
        return False
    return "qbeat_status" in connection.introspection.table_names(include_views=True)


def _has_columns_of_view(connection: Any) -> bool:
    """False between two migrations: the view reads a column that comes with a later one than the triggers."""
    with connection.cursor() as cursor:
        columns = connection.introspection.get_table_description(cursor, "qbeat_leader")
    return "silence_us" in {column.name for column in columns}


def missing_triggers(connection: Any) -> set[str]:
    """The names of the triggers that should be there, and would fire, and are not."""
    with connection.cursor() as cursor:
        cursor.execute(_TRIGGERS[dialect_of(connection)])
        found = {str(row[0]) for row in cursor.fetchall()}
    return _names(connection.vendor) - found


def unsafe_functions(connection: Any) -> set[str]:
    """The names of trigger functions that other roles could misuse, see `postgresql_rights`."""
    if connection.vendor != "postgresql":
        return set()
    with connection.cursor() as cursor:
        cursor.execute(postgresql_rights.UNSAFE)
        return {str(row[0]) for row in cursor.fetchall()}


def _names(dialect: str) -> set[str]:
    return set(re.findall(r"CREATE TRIGGER (\w+)", " ".join(triggers.create(dialect))))


def _schema(connection: Any) -> str:
    """Where PostgreSQL has the tables."""
    if connection.vendor != "postgresql":
        return ""
    with connection.cursor() as cursor:
        cursor.execute("SELECT relnamespace::regnamespace::text FROM pg_class WHERE oid = to_regclass('qbeat_changes')")
        return str(cursor.fetchone()[0])


def _run(connection: Any, statements: list[str]) -> None:
    # On PostgreSQL the statements belong into one transaction, and `after_migrate` is called outside of one.
    whole = transaction.atomic(using=connection.alias) if connection.vendor == "postgresql" else nullcontext()
    with whole, connection.cursor() as cursor:
        for statement in statements:
            cursor.execute(statement)


def _seed(cursor: Any) -> None:
    _insert(cursor, "qbeat_leader", "id", {"id": 1, "epoch": 0})
    meta = {"id": 1, "schema_version": SCHEMA_VERSION, "instance": str(uuid.uuid4()), "owner": OWNER}
    if _insert(cursor, "qbeat_meta", "id", meta):
        # SQLite empties tables row by row, and the triggers write to the log after it was emptied.
        cursor.execute("DELETE FROM qbeat_changes")
        # With new tables only: who deletes it does not want it.
        prune = {"id": BUILTIN_PRUNE, "fn": BUILTIN_PRUNE, "schedule_kind": "every", "schedule": "1h"}
        _insert(cursor, "qbeat_jobs", "id", prune | {"description": "Deletes runs that were kept long enough."})
    else:
        cursor.execute("UPDATE qbeat_meta SET owner = %s WHERE id = 1 AND owner <> %s", [OWNER, OWNER])


def _insert(cursor: Any, table: str, key: str, values: dict[str, Any]) -> bool:
    """Insert a row unless it is there; whether it was inserted."""
    cursor.execute(f"SELECT 1 FROM {table} WHERE {key} = %s", [values[key]])  # noqa: S608 - names from this file
    if cursor.fetchone():
        return False
    columns, marks = ", ".join(values), ", ".join(["%s"] * len(values))
    cursor.execute(f"INSERT INTO {table} ({columns}) VALUES ({marks})", list(values.values()))  # noqa: S608
    return True
