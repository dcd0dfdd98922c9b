"""For projects whose jobs are not in the `default` database."""

from __future__ import annotations

from typing import Any

LABEL = "qbeat"


class Router:
    """Sends the models of celery_qbeat to DATABASES[qbeat_django_database], and its migrations nowhere else."""

    def db_for_read(self, model: Any, **_: Any) -> str | None:
        return _alias() if model._meta.app_label == LABEL else None

    db_for_write = db_for_read

    def allow_migrate(self, db: str, app_label: str, **_: Any) -> bool | None:
        return db == _alias() if app_label == LABEL else None


def _alias() -> str:
    from celery_qbeat.django.project import qbeat_settings

    return qbeat_settings().django_database
