"""What `manage.py check` says before anybody wonders."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator, Sequence
from typing import Any

from django.core import checks
from django.db import connections, router
from django.db.utils import ConnectionDoesNotExist

from celery_qbeat.django.database import missing_triggers, unsafe_functions
from celery_qbeat.errors import SettingsError
from celery_qbeat.settings import Settings

OLDEST_SQLITE = (3, 35, 0)


def register() -> None:
    """Make Django run them."""
    checks.register(check_project, "qbeat")
    checks.register(check_databases, checks.Tags.database)


def check_project(**_: Any) -> list[checks.CheckMessage]:
    """Celery app, settings, and whether the admin and the beat look at the same database."""
    from celery_qbeat.django.project import find_celery_app, qbeat_settings

    if find_celery_app() is None:
        hint = "Make the project's package import it: `from .celery import app` in its __init__.py."
        return [
            checks.Warning("No Celery app was made when Django started, so no row may run.", hint=hint, id="qbeat.W001")
        ]
    try:
        settings = qbeat_settings()
    except SettingsError as error:
        return [checks.Error(str(error), id="qbeat.E001")]
    return _check_settings(settings)


def _check_settings(settings: Settings) -> list[checks.CheckMessage]:
    from celery_qbeat.django.models import Job
    from celery_qbeat.django.url import database_url

    found: list[checks.CheckMessage] = []
    alias, admins = settings.django_database, router.db_for_write(Job)
    if settings.database_url is not None:
        hint = "Leave qbeat_database_url out: beats then work in Django's database."
        text = "qbeat_database_url is set: beats work there, while this admin shows Django's database."
        return [checks.Warning(text, hint=hint, id="qbeat.W002")]
    try:
        if alias not in connections or not _made_for_tests(connections[alias]):
            database_url(alias)
    except SettingsError as error:
        return [checks.Error(str(error), id="qbeat.E002")]
    if alias != admins:
        text = f"Beats work in DATABASES[{alias!r}], while this admin shows DATABASES[{admins!r}]."
        hint = "Add 'celery_qbeat.django.router.Router' to DATABASE_ROUTERS, or set qbeat_django_database."
        found.append(checks.Error(text, hint=hint, id="qbeat.E003"))
    return found


def check_databases(databases: Sequence[str] | None = None, **_: Any) -> list[checks.CheckMessage]:
    """Versions, character set and triggers of those databases that hold our tables."""
    found: list[checks.CheckMessage] = []
    for alias in databases or ():
        try:
            connection = connections[alias]
        except ConnectionDoesNotExist:
            continue
        if "qbeat_jobs" in connection.introspection.table_names():
            found.extend(_check_connection(alias, connection))
    return found


def _check_connection(alias: str, connection: Any) -> list[checks.CheckMessage]:
    name = f"DATABASES[{alias!r}]"
    found: list[checks.CheckMessage] = []
    missing = missing_triggers(connection)
    if missing:
        text = f"{name}: edits will not be noticed: triggers are missing or disabled: {', '.join(sorted(missing))}."
        # No error: it would keep `migrate` from doing what the hint says.
        found.append(checks.Warning(text, hint="Run `manage.py migrate`: it makes them anew.", id="qbeat.W005"))
    unsafe = unsafe_functions(connection)
    if unsafe:
        text = f"{name}: other roles could misuse the trigger functions {', '.join(sorted(unsafe))}."
        hint = "Run `manage.py migrate` as the owner of the tables: it makes them anew."
        found.append(checks.Warning(text, hint=hint, id="qbeat.W006"))
    if connection.vendor == "sqlite":
        found.extend(_check_sqlite(name, connection))
    elif connection.vendor == "mysql":
        found.extend(_check_mysql(name, connection))
    return found


def _check_sqlite(name: str, connection: Any) -> Iterator[checks.CheckMessage]:
    if sqlite3.sqlite_version_info < OLDEST_SQLITE:
        text = f"{name}: SQLite {sqlite3.sqlite_version} is too old; celery_qbeat needs 3.35."
        yield checks.Error(text, id="qbeat.E004")
    if str(getattr(connection, "transaction_mode", "")).upper() != "IMMEDIATE" and not _made_for_tests(connection):
        text = f"{name}: while a beat writes, saving a page may fail with 'database is locked'."
        hint = 'Add "OPTIONS": {"transaction_mode": "IMMEDIATE", "timeout": 20}.'
        yield checks.Warning(text, hint=hint, id="qbeat.W004")


def _made_for_tests(connection: Any) -> bool:
    """Whether it is the database in memory that Django's test runner puts in place of an SQLite file."""
    return connection.vendor == "sqlite" and str(connection.settings_dict["NAME"]).startswith("file:memorydb_")


def _check_mysql(name: str, connection: Any) -> Iterator[checks.CheckMessage]:
    with connection.cursor() as cursor:
        cursor.execute("SELECT @@character_set_database")
        charset = cursor.fetchone()[0]
    if charset != "utf8mb4":
        text = f"{name}: its character set is {charset}; texts outside of it will be refused."
        hint = "Convert the database and its qbeat_ tables to utf8mb4."
        yield checks.Warning(text, hint=hint, id="qbeat.W003")
