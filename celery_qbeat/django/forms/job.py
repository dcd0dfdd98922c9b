"""The form of a job. A row that passes here is one that the scheduler will run."""

from __future__ import annotations

import re
import zoneinfo
from collections.abc import Mapping
from functools import cache
from typing import Any

from django import forms
from django.core.exceptions import ValidationError

from celery_qbeat.core.jobs import Reading, read_row
from celery_qbeat.core.jobs import WorkerScope as Scope
from celery_qbeat.core.privileges import BUILTIN_PREFIX
from celery_qbeat.core.schedules import parse, parse_days
from celery_qbeat.django.forms.fields import DatesField, JsonField, LocalTimeField, WeekdaysField
from celery_qbeat.django.forms.widgets import Suggesting
from celery_qbeat.django.forms.words import CATCH_UP, HELP, KIND_CHOICES, ON_DOUBT, OVERLAP, kind_help
from celery_qbeat.django.models import Job
from celery_qbeat.django.models.people import row_of
from celery_qbeat.django.permissions import used_ids
from celery_qbeat.django.preview import COLUMNS
from celery_qbeat.django.project import Project, read_project
from celery_qbeat.django.times import moment
from celery_qbeat.errors import ScheduleError

_LEADING = re.compile(r"([a-z_]+)")
_OFFERED = ("Etc/", "SystemV/", "US/")
TIMES = ("start_us", "end_us")


@cache
def zones() -> tuple[str, ...]:
    """The zones that the form offers: every name in use, UTC first."""
    named = sorted(name for name in zoneinfo.available_timezones() if "/" in name and not name.startswith(_OFFERED))
    return ("UTC", *named)


