"""django-celery-results stores the name of the job beside each result."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable

import pytest

from celery_qbeat.stores import open_store
from tests.celeryproc import Project
from tests.servers.waiting import wait_for

pytest.importorskip("django_celery_results", reason="pip install django-celery-results")

pytestmark = pytest.mark.slow

DJANGO = """
import django
from celery.signals import worker_init
from django.conf import settings

settings.configure(
    DATABASES={"default": {"ENGINE": "django.db.backends.sqlite3", "NAME": "results.sqlite3"}},
    INSTALLED_APPS=["django_celery_results"],
    USE_TZ=True,
)
django.setup()


@worker_init.connect(weak=False)
def migrate(**_):
    from django.core.management import call_command

    call_command("migrate", verbosity=0)
"""


def test_a_result_has_the_name_of_its_row_or_entry(make_project: Callable[..., Project], redis_url: str) -> None:
    name = "entry " + "n" * 300
    entries = {name: {"task": "proj.tasks.record", "schedule": 1.0}}
    settings = {"qbeat_poll_interval": 0.2, "result_backend": "django-db", "result_extended": True}
    project = make_project(redis_url, {**settings, "beat_schedule": entries}, tasks=DJANGO)
    store = open_store(project.database_url, create_tables=True)
    store.open()
    store.close()
    project.sql(
        "INSERT INTO qbeat_jobs (id, fn, schedule_kind, schedule)"
        " VALUES ('shop.hourly', 'proj.tasks.record', 'interval', '3600')"
    )
    project.worker("--pool=solo")
    project.beat()

    def stored() -> set[str]:
        with sqlite3.connect(project.folder / "results.sqlite3", timeout=5) as connection:
            query = "SELECT periodic_task_name FROM django_celery_results_taskresult"
            found = {row[0] for row in connection.execute(query)}
        connection.close()
        return found

    wait_for(lambda: len(stored()) >= 2, what="two results")
    (entry,) = stored() - {"shop.hourly"}
    assert entry.startswith("entry nnn")
    assert len(entry) <= 255, "the column is no longer"
