"""When a job runs next, and what becomes of the slots that are due. Pure: time is an argument.

An edit, an enable or a reload plans from now and so never fires a job by itself; a job whose schedule did not
change keeps its next slot; only a job seen for the first time starts with `Schedule.first`.
"""

from __future__ import annotations

from dataclasses import dataclass

from celery_qbeat.core.identity import task_id
from celery_qbeat.core.jobs import CODE_PREFIX, Job, Run, State, Verdict

ONCE_TOLERANCE_US = 60_000_000
"""A `once` job that is first seen later than this after its instant is missed, not sent."""

STEP_BACK_US = 60_000_000
"""After a step back, slots up to the last decided one are not planned again when that is no further ahead than this.

Further back they are planned again, for nobody knows which of them were decided: those lose to the ledger.
"""

PASS_LIMIT = 1_000
"""The most slots of one job that `catch_up=all` decides in one pass."""

CLAIM_LIMIT = 100
"""The most of them that it sends: what is claimed together is in doubt together when the beat dies."""

SERVING_GAP_US = 10_000_000
"""After a pause of the writer, slots younger than this are not counted as 'passed while nobody was dispatching'."""

IN_FLIGHT_DETAIL = "previous run still in flight"

OVERTAKEN_DETAIL = "before this slot, and any later one, was decided"
"""A `MISSED` run whose detail ends so stands for every slot of the old definition from its own on."""

FIRST_PERIOD_DETAIL = "its period had begun when the row was first seen: late counts from then"


REMEMBERED_DETAIL = "perhaps sent; the beat that knew it remembers it, but an older copy of the database does not"
"""An `IN_DOUBT` run with this detail stands for the slots that were decided before a backup was restored."""


@dataclass(frozen=True, slots=True)
class Moment:
    """What all decisions of a tick share. Slots before `serving_since_us` passed while nobody was dispatching."""

    now_us: int
    serving_since_us: int
    instance: str


@dataclass(frozen=True, slots=True)
class Due:
    """A due job. `fresh`: its slot is the first one, perhaps older than `first_seen_us`, when the job was first seen;
    `excused`: it is late because it waited for its own run. `last_slot_us`: the newest slot that has a verdict;
    `last_run_us`: when the last run was dispatched."""

    job: Job
    expected_us: int
    first_seen_us: int
    fresh: bool = False
    excused: bool = False
    busy: bool = False
    refusal: str = ""
    last_slot_us: int | None = None
    last_run_us: int | None = None


@dataclass(frozen=True, slots=True)
class Plan:
    """A state row as it shall be. A new row gets `first_seen_us`; `spec` is added to the history when `record` is set.

    `spec` None in the history means: from then on the job did not run (disabled, bad, gone). `overtaken_us`: the slot
    that was due under the old definition and that nobody had decided; it wants a verdict before the plan is written.
    `moved_us`: the slot, past already, to which a new definition moved the one that was `planned_us`; so does it.
    """

    job_id: str
    first_seen_us: int
    next_run_us: int | None
    plan_key: str
    problem: str = ""
    late_after_us: int | None = None
    spec: str | None = None
    record: bool = False
    overtaken_us: int | None = None
    planned_us: int | None = None
    moved_us: int | None = None


@dataclass(frozen=True, slots=True)
class Claim:
    """Slots of one job, decided together: `runs` oldest first, any verdict; those `CLAIMED` are to be sent.

    Wins only if the state's next_run_us is still `expected_us`, and (unless `rev` is None, a code entry) the row
    still has this `rev` and is enabled. Then next_run_us becomes `next_us`. `expected_us` None: a run by hand,
    which needs only that the row and a state are there, and leaves next_run_us, last_run_us and last_slot_us alone.
    """

    job_id: str
    rev: int | None
    expected_us: int | None
    next_us: int | None
    runs: tuple[Run, ...] = ()


def within_end(job: Job, slot: int | None) -> int | None:
    """`slot`, or None when it lies after the job's end."""
    if slot is None or (job.end_us is not None and slot > job.end_us):
        return None
    return slot


def first_slot(job: Job, now: int) -> int | None:
    """The first slot of a job that was never planned before: of an entry in code after its interval, as Celery does."""
    if job.id.startswith(CODE_PREFIX):
        return slot_from_now(job, None, now)
    start = job.start_us
    if start is not None and start > now:
        return _slot_from_start(job, start)
    slot = job.schedule.first(now)
    if slot is not None and start is not None and slot < start:
        slot = job.schedule.next_after(start - 1)
    return within_end(job, slot)


def _slot_from_start(job: Job, start: int) -> int | None:
    """The first slot at `start` or after it."""
    return within_end(job, job.schedule.first(start) if job.schedule.relative else job.schedule.next_after(start - 1))


