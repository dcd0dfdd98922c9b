"""The audit of the ledger: every slot that a job's definitions asked for, against the slots that got a verdict. Pure.

Definitions are known from `qbeat_history`, by when a beat took them in, not by when somebody typed them.
"""

from __future__ import annotations

import json
from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from itertools import groupby

from celery_qbeat.core.jobs import Job
from celery_qbeat.core.planning import first_slot, slot_from_now, within_end
from celery_qbeat.core.schedules import Schedule, parse
from celery_qbeat.errors import ScheduleError

FOREVER_US = 1 << 62

SETTLING_US = 60_000_000
"""How long after its time a slot may go without a verdict and count as `PENDING`."""

TOLERANCE_US = 5_000_000
"""How much sooner than its interval a run may come: clocks of two hosts differ, and clocks are set back."""


@dataclass(frozen=True, slots=True)
class Record:
    """A line of `qbeat_history`: from `since_us` on the job ran by `spec`, or, where it is None, not at all."""

    since_us: int
    spec: str | None


@dataclass(frozen=True, slots=True)
class Line:
    """A line of the ledger, not by hand: a slot, when it was decided, and how many older slots it stands for.

    `overtaken`: it stands for all later slots of its definition instead (see `planning.OVERTAKEN_DETAIL`). `number`:
    its place in the ledger, which goes up whatever clocks do.
    """

    slot_us: int
    claimed_us: int
    collapsed: int = 0
    overtaken: bool = False
    number: int = 0


@dataclass(frozen=True, slots=True)
class Window:
    """Slots in [from_us, until_us] are audited; those after `settled_us` may still be undecided (see SETTLING_US)."""

    from_us: int
    until_us: int
    settled_us: int


class Kind(StrEnum):
    """What is wrong with a slot, or, when it is `PENDING`, not wrong yet."""

    MISSING = "missing"
    TOO_SOON = "too soon"
    PENDING = "pending"


FAULTS = frozenset({Kind.MISSING, Kind.TOO_SOON})


@dataclass(frozen=True, slots=True)
class Finding:
    """`count` consecutive slots of a job, the first and the last of them, and what is to be said of them."""

    job_id: str
    kind: Kind
    first_us: int
    last_us: int
    count: int
    why: str


@dataclass(frozen=True, slots=True)
class Definition:
    """How a job ran from `since_us` until `until_us`, when the next definition was taken in (FOREVER_US: it still is).

    `fresh`: the job was seen for the first time then.
    """

    job: Job
    since_us: int
    until_us: int = FOREVER_US
    fresh: bool = False

    @property
    def first_us(self) -> int | None:
        """The first slot that was planned by it; for a relative schedule the latest that it can have been."""
        return first_slot(self.job, self.since_us) if self.fresh else slot_from_now(self.job, None, self.since_us)


@dataclass(frozen=True, slots=True)
class Subject:
    """A job under audit.

    `lines` are ordered by slot, begin with the last one before the window (it matters to relative schedules, and when
    the definition changed in the window) and go on to the present. `next_run_us`: its plan as it stands. `busy`: a run
    of it is in flight. `by_hand`: the slots of runs by hand, which take the place of a planned slot at the same
    microsecond.
    """

    job_id: str
    definitions: Sequence[Definition]
    lines: Sequence[Line]
    next_run_us: int | None = None
    busy: bool = False
    by_hand: frozenset[int] = frozenset()


@dataclass(frozen=True, slots=True)
class Result:
    """How many slots were asked for in the window, and what was found."""

    expected: int
    findings: tuple[Finding, ...]


def read_spec(spec: str) -> tuple[Schedule, int | None, int | None] | None:
    """Schedule, start_us and end_us of a `Job.spec`; None for one that only the code which wrote it can read."""
    try:
        kind, text, zone, only, skip, dates, start_us, end_us, floor_us = json.loads(spec)
        schedule = parse(
            kind,
            text,
            timezone=zone,
            days_only=only,
            days_skip=skip,
            dates_skip=dates,
            min_interval_us=floor_us or 1_000_000,
        )
    except (ValueError, TypeError, ScheduleError):
        return None
    return schedule, start_us, end_us


