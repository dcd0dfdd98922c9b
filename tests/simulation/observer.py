"""Watches every transaction as it commits, and knows independently what it should have done.

The slots of a definition are enumerated here by counting minutes, not by the schedules under test.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from copy import deepcopy
from dataclasses import dataclass, field
from typing import Any

from celery_qbeat.core.jobs import IN_FLIGHT, Job, Verdict
from celery_qbeat.core.planning import OVERTAKEN_DETAIL, REMEMBERED_DETAIL, STEP_BACK_US, Claim, Plan
from celery_qbeat.ports import ClaimRelease
from celery_qbeat.testing import MemoryStore
from celery_qbeat.testing.database import Database
from tests.simulation.world import Beat, World

SECOND = 1_000_000
MINUTE = 60 * SECOND
DAY = 86_400 * SECOND

EPOCHS_IN_A_ROW = 3
"""How many epochs a beat may take without a tick as the writer in between, while nothing hinders it."""

WRONG_FOR_S = 45.0
"""How long a beat may go on after its clock became wrong: it may have frozen just after it looked."""

TAKES_PAST = frozenset({"every", "once", "code"})
"""Kinds whose first slot may be older than the job."""

SECOND_CLOCK = hasattr(MemoryStore, "clock_us")
"""Whether beats ask the database for the time."""


@dataclass(slots=True)
class Course:
    """What the observer knows of a job: its definition, the slot that is next, and which slots are answered for."""

    spec: str | None = None
    pointer: int | None = None
    covered: dict[int, str] = field(default_factory=dict)
    stands_for: dict[str, list[int]] = field(default_factory=dict)


def slots_of(spec: str, start: int, until: int) -> Iterator[int]:
    """The slots of a definition in [start, until], oldest first, by brute force."""
    kind, text, _zone, _only, _skip, _dates, start_us, end_us, _floor = json.loads(spec)
    if kind == "once":
        candidates: Iterator[int] = iter([int(text_to_us(text))])
    elif kind == "code":
        candidates = iter(range(-(-start // int(text)) * int(text), until + 1, int(text)))
    else:
        candidates = (us for us in range(-(-start // MINUTE) * MINUTE, until + 1, MINUTE) if _on(kind, text, us))
    for us in candidates:
        if start <= us <= until and (start_us is None or us >= start_us) and (end_us is None or us <= end_us):
            yield us


def text_to_us(text: str) -> int:
    from datetime import UTC, datetime

    return int(datetime.fromisoformat(text).replace(tzinfo=UTC).timestamp()) * SECOND


def _on(kind: str, text: str, us: int) -> bool:
    minute = us // MINUTE
    if kind == "every":
        return minute % int(text.removesuffix("m")) == 0
    if kind == "daily":
        return any(minute % 1440 == int(time[:2]) * 60 + int(time[3:]) for time in text.split(","))
    step = text.split()[0].removeprefix("*").removeprefix("/")
    return minute % 60 % int(step or 1) == 0


class Observer:
    """The laws that hold at each commit."""

    def __init__(self, world: World, database: Database, code: Sequence[Job] = ()) -> None:
        self.world = world
        self.database = database
        self.code = {job.id: job for job in code}
        self.courses: dict[str, Course] = {}
        self.epoch = 0
        self.stepped_back = False
        self.restored_at: float | None = None
        self._replaced: dict[str, Course] = {}
        """What was known of the database before an older copy replaced it."""
        self.race: Callable[[str], None] = lambda job_id: None

    def watch(self, beat: Beat, name: str, args: Sequence[Any], plain: Callable[[], Any]) -> Any:
        """Carry out a write, and check it."""
        if name == "claim":
            return self._claim(beat, args, plain)
        if name == "take_epoch":
            result = plain()
            self._epoch_taken(beat)
            return result
        if name == "write_plans":
            result = plain()
            for plan in args[1]:
                self._planned(plan, args[2])
            return result
        if name == "delete_states":
            result = plain()
            for job_id in args[1]:
                self._gone(job_id, args[2])
            return result
        if name == "release_claims":
            return self._release(args, plain)
        return plain()

    def copy(self) -> dict[str, Course]:
        """What it knows, to be given to `restored` together with a copy of the database of now."""
        return deepcopy(self.courses)

    def restored(self, courses: dict[str, Course]) -> None:
        """The database was replaced by an older copy of itself."""
        self._replaced = self.courses
        self.courses, self.epoch, self.restored_at = courses, self.database.epoch, self.world.now

    def broken(self, text: str) -> None:
        self.world.broken(text)

    def _epoch_taken(self, beat: Beat) -> None:
        """A takeover ends some time: it is not begun again and again by a beat that nobody hinders."""
        world = self.world
        for other in world.beats:
            if other is not beat:
                other.epochs = 0
        if world.disturbed_at >= beat.epochs_since:
            beat.epochs = 0
        if not beat.epochs:
            beat.epochs_since = world.now
        beat.epochs += 1
        if beat.epochs > EPOCHS_IN_A_ROW:
            self.broken(
                f"{beat.name} has taken {beat.epochs} epochs since {beat.epochs_since:.1f} and dispatched nothing"
            )

    # ------------------------------------------------------------ plans

    def _planned(self, plan: Plan, now: int) -> None:
        course = self.courses.setdefault(plan.job_id, Course())
        excused = self.restored_at is not None and self.stepped_back
        if course.pointer is not None and course.pointer != plan.next_run_us and course.pointer <= now and not excused:
            self.broken(f"the slot {plan.job_id}@{course.pointer} was due, and a plan forgot it")
        same = not plan.record or plan.spec == course.spec
        if plan.record:
            course.spec = plan.spec
        if course.spec is not None:
            self._check_plan(plan, course.spec, course.pointer if same else None, now)
        course.pointer = plan.next_run_us

    def _check_plan(self, plan: Plan, spec: str, before: int | None, now: int) -> None:
        """No slot lies between now and the next one; a definition that stays never has its next slot put off."""
        following = plan.next_run_us
        if before is not None and (following is None or following > before):
            self.broken(f"{plan.job_id} was next at {before} and is put off to {following}")
        kind, text, *_, start_us, end_us, _ = json.loads(spec)
        if kind == "interval":
            latest = max(now, start_us or now) + int(text) * SECOND
            if (following is None and (end_us is None or latest <= end_us)) or (following or 0) > latest:
                self.broken(f"{plan.job_id} is next at {following}, though its interval is over at {latest}")
            return
        until = now + 2 * DAY if following is None else following - 1
        known = self.courses[plan.job_id].covered
        state = self.database.state.get(plan.job_id)
        decided = (state.last_slot_us if state is not None else None) or 0
        # Just after a clock went back, slots up to the newest decided one are not planned, under any definition.
        since = decided if decided <= now + STEP_BACK_US else now
        open_slots = (
            slot
            for slot in slots_of(spec, max(now, since) + 1, until)
            if slot not in known and (slot, plan.job_id) not in self.database.by_slot
        )
        stepped_over = next(open_slots, None)
        if stepped_over is not None:
            self.broken(f"{plan.job_id} is next at {following}, and its slot {stepped_over} is stepped over")

    def _gone(self, job_id: str, now: int) -> None:
        course = self.courses.pop(job_id, None)
        if course is not None and course.pointer is not None and course.pointer <= now:
            self.broken(f"the slot {job_id}@{course.pointer} was due, and its row went without a verdict on it")

    # ------------------------------------------------------------ claims

    def _claim(self, beat: Beat, args: Sequence[Any], plain: Callable[[], Any]) -> Any:
        epoch, _batch, claims, now = args
        if claims and self.world.rng.random() < self.world.rates.race:
            self.race(self.world.rng.choice(claims).job_id)
        flying = {claim.job_id: self._flying(claim.job_id) for claim in claims}
        planned = {claim.job_id: self._state_next(claim) for claim in claims}
        before = set(self.database.by_task)
        lost = plain()
        if epoch < self.epoch:
            self.broken(f"{beat.name} claimed under epoch {epoch} after epoch {self.epoch} had claimed")
        self.epoch = max(self.epoch, epoch)
        for claim in claims:
            won = [run for run in claim.runs if run.task_id in self.database.by_task and run.task_id not in before]
            self.world.say(f"    {claim.job_id}: expected {claim.expected_us}, won {[str(r.verdict) for r in won]}")
            if claim.job_id not in lost:
                self._check_row(claim, beat)
            claimed = [run.slot_us for run in won if run.verdict is Verdict.CLAIMED]
            if claim.expected_us is not None and claimed:
                self._check_time(claim.job_id, min(claimed), beat, now)
            self._check_overlap(claim, [run.task_id for run in won if run.verdict is Verdict.CLAIMED], flying)
            # A claim that is lost because the ledger has its slots moves the plan on all the same.
            if claim.expected_us is not None and self._state_next(claim) == claim.next_us != planned[claim.job_id]:
                self._moved(claim, [run.task_id for run in won], now)
        return lost

    def _course(self, claim: Claim) -> Course:
        return self.courses.setdefault(claim.job_id, Course())

    def _state_next(self, claim: Claim) -> int | None:
        state = self.database.state.get(claim.job_id)
        return None if state is None else state.next_run_us

    def _check_row(self, claim: Claim, beat: Beat) -> None:
        """A committed edit or disable holds from its commit on."""
        if claim.rev is None or claim.expected_us is None:
            return
        row = self.database.jobs.get(claim.job_id)
        if row is None or row["rev"] != claim.rev or not row["enabled"]:
            self.broken(f"{beat.name} claimed {claim.job_id}@{claim.expected_us} by a row that was changed before")

    def _check_time(self, job_id: str, slot: int, beat: Beat, now: int) -> None:
        """No slot is older than its job unless the clock is behind, and nobody dispatches by a clock that is wrong."""
        state, spec = self.database.state.get(job_id), self.courses.get(job_id, Course()).spec
        takes_past = spec is None or json.loads(spec)[0] in TAKES_PAST
        if state is not None and slot < state.first_seen_us <= now and not takes_past:
            self.broken(f"{job_id}@{slot} is older than the job, which was first seen at {state.first_seen_us}")
        wrong_s = 0.0 if beat.wrong_since is None else self.world.now - beat.wrong_since
        if SECOND_CLOCK and wrong_s > WRONG_FOR_S:
            self.broken(f"{beat.name} claimed {job_id}@{slot}, though its clock is wrong for {wrong_s:.1f} s")

    def _flying(self, job_id: str) -> list[str]:
        return [e.task_id for e in self.database.ledger if e.job_id == job_id and e.verdict in IN_FLIGHT]

    def _check_overlap(self, claim: Claim, claimed: Sequence[str], flying: dict[str, list[str]]) -> None:
        row = self.database.jobs.get(claim.job_id)
        code = self.code.get(claim.job_id)
        if row is not None and row["rev"] != claim.rev:
            # Only a run by hand may win by a row that was changed in the moment before.
            return
        overlap = code.overlap if code is not None else (row or {}).get("overlap")
        if overlap == "skip" and claimed and len(flying[claim.job_id]) + len(claimed) > 1:
            self.broken(f"{claim.job_id} may not overlap and has {flying[claim.job_id]} and {claimed} in flight")

    def _moved(self, claim: Claim, won: Sequence[str], now: int) -> None:
        """Every slot from the pointer on to the next one is answered for, once."""
        course = self._course(claim)
        if course.pointer != claim.expected_us:
            self.broken(f"{claim.job_id} expected {claim.expected_us}, but {course.pointer} was next")
            return
        start, course.pointer = claim.expected_us or 0, claim.next_us
        overtaken = [run for run in claim.runs if run.detail.endswith(OVERTAKEN_DETAIL)]
        if overtaken or course.spec is None:
            for run in [run for run in overtaken if run.task_id in won]:
                self._cover(course, claim.job_id, run.task_id, [run.slot_us])
            return
        kind, text, *_ = json.loads(course.spec)
        if kind == "interval":
            self._check_interval(claim, start, int(text), now, course, won)
        else:
            self._check_tiles(claim, list(slots_of(course.spec, start, max(now, start))), course, won, now)

    def _check_interval(
        self, claim: Claim, start: int, seconds: int, now: int, course: Course, won: Sequence[str]
    ) -> None:
        end = json.loads(course.spec or "[]")[7]
        runs = [run for run in claim.runs if run.detail != REMEMBERED_DETAIL]
        for run in claim.runs:
            if run not in runs and run.task_id in won:
                self._cover(course, claim.job_id, run.task_id, [run.slot_us])
        if not runs:
            # The plan was older than the last run, by a clock that was behind or in a restored copy.
            if claim.next_us is not None and not now < claim.next_us <= now + seconds * SECOND:
                self.broken(f"{claim.job_id} does not run at {now} and is next at {claim.next_us}")
            return
        if len(runs) != 1 or not start <= runs[0].slot_us <= max(start, now):
            self.broken(f"{claim.job_id} has the slot {start}, but {[r.slot_us for r in runs]} was decided")
        following = now + seconds * SECOND
        if claim.next_us != (following if end is None or following <= end else None):
            self.broken(f"{claim.job_id} ran at {now} and is next at {claim.next_us}, not {seconds} s later")
        if runs[0].task_id in won:
            self._cover(course, claim.job_id, runs[0].task_id, [runs[0].slot_us])

    def _check_tiles(self, claim: Claim, slots: list[int], course: Course, won: Sequence[str], now: int) -> None:
        if claim.next_us is not None:
            slots = [slot for slot in slots if slot < claim.next_us]
        known = self._answered_before(claim.job_id, course, now)
        left = list(slots)
        for run in claim.runs:
            if run.slot_us not in left:
                self.broken(f"{claim.job_id}@{run.slot_us} is not among the due slots {left}")
                return
            number = left.index(run.slot_us) + 1
            mine, left = left[:number], left[number:]
            least = len([slot for slot in mine if not known(slot)])
            if not max(1, least) <= run.collapsed + 1 <= len(mine):
                self.broken(f"{claim.job_id}@{run.slot_us} stands for {len(mine) - 1} slots and says {run.collapsed}")
            if run.task_id in won:
                self._cover(course, claim.job_id, run.task_id, mine[-1 - run.collapsed :])
        left = [slot for slot in left if not known(slot)]
        if left:
            self.broken(f"{claim.job_id}: the slots {left} got no verdict")

    def _answered_before(self, job_id: str, course: Course, now: int) -> Callable[[int], bool]:
        """Whether a slot has a verdict, in this database or in the one that it replaced, or is older than its job."""
        state = self.database.state.get(job_id)
        since = state.first_seen_us if state is not None and state.first_seen_us <= now else 0
        replaced = self._replaced.get(job_id, Course()).covered
        return lambda slot: slot < since or slot in course.covered or slot in replaced

    def _cover(self, course: Course, job_id: str, task: str, slots: list[int]) -> None:
        twice = [slot for slot in slots if slot in course.covered]
        if twice and not self.stepped_back:
            self.broken(f"{job_id}: the slots {twice} got a second verdict")
        course.covered.update(dict.fromkeys(slots, task))
        course.stands_for[task] = slots

    # ------------------------------------------------------------ releases

    def _release(self, args: Sequence[Any], plain: Callable[[], Any]) -> Any:
        before = set(self.database.by_task)
        result = plain()
        for release in args[2]:
            gone = [task for task in release.task_ids if task in before and task not in self.database.by_task]
            if gone and release.back_to_us is not None:
                self._released(release, gone)
        return result

    def _released(self, release: ClaimRelease, gone: Sequence[str]) -> None:
        course = self.courses.setdefault(release.job_id, Course())
        freed = [slot for task in gone for slot in course.stands_for.pop(task, [])]
        for slot in freed:
            course.covered.pop(slot, None)
        # It may go further back, to slots that the ledger has from an earlier life of the id: they lose again.
        known = (release.back_to_us, release.job_id) in self.database.by_slot
        if freed and release.back_to_us != min(freed) and not known and not self.stepped_back:
            self.broken(f"{release.job_id}: {freed} were released, but {release.back_to_us} is next")
        course.pointer = release.back_to_us