def slot_from_now(job: Job, last_run_us: int | None, now: int) -> int | None:
    """The next slot of a job whose definition changed, was enabled or repaired: always later than now."""
    start = job.start_us
    if start is not None and start > now:
        return _slot_from_start(job, start)
    if job.schedule.relative and last_run_us is not None:
        slot = job.schedule.after_run(last_run_us, last_run_us)
        if slot is not None and now < slot <= (job.schedule.next_after(now) or slot):
            return within_end(job, slot)
    return within_end(job, job.schedule.next_after(now))


def kept_slot(job: Job, state: State, now: int) -> int | None:
    """The slot in `state`, unless it is further away than the schedule could ask for (a clock that stepped back)."""
    slot = state.next_run_us
    if slot is None or slot <= now:
        return slot
    soonest = slot_from_now(job, None, now)
    if soonest is None or slot <= soonest:
        return slot
    decided = state.last_slot_us
    if not job.schedule.relative and decided is not None and soonest <= decided <= now + STEP_BACK_US:
        return slot
    return soonest


def late_after(job: Job, since_us: int) -> int | None:
    """When the job counts as late if no run succeeds after `since_us`: two periods, or two slots, later.

    None: never, as for a schedule that decides for itself when it is due.
    """
    if decides_itself(job):
        return None
    first = job.schedule.next_after(max(since_us, (job.start_us or since_us) - 1))
    return None if first is None else within_end(job, job.schedule.next_after(first))


def decides_itself(job: Job) -> bool:
    """Whether the schedule is code of the project that is asked, before each run, whether it is due."""
    return job.from_code and getattr(job.schedule, "decides", False)


def lease_until(job: Job, now: int) -> int:
    """Until when a run that is sent now may be without an end: it may wait in a queue, and it may run."""
    return now + job.max_run_us + (job.expires_s or 0) * 1_000_000


def decide(due: Due, moment: Moment) -> Claim | None:
    """What becomes of every slot of a job that is due now, and its next slot; None: it waits for its own run to end."""
    job = due.job
    if due.busy and job.overlap == "skip" and (job.schedule.relative or job.catch_up == "all") and not due.refusal:
        return None
    if job.schedule.relative:
        return _decide_relative(due, moment)
    if job.catch_up == "all" and not due.refusal:
        return _decide_each(due, moment)
    return _decide_newest(due, moment)


def verdict_for_replaced_definition(
    job_id: str, slot: int, next_us: int | None, moment: Moment, *, deleted: bool = False
) -> Claim:
    """The verdict on a slot that was due when its definition changed or, `deleted`, when its job went."""
    late = max(0, moment.now_us - slot)
    what = "the job was deleted" if deleted else "the row changed"
    detail = f"{late / 1_000_000:.1f} s late: {what} {OVERTAKEN_DETAIL}"
    run = Run(job_id, slot, task_id(moment.instance, job_id, slot), Verdict.MISSED, late, detail=detail)
    return Claim(job_id, None, slot, next_us, (run,))


def _decided_before(due: Due, moment: Moment) -> tuple[int | None, list[Run]]:
    """The oldest due slot that wants a verdict: not before the job was there, and behind the newest decided one.

    The plan in the database may be older: the clock stepped back and came forward again, or a backup was restored. Then
    the decided slots get a line in the ledger, which holds only if they have none there. When one of the two instants
    lies in the future, the clock is behind: then the job goes on by the clock as it is.
    """
    oldest, schedule, last = due.expected_us, due.job.schedule, due.last_slot_us
    if not due.fresh and oldest < due.first_seen_us <= moment.now_us and schedule.kind != "once":
        oldest = max(oldest, schedule.first(due.first_seen_us) or oldest)
    if last is None or not oldest <= last <= moment.now_us:
        return oldest, []
    newest = schedule.latest(last if due.job.end_us is None else min(last, due.job.end_us))
    known = [] if newest is None or newest < oldest else [_remembered(due.job, newest, oldest, moment)]
    return schedule.next_after(last), known


def _remembered(job: Job, slot: int, oldest: int, moment: Moment) -> Run:
    return _run(job, slot, Verdict.IN_DOUBT, moment, _older(job, oldest, slot), REMEMBERED_DETAIL)


def _decide_relative(due: Due, moment: Moment) -> Claim:
    job, slot, now = due.job, due.expected_us, moment.now_us
    known: list[Run] = []
    if due.last_run_us is not None and slot <= due.last_run_us <= now:
        # The plan is older than the last run: of a restored backup, or of a clock that was behind.
        reached = due.last_run_us
        if due.last_slot_us is not None and slot <= due.last_slot_us <= now:
            known = [_remembered(job, due.last_slot_us, due.last_slot_us, moment)]
            reached = max(reached, due.last_slot_us)
        later = job.schedule.after_run(reached, reached)
        if later is None or later > now:
            return Claim(job.id, job.rev, slot, within_end(job, later), tuple(known))
        slot = later
    if not due.fresh and due.first_seen_us <= now:
        slot = max(slot, due.first_seen_us)
    following = within_end(job, job.schedule.after_run(slot, now))
    unserved = job.catch_up == "skip" and not due.excused and _since(due, slot) < moment.serving_since_us
    if due.refusal:
        run = _run(job, slot, Verdict.REFUSED, moment, detail=due.refusal)
    elif unserved:
        run = _missed(job, slot, moment, "nobody was dispatching")
    elif _past_grace(due, slot, moment):
        run = _missed(job, slot, moment, _grace_reason(job))
    else:
        run = _run(job, slot, Verdict.CLAIMED, moment)
    return Claim(job.id, job.rev, due.expected_us, following, (*known, run))


