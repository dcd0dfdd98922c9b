"""What a schedule will do, before anybody saves it: the next firings, and what an edit adds and takes away."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from datetime import UTC
from itertools import islice
from typing import Any
from zoneinfo import ZoneInfo

from celery_qbeat.core.jobs import CRON_RESERVED, Job, RowRules, State
from celery_qbeat.core.planning import first_slot, kept_slot, slot_from_now
from celery_qbeat.core.schedules import Schedule, parse
from celery_qbeat.core.schedules.preview import Noted
from celery_qbeat.django.times import DAY, ago, clock, moment
from celery_qbeat.errors import ScheduleError

SHOWN = 10
COMPARED_US = 30 * DAY
COMPARED_SLOTS = 5_000
"""The most slots of each side that are compared; a minutely job has 43,200 in 30 days."""

COLUMNS = ("schedule_kind", "schedule", "timezone", "days_only", "days_skip", "dates_skip", "start_us", "end_us")


@dataclass(frozen=True, slots=True)
class Shown:
    """A firing in the row's zone and in UTC; `note` says what a change of the clocks did to it."""

    us: int
    local: str
    offset: str
    utc: str
    away: str
    note: str


@dataclass(frozen=True, slots=True)
class Difference:
    """What an edit adds and takes away until `until`; the first few of each, and how many there are."""

    added: tuple[Shown, ...]
    removed: tuple[Shown, ...]
    added_count: int
    removed_count: int
    until: str

    @property
    def added_more(self) -> int:
        return self.added_count - len(self.added)

    @property
    def removed_more(self) -> int:
        return self.removed_count - len(self.removed)


@dataclass(frozen=True, slots=True)
class Preview:
    """Either a `problem` (of column `field`), or firings; `remarks` are sentences beside them."""

    zone: str = "UTC"
    problem: str = ""
    field: str = ""
    firings: tuple[Shown, ...] = ()
    remarks: tuple[str, ...] = ()
    difference: Difference | None = None


@dataclass(frozen=True, slots=True)
class Before:
    """The row as it is in the database: its schedule columns, and what the machine knows of it."""

    columns: Mapping[str, Any]
    state: State | None = None
    blocked: bool = False
    """Whether a run in flight keeps the next one waiting."""


def preview(
    columns: Mapping[str, Any], rules: RowRules, now: int, before: Before | None = None, paused: str = ""
) -> Preview:
    """The firings after `now` of a row with these schedule columns (see COLUMNS).

    `before`: the row in the database, when it is an edit. `paused`: why none of them will happen, as a sentence.
    """
    zone = str(columns["timezone"])
    try:
        job = job_of(columns, rules)
    except ScheduleError as error:
        return Preview(zone, str(error), error.field)
    remarks = [f"{paused} Until it is enabled, none of these will run."] if paused else []
    if job.schedule.kind == "cron" and not rules.cron:
        remarks.append(CRON_RESERVED)
    changed = before is None or any(before.columns[name] != columns[name] for name in COLUMNS)
    slots = slots_of(job, before.state if before else None, now, changed=changed)
    firings = tuple(_shown(job.schedule, us, now) for us in islice(slots, SHOWN))
    if before is not None and before.blocked and job.schedule.relative and firings and firings[0].us <= now:
        # Every later time counts from an end that nobody knows.
        firings = (replace(firings[0], away="when the run in flight has ended"),)
    if job.schedule.relative:
        remarks.append("Each time counts from the dispatch before it, so later ones move with it.")
    if not firings:
        remarks.append("It never fires again.")
    difference = _difference(job, before, rules, now) if before is not None and changed else None
    return Preview(zone, firings=firings, remarks=tuple(remarks), difference=difference)


def job_of(columns: Mapping[str, Any], rules: RowRules) -> Job:
    """A job with these schedule columns and nothing else. Raises ScheduleError."""
    for name in ("start_us", "end_us"):
        if isinstance(columns[name], str):
            raise ScheduleError(f"{name} {columns[name]!r} is no time; write microseconds since 1970", field=name)
    texts = {name: columns[name] for name in COLUMNS[2:6]}
    schedule = parse(columns["schedule_kind"], columns["schedule"], **texts, min_interval_us=rules.min_interval_us)
    return Job("", "", schedule, "", start_us=columns["start_us"], end_us=columns["end_us"])


def slots_of(job: Job, state: State | None, now: int, *, changed: bool = False) -> Iterator[int]:
    """What a beat that reads the row now plans, and what follows; `changed`: the schedule is not that of the state.

    A job without a plan is finished, or it was disabled, bad or paused: when it is no more, it is planned from now.
    """
    if state is None:
        slot = first_slot(job, now)
    elif changed or state.next_run_us is None:
        slot = slot_from_now(job, state.last_run_us, now)
    else:
        slot = kept_slot(job, state, now)
    if slot is not None and slot <= now and not job.schedule.relative:
        # One run stands for all that are due.
        yield job.schedule.latest(now) or slot
        slot = job.schedule.next_after(now)
    while slot is not None and (job.end_us is None or slot <= job.end_us):
        yield slot
        slot = job.schedule.next_after(max(slot, now) if job.schedule.relative else slot)


def _shown(schedule: Schedule, us: int, now: int) -> Shown:
    zone = ZoneInfo(schedule.zone)
    local = moment(us, zone)
    name = "" if local is None else local.strftime("%a ")
    offset = "" if local is None else f"UTC{local.isoformat()[-6:]}"
    note = schedule.note(us) if isinstance(schedule, Noted) else ""
    away = "at once" if us <= now else ago(us, now)
    return Shown(us, f"{name}{clock(us, zone)}", offset, f"{clock(us, UTC)}Z", away, note)


def _difference(job: Job, before: Before, rules: RowRules, now: int) -> Difference | None:
    try:
        old = job_of(before.columns, rules)
    except ScheduleError:
        return None
    new_slots, new_until = _until(slots_of(job, before.state, now, changed=True), now)
    old_slots, old_until = _until(slots_of(old, before.state, now), now)
    until = min(new_until, old_until)
    ours, theirs = ({us for us in slots if us <= until} for slots in (new_slots, old_slots))
    added, removed = sorted(ours - theirs), sorted(theirs - ours)
    return Difference(
        tuple(_shown(job.schedule, us, now) for us in added[:5]),
        tuple(_shown(old.schedule, us, now) for us in removed[:5]),
        len(added),
        len(removed),
        clock(until, ZoneInfo(job.schedule.zone)),
    )


def _until(slots: Iterator[int], now: int) -> tuple[list[int], int]:
    """The slots of the next 30 days, or as many as are compared, and until when that is all of them."""
    found: list[int] = []
    for us in slots:
        if us > now + COMPARED_US:
            break
        if len(found) == COMPARED_SLOTS:
            return found, found[-1]
        found.append(us)
    return found, now + COMPARED_US
