"""What people write."""

from __future__ import annotations

import json
import re
from typing import Any

from django.core.exceptions import ValidationError
from django.db import models

from celery_qbeat.core.jobs import RowRules, read_row
from celery_qbeat.core.jobs import WorkerScope as Scope
from celery_qbeat.django.fields import (
    Flag,
    Instant,
    Json,
    Key,
    KindName,
    ReadableQuerySet,
    ScheduleText,
    TaskName,
    Text,
    TextLine,
    UnreadJson,
    ZoneName,
)


class Job(models.Model):
    """A row of `qbeat_jobs`. Only the first four have no default. Any way of writing it is seen by a running beat."""

    id = Key("id", max_length=191, primary_key=True)
    fn = TaskName("task", max_length=255)
    schedule_kind = KindName("kind", max_length=16)
    schedule = ScheduleText("schedule", max_length=255)
    worker = Key("worker scope", max_length=64, blank=True, default="", db_default="")
    args = Json("arguments", blank=True, default=list, db_default=[])
    kwargs = Json("keyword arguments", blank=True, default=dict, db_default={})
    enabled = Flag("enabled", default=True, db_default=True)
    timezone = ZoneName("time zone", max_length=64, default="UTC", db_default="UTC")
    days_only = TextLine("only on", max_length=32, blank=True, default="", db_default="")
    days_skip = TextLine("not on", max_length=32, blank=True, default="", db_default="")
    dates_skip = Text("blackout dates", blank=True, default="", db_default="")
    start_us = Instant("not before", null=True, blank=True)
    end_us = Instant("not after", null=True, blank=True)
    overlap = TextLine("overlap", max_length=16, default="skip", db_default="skip")
    catch_up = TextLine("catch up", max_length=16, default="once", db_default="once")
    grace_seconds = models.IntegerField("grace (s)", null=True, blank=True)
    on_doubt = TextLine("on doubt", max_length=16, default="drop", db_default="drop")
    max_run_seconds = models.IntegerField("longest run (s)", default=3600, db_default=3600)
    queue = TextLine("queue", max_length=255, null=True, blank=True)
    priority = models.IntegerField("priority", null=True, blank=True)
    expires_seconds = models.IntegerField("expires (s)", null=True, blank=True)
    description = Text("description", blank=True, default="", db_default="")
    rev = models.BigIntegerField("revision", default=0, db_default=0, editable=False)

    objects = ReadableQuerySet.as_manager()

    class Meta:
        db_table = "qbeat_jobs"
        ordering = ("id",)
        verbose_name = "job"
        permissions = (
            ("run_now", "Can run a job by hand"),
            ("change_worker_scope", "Can choose the worker scope of a job"),
        )

    def __str__(self) -> str:
        return str(self.id)

    is_judged = False
    """Whether a form has said already what `clean` would say."""

    def clean(self) -> None:
        """Refuse what no beat could run, whatever its settings. `save` does not ask; `full_clean` and forms do."""
        if self.is_judged:
            return
        # Cron rows, tasks and worker scopes are matters of the settings and of other rows: the beat decides.
        reading = read_row(row_of(self), RowRules(cron=True), {self.worker: Scope(self.worker)})
        if reading.job is None:
            found = re.match("[a-z_]+", reading.problem)
            field = found.group() if found and found.group() in columns() else "__all__"
            raise ValidationError({field: reading.problem})


class Worker(models.Model):
    """A row of `qbeat_workers`: an app scope that jobs belong to."""

    name = Key("name", max_length=64, primary_key=True)
    enabled = Flag("enabled", default=True, db_default=True)
    queue = TextLine("default queue", max_length=255, blank=True, default="", db_default="")
    queues = Text("allowed queues", blank=True, default="", db_default="")
    functions = Text("tasks", blank=True, default="", db_default="")
    description = Text("description", blank=True, default="", db_default="")

    objects = ReadableQuerySet.as_manager()

    @classmethod
    def paused(cls) -> Any:
        """The names of the disabled scopes, for a query."""
        return cls.objects.filter(enabled=False).values("pk")

    class Meta:
        db_table = "qbeat_workers"
        ordering = ("name",)
        verbose_name = "worker scope"

    def __str__(self) -> str:
        return str(self.name)


class Request(models.Model):
    """A row of `qbeat_requests`: somebody wants a run by hand, or the release of runs. The beat answers by deleting it.

    `action`: `run` or `release`; `task_id`: the run to release, every run of the job in flight when it is empty.
    """

    id = models.BigAutoField(primary_key=True)
    job_id = Key("job", max_length=191)
    asked_us = Instant("asked")
    asked_by = TextLine("by", max_length=255, blank=True, default="", db_default="")
    action = TextLine("action", max_length=16, blank=True, default="run", db_default="run")
    task_id = Key("task id", max_length=64, blank=True, default="", db_default="")

    class Meta:
        db_table = "qbeat_requests"
        default_permissions = ()
        verbose_name = "request"

    def __str__(self) -> str:
        return f"run {self.job_id}"


def columns() -> list[str]:
    """The columns of `qbeat_jobs`, in order."""
    return [field.column for field in Job._meta.concrete_fields]


def row_of(job: Any) -> dict[str, Any]:
    """A job as `celery_qbeat.core.jobs.read_row` wants it: columns to values, JSON as text."""
    row = {name: getattr(job, name) for name in columns()}
    return row | {name: _json_text(row[name]) for name in ("args", "kwargs")}


def _json_text(value: Any) -> str:
    return str(value) if isinstance(value, UnreadJson) else json.dumps(value)
