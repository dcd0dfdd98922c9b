"""What `manage.py check` says."""

from __future__ import annotations

from collections.abc import Callable
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
from celery import Celery
from django.apps import apps
from django.core.checks import run_checks
from django.core.management import call_command
from django.db import connections
from django.test import override_settings

from celery_qbeat.django.database import dialect_of
from celery_qbeat.errors import SchemaError
from celery_qbeat.settings import read_settings
from celery_qbeat.wiring import build_store
from tests.django.databases import add
from tests.django.making_schemas import by_django

ROUTERS = ["celery_qbeat.django.router.Router"]


def found(**options: Any) -> list[str]:
    return [message.id for message in run_checks(**options) if message.id.startswith("qbeat.")]


def said(**options: Any) -> str:
    return " ".join(f"{message.msg} {message.hint or ''}" for message in run_checks(**options))


def test_a_sound_project_has_nothing_to_say(db: None, celery_app: Celery) -> None:
    assert found(databases=["default"]) == []


def test_a_bad_setting_is_an_error_before_anything_starts(db: None, celery_app: Celery) -> None:
    celery_app.conf.qbeat_poll_intervall = 3
    assert found() == ["qbeat.E001"]
    assert "did you mean qbeat_poll_interval?" in said()


def test_another_database_for_the_beat_is_pointed_out(db: None, celery_app: Celery) -> None:
    celery_app.conf.qbeat_database_url = "sqlite:///elsewhere.sqlite3"
    assert found() == ["qbeat.W002"]


def test_an_alias_that_is_not_there_is_an_error(db: None, celery_app: Celery) -> None:
    celery_app.conf.qbeat_django_database = "jobs"
    assert found() == ["qbeat.E002"]


def test_beat_and_admin_in_two_databases_are_an_error_until_the_router_is_there(
    db: None, celery_app: Celery, sqlite_url: str, django_database: Callable[[str], str]
) -> None:
    from celery_qbeat.django.models import Job

    alias = django_database(sqlite_url)
    celery_app.conf.qbeat_django_database = alias
    assert found() == ["qbeat.E003"]
    with override_settings(DATABASE_ROUTERS=ROUTERS):
        assert found() == []
        by_django(alias)
        Job.objects.create(id="there", fn="shop.cleanup", schedule_kind="every", schedule="1h")
        assert Job.objects.using(alias).filter(pk="there").exists()
    assert not Job.objects.filter(pk="there").exists()


def test_the_router_keeps_the_tables_out_of_other_databases(
    db: None, celery_app: Celery, sqlite_url: str, django_database: Callable[[str], str]
) -> None:
    alias = django_database(sqlite_url)
    with override_settings(DATABASE_ROUTERS=ROUTERS):
        by_django(alias)
    assert "qbeat_jobs" not in connections[alias].introspection.table_names()


def test_missing_triggers_are_pointed_out_and_migrate_is_the_cure(
    sqlite_url: str, django_database: Callable[[str], str], celery_app: Celery, db: None
) -> None:
    alias = django_database(sqlite_url)
    by_django(alias)
    with connections[alias].cursor() as cursor:
        cursor.execute("DROP TRIGGER qbeat_jobs_del")
    assert found(databases=[alias]) == ["qbeat.W005"]
    assert "qbeat_jobs_del" in said(databases=[alias])
    # As from the command line: with the checks, which an error would end it by.
    call_command("migrate", "qbeat", database=alias, verbosity=0, skip_checks=False, stderr=StringIO())
    assert found(databases=[alias]) == []


def test_disabled_triggers_are_pointed_out_and_made_anew(
    postgres_url: str, django_database: Callable[[str], str], celery_app: Celery, db: None
) -> None:
    alias = django_database(postgres_url)
    by_django(alias)
    with connections[alias].cursor() as cursor:
        cursor.execute("ALTER TABLE qbeat_jobs DISABLE TRIGGER USER")
    assert found(databases=[alias]) == ["qbeat.W005"]
    by_django(alias)
    assert found(databases=[alias]) == []


def test_unsafe_trigger_functions_are_pointed_out_and_made_anew(
    postgres_url: str, django_database: Callable[[str], str], celery_app: Celery, db: None
) -> None:
    alias = django_database(postgres_url)
    by_django(alias)
    with connections[alias].cursor() as cursor:
        cursor.execute("ALTER FUNCTION qbeat_jobs_ren() SET search_path = public, pg_temp")
        cursor.execute("GRANT EXECUTE ON FUNCTION qbeat_jobs_rev() TO PUBLIC")
    assert found(databases=[alias]) == ["qbeat.W006"]
    by_django(alias)
    assert found(databases=[alias]) == []


def test_the_database_in_memory_of_a_test_run_is_none_of_our_business(db: None, celery_app: Celery) -> None:
    alias = add({"ENGINE": "django.db.backends.sqlite3", "NAME": "file:memorydb_x?mode=memory&cache=shared"})
    by_django(alias)
    celery_app.conf.qbeat_django_database = alias
    with override_settings(DATABASE_ROUTERS=ROUTERS):
        assert found(databases=[alias]) == []
    connections[alias].close()


def test_a_database_in_memory_of_ones_own_is_an_error(db: None, celery_app: Celery) -> None:
    celery_app.conf.qbeat_django_database = add({"ENGINE": "django.db.backends.sqlite3", "NAME": ":memory:"})
    with override_settings(DATABASE_ROUTERS=ROUTERS):
        assert found() == ["qbeat.E002"]


def test_sqlite_transactions_that_may_find_the_database_locked_are_pointed_out(
    tmp_path: Path, django_database: Callable[[str], str], celery_app: Celery, db: None
) -> None:
    alias = add({"ENGINE": "django.db.backends.sqlite3", "NAME": tmp_path / "plain.sqlite3"})
    by_django(alias)
    assert found(databases=[alias]) == ["qbeat.W004"]
    connections[alias].close()


def test_a_character_set_that_loses_texts_is_pointed_out(
    mariadb_url: str, django_database: Callable[[str], str], celery_app: Celery, db: None
) -> None:
    alias = django_database(mariadb_url)
    by_django(alias)
    assert found(databases=[alias]) == []
    with connections[alias].cursor() as cursor:
        cursor.execute("ALTER DATABASE CHARACTER SET latin1")
    connections[alias].close()
    assert found(databases=[alias]) == ["qbeat.W003"]


def test_without_a_celery_app_it_says_what_to_import(db: None, monkeypatch: pytest.MonkeyPatch) -> None:
    from celery import _state

    monkeypatch.setattr(apps.get_app_config("qbeat"), "celery_app", None)
    monkeypatch.setattr(_state, "_get_active_apps", list)
    monkeypatch.setattr(_state._tls, "current_app", None, raising=False)
    assert found() == ["qbeat.W001"]


def test_a_database_of_another_make_is_refused_in_one_sentence() -> None:
    class Oracle:
        vendor, alias = "oracle", "default"

    with pytest.raises(
        SchemaError, match="oracle is not supported; celery_qbeat works in sqlite3, postgresql and mysql"
    ):
        dialect_of(Oracle())


@pytest.mark.usefixtures("_migrated")
def test_a_beat_of_the_project_works_in_djangos_database_without_a_setting(celery_app: Celery) -> None:
    store = build_store(read_settings(celery_app.conf))
    store.open()
    assert str(connections["default"].settings_dict["NAME"]) in store.describe()
    store.close()
