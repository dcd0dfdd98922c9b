"""The admin of jobs: list, form, actions."""

from __future__ import annotations

from typing import Any

from django.contrib import admin, messages
from django.contrib.admin.utils import flatten, quote
from django.contrib.admin.views.main import ChangeList
from django.db.models import F
from django.urls import reverse
from django.utils.html import format_html
from django.utils.text import Truncator

from celery_qbeat.core.health import IDLE, Condition
from celery_qbeat.django.admin.access import NoNul, ScopedAccess
from celery_qbeat.django.admin.filters import HealthFilter, KindFilter, LastVerdictFilter, ScopeFilter
from celery_qbeat.django.admin.job_actions import JobActions
from celery_qbeat.django.admin.job_pages import JobPages
from celery_qbeat.django.admin.runs import runs_address
from celery_qbeat.django.forms import JobForm
from celery_qbeat.django.forms.job import local_text
from celery_qbeat.django.health import condition_badge, health_of
from celery_qbeat.django.models import Job
from celery_qbeat.django.panel import panel
from celery_qbeat.django.project import read_project
from celery_qbeat.django.times import cell, clock, now_us
from celery_qbeat.django.verdicts import badge


class NullsLast(F):
    """A column to sort by, with what has no value at the end, in both directions and on every database."""

    def asc(self, **_: Any) -> Any:
        return super().asc(nulls_last=True)

    def desc(self, **_: Any) -> Any:
        return super().desc(nulls_last=True)


