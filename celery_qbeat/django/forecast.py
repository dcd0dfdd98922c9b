"""The coming week, hour by hour, and the minutes in which most jobs collide.

Jobs with the same schedule are counted together by the database, so that 100,000 jobs cost what their schedules cost.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta, tzinfo
from itertools import chain, pairwise
from typing import Any

from django.db.models import Count, F, Min, Q

from celery_qbeat.core.jobs import RowRules
from celery_qbeat.core.schedules import Interval, Schedule
from celery_qbeat.django.preview import COLUMNS, job_of
from celery_qbeat.django.times import HOUR, MINUTE, clock, microseconds, moment
from celery_qbeat.errors import ScheduleError

DAYS = 7
MOST_GROUPS = 500
"""Schedules beyond so many different ones, those with the fewest jobs, are left out, and the page says so."""

STEPS, PEAK_STEPS = 100_000, 40_000
"""Steps that counting a week and looking for its busiest minutes may take, each about 10 us; what they do not reach
is left out."""

DATES_A_STEP = 4
"""Dates of `dates_skip` that are read in the time of a step."""

SPARSE = 400
"""A schedule with more firings a week is counted by the hour instead of one by one."""

CANDIDATES = 1_000
PEAKS, NAMES, FRAMED = 5, 6, 14


@dataclass(frozen=True, slots=True)
class Peak:
    """A minute in which several jobs start, on one or more days: how many runs, and the names of some of the jobs."""

    minutes: tuple[int, ...]
    when: str
    runs: int
    names: tuple[str, ...]

    @property
    def more(self) -> int:
        return max(0, self.runs - len(self.names))


@dataclass(frozen=True, slots=True)
class Forecast:
    """`counts[day][hour]` is None for an hour that is over, or that the day does not have.

    `left_out`: jobs with rare schedules, and those that the steps did not reach; `unreadable`: jobs that will not run
    as they are, which no beat has said yet.
    """

    days: tuple[str, ...]
    counts: tuple[tuple[int | None, ...], ...]
    peaks: tuple[Peak, ...]
    peak_cells: frozenset[tuple[int, int]]
    total: int
    jobs: int
    left_out: int
    unreadable: int

    @property
    def counted(self) -> int:
        """The jobs whose runs are in the table."""
        return self.jobs - self.left_out - self.unreadable


@dataclass(slots=True)
class _Tally:
    """The steps that are left, and the groups and jobs that were counted with those taken so far."""

    steps: int = STEPS
    counted: int = 0
    unreadable: int = 0
    absolute: list[_Group] = field(default_factory=list)
    dense: list[_Group] = field(default_factory=list)


@dataclass(slots=True)
class _Group:
    """Jobs with one schedule."""

    columns: Mapping[str, Any]
    jobs: int
    schedule: Schedule

    def bounds(self, first: int, last: int) -> tuple[int, int]:
        """The part of [first, last) in which the jobs may run."""
        start, end = self.columns["start_us"], self.columns["end_us"]
        return max(first, start or first), last if end is None else min(last, end + 1)

    def slots(self, first: int, last: int) -> Iterator[int]:
        first, last = self.bounds(first, last)
        slot = self.schedule.next_after(first - 1)
        while slot is not None and slot < last:
            yield slot
            slot = self.schedule.next_after(slot)

    def count(self, first: int, last: int) -> int:
        """How many slots lie in [first, last)."""
        first, last = self.bounds(first, last)
        return self.schedule.count(first - 1, last - 1) if first < last else 0


@dataclass(frozen=True, slots=True)
class _Alike:
    """Jobs with one interval that are planned for the same minute; None: due at once, or not planned yet."""

    group: _Group
    minute: int | None

    def of(self, jobs: Any, now: int) -> Any:
        """Them, of a queryset of jobs."""
        planned = Q(state__next_run_us__isnull=True) | Q(state__next_run_us__lt=now)
        if self.minute is not None:
            planned = Q(state__next_run_us__gte=self.minute, state__next_run_us__lt=self.minute + MINUTE)
        return jobs.filter(planned, **_same(self.group.columns))


@dataclass(slots=True)
class _Week:
    """The hours of a week in a zone: when each starts and ends, and what falls into it."""

    days: list[datetime]
    hours: list[tuple[int, int, int, int]]
    runs: Counter[tuple[int, int]] = field(default_factory=Counter)
    minutes: Counter[int] = field(default_factory=Counter)
    meeting: defaultdict[int, list[int]] = field(default_factory=lambda: defaultdict(list))
    intervals: defaultdict[int, list[_Alike]] = field(default_factory=lambda: defaultdict(list))

    @property
    def first(self) -> int:
        return self.hours[0][0]

    @property
    def last(self) -> int:
        return self.hours[-1][1]

    def add(self, slots: Iterable[int], group: _Group, jobs: int, alike: _Alike | None = None) -> None:
        """Slots of this week in ascending order, each for so many jobs of a group."""
        hours = iter(self.hours)
        hour = next(hours)
        for slot in slots:
            while hour[1] <= slot:
                hour = next(hours)
            self.runs[hour[2], hour[3]] += jobs
            self.minutes[slot - slot % MINUTE] += jobs
            self.meeting[slot - slot % MINUTE].append(id(group))
            if alike is not None:
                self.intervals[slot - slot % MINUTE].append(alike)

    def table(self) -> tuple[tuple[int | None, ...], ...]:
        """The runs by day and hour; None where the week has no such hour."""
        there = {(day, hour) for _, _, day, hour in self.hours}
        return tuple(
            tuple(self.runs[day, hour] if (day, hour) in there else None for hour in range(24)) for day in range(DAYS)
        )


def forecast(jobs: Any, rules: RowRules, zone: tzinfo, now: int) -> Forecast:
    """What the enabled ones of a queryset of jobs will do in the seven days of `zone` that begin today."""
    week, tally = _week(zone, now), _Tally()
    rows = jobs.order_by().values(*COLUMNS).annotate(n=Count("pk")).order_by("-n", *COLUMNS)[:MOST_GROUPS]
    for row in rows:
        if tally.steps <= 0:
            break
        _count_row(week, tally, row, rules, jobs)
    peaks = _peaks(week, tally.absolute, tally.dense, jobs, zone)
    # What comes all the time has no place on the map.
    marked = {minute for peak in peaks if len(peak.minutes) <= FRAMED for minute in peak.minutes}
    total = jobs.count()
    return Forecast(
        days=tuple(day.strftime("%a %d %b") for day in week.days),
        counts=week.table(),
        peaks=peaks,
        peak_cells=frozenset(
            (day, hour) for start, end, day, hour in week.hours if any(start <= minute < end for minute in marked)
        ),
        total=sum(week.runs.values()),
        jobs=total,
        left_out=max(0, total - tally.counted - tally.unreadable),
        unreadable=tally.unreadable,
    )


def _count_row(week: _Week, tally: _Tally, row: Mapping[str, Any], rules: RowRules, jobs: Any) -> None:
    """Count the jobs with these schedule columns."""
    tally.steps -= 1 + row["dates_skip"].count(",") // DATES_A_STEP
    try:
        schedule = job_of(row, rules).schedule
    except ScheduleError:
        tally.unreadable += row["n"]
        return
    if row["schedule_kind"] == "cron" and not rules.cron:
        tally.unreadable += row["n"]
        return
    group = _Group(row, row["n"], schedule)
    if schedule.relative:
        tally.counted += _count_interval(week, tally, group, jobs)
        return
    tally.counted += group.jobs
    tally.absolute.append(group)
    if not _count_group(week, tally, group):
        tally.dense.append(group)


def _week(zone: tzinfo, now: int) -> _Week:
    """Hours that are over, and those that a change of the clocks leaves out, are not there."""
    found = moment(now, zone)
    if found is None:
        raise ValueError(f"{now} is no time that a calendar has")
    midnight = found.replace(hour=0, minute=0, second=0, microsecond=0, tzinfo=None)
    walls = [midnight + timedelta(hours=number) for number in range(DAYS * 24 + 1)]
    instants = [microseconds(wall.replace(tzinfo=zone)) for wall in walls]
    hours = [
        (max(start, now), end, number // 24, number % 24)
        for number, (start, end) in enumerate(pairwise(instants))
        if end > max(start, now)
    ]
    return _Week([midnight + timedelta(days=day) for day in range(DAYS)], hours)


def _count_group(week: _Week, tally: _Tally, group: _Group) -> bool:
    """Whether its slots could be taken one by one; else the hours are counted, and the minutes are not."""
    slots = group.count(week.first, week.last)
    if slots <= SPARSE:
        tally.steps -= 1 + slots
        week.add(group.slots(week.first, week.last), group, group.jobs)
        return True
    tally.steps -= len(week.hours)
    for start, end, day, hour in week.hours:
        week.runs[day, hour] += group.jobs * group.count(start, end)
    return False


def _count_interval(week: _Week, tally: _Tally, group: _Group, jobs: Any) -> int:
    """A short interval is spread over the hours; a long one starts from where its jobs stand, minute by minute.

    Returns:
        How many of the group's jobs were counted before the steps were used up.
    """
    if isinstance(group.schedule, Interval) and group.schedule.period_us < HOUR:
        tally.steps -= len(week.hours)
        for start, end, day, hour in week.hours:
            first, last = group.bounds(start, end)
            if first < last and group.schedule.allows(first):
                week.runs[day, hour] += round(group.jobs * (last - first) / group.schedule.period_us)
        return group.jobs
    planned, at_once, counted = F("state__next_run_us"), 0, 0
    minutes = jobs.filter(**_same(group.columns)).order_by().annotate(minute=planned - planned % MINUTE)
    for minute, count, first in minutes.values_list("minute").annotate(n=Count("pk"), first=Min(planned)):
        if first is None or first < week.first:
            at_once += count
        elif tally.steps > 0:
            _add_stepped(week, tally, group, first, count, _Alike(group, minute))
            counted += count
    if at_once and tally.steps > 0:
        slot = group.schedule.first(max(week.first, group.columns["start_us"] or week.first))
        _add_stepped(week, tally, group, slot, at_once, _Alike(group, None))
        counted += at_once
    return counted


def _add_stepped(week: _Week, tally: _Tally, group: _Group, first: int | None, jobs: int, alike: _Alike) -> None:
    """The slots of so many jobs of a group from the slot `first` on."""
    slots = list(_stepped(group, first, week.last))
    tally.steps -= 1 + len(slots)
    week.add(slots, group, jobs, alike)


def _stepped(group: _Group, slot: int | None, last: int) -> Iterator[int]:
    _, last = group.bounds(0, last)
    while slot is not None and slot < last:
        yield slot
        slot = group.schedule.next_after(slot)


def _same(columns: Mapping[str, Any]) -> dict[str, Any]:
    """The filter that finds the jobs with these schedule columns."""
    return {
        f"{name}__isnull" if columns[name] is None else name: True if columns[name] is None else columns[name]
        for name in COLUMNS
    }


def _peaks(week: _Week, groups: Sequence[_Group], dense: Sequence[_Group], jobs: Any, zone: tzinfo) -> tuple[Peak, ...]:
    """The busiest minutes; those in which the same jobs meet are one peak.

    Minutes that only dense schedules share are looked for in the next hour.
    """
    soon = week.first - week.first % MINUTE
    most = PEAK_STEPS // max(1, len(dense))
    candidates = {minute for minute, _ in week.minutes.most_common(min(CANDIDATES, most))}
    candidates |= {soon + step * MINUTE for step in range(1, 1 + min(60, most))}
    alike: dict[tuple[int, tuple[int, ...]], list[int]] = {}
    for minute in sorted(candidates):
        more = [(group, count) for group in dense if (count := group.count(minute, minute + MINUTE))]
        runs = week.minutes[minute] + sum(group.jobs * count for group, count in more)
        meeting = (*week.meeting[minute], *(id(group) for group, _ in more))
        if runs > 1:
            alike.setdefault((runs, meeting), []).append(minute)
    busiest = sorted(alike.items(), key=lambda item: (-item[0][0], item[1][0]))[:PEAKS]
    return tuple(
        Peak(tuple(minutes), _when(minutes, zone), runs, _names(week, groups, minutes[0], jobs))
        for (runs, _), minutes in busiest
    )


def _when(minutes: Sequence[int], zone: tzinfo) -> str:
    found = moment(minutes[0], zone)
    first = "" if found is None else found.strftime("%a %d %b, %H:%M")
    if len(minutes) == 1:
        return first
    if len({clock(minute, zone)[11:] for minute in minutes}) == 1:
        return f"{first[-5:]} on {len(minutes)} days"
    return f"{len(minutes)} times, first {first}"


def _names(week: _Week, groups: Sequence[_Group], minute: int, jobs: Any) -> tuple[str, ...]:
    found = chain(
        (jobs.filter(**_same(group.columns)) for group in groups if group.count(minute, minute + MINUTE)),
        (alike.of(jobs, week.first) for alike in week.intervals.get(minute, ())),
    )
    names: list[str] = []
    for alike in found:
        names.extend(alike.order_by("pk").values_list("pk", flat=True)[: NAMES - len(names)])
        if len(names) == NAMES:
            break
    return tuple(names)
