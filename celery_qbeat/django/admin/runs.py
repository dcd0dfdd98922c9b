"""The ledger, to read."""

from __future__ import annotations

from typing import Any
from urllib.parse import urlencode

from django.contrib import admin
from django.urls import NoReverseMatch, reverse
from django.utils.html import format_html
from django.utils.text import Truncator

from celery_qbeat.django.admin.access import NoNul
from celery_qbeat.django.admin.filters import DayFilter, HandFilter, VerdictFilter
from celery_qbeat.django.admin.job_actions import ask_release
from celery_qbeat.django.admin.paginator import Bounded
from celery_qbeat.django.models import Job, Run
from celery_qbeat.django.panel import duration, is_exact
from celery_qbeat.django.permissions import RUN_NOW, scopes_of, within
from celery_qbeat.django.times import cell, clock, length, now_us
from celery_qbeat.django.verdicts import badge

SHOWN_LATE_US = 10_000


@admin.register(Run)
class RunAdmin(NoNul, admin.ModelAdmin):
    """Every slot and what became of it. Nothing here can be changed; runs in flight can be released."""

    actions = ("release",)
    change_list_template = "admin/qbeat/list.html"
    list_display = ("slot", "job", "result", "late", "took", "remarks")
    list_display_links = ("slot",)
    list_filter = (DayFilter, HandFilter, VerdictFilter)
    search_fields = ("=job_id", "=task_id")
    search_help_text = "A job's id or a task id, exactly."
    show_full_result_count = False
    paginator = Bounded
    list_per_page = 50
    fields = (
        *(
            "job",
            "result",
            "slot",
            "late",
            "claimed",
            "sent",
            "started",
            "finished",
            "took",
            "lease_until",
            "collapsed",
            "by_hand",
        ),
        *("task_id", "batch_id", "detail"),
    )
    readonly_fields = fields

    class Media:
        css = {"all": ("qbeat/qbeat.css",)}

    def changelist_view(self, request: Any, extra_context: Any = None) -> Any:
        return super().changelist_view(request, {"title": "Runs", **(extra_context or {})})

    def get_queryset(self, request: Any) -> Any:
        runs = super().get_queryset(request)
        if request.user.has_perm("qbeat.view_run"):
            return runs
        scopes = scopes_of(request.user, "view")
        return runs if scopes is None else runs.filter(job_id__in=Job.objects.filter(worker__in=scopes).values("pk"))

    def lookup_allowed(self, lookup: str, value: Any, request: Any = None) -> bool:
        return lookup == "job_id" or bool(super().lookup_allowed(lookup, value, request))

    def has_view_permission(self, request: Any, obj: Any = None) -> bool:
        """Whoever may see jobs may see their runs."""
        if request.user.has_perm("qbeat.view_run"):
            return True
        scopes = scopes_of(request.user, "view")
        if scopes is None or obj is None:
            return within(scopes)
        return bool(Job.objects.filter(pk=obj.job_id, worker__in=scopes).exists())

    def has_run_now_permission(self, request: Any) -> bool:
        """The right to run jobs now is also the right to release their runs."""
        return bool(request.user.has_perm(RUN_NOW)) and within(scopes_of(request.user, "view"))

    @admin.action(description="Release: end the selected runs", permissions=["run_now"])
    def release(self, request: Any, queryset: Any) -> None:
        """Ask the beat to end those of the selected runs that are in flight and of jobs that this user may see."""
        runs, scopes = queryset.filter(lease_until_us__isnull=False).order_by("pk"), scopes_of(request.user, "view")
        if scopes is not None:
            runs = runs.filter(job_id__in=Job.objects.filter(worker__in=scopes).values("pk"))
        self.message_user(
            request, *ask_release(list(runs.values_list("job_id", "task_id")), request.user.get_username())
        )

    def has_add_permission(self, _request: Any) -> bool:
        return False

    def has_change_permission(self, _request: Any, _obj: Any = None) -> bool:
        return False

    def has_delete_permission(self, _request: Any, _obj: Any = None) -> bool:
        return False

    @admin.display(description="slot", ordering="slot_us")
    def slot(self, run: Any) -> Any:
        return cell(run.slot_us, now_us())

    @admin.display(description="job", ordering="job_id")
    def job(self, run: Any) -> Any:
        try:
            address = reverse(f"{self.admin_site.name}:qbeat_job_change", args=[admin.utils.quote(run.job_id)])
        except NoReverseMatch:
            return run.job_id
        return format_html('<a href="{}">{}</a>', address, run.job_id)

    @admin.display(description="verdict", ordering="verdict")
    def result(self, run: Any) -> Any:
        return badge(run.verdict)

    @admin.display(description="late", ordering="late_us")
    def late(self, run: Any) -> str:
        return length(run.late_us) if run.late_us >= SHOWN_LATE_US else "–"

    @admin.display(description="took")
    def took(self, run: Any) -> str:
        found = duration(run)
        return "–" if found is None else length(found) if is_exact(run) else f"~{length(found)}"

    @admin.display(description="remarks")
    def remarks(self, run: Any) -> str:
        words = [Truncator(run.detail).chars(120)] if run.detail else []
        if run.by_hand and not run.detail.startswith("by hand"):
            words.insert(0, "by hand")
        if run.collapsed:
            words.append(f"stands for {run.collapsed:,} older ones")
        return "; ".join(words)

    @admin.display(description="claimed")
    def claimed(self, run: Any) -> str:
        return clock(run.claimed_us or None)

    @admin.display(description="sent")
    def sent(self, run: Any) -> str:
        return clock(run.sent_us)

    @admin.display(description="started, by the worker's clock")
    def started(self, run: Any) -> str:
        return clock(run.started_us)

    @admin.display(description="finished")
    def finished(self, run: Any) -> str:
        return clock(run.finished_us)

    @admin.display(description="lease until")
    def lease_until(self, run: Any) -> str:
        return clock(run.lease_until_us)


def runs_address(site: Any, **filters: str) -> str:
    """The page of runs with these filters."""
    return f"{reverse(f'{site.name}:qbeat_run_changelist')}?{urlencode(filters)}"