def definitions(
    job_id: str, records: Sequence[Record], first_seen_us: int | None, code: Mapping[str, Schedule]
) -> tuple[list[Definition], bool]:
    """The definitions behind `records` (oldest first), and whether all of them could be read.

    `code`: the schedules of entries in code, by spec.
    """
    found: list[Definition] = []
    complete = True
    for number, record in enumerate(records):
        if record.spec is None:
            continue
        known = (code[record.spec], None, None) if record.spec in code else read_spec(record.spec)
        if known is None:
            complete = False
            continue
        schedule, start_us, end_us = known
        until_us = records[number + 1].since_us if number + 1 < len(records) else FOREVER_US
        job = Job(job_id, "", schedule, "", start_us=start_us, end_us=end_us)
        found.append(Definition(job, record.since_us, until_us, fresh=number == 0 and record.since_us == first_seen_us))
    return found, complete


def audit(subject: Subject, window: Window) -> Result:
    """Every slot in the window that has no verdict of its own and is not among those that a later one stands for."""
    expected = 0
    findings: list[Finding] = []
    for definition in subject.definitions:
        if definition.since_us <= window.until_us and definition.until_us >= window.from_us:
            check: _Relative | _Absolute
            if definition.job.schedule.relative:
                check = _Relative(subject, definition, window)
            else:
                check = _Absolute(subject, definition, window)
            findings.extend(check.findings())
            expected += check.expected
    return Result(expected, tuple(findings))


def _slot(line: Line) -> int:
    return line.slot_us


class _Check:
    """One definition of one job."""

    def __init__(self, subject: Subject, definition: Definition, window: Window) -> None:
        self.subject = subject
        self.definition = definition
        self.window = window
        self.job = definition.job
        self.schedule = definition.job.schedule
        self.expected = 0
        end_us = FOREVER_US if self.job.end_us is None else self.job.end_us
        self.last_us = min(window.until_us, definition.until_us, end_us)

    def lines(self, first_us: int) -> Sequence[Line]:
        lines = self.subject.lines
        return lines[bisect_left(lines, first_us, key=_slot) : bisect_right(lines, self.definition.until_us, key=_slot)]

    def finding(self, kind: Kind, first_us: int, last_us: int, count: int, why: str) -> Finding:
        return Finding(self.subject.job_id, kind, first_us, last_us, count, why)

    def classify(self, slot_us: int) -> tuple[Kind, str]:
        """What is to be said of a slot after which nothing was decided under its definition."""
        if self.definition.until_us != FOREVER_US:
            return Kind.MISSING, "no verdict"
        if slot_us > self.window.settled_us:
            return Kind.PENDING, "not decided yet"
        planned = self.subject.next_run_us
        if planned is None or planned > slot_us:
            return Kind.MISSING, "no verdict"
        if self.subject.busy:
            return Kind.PENDING, "waits until its previous run ends"
        return Kind.MISSING, "still due, and no beat has decided it"