class JobForm(forms.ModelForm):
    """`scopes`: the names that this user may choose from, None for all; set by the admin on a subclass."""

    scopes: frozenset[str] | None = None
    may_choose_scope = True
    sees_all_jobs = True

    seen_rev = forms.CharField(required=False, widget=forms.HiddenInput)
    schedule_kind = forms.ChoiceField(label="Kind", choices=KIND_CHOICES, widget=forms.RadioSelect, initial="daily")
    worker = forms.ChoiceField(label="Worker scope", required=False)
    days_only = WeekdaysField(label="Only on")
    days_skip = WeekdaysField(label="Not on")
    dates_skip = DatesField(label="Blackout dates")
    start_us = LocalTimeField(label="Not before")
    end_us = LocalTimeField(label="Not after")
    args = JsonField(list, '[1, "two"]', label="Arguments", initial=list)
    kwargs = JsonField(dict, '{"name": "value"}', label="Keyword arguments", initial=dict)
    queue = forms.ChoiceField(label="Queue", required=False)
    overlap = forms.ChoiceField(label="Overlap", choices=OVERLAP, initial="skip")
    catch_up = forms.ChoiceField(label="Catch up", choices=CATCH_UP, initial="once")
    on_doubt = forms.ChoiceField(label="On doubt", choices=ON_DOUBT, initial="drop")

    class Meta:
        model = Job
        exclude = ("rev",)
        widgets = {"fn": Suggesting, "timezone": Suggesting, "description": forms.Textarea(attrs={"rows": 2})}

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.project: Project = read_project()
        self.reading: Reading | None = None
        self.instance.is_judged = True
        for name, text in HELP.items():
            if name in self.fields:
                self.fields[name].help_text = text
        if "schedule" in self.fields:
            self.fields["schedule"].help_text = kind_help()
        self.initial["seen_rev"] = self.instance.rev if self.instance.pk else ""
        self._offer()
        self.moved: set[str] = set()
        for name in TIMES:
            if name in self.fields:
                self._show_time(name)

    def _show_time(self, name: str) -> None:
        """In the row's zone. What stands in the address of the page to add a job is a text already."""
        value = self.initial.get(name)
        if value is not None and not isinstance(value, str):
            self.initial[name] = local_text(value, self.initial.get("timezone") or "UTC")
            if not self.initial[name]:
                self.fields[name].help_text = f"The row has {value} there, which is no time: saving removes it."

    def _offer(self) -> None:
        """Fill the lists that depend on the project."""
        row = self.initial
        if "fn" in self.fields:
            offered = [
                self.project.scopes.get(name, Scope()) for name, _ in self._scope_choices(row.get("worker") or "")
            ]
            self.fields["fn"].widget.suggestions = self.project.privileges.may_run(offered)
        if "timezone" in self.fields:
            self.fields["timezone"].widget.suggestions = zones()
        scopes = self._scope_choices(row.get("worker") or "")
        if "worker" in self.fields:
            self.fields["worker"].choices = scopes
            self.fields["worker"].disabled = not self.may_choose_scope
        if "queue" in self.fields:
            queues = set(self.project.privileges.queues)
            for scope in (self.project.scopes.get(name, Scope()) for name, _ in scopes):
                queues |= {scope.queue, *scope.queues}
            names = sorted((queues | {row.get("queue") or ""}) - {""})
            self.fields["queue"].choices = [("", "– default –"), *((name, name) for name in names)]

    def _scope_choices(self, current: str) -> list[tuple[str, str]]:
        names = set(self.project.scopes) if self.scopes is None else set(self.scopes) & set(self.project.scopes)
        if self.scopes is None:
            names.add("")
        if not self.may_choose_scope or self.instance.pk:
            names.add(current)
        return [(name, name or "– default –") for name in sorted(names)]

    # What was typed.

    def clean_id(self) -> str:
        """Whoever sees only some jobs cannot take over the id of another one, and with it its runs."""
        job_id: str = self.cleaned_data["id"]
        if self.instance.pk or self.sees_all_jobs:
            return job_id
        if job_id.startswith(BUILTIN_PREFIX):
            raise ValidationError(f"Ids that begin with {BUILTIN_PREFIX} belong to the scheduler: choose another one.")
        if used_ids([job_id]):
            raise ValidationError("There was a job with this id, and you may not see its runs: choose another id.")
        return job_id

    def clean_worker(self) -> str:
        """The default scope is an empty text, which a field that is not required lets pass."""
        name: str = self.cleaned_data["worker"]
        known = [choice for choice, _ in self.fields["worker"].choices]
        if name not in known:
            raise ValidationError(f"Choose one of your worker scopes: {', '.join(known)}.")
        return name

    def clean_queue(self) -> str | None:
        return self.cleaned_data["queue"] or None

    def clean(self) -> dict[str, Any]:
        """The times in the row's zone; then everything that the scheduler would say about the row."""
        super().clean()
        data: dict[str, Any] = self.cleaned_data
        self._refuse_stale(data.pop("seen_rev", ""))
        for name in ("days_only", "days_skip"):
            data[name] = self._same_days(name, data.get(name, ""))
        self._read_times(data)
        self._check_schedule(data)
        self._check_name(data)
        if not self.errors:
            self._check_row(data)
        return data

    def schedule_columns(self) -> Mapping[str, Any] | None:
        """The schedule as typed, for the preview; None when a column of it could not even be read."""
        data = self.cleaned_data if self.is_bound and hasattr(self, "cleaned_data") else {}
        return {name: data[name] for name in COLUMNS} if all(name in data for name in COLUMNS) else None

    def _refuse_stale(self, seen: str) -> None:
        """The page may have been open while somebody else edited the row; saving twice says that one means it."""
        if seen and self.instance.pk and seen != str(self.instance.rev):
            form: Any = self
            form.data = form.data.copy()
            form.data[self.add_prefix("seen_rev")] = str(self.instance.rev)
            self.add_error(
                None,
                "Somebody else changed this job while this page was open. Below is what you typed, not what they "
                "saved. Save again to keep yours, or open the page anew to see theirs.",
            )

    def _same_days(self, name: str, text: str) -> str:
        """The row's own words when they mean the same."""
        before = str(self.initial.get(name) or "")
        try:
            return before if parse_days(before) == parse_days(text) else text
        except ScheduleError:
            return text

    def _read_times(self, data: dict[str, Any]) -> None:
        """Wall times are those of the row's zone: another zone makes another instant of the same text."""
        zone = data.get("timezone") or "UTC"
        kept = zone == self.initial.get("timezone")
        for name in TIMES:
            text, before = data.get(name) or "", getattr(self.instance, name)
            if kept and text and text == self.initial.get(name):
                data[name] = before
                continue
            try:
                data[name] = parse("once", text, timezone=zone).first(0) if text else None
            except ScheduleError as error:
                if error.field == "schedule":
                    self.add_error(name, str(error).removeprefix("schedule "))
                else:
                    data[name] = None
            if data.get(name) != before:
                self.moved.add(name)

    def columns_to_write(self) -> list[str]:
        """Those that differ from what the page was opened with."""
        return [name for name in self._meta.fields if name in self.changed_data or name in self.moved]

    def _check_schedule(self, data: dict[str, Any]) -> None:
        if any(name not in data for name in COLUMNS):
            return
        texts = {name: data[name] for name in COLUMNS[2:6]}
        floor = self.project.rules.min_interval_us
        try:
            parse(data["schedule_kind"], data["schedule"], **texts, min_interval_us=floor)
        except ScheduleError as error:
            self._say(str(error), error.field)

    def _check_name(self, data: dict[str, Any]) -> None:
        """The task alone, so that it is said at once whatever else is wrong."""
        if "fn" not in data or "worker" not in data or not self._judged(data):
            return
        if (self.instance.pk or data.get("id"), data["fn"]) not in self.project.privileges.trusted:
            scope = self.project.scopes.get(data["worker"], Scope())
            refusal = self.project.privileges.refused_name(data["fn"], scope)
            self._say(refusal, refusal.partition(":")[0])

    def _judged(self, data: dict[str, Any]) -> bool:
        """Whoever only wants to stop a job can, whatever became of its task."""
        return bool(data.get("enabled") or {"fn", "queue", "worker"} & set(self.changed_data))

    def _check_row(self, data: dict[str, Any]) -> None:
        job = Job(**{name: value for name, value in data.items() if name in self.fields})
        if self.instance.pk:
            job.id = self.instance.pk
        self.reading = reading = read_row(row_of(job), self.project.rules, self.project.scopes)
        if reading.job is None:
            found = _LEADING.match(reading.problem)
            self._say(reading.problem, found.group() if found else "")
            return
        refusal = self.project.privileges.refusal(reading.job)
        if refusal and self._judged(data):
            self._say(refusal, refusal.partition(":")[0])

    def _say(self, problem: str, field: str) -> None:
        if not problem:
            return
        name = field if field in self.fields else None
        if name is not None:
            label = re.match(rf"{re.escape(field)}:? ", problem)
            problem = problem[label.end() :] if label else problem
            problem = problem[:1].upper() + problem[1:]
        self.add_error(name, problem)


def local_text(us: int | None, zone: str) -> str:
    """An instant as the picker wants it; empty for none, and for one that no calendar has."""
    if us is None:
        return ""
    try:
        found = moment(us, zoneinfo.ZoneInfo(zone))
    except (zoneinfo.ZoneInfoNotFoundError, ValueError, OSError):
        # OSError: a folder of zones, such as "Europe".
        found = moment(us, zoneinfo.ZoneInfo("UTC"))
    return "" if found is None else found.strftime("%Y-%m-%dT%H:%M:%S")
