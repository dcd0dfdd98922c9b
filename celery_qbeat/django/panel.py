"""What a job's page shows above its form: how it stands, its last runs as a picture, how often it succeeds."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import islice
from typing import Any

from django.db.models import Count
from django.utils.safestring import SafeString

from celery_qbeat.core.health import LastRun
from celery_qbeat.core.jobs import IN_FLIGHT, Verdict, read_row
from celery_qbeat.django.health import condition_badge, health_of, machine_state
from celery_qbeat.django.models import Run
from celery_qbeat.django.models.people import row_of
from celery_qbeat.django.pictures import Bar, timeline
from celery_qbeat.django.preview import slots_of
from celery_qbeat.django.project import Project
from celery_qbeat.django.times import DAY, viewers_zone

RUNS_DRAWN, NEXT_DRAWN, DAYS_COUNTED = 30, 8, 7

_ENDED = (Verdict.SUCCEEDED, Verdict.FAILED, Verdict.LOST, Verdict.UNKNOWN_TASK, Verdict.IN_DOUBT)


@dataclass(frozen=True, slots=True)
class Panel:
    """`rate`: per cent of the ended runs of the last seven days that succeeded; None when none ended.

    `unplanned`: it has next firings, but no beat has planned them yet. `zone`: that of all times on the page.
    """

    picture: SafeString
    state: Any
    condition: SafeString
    reason: str
    last_run: LastRun | None
    problem: str
    late: bool
    paused: str
    unplanned: bool
    zone: str
    rate: float | None
    ended: int
    flying: int


def panel(job: Any, project: Project, now: int) -> Panel:
    """Everything for one job; a bounded number of queries, each on an index."""
    state = getattr(job, "state", None)
    reading = read_row(row_of(job), project.rules, project.scopes)
    planned: tuple[int, ...] = ()
    refusal = ""
    if reading.job is not None:
        refusal = project.privileges.refusal(reading.job)
        planned = tuple(islice(slots_of(reading.job, machine_state(job), now), NEXT_DRAWN))
    counts = verdicts_since(job.pk, now - DAYS_COUNTED * DAY)
    ended = sum(counts.get(verdict, 0) for verdict in _ENDED)
    paused = paused_by(job, project)
    health = health_of([job], project, now)[job.pk]
    return Panel(
        picture=timeline(_bars(job.pk, now), () if paused else planned, now),
        state=state,
        condition=condition_badge(health.standing),
        reason=health.standing.reason,
        last_run=health.last_run,
        problem=reading.problem or refusal or (state.problem if state else ""),
        late=health.standing.late,
        paused=paused,
        unplanned=bool(planned),
        zone=str(viewers_zone()),
        rate=100 * counts.get(Verdict.SUCCEEDED, 0) / ended if ended else None,
        ended=ended,
        flying=in_flight(job.pk),
    )


def paused_by(job: Any, project: Project) -> str:
    """Why an otherwise good job does not run; empty when it does."""
    scope = project.scopes.get(job.worker)
    if not job.enabled:
        return "It is disabled."
    return f"Its worker scope {scope.name!r} is disabled." if scope is not None and not scope.enabled else ""


def in_flight(job_id: str) -> int:
    """How many runs of a job were sent and have not ended."""
    found: int = Run.objects.filter(job_id=job_id, verdict__in=IN_FLIGHT).count()
    return found


def verdicts_since(job_id: str, since_us: int) -> dict[str, int]:
    """How many runs of a job have which verdict."""
    runs = Run.objects.filter(job_id=job_id, slot_us__gte=since_us).order_by()
    return dict(runs.values_list("verdict").annotate(n=Count("id")))


def _bars(job_id: str, now: int) -> list[Bar]:
    last = list(Run.objects.filter(job_id=job_id).order_by("-slot_us")[:RUNS_DRAWN])
    return [
        Bar(run.slot_us, run.verdict, duration(run, now), run.late_us, run.detail[:200], exact=is_exact(run))
        for run in reversed(last)
    ]


def duration(run: Any, now: int | None = None) -> int | None:
    """How long a run took by its worker's clock, else from sending to its end (see `is_exact`).

    For a run in flight so far, when `now` is given; None for one that never ran.
    """
    if is_exact(run):
        return int(run.took_us)
    if run.sent_us is None:
        return None
    end = run.finished_us if run.finished_us is not None else now if run.verdict in IN_FLIGHT else None
    return None if end is None else max(0, end - run.sent_us)


def is_exact(run: Any) -> bool:
    """Whether the duration is the worker's own."""
    return run.took_us is not None