class _Absolute(_Check):
    """Slots that the schedule alone knows."""

    def findings(self) -> Iterator[Finding]:
        planned = self.definition.first_us
        if planned is None:
            return
        cursor = max(planned, self.window.from_us)
        self.last_us = min([self.last_us, *self._overtaken()])
        self.expected = max(0, self.schedule.count(cursor - 1, self.last_us))
        lines = self.lines(cursor)
        gaps = self._gaps(cursor, lines)
        for first_us, uncovered in reversed(gaps):
            yield from self._missing(first_us, uncovered)
        tail_us = lines[-1].slot_us + 1 if lines else cursor
        if tail_us <= self.last_us:
            yield from self._tail(tail_us)

    def _gaps(self, cursor: int, lines: Sequence[Line]) -> list[tuple[int, int]]:
        """Where slots without a line begin, and how many from there on no line stands for; the newest first.

        A line stands for the slots before it that it collapsed, whether they have lines of their own or not: after a
        step of the clock, slots are decided between a line and those that it stands for.
        """
        found: list[tuple[int, int]] = []
        covered = 0
        for number in range(len(lines) - 1, -1, -1):
            line = lines[number]
            own = self.schedule.next_after(line.slot_us - 1) == line.slot_us
            covered = max(covered - own, line.collapsed)
            first_us = lines[number - 1].slot_us + 1 if number else cursor
            slots = self.schedule.count(first_us - 1, line.slot_us) - own
            if slots > covered and first_us <= self.last_us:
                found.append((first_us, slots - covered))
            covered = max(0, covered - slots)
        return found

    def _overtaken(self) -> Iterator[int]:
        """The slot that stands for the rest; it may lie before the definition, when that began with an older slot."""
        since_us, until_us = self.definition.since_us, self.definition.until_us
        if until_us != FOREVER_US:
            lines = self.subject.lines
            yield from (n.slot_us for n in lines if n.overtaken and since_us < n.claimed_us <= until_us)

    def _missing(self, cursor: int, count: int) -> Iterator[Finding]:
        slots = list(self._slots(cursor, min(count, self.schedule.count(cursor - 1, self.last_us))))
        if slots:
            yield self.finding(Kind.MISSING, slots[0], slots[-1], len(slots), "no verdict")

    def _tail(self, cursor: int) -> Iterator[Finding]:
        slots = self._slots(cursor, self.schedule.count(cursor - 1, self.last_us))
        for (kind, why), alike in groupby(slots, self.classify):
            run = list(alike)
            yield self.finding(kind, run[0], run[-1], len(run), why)

    def _slots(self, cursor: int, count: int) -> Iterator[int]:
        slot = self.schedule.next_after(cursor - 1)
        while slot is not None and count > 0:
            if slot not in self.subject.by_hand:
                yield slot
            slot = self.schedule.next_after(slot)
            count -= 1


class _Relative(_Check):
    """Slots that follow from the run before.

    That is the one before in the ledger. By their slots, runs from before and after a step back of the clock would lie
    between each other.
    """

    def findings(self) -> Iterator[Finding]:
        expected, exact = self._begin(), False
        if expected is None:
            return
        claimed_us = 0
        for line in sorted(self.lines(self.definition.since_us), key=lambda line: line.number):
            if line.claimed_us < claimed_us:
                # The clock was set back, and the job planned again.
                exact = False
            claimed_us = line.claimed_us
            if expected is not None and line.slot_us > expected:
                yield from self._missing(expected)
            elif exact and expected is not None and line.slot_us < expected - self._tolerance(line):
                yield from self._too_soon(line, expected)
            if self.window.from_us <= line.slot_us <= self.last_us:
                self.expected += 1
            if line.overtaken:
                return
            expected = within_end(self.job, self.schedule.after_run(line.slot_us, line.claimed_us))
            exact = True
        if expected is not None and self._inside(expected):
            self.expected += 1
            kind, why = self.classify(expected)
            yield self.finding(kind, expected, expected, 1, why)

    def _inside(self, slot_us: int) -> bool:
        return self.window.from_us <= slot_us <= self.last_us and slot_us not in self.subject.by_hand

    def _begin(self) -> int | None:
        """The latest instant of the first slot to be seen."""
        planned = self.definition.first_us
        lines = self.lines(self.definition.since_us)
        if planned is None or planned >= self.window.from_us or (lines and lines[0].slot_us < self.window.from_us):
            return planned
        # What ran before the window is not known: by then at the latest the next one was due.
        return within_end(self.job, self.schedule.next_after(self.window.from_us))

    def _missing(self, expected: int) -> Iterator[Finding]:
        if self._inside(expected):
            self.expected += 1
            yield self.finding(Kind.MISSING, expected, expected, 1, "no run followed when the interval was over")

    def _too_soon(self, line: Line, expected: int) -> Iterator[Finding]:
        if self.window.from_us <= line.slot_us <= self.last_us:
            why = f"{(expected - line.slot_us) / 1_000_000:.1f} s before its interval was over"
            yield self.finding(Kind.TOO_SOON, line.slot_us, line.slot_us, 1, why)

    def _tolerance(self, line: Line) -> int:
        following = self.schedule.after_run(line.slot_us, line.claimed_us)
        period = TOLERANCE_US if following is None else following - line.claimed_us
        return min(TOLERANCE_US, period // 2)
