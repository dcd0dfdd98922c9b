"""The condition of jobs in the admin: the rule of the commands, on the rows of one page."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from django.db.models import OuterRef, Subquery
from django.utils.html import format_html
from django.utils.safestring import SafeString

from celery_qbeat.core.health import Condition, HealthRules, InFlight, JobHealth, LastRun, last_run
from celery_qbeat.core.jobs import State as Memory
from celery_qbeat.core.liveness import is_alive
from celery_qbeat.django.models import Leader, Run, State
from celery_qbeat.django.models.people import row_of
from celery_qbeat.django.project import Project
from celery_qbeat.django.times import clock


@dataclass(frozen=True, slots=True)
class Health:
    """How a job stands, and its last run."""

    standing: JobHealth
    last_run: LastRun | None


STYLES: Mapping[Condition, tuple[str, str]] = {
    Condition.READY: ("ok", "✓"),
    Condition.RUNNING: ("flying", "→"),
    Condition.BLOCKED: ("doubt", "!"),
    Condition.STOPPED: ("doubt", "!"),
    Condition.LATE: ("bad", "!"),
    Condition.REFUSED: ("bad", "✗"),
    Condition.BAD: ("bad", "✗"),
}
"""The CSS class and the sign of a condition; the others are grey."""


def health_of(jobs: Sequence[Any], project: Project, now: int) -> dict[str, Health]:
    """The health of these jobs by id, in four queries."""
    names = [job.pk for job in jobs]
    alive, _ = writer_alive(Leader.objects.filter(pk=1).first(), now)
    judge = HealthRules(project.rules, project.scopes, project.privileges, now, alive)
    last, flying = _last_runs(names), _in_flight(names)
    found = {}
    for job in jobs:
        state = getattr(job, "state", None)
        standing = judge.row_health(row_of(job), machine_state(job), flying.get(job.pk))
        kept = None if state is None else {"last_run_us": state.last_run_us, "last_verdict": state.last_verdict}
        found[job.pk] = Health(standing, last_run(kept, last.get(job.pk)))
    return found


def writer_alive(leader: Any, now: int) -> tuple[bool, int]:
    """Whether a beat lives, and for how many microseconds none was heard of."""
    if leader is None or not leader.epoch:
        return False, 0
    seen_us = max(leader.seen_us, leader.taken_us)
    return is_alive(seen_us, now, leader.silence_us), max(0, now - seen_us)


def machine_state(job: Any) -> Memory | None:
    """The job's row of `qbeat_state` as the planner knows it."""
    state = getattr(job, "state", None)
    if state is None:
        return None
    return Memory(
        job.pk,
        first_seen_us=state.first_seen_us,
        next_run_us=state.next_run_us,
        last_run_us=state.last_run_us,
        last_slot_us=state.last_slot_us,
        last_succeeded_us=state.last_succeeded_us,
        late_after_us=state.late_after_us,
        plan_key=state.plan_key,
        problem=state.problem,
    )


def condition_badge(standing: JobHealth) -> SafeString:
    """The condition for a table; with the run that it waits for."""
    style, sign = STYLES.get(standing.condition, ("held", "○"))
    badge = format_html('<span class="qb-badge qb-{}">{} {}</span>', style, sign, standing.condition.value)
    run = standing.run
    if run is None or standing.condition not in (Condition.BLOCKED, Condition.RUNNING):
        return badge
    by = "by run " if standing.condition is Condition.BLOCKED else ""
    who = f"{by}{run.task_id} " if by else ""
    late = ", late" if standing.late else ""
    return format_html('{} <span class="qb-quiet">{}since {}{}</span>', badge, who, clock(run.since_us), late)


def _last_runs(names: Sequence[str]) -> dict[str, LastRun]:
    newest = Run.objects.filter(job_id=OuterRef("pk"), batch_id__isnull=False).order_by("-slot_us").values("id")[:1]
    ids = State.objects.filter(pk__in=names).annotate(newest=Subquery(newest)).values_list("newest", flat=True)
    runs = Run.objects.in_bulk([run_id for run_id in ids if run_id is not None])
    return {run.job_id: LastRun(_since(run), run.verdict, run.task_id) for run in runs.values()}


def _in_flight(names: Sequence[str]) -> dict[str, InFlight]:
    flying = Run.objects.filter(job_id__in=names, lease_until_us__gt=0).order_by("-slot_us")
    return {run.job_id: InFlight(run.task_id, run.slot_us, _since(run)) for run in flying}


def _since(run: Any) -> int:
    us: int = run.claimed_us if run.sent_us is None else run.sent_us
    return us
