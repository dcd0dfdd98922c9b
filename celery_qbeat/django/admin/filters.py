"""The filters beside the lists. None of them looks at more than an index or a handful of fixed words needs."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime, timedelta
from typing import Any

from django.contrib import admin
from django.db.models import Q

from celery_qbeat.core.jobs import Verdict
from celery_qbeat.core.schedules import KINDS
from celery_qbeat.django.models import Worker
from celery_qbeat.django.times import microseconds, moment, now_us

COMMON = (
    Verdict.SUCCEEDED,
    Verdict.SENT,
    Verdict.FAILED,
    Verdict.LOST,
    Verdict.SKIPPED,
    Verdict.MISSED,
    Verdict.REFUSED,
    Verdict.IN_DOUBT,
)


class Choice(admin.SimpleListFilter):
    """A filter with fixed choices."""

    words: tuple[tuple[str, str], ...] = ()

    def lookups(self, _request: Any, _model_admin: Any) -> Any:
        return self.words

    def value(self) -> Any:
        """None for a word in the address that is none of the choices."""
        found = super().value()
        return found if found in dict(self.words) else None


class KindFilter(Choice):
    title = "kind"
    parameter_name = "kind"
    words = tuple((name, name) for name in KINDS)

    def queryset(self, _request: Any, queryset: Any) -> Any:
        return queryset.filter(schedule_kind=self.value()) if self.value() else queryset


class HealthFilter(Choice):
    """What needs a look."""

    title = "health"
    parameter_name = "health"
    words = (("late", "late"), ("problem", "with a problem"), ("failing", "last run failed"), ("never", "never ran"))

    def queryset(self, _request: Any, queryset: Any) -> Any:
        bad = [Verdict.FAILED, Verdict.LOST, Verdict.UNKNOWN_TASK, Verdict.IN_DOUBT]
        conditions = {
            "late": Q(enabled=True, state__late_after_us__lt=now_us()) & ~Q(worker__in=Worker.paused()),
            "problem": Q(state__isnull=False) & ~Q(state__problem=""),
            "failing": Q(state__last_verdict__in=bad),
            "never": Q(state__isnull=True) | Q(state__last_run_us__isnull=True),
        }
        condition = conditions.get(self.value())
        return queryset if condition is None else queryset.filter(condition)


class LastVerdictFilter(Choice):
    title = "last verdict"
    parameter_name = "verdict"
    words = tuple((verdict.value, verdict.value) for verdict in COMMON)

    def queryset(self, _request: Any, queryset: Any) -> Any:
        return queryset.filter(state__last_verdict=self.value()) if self.value() else queryset


class ScopeFilter(admin.SimpleListFilter):
    """The worker scopes whose jobs the viewer sees; hidden where there is no choice."""

    title = "worker scope"
    parameter_name = "scope"
    default = "-"

    def lookups(self, request: Any, model_admin: Any) -> list[tuple[str, str]]:
        visible = model_admin.visible(request)
        scopes = Worker.objects.all() if visible is None else Worker.objects.filter(name__in=visible)
        found = [(f"={name}", name) for name in scopes.values_list("name", flat=True)[:100]]
        if visible is None or "" in visible:
            found.insert(0, (self.default, "– default –"))
        return found if len(found) > 1 else []

    def queryset(self, _request: Any, queryset: Any) -> Any:
        if self.value() is None:
            return queryset
        return queryset.filter(worker="" if self.value() == self.default else self.value().removeprefix("="))


class VerdictFilter(Choice):
    title = "verdict"
    parameter_name = "verdict"
    words = tuple((verdict.value, verdict.value) for verdict in Verdict)

    def queryset(self, _request: Any, queryset: Any) -> Any:
        return queryset.filter(verdict=self.value()) if self.value() else queryset


class HandFilter(Choice):
    title = "cause"
    parameter_name = "hand"
    words = (("0", "its schedule"), ("1", "asked for by hand"))

    def queryset(self, _request: Any, queryset: Any) -> Any:
        return queryset.filter(by_hand=self.value() == "1") if self.value() else queryset


class DayFilter(admin.SimpleListFilter):
    """The day of the slot in the viewer's zone: a word, or a date in the address (`?day=2026-11-29`)."""

    title = "day"
    parameter_name = "day"

    def lookups(self, _request: Any, _model_admin: Any) -> list[tuple[str, str]]:
        return [("today", "today"), ("yesterday", "yesterday"), ("week", "last 7 days")]

    def choices(self, changelist: Any) -> Iterator[dict[str, Any]]:
        yield from super().choices(changelist)
        if self.value() and self.value() not in ("today", "yesterday", "week"):
            yield {"selected": True, "query_string": "?", "display": self.value()}

    def queryset(self, _request: Any, queryset: Any) -> Any:
        now = moment(now_us())
        bounds = None if now is None else day_bounds(self.value(), now)
        return queryset if bounds is None else queryset.filter(slot_us__gte=bounds[0], slot_us__lt=bounds[1])


def day_bounds(word: str | None, now: datetime) -> tuple[int, int] | None:
    """The first microsecond of a day (or seven), and the first after it; None for a word that names no day."""
    midnight = now.replace(hour=0, minute=0, second=0, microsecond=0, tzinfo=None)
    first, days = midnight, 1
    if word == "yesterday":
        first -= timedelta(days=1)
    elif word == "week":
        first, days = midnight - timedelta(days=6), 7
    elif word != "today":
        try:
            first = datetime.strptime(word or "", "%Y-%m-%d")  # noqa: DTZ007 - the zone is added below
        except ValueError:
            return None
    try:
        ends = (first, first + timedelta(days=days))
    except OverflowError:  # The calendar's last day has no next one.
        return None
    start, end = (microseconds(wall.replace(tzinfo=now.tzinfo)) for wall in ends)
    return start, end
