"""The Celery project around this Django: its app, its qbeat settings, and what rows may run in it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from celery import _state, current_app
from django.apps import apps

from celery_qbeat.core.jobs import RowRules, read_worker
from celery_qbeat.core.jobs import WorkerScope as Scope
from celery_qbeat.core.privileges import Privileges
from celery_qbeat.settings import Settings, read_settings
from celery_qbeat.wiring import build_privileges, row_rules


@dataclass(frozen=True, slots=True)
class Project:
    """What a form needs to judge a row as the scheduler would."""

    settings: Settings
    rules: RowRules
    privileges: Privileges
    scopes: Mapping[str, Scope]


def celery_app() -> Any:
    """The project's Celery app; Celery's own empty one, in which nothing may run, when nobody made one."""
    return apps.get_app_config("qbeat").celery_app or find_celery_app() or current_app._get_current_object()


def find_celery_app() -> Any:
    """The app that the project's package made on import; None when there is none.

    Celery knows it as current only in the thread that made it, and web servers answer in others.
    """
    here = _state._tls.current_app
    if here is not None:
        return here
    stand_in = _state.default_app
    made = [app for app in _state._get_active_apps() if app is not stand_in or app.main != "default"]
    return made[0] if made else None


def qbeat_settings() -> Settings:
    """The project's qbeat settings. Raises SettingsError."""
    return read_settings(celery_app().conf)


def read_project() -> Project:
    """The project as it is now. Raises SettingsError for bad qbeat settings."""
    app = celery_app()
    settings = qbeat_settings()
    return Project(settings, row_rules(settings), build_privileges(app, settings), read_scopes())


def read_scopes() -> dict[str, Scope]:
    """All rows of `qbeat_workers`, by name."""
    from celery_qbeat.django.models import Worker

    return {row["name"]: read_worker(row) for row in Worker.objects.values()}
