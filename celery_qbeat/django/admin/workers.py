"""Worker scopes, and how many jobs each has."""

from __future__ import annotations

from typing import Any
from urllib.parse import urlencode

from django.contrib import admin, messages
from django.contrib.admin.views.main import ChangeList
from django.db.models import Count, Q
from django.urls import reverse
from django.utils.html import format_html

from celery_qbeat.core.plurals import quantity
from celery_qbeat.django.admin.access import NoNul
from celery_qbeat.django.forms import WorkerForm
from celery_qbeat.django.models import Job, Worker
from celery_qbeat.django.times import now_us


@admin.register(Worker)
class WorkerAdmin(NoNul, admin.ModelAdmin):
    """Disabling a scope pauses all its jobs."""

    form = WorkerForm
    change_list_template = "admin/qbeat/list.html"
    list_display = ("name", "enabled", "queue", "queues_listed", "functions_listed", "jobs", "late")
    list_filter = ("enabled",)
    search_fields = ("name", "description")
    actions = ("enable", "disable")

    class Media:
        css = {"all": ("qbeat/qbeat.css",)}

    def get_changelist(self, _request: Any, **_: Any) -> Any:
        return WithCounts

    def changelist_view(self, request: Any, extra_context: Any = None) -> Any:
        return super().changelist_view(request, {"title": "Worker scopes", **(extra_context or {})})

    def get_readonly_fields(self, _request: Any, obj: Any = None) -> tuple[str, ...]:
        return ("name",) if obj else ()

    def get_deleted_objects(self, objs: Any, request: Any) -> Any:
        """A scope that still has jobs stays: its jobs would all be refused."""
        deleted, counts, needed, protected = super().get_deleted_objects(objs, request)
        for name, number in (
            Job.objects.filter(worker__in=[scope.pk for scope in objs])
            .order_by()
            .values_list("worker")
            .annotate(n=Count("pk"))
        ):
            protected.append(f"{quantity(number, 'job')} of worker scope {name!r}")
        return deleted, counts, needed, protected

    @admin.display(description="allowed queues")
    def queues_listed(self, scope: Any) -> str:
        return ", ".join(scope.queues.replace(",", " ").split()) or "–"

    @admin.display(description="tasks")
    def functions_listed(self, scope: Any) -> str:
        names = scope.functions.replace(",", " ").split()
        return ", ".join(names[:5]) + (f" and {len(names) - 5} more" if len(names) > 5 else "") or "all"

    @admin.display(description="jobs")
    def jobs(self, scope: Any) -> Any:
        address = reverse(f"{self.admin_site.name}:qbeat_job_changelist")
        query = urlencode({"scope": f"={scope.pk}"})
        return format_html('<a href="{}?{}">{}</a>', address, query, f"{scope.job_count:,}")

    @admin.display(description="late jobs")
    def late(self, scope: Any) -> str:
        return f"{scope.late_count:,}" if scope.late_count else "–"

    @admin.action(description="Enable selected worker scopes", permissions=["change"])
    def enable(self, request: Any, queryset: Any) -> None:
        self._switch(request, queryset, True)

    @admin.action(description="Disable selected worker scopes (pauses their jobs)", permissions=["change"])
    def disable(self, request: Any, queryset: Any) -> None:
        self._switch(request, queryset, False)

    def _switch(self, request: Any, queryset: Any, enabled: bool) -> None:
        names = list(queryset.values_list("pk", flat=True))
        Worker.objects.filter(pk__in=names).update(enabled=enabled)
        for scope in Worker.objects.filter(pk__in=names):
            self.log_change(request, scope, "Enabled." if enabled else "Disabled.")
        word = "enabled" if enabled else "disabled"
        self.message_user(request, f"{len(names)} worker scopes {word}.", messages.SUCCESS)


class WithCounts(ChangeList):
    """A page of scopes; the jobs of all of them are counted in one query."""

    def get_results(self, request: Any) -> None:
        super().get_results(request)
        late = Q(enabled=True, state__late_after_us__lt=now_us()) & ~Q(worker__in=Worker.paused())
        jobs = Job.objects.filter(worker__in=[scope.pk for scope in self.result_list]).order_by().values("worker")
        counts = {row["worker"]: row for row in jobs.annotate(jobs=Count("pk"), late=Count("pk", filter=late))}
        for scope in self.result_list:
            found = counts.get(scope.pk, {})
            scope.job_count, scope.late_count = found.get("jobs", 0), found.get("late", 0)