@admin.register(Job)
class JobAdmin(JobPages, NoNul, JobActions, ScopedAccess, admin.ModelAdmin):
    """A row is the interface: whatever is saved here, a running beat takes in within about a second."""

    form = JobForm
    change_list_template = "admin/qbeat/list.html"
    change_form_template = "admin/qbeat/job/change_form.html"
    list_display = ("job", "on", "plan", "next_run", "last_run", "condition")
    list_display_links = None
    list_filter = (HealthFilter, "enabled", KindFilter, LastVerdictFilter, ScopeFilter)
    search_fields = ("id", "fn", "description")
    search_help_text = "Part of an id, a task or a description."
    show_full_result_count = False
    list_per_page = 100
    list_max_show_all = 500
    save_on_top = False
    fieldsets = (
        (None, {"fields": ("id", "fn", "worker", "enabled", "description")}),
        ("Schedule", {"fields": ("schedule_kind", "schedule", "timezone")}),
        (
            "Days and limits",
            {"fields": ("days_only", "days_skip", "dates_skip", ("start_us", "end_us")), "classes": ("qb-days",)},
        ),
        ("Arguments", {"fields": ("args", "kwargs")}),
        ("Delivery", {"fields": ("queue", "priority", "expires_seconds"), "classes": ("collapse",)}),
        (
            "When it runs late, long or twice",
            {
                "fields": ("overlap", "max_run_seconds", "catch_up", "grace_seconds", "on_doubt"),
                "classes": ("collapse",),
            },
        ),
    )

    class Media:
        css = {"all": ("qbeat/qbeat.css",)}
        js = ("qbeat/preview.js",)

    def get_changelist(self, _request: Any, **_: Any) -> Any:
        return WithHealth

    def changelist_view(self, request: Any, extra_context: Any = None) -> Any:
        return super().changelist_view(request, {"title": "Jobs", **(extra_context or {})})

    def get_readonly_fields(self, _request: Any, obj: Any = None) -> tuple[str, ...]:
        return ("id",) if obj else ()

    def get_fieldsets(self, request: Any, obj: Any = None) -> Any:
        """Whoever may not change a job reads its limits as times."""
        if obj is None or self.has_change_permission(request, obj):
            return self.fieldsets
        return [(title, options | {"fields": _flat(options["fields"])}) for title, options in self.fieldsets]

    def get_form(self, request: Any, obj: Any = None, change: bool = False, **kwargs: Any) -> Any:
        form = super().get_form(request, obj, change=change, **kwargs)
        form.scopes, form.may_choose_scope = self.choices_of(request, obj)
        form.sees_all_jobs = self.visible(request) is None
        return form

    def get_changeform_initial_data(self, request: Any) -> dict[str, Any]:
        scopes, _ = self.choices_of(request)
        initial: dict[str, Any] = super().get_changeform_initial_data(request)
        return {"worker": "" if scopes is None or "" in scopes else min(scopes, default="")} | initial

    def save_model(self, request: Any, obj: Any, form: Any, change: bool) -> None:
        """Only the columns that were changed are written."""
        if not change:
            obj.save(force_insert=True)
        elif names := form.columns_to_write():
            obj.save(update_fields=names)
        if form.reading is not None and form.reading.problem:
            self.message_user(request, f"Saved, but {form.reading.problem}.", messages.WARNING)

    def render_change_form(self, request: Any, context: Any, *args: Any, **kwargs: Any) -> Any:
        job = kwargs.get("obj")
        context |= {"site_name": self.admin_site.name}
        if job is not None:
            now = now_us()
            context |= {
                "panel": panel(job, read_project(), now),
                "now": now,
                "runs_address": runs_address(self.admin_site, job_id=job.pk),
                "may_run_now": self.has_run_now_permission(request, job),
            }
        return super().render_change_form(request, context, *args, **kwargs)

    # Columns, and fields to read.

    @admin.display(description="not before")
    def not_before(self, job: Any) -> str:
        return _in_zone(job.start_us, job.timezone)

    @admin.display(description="not after")
    def not_after(self, job: Any) -> str:
        return _in_zone(job.end_us, job.timezone)

    @admin.display(description="job", ordering="id")
    def job(self, job: Any) -> Any:
        address = reverse(f"{self.admin_site.name}:qbeat_job_change", args=[quote(job.pk)])
        scope = format_html(", in {}", job.worker) if job.worker else ""
        link = '<a href="{}"><b>{}</b></a><br><span class="qb-quiet">{}{}</span>'
        return format_html(link, address, job.pk, job.fn, scope)

    @admin.display(description="on", boolean=True, ordering="enabled")
    def on(self, job: Any) -> bool:
        return bool(job.enabled)

    @admin.display(description="schedule", ordering="schedule_kind")
    def plan(self, job: Any) -> Any:
        zone = "" if job.schedule_kind in ("interval", "every") else job.timezone
        text = Truncator(job.schedule).chars(40)
        return format_html(
            '{} <b class="qb-ltr">{}</b><br><span class="qb-quiet">{}</span>', job.schedule_kind, text, zone
        )

    @admin.display(description="next run", ordering=NullsLast("state__next_run_us"))
    def next_run(self, job: Any) -> Any:
        state = getattr(job, "state", None)
        idle = job.health.standing.condition in IDLE
        return "–" if state is None or idle else cell(state.next_run_us, now_us())

    @admin.display(description="last run", ordering=NullsLast("state__last_run_us"))
    def last_run(self, job: Any) -> Any:
        run = job.health.last_run
        if run is None:
            return "–"
        return format_html("{}<br>{}", badge(run.verdict), cell(run.at_us, now_us(), quiet=True))

    @admin.display(description="condition", ordering=NullsLast("state__late_after_us"))
    def condition(self, job: Any) -> Any:
        standing = job.health.standing
        shown = condition_badge(standing)
        if standing.condition in (Condition.READY, Condition.BLOCKED, Condition.RUNNING) or not standing.reason:
            return shown
        words = '{}<br><span class="qb-problem" title="{}">{}</span>'
        return format_html(words, shown, standing.reason, Truncator(standing.reason).chars(90))


class WithHealth(ChangeList):
    """A page of jobs, each with its health."""

    result_list: Any

    def get_results(self, request: Any) -> None:
        super().get_results(request)
        self.result_list = list(self.result_list)
        found = health_of(self.result_list, read_project(), now_us())
        for job in self.result_list:
            job.health = found[job.pk]


def _flat(fields: Any) -> Any:
    """Fields as columns to read: no rows of several, and no microseconds."""
    names = flatten(fields)
    return tuple({"start_us": "not_before", "end_us": "not_after"}.get(name, name) for name in names)


def _in_zone(us: int | None, zone: str) -> str:
    text = local_text(us, zone)
    return f"{text.replace('T', ' ')} ({zone})" if text else clock(us)
