"""Who may do what: Django's permissions, and one more for each worker scope.

Whoever has `change_job` (and so on) may edit all jobs. Whoever has not, but has `edit_scope_<name>`, may view, add,
change and delete the jobs of that scope, and sees no others.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from django.apps import apps
from django.db import router
from django.db.models.signals import post_delete, post_save

from celery_qbeat.django.models import Job, Worker

SCOPE = "edit_scope_"
RUN_NOW = "qbeat.run_now"
CHOOSE_SCOPE = "qbeat.change_worker_scope"


def register() -> None:
    """A scope's permission comes and goes with its row."""
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


def _saved(instance: Any, **_: Any) -> None:
    _make(instance.name)


def _deleted(instance: Any, **_: Any) -> None:
    if apps.is_installed("django.contrib.auth"):
        from django.contrib.auth.models import Permission

        of_jobs = Permission.objects.filter(content_type__app_label="qbeat", content_type__model="job")
        of_jobs.filter(codename=SCOPE + instance.name).delete()


def _make(name: str) -> None:
    if not apps.is_installed("django.contrib.auth"):
        return
    from django.contrib.auth.models import Permission
    from django.contrib.contenttypes.models import ContentType

    Permission.objects.get_or_create(
        content_type=ContentType.objects.get_for_model(Job),
        codename=SCOPE + name,
        defaults={"name": f"Can edit the jobs of worker scope {name!r}"},
    )
