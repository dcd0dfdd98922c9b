"""The pages around the jobs: preview, forecast, status, and the button that runs one now."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict
from typing import Any
from zoneinfo import ZoneInfo

from django.contrib.admin.utils import quote, unquote
from django.core.exceptions import PermissionDenied
from django.db.models import Q
from django.db.models.functions import Length
from django.db.models.lookups import LessThanOrEqual
from django.http import Http404, HttpRequest, HttpResponse, HttpResponseRedirect, JsonResponse
from django.template.loader import render_to_string
from django.template.response import TemplateResponse
from django.urls import path, register_converter, reverse
from django.urls.converters import StringConverter
from django.utils.decorators import method_decorator
from django.views.decorators.clickjacking import xframe_options_sameorigin
from django.views.decorators.http import require_POST

from celery_qbeat.core.limits import MAX_CHARACTERS
from celery_qbeat.core.schedules.time_zones import zone_named
from celery_qbeat.dispatchers import check_broker
from celery_qbeat.django.forecast import forecast
from celery_qbeat.django.health import machine_state
from celery_qbeat.django.models import Installation, Job, Worker
from celery_qbeat.django.panel import in_flight, paused_by
from celery_qbeat.django.permissions import narrowed
from celery_qbeat.django.pictures import heatmap
from celery_qbeat.django.preview import COLUMNS, Before, Preview, preview
from celery_qbeat.django.project import celery_app, read_project
from celery_qbeat.django.status import status
from celery_qbeat.django.times import now_us, viewers_zone
from celery_qbeat.errors import ScheduleError


class _Empty(StringConverter):
    """The empty text, in an address."""

    regex = ""


register_converter(_Empty, "qbeat_empty")


class JobPages:
    """A mixin of JobAdmin."""

    def get_urls(self) -> list[Any]:
        site: Any = self.admin_site  # type: ignore[attr-defined]
        pages = [
            path("preview/", site.admin_view(self.preview_view), name="qbeat_preview"),
            path("forecast/", site.admin_view(self.forecast_view), name="qbeat_forecast"),
            path("status/", site.admin_view(self.status_view), name="qbeat_status"),
            path("<path:object_id>/run-now/", site.admin_view(self.run_now_view), name="qbeat_run_now"),
            path("<path:object_id>/release/", site.admin_view(self.release_view), name="qbeat_release"),
        ]
        return [*pages, *self._pages_without_id(), *super().get_urls()]  # type: ignore[misc]

    def _pages_without_id(self) -> list[Any]:
        """Django's own pages once more, for a row whose id is an empty text: `path` matches no such thing."""
        me: Any = self
        views = {"change": me.change_view, "delete": me.delete_view, "history": me.history_view}
        views |= {"run-now": self.run_now_view, "release": self.release_view}
        names = {"run-now": "qbeat_run_now", "release": "qbeat_release"}
        return [
            path(
                f"<qbeat_empty:object_id>/{word}/",
                me.admin_site.admin_view(view),
                name=names.get(word, f"qbeat_job_{word}"),
            )
            for word, view in views.items()
        ]

    # Preview.

    @method_decorator(require_POST)
    @method_decorator(xframe_options_sameorigin)
    def preview_view(self, request: HttpRequest) -> HttpResponse:
        """What the schedule in the posted form would do: JSON for a script, a small page for a button."""
        me: Any = self
        if not (me.has_change_permission(request) or me.has_add_permission(request)):
            raise PermissionDenied
        shown = self._preview_of(request)
        words = {"preview": shown}
        if request.headers.get("accept", "").startswith("application/json"):
            html = render_to_string("admin/qbeat/job/firings.html", words, request)
            return JsonResponse({**asdict(shown), "html": html})
        return TemplateResponse(request, "admin/qbeat/job/preview.html", words)

    def _preview_of(self, request: HttpRequest) -> Preview:
        me: Any = self
        job = None
        before = None
        if request.POST.get("qbeat_object_id"):
            job = me.get_object(request, request.POST["qbeat_object_id"])
        if job is not None:
            blocked = request.POST.get("overlap") != "allow" and in_flight(job.pk) > 0
            before = Before({name: getattr(job, name) for name in COLUMNS}, machine_state(job), blocked)
        form = me.get_form(request, job, change=job is not None)(request.POST, instance=job)
        form.full_clean()
        columns = form.schedule_columns()
        if columns is None and not request.POST.get("schedule", "").strip():
            return Preview(remarks=("Write a schedule: its next firings appear here.",))
        if columns is None:
            for name in COLUMNS:
                if name in form.errors:
                    return Preview(problem=f"{form.fields[name].label}: {' '.join(form.errors[name])}", field=name)
            raise PermissionDenied
        typed = Job(enabled=form.cleaned_data.get("enabled", True), worker=form.cleaned_data.get("worker", ""))
        return preview(columns, form.project.rules, now_us(), before, paused_by(typed, form.project))

    # Forecast and status.

    def forecast_view(self, request: HttpRequest) -> HttpResponse:
        """The coming week."""
        jobs = self._visible_jobs(request)
        zone, unknown = _zone_of(request)
        running = jobs.filter(enabled=True).exclude(worker__in=Worker.paused())
        # A longer text makes a bad row: it is not worth fetching.
        short = (LessThanOrEqual(Length(name), MAX_CHARACTERS[name]) for name in COLUMNS[:6])
        good = running.filter(Q(state__isnull=True) | Q(state__problem=""), *short)
        found = forecast(good, read_project().rules, zone, now_us())
        extra = {
            "forecast": found,
            "picture": heatmap(found.days, found.counts, found.peak_cells),
            "zone": str(zone),
            "unknown_zone": unknown,
            "hours": [f"{hour:02}" for hour in range(24)],
            "rows": list(zip(found.days, found.counts, strict=True)),
            "troubled": running.count() - found.jobs + found.unreadable,
            "title": "Forecast",
        }
        return self._page(request, "admin/qbeat/forecast.html", extra)

    def status_view(self, request: HttpRequest) -> HttpResponse:
        """Who dispatches, and what is wrong."""
        jobs = self._visible_jobs(request)
        now = now_us()
        everything = self.visible(request) is None  # type: ignore[attr-defined]
        settings, installation = read_project().settings, Installation.objects.filter(pk=1).first()
        instance = "" if installation is None else installation.instance
        broker = check_broker(celery_app(), namespace=settings.namespace, instance=instance)
        found = status(jobs, settings, broker, now, with_code=everything)
        return self._page(request, "admin/qbeat/status.html", {"status": found, "now": now, "title": "Status"})

    def _visible_jobs(self, request: HttpRequest) -> Any:
        me: Any = self
        if not me.has_view_permission(request):
            raise PermissionDenied
        return narrowed(Job.objects.all(), me.visible(request))

    def _page(self, request: HttpRequest, template: str, extra: Mapping[str, Any]) -> HttpResponse:
        site: Any = self.admin_site  # type: ignore[attr-defined]
        context = {**site.each_context(request), "opts": Job._meta, "site_name": site.name, **extra}
        request.current_app = site.name
        return TemplateResponse(request, template, context)

    # Run now.

    @method_decorator(require_POST)
    def run_now_view(self, request: HttpRequest, object_id: str) -> HttpResponse:
        """Ask for a run of one job, and go back to its page."""
        me: Any = self
        return self._asked(request, object_id, me.ask_for_runs)

    @method_decorator(require_POST)
    def release_view(self, request: HttpRequest, object_id: str) -> HttpResponse:
        """Ask for the end of the runs in flight of one job, and go back to its page."""
        me: Any = self
        return self._asked(request, object_id, me.ask_for_release)

    def _asked(self, request: HttpRequest, object_id: str, ask: Callable[[HttpRequest, Any], None]) -> HttpResponse:
        me: Any = self
        name = unquote(object_id)
        job = me.get_object(request, name)
        if job is None:
            raise Http404(f"there is no job {name!r}")
        if not me.has_run_now_permission(request, job):
            raise PermissionDenied
        ask(request, me.get_queryset(request).filter(pk=name))
        return HttpResponseRedirect(reverse(f"{me.admin_site.name}:qbeat_job_change", args=[quote(name)]))


def _zone_of(request: HttpRequest) -> tuple[Any, str]:
    """The zone in the address (`?zone=Europe/Berlin`), else the viewer's; and the name that is none."""
    name = request.GET.get("zone", "")
    if not name:
        return viewers_zone(), ""
    try:
        zone_named(name)
        return ZoneInfo(name), ""
    except (ScheduleError, ValueError, KeyError):
        return viewers_zone(), name
