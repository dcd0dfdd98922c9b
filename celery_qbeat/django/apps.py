"""The app's entry in INSTALLED_APPS."""

from __future__ import annotations

from typing import Any

from django.apps import AppConfig
from django.db.models.signals import post_migrate


class QbeatConfig(AppConfig):
    """`INSTALLED_APPS += ["celery_qbeat.django"]`."""

    name = "celery_qbeat.django"
    label = "qbeat"
    verbose_name = "Recurring jobs"
    default_auto_field = "django.db.models.BigAutoField"
    celery_app: Any = None

    def ready(self) -> None:
        """Find the project's Celery app while the thread that made it is at hand."""
        from celery_qbeat.django import checks, permissions
        from celery_qbeat.django.database import after_migrate
        from celery_qbeat.django.project import find_celery_app

        self.celery_app = find_celery_app()
        checks.register()
        permissions.register()
        post_migrate.connect(after_migrate, sender=self)
