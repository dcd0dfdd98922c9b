"""What can be done with many jobs at once. No slot moves by it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from django.contrib import admin, messages
from django.contrib.admin.models import ADDITION, CHANGE, LogEntry
from django.db import models, router, transaction

from celery_qbeat.core.plurals import quantity
from celery_qbeat.core.privileges import TRUSTED
from celery_qbeat.django.health import writer_alive
from celery_qbeat.django.models import Job, Leader, Request, Run
from celery_qbeat.django.permissions import narrowed, scopes_of, used_ids
from celery_qbeat.django.times import now_us

MOST_COPIES = 100
PART = 500


class JobActions:
    """A mixin of JobAdmin."""

    actions = ("enable", "disable", "run_now", "release", "duplicate")

    @admin.action(description="Enable selected jobs", permissions=["change"])
    def enable(self, request: Any, queryset: Any) -> None:
        self._switch(request, queryset, True)

    @admin.action(description="Disable selected jobs", permissions=["change"])
    def disable(self, request: Any, queryset: Any) -> None:
        self._switch(request, queryset, False)

    @admin.action(description="Run selected jobs now", permissions=["run_now"])
    def run_now(self, request: Any, queryset: Any) -> None:
        self.ask_for_runs(request, queryset)

    @admin.action(description="Release: end the runs in flight of selected jobs", permissions=["run_now"])
    def release(self, request: Any, queryset: Any) -> None:
        self.ask_for_release(request, queryset)

    @admin.action(description="Duplicate selected jobs (as disabled)", permissions=["add"])
    def duplicate(self, request: Any, queryset: Any) -> None:
        scopes, _ = self.choices_of(request)  # type: ignore[attr-defined]
        jobs = [job for job in narrowed(_plain(queryset), scopes) if (job.pk, job.fn) not in TRUSTED]
        left, copies = queryset.count() - len(jobs), jobs[:MOST_COPIES]
        wanted = [name for job in copies for name in _names(job.pk)]
        taken = set(Job.objects.filter(pk__in=wanted).values_list("pk", flat=True))
        # The runs of a deleted job are not those of a copy, nor for its maker to see.
        taken |= used_ids(wanted)
        for job in copies:
            job.pk = next(name for name in _names(job.pk) if name not in taken)
            job.enabled = False
            taken.add(job.pk)
        Job.objects.bulk_create(copies)
        self._log(request, [job.pk for job in copies], ADDITION, "Duplicated.")
        done = f"{quantity(len(copies), 'job')} duplicated; the {'copy is' if len(copies) == 1 else 'copies are'}"
        self._told(request, f"{done} disabled.", left)
        if len(jobs) > MOST_COPIES:
            self._tell(request, f"At most {MOST_COPIES} jobs are duplicated at once.", messages.WARNING)

    def ask_for_runs(self, request: Any, jobs: Any) -> None:
        """Ask the beat for a run of each of these jobs."""
        now, who = now_us(), request.user.get_username()
        names = list(_plain(jobs).values_list("pk", flat=True))
        asked = [Request(job_id=name, asked_us=now, asked_by=who) for name in names]
        Request.objects.bulk_create(asked, batch_size=PART)
        self._log(request, names, CHANGE, "Asked for a run now.")
        word = quantity(len(names), "run")
        alive, _ = writer_alive(Leader.objects.filter(pk=1).first(), now)
        if alive:
            self._tell(request, f"Asked for {word}. The beat sends within about a second.", messages.SUCCESS)
        else:
            self._tell(request, f"Asked for {word}, but no beat is running: it waits for one.", messages.WARNING)

    def ask_for_release(self, request: Any, jobs: Any) -> None:
        """Ask the beat to end every run in flight of these jobs."""
        names = list(_plain(jobs).values_list("pk", flat=True))
        busy: set[str] = set()
        for part in _parts(names):
            in_flight = Run.objects.filter(job_id__in=part, lease_until_us__isnull=False).order_by()
            busy.update(in_flight.values_list("job_id", flat=True).distinct())
        chosen = [(name, "") for name in names if name in busy]
        self._log(request, [name for name, _ in chosen], CHANGE, "Released its runs in flight.")
        self._tell(request, *ask_release(chosen, request.user.get_username()))

    def _switch(self, request: Any, queryset: Any, enabled: bool) -> None:
        chosen = queryset.count()
        mine = narrowed(_plain(queryset), scopes_of(request.user, "change"))
        left = chosen - mine.count()
        names = list(mine.exclude(enabled=enabled).values_list("pk", flat=True))
        word = "enabled" if enabled else "disabled"
        with transaction.atomic(using=router.db_for_write(Job)):
            for part in _parts(names):
                Job.objects.filter(pk__in=part).update(enabled=enabled)
        self._log(request, names, CHANGE, f"{word.capitalize()}.")
        self._told(request, f"{quantity(len(names), 'job')} {word}.", left)

    def _told(self, request: Any, done: str, left: int) -> None:
        self._tell(request, done, messages.SUCCESS)
        if left:
            words = f"{left:,} of the selected jobs were left as they are: you may not do that to them."
            self._tell(request, words, messages.WARNING)

    def _tell(self, request: Any, text: str, level: int) -> None:
        self.message_user(request, text, level)  # type: ignore[attr-defined]

    def _log(self, request: Any, names: Sequence[str], flag: int, text: str) -> None:
        for part in _parts(names):
            LogEntry.objects.log_actions(request.user.pk, Job.objects.filter(pk__in=part), flag, text)


def ask_release(chosen: Sequence[tuple[str, str]], who: str) -> tuple[str, int]:
    """Ask the beat to end runs, each a job and a task id ('' for all of the job); what to tell whoever asked."""
    if not chosen:
        return "Nothing to release: no run in flight is selected.", messages.WARNING
    now = now_us()
    asked = [
        Request(job_id=job_id, asked_us=now, asked_by=who, action="release", task_id=task_id)
        for job_id, task_id in chosen
    ]
    Request.objects.bulk_create(asked, batch_size=PART)
    alive, _ = writer_alive(Leader.objects.filter(pk=1).first(), now)
    what = quantity(len(chosen), "release")
    if alive:
        return f"Asked for {what}. The beat ends the runs within about a second.", messages.SUCCESS
    return f"Asked for {what}, but no beat is running: it waits for one.", messages.WARNING


def _parts(names: Sequence[str]) -> Iterator[Sequence[str]]:
    """Databases take only so many parameters in a statement."""
    for start in range(0, len(names), PART):
        yield names[start : start + PART]


def _plain(queryset: Any) -> models.QuerySet:
    """The same rows, whole, and without the joined state."""
    return queryset.select_related(None).defer(None)


def _names(name: str) -> list[str]:
    """Names for a copy, the nicest first."""
    ends = ["copy", *(f"copy{number}" for number in range(2, 50))]
    return [f"{name[: 190 - len(end)]}.{end}" for end in ends]
