"""Who may do what: Django's permissions, and one more for each worker scope.

Whoever has `change_job` (and so on) may edit all jobs. Whoever has not, but has `edit_scope_<name>`, may view, add,
change and delete the jobs of that scope, and sees no others.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterable
from typing import Any

from django.apps import apps
from django.core.exceptions import ValidationError
from django.db import router
from django.db.models.signals import post_delete, post_save, pre_save

from celery_qbeat.django.models import History, Job, Run, State, Worker
from celery_qbeat.process.safe_logging import get_logger

SCOPE = "edit_scope_"
RUN_NOW = "qbeat.run_now"
CHOOSE_SCOPE = "qbeat.change_worker_scope"

log: logging.Logger = get_logger()


def register() -> None:
    """A scope's permission comes and goes with its row."""
    pre_save.connect(_saving, sender=Worker, dispatch_uid="qbeat_scope_saving")
    post_save.connect(_saved, sender=Worker, dispatch_uid="qbeat_scope_saved")
    post_delete.connect(_deleted, sender=Worker, dispatch_uid="qbeat_scope_deleted")


def make_scope_permissions(using: str, migrated: Any) -> None:
    """After `migrate`: the permissions of scopes whose rows were written in SQL. `migrated`: apps that have tables."""
    try:
        permission = migrated.get_model("auth", "Permission")
    except LookupError:
        return
    if router.allow_migrate_model(using, permission):
        for name in Worker.objects.using(using).values_list("name", flat=True):
            _make(name)


def scopes_of(user: Any, action: str) -> frozenset[str] | None:
    """The scopes in which `user` may `action` (view, add, change, delete) jobs; None: in all."""
    if user.has_perm(f"qbeat.{action}_job") or (action == "view" and user.has_perm("qbeat.change_job")):
        return None
    prefix = f"qbeat.{SCOPE}"
    # The admin needs no more of a user model than has_perm: one without lists of permissions has no editors of scopes.
    granted: Iterable[str] = getattr(user, "get_all_permissions", frozenset)()
    return frozenset(name.removeprefix(prefix) for name in granted if name.startswith(prefix))


def within(scopes: frozenset[str] | None, job: Any = None) -> bool:
    """Whether a job is in these scopes; without a job: whether any could be."""
    if scopes is None:
        return True
    return bool(scopes) if job is None else job.worker in scopes


def narrowed(jobs: Any, scopes: frozenset[str] | None) -> Any:
    """Those of a queryset of jobs that are in these scopes."""
    return jobs if scopes is None else jobs.filter(worker__in=scopes)


def refused_scope_name(name: str) -> str:
    """Why there can be no worker scope of this name; empty when there can.

    The usual collations of MariaDB and MySQL fold case and accents, so that `billing` and `Billing` would be one
    permission, though they are two scopes.
    """
    if not apps.is_installed("django.contrib.auth"):
        return ""
    same = (found.codename.removeprefix(SCOPE) for found in _permissions(name))
    other = next((found for found in same if found != name), "")
    return (
        f"This database takes the permission of worker scope {name!r} for that of {other!r}: choose a name that "
        "differs in more than case and accents."
        if other
        else ""
    )


def used_ids(ids: Collection[str]) -> set[str]:
    """Those of these ids under which something of a job is kept, perhaps of a deleted one: runs, state, log."""
    from django.contrib.admin.models import LogEntry
    from django.contrib.contenttypes.models import ContentType

    found: set[str] = set()
    for model in (Run, History, State):
        found.update(model.objects.filter(job_id__in=ids).order_by().values_list("job_id", flat=True).distinct())
    log_entries = LogEntry.objects.filter(content_type=ContentType.objects.get_for_model(Job), object_id__in=ids)
    return found.union(log_entries.order_by().values_list("object_id", flat=True).distinct())


def _saving(instance: Any, raw: bool, **_: Any) -> None:
    """Refuse a new scope that would share the permission of another. Fixtures (`raw`) are loaded as they are."""
    if instance._state.adding and not raw and (refusal := refused_scope_name(instance.name)):
        raise ValidationError({"name": refusal})


def _saved(instance: Any, **_: Any) -> None:
    _make(instance.name)


def _deleted(instance: Any, **_: Any) -> None:
    if apps.is_installed("django.contrib.auth"):
        for permission in _permissions(instance.name):
            if permission.codename == SCOPE + instance.name:
                permission.delete()


def _permissions(name: str) -> Any:
    """The permission of a scope, and what the database takes for it."""
    from django.contrib.auth.models import Permission

    of_jobs = Permission.objects.filter(content_type__app_label="qbeat", content_type__model="job")
    return of_jobs.filter(codename=SCOPE + name)


def _make(name: str) -> None:
    if not apps.is_installed("django.contrib.auth"):
        return
    if refusal := refused_scope_name(name):
        log.warning("worker scope %r has no permission of its own: %s", name, refusal)
        return
    from django.contrib.auth.models import Permission
    from django.contrib.contenttypes.models import ContentType

    Permission.objects.get_or_create(
        content_type=ContentType.objects.get_for_model(Job),
        codename=SCOPE + name,
        defaults={"name": f"Can edit the jobs of worker scope {name!r}"},
    )