def _decide_newest(due: Due, moment: Moment) -> Claim:
    job, schedule = due.job, due.job.schedule
    oldest, runs = _decided_before(due, moment)
    until = moment.now_us if job.end_us is None else min(moment.now_us, job.end_us)
    newest = schedule.latest(until)
    if newest is None or oldest is None or newest < oldest:
        # All are decided; or the zone's rules changed under a planned slot, and it is no slot any more.
        return Claim(job.id, job.rev, due.expected_us, slot_from_now(job, None, moment.now_us), tuple(runs))
    following = within_end(job, schedule.next_after(newest))
    cutoff = moment.serving_since_us
    if job.catch_up == "skip" and not due.refusal and _since(due, oldest) < cutoff:
        last = newest if newest < cutoff else schedule.latest(cutoff - 1)
        if last is not None and last >= oldest:
            runs.append(_missed(job, last, moment, "nobody was dispatching", _older(job, oldest, last)))
            oldest = last + 1
    if newest >= oldest:
        runs.append(_newest_run(due, newest, _older(job, oldest, newest), moment))
    return Claim(job.id, job.rev, due.expected_us, following, tuple(runs))


def _newest_run(due: Due, slot: int, collapsed: int, moment: Moment) -> Run:
    job = due.job
    if due.refusal:
        return _run(job, slot, Verdict.REFUSED, moment, collapsed, due.refusal)
    if job.schedule.kind == "once" and due.first_seen_us - slot > ONCE_TOLERANCE_US:
        return _missed(job, slot, moment, "its instant had passed when the row was first seen", collapsed)
    if _past_grace(due, slot, moment):
        return _missed(job, slot, moment, _grace_reason(job), collapsed)
    if due.busy and job.overlap == "skip":
        return _run(job, slot, Verdict.SKIPPED, moment, collapsed, IN_FLIGHT_DETAIL)
    since_us = _since(due, slot)
    detail = FIRST_PERIOD_DETAIL if since_us > slot else ""
    return _run(job, slot, Verdict.CLAIMED, moment, collapsed, detail, since_us)


def _decide_each(due: Due, moment: Moment) -> Claim:
    job = due.job
    oldest, runs = _decided_before(due, moment)
    slot, sends = within_end(job, oldest), 0
    while slot is not None and slot <= moment.now_us and len(runs) < PASS_LIMIT and sends < CLAIM_LIMIT:
        if _past_grace(due, slot, moment):
            runs.append(_missed(job, slot, moment, _grace_reason(job)))
        else:
            runs.append(_run(job, slot, Verdict.CLAIMED, moment))
            sends += 1
        slot = within_end(job, job.schedule.next_after(slot))
        if job.overlap == "skip" and runs[-1].verdict is Verdict.CLAIMED:
            break
    return Claim(job.id, job.rev, due.expected_us, slot, tuple(runs))


def _older(job: Job, oldest: int, newest: int) -> int:
    if oldest == newest:
        return 0
    return max(0, job.schedule.count(oldest - 1, newest) - 1)


def _past_grace(due: Due, slot: int, moment: Moment) -> bool:
    grace = due.job.grace_us
    return grace is not None and not due.excused and moment.now_us - _since(due, slot) > grace


def _since(due: Due, slot: int) -> int:
    """From when on `slot` could have been sent.

    A new `every` job takes the current period, which began before anybody knew the job: that is not lateness.
    """
    return max(slot, due.first_seen_us) if due.fresh else slot


def _grace_reason(job: Job) -> str:
    return f"its grace of {(job.grace_us or 0) // 1_000_000} s was over"


def _missed(job: Job, slot: int, moment: Moment, why: str, collapsed: int = 0) -> Run:
    late = (moment.now_us - slot) / 1_000_000
    return _run(job, slot, Verdict.MISSED, moment, collapsed, f"{late:.1f} s late: {why}")


def _run(
    job: Job,
    slot: int,
    verdict: Verdict,
    moment: Moment,
    collapsed: int = 0,
    detail: str = "",
    since_us: int | None = None,
) -> Run:
    return Run(
        job_id=job.id,
        slot_us=slot,
        task_id=task_id(moment.instance, job.id, slot),
        verdict=verdict,
        late_us=max(0, moment.now_us - (slot if since_us is None else since_us)),
        collapsed=collapsed,
        detail=detail,
        lease_until_us=lease_until(job, moment.now_us) if verdict is Verdict.CLAIMED else None,
        resend=job.on_doubt == "resend" and verdict is Verdict.CLAIMED,
    )
