"""The laws of planning: which slot is next, and what becomes of those that are due."""

from __future__ import annotations

from dataclasses import dataclass, replace

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from celery_qbeat.core.identity import task_id
from celery_qbeat.core.jobs import Job, State, Verdict
from celery_qbeat.core.manual_runs import by_hand, slot_by_hand
from celery_qbeat.core.planning import (
    CLAIM_LIMIT,
    IN_FLIGHT_DETAIL,
    ONCE_TOLERANCE_US,
    OVERTAKEN_DETAIL,
    PASS_LIMIT,
    Claim,
    Due,
    Moment,
    decide,
    first_slot,
    kept_slot,
    late_after,
    slot_from_now,
    verdict_for_replaced_definition,
)
from celery_qbeat.core.schedules import Schedule, parse

INSTANCE = "5f0c6e2e-6f0e-4a62-9a55-0d5b6f6ff001"
SECOND = 1_000_000
MINUTE = 60 * SECOND
HOUR = 60 * MINUTE
DAY = 24 * HOUR
NOON = 1_780_315_200 * SECOND  # 2026-06-01T12:00:00Z

TEXTS = [
    ("interval", "7", {}),
    ("interval", "3600", {"days_skip": "sat,sun"}),
    ("every", "1m", {}),
    ("every", "7m", {"days_only": "mon-fri"}),
    ("every", "1d", {"dates_skip": "2026-06-02,2026-06-03"}),
    ("daily", "02:30,14:00", {"timezone": "Europe/Berlin"}),
    ("daily", "09:00", {"timezone": "Australia/Lord_Howe", "days_only": "mon-fri"}),
    ("cron", "*/5 * * * *", {"timezone": "US/Pacific"}),
    ("cron", "0 3 1 * *", {}),
    ("once", "2026-06-01T12:00", {}),
]

SCHEDULES = st.sampled_from([parse(kind, text, **terms) for kind, text, terms in TEXTS])
ABSOLUTE = SCHEDULES.filter(lambda schedule: not schedule.relative)
INSTANTS = st.integers(NOON - 3 * DAY, NOON + 3 * DAY)
SPANS = st.one_of(st.integers(0, 3 * MINUTE), st.integers(0, 6 * HOUR), st.integers(0, 40 * DAY))


@st.composite
def jobs(draw: st.DrawFn, schedules: st.SearchStrategy[Schedule] = SCHEDULES) -> Job:
    start = draw(st.none() | INSTANTS)
    return Job(
        id="j",
        fn="app.a",
        schedule=draw(schedules),
        plan_key="p",
        rev=3,
        start_us=start,
        end_us=draw(st.none() | SPANS.map(lambda span: (start or NOON) + span)),
        overlap=draw(st.sampled_from(["skip", "allow"])),
        catch_up=draw(st.sampled_from(["once", "skip", "all"])),
        grace_us=draw(st.none() | st.sampled_from([0, 30 * SECOND, HOUR])),
        max_run_us=draw(st.sampled_from([SECOND, HOUR])),
        expires_s=draw(st.none() | st.integers(1, 100)),
    )


@dataclass(frozen=True, slots=True)
class Case:
    due: Due
    moment: Moment

    @property
    def until(self) -> int:
        """The last instant whose slots are due."""
        end = self.due.job.end_us
        return self.moment.now_us if end is None else min(self.moment.now_us, end)


@st.composite
def cases(draw: st.DrawFn, schedules: st.SearchStrategy[Schedule] = SCHEDULES) -> Case:
    """A job whose slot was planned some time ago and is due now."""
    job, planned_at = draw(jobs(schedules)), draw(INSTANTS)
    fresh = draw(st.booleans())
    slot = first_slot(job, planned_at) if fresh else slot_from_now(job, draw(st.none() | INSTANTS), planned_at)
    assume(slot is not None)
    assert slot is not None
    now = max(slot, planned_at) + draw(SPANS)
    due = Due(
        job,
        slot,
        first_seen_us=planned_at,
        fresh=fresh,
        excused=draw(st.booleans()),
        busy=draw(st.booleans()),
        refusal=draw(st.sampled_from(["", "", "fn: 'x' is not a registered task"])),
    )
    return Case(due, Moment(now, now - draw(SPANS), INSTANCE))


def claim_of(case: Case) -> Claim:
    claim = decide(case.due, case.moment)
    assume(claim is not None)
    assert claim is not None
    return claim


# ---------------------------------------------------------------- the next slot


@given(jobs(), st.none() | INSTANTS, INSTANTS)
def test_a_slot_planned_from_now_is_later_than_now_and_within_the_job_s_bounds(
    job: Job, last_run: int | None, now: int
) -> None:
    slot = slot_from_now(job, last_run, now)
    if slot is not None:
        assert slot > now
        assert job.start_us is None or slot >= job.start_us
        assert job.end_us is None or slot <= job.end_us


@given(jobs(ABSOLUTE), INSTANTS)
def test_a_slot_planned_from_now_steps_over_none(job: Job, now: int) -> None:
    after = max(now, (job.start_us or now + 1) - 1)
    slot = slot_from_now(job, None, now)
    if slot is None:
        following = job.schedule.next_after(after)
        assert following is None or (job.end_us is not None and following > job.end_us)
    else:
        assert job.schedule.count(after, slot) == 1


@given(jobs(), INSTANTS)
def test_a_first_slot_lies_within_the_job_s_bounds(job: Job, now: int) -> None:
    slot = first_slot(job, now)
    if slot is not None:
        assert job.start_us is None or slot >= job.start_us
        assert job.end_us is None or slot <= job.end_us


@given(jobs(), INSTANTS)
def test_without_bounds_the_first_slot_is_the_schedule_s_own(job: Job, now: int) -> None:
    assert first_slot(replace(job, start_us=None, end_us=None), now) == job.schedule.first(now)


@given(jobs(), INSTANTS, st.none() | INSTANTS, st.none() | INSTANTS, INSTANTS)
def test_a_kept_slot_is_never_put_off_and_never_moved_into_the_past(
    job: Job, next_us: int, last_run: int | None, last_slot: int | None, now: int
) -> None:
    state = State("j", NOON, next_run_us=next_us, last_run_us=last_run, last_slot_us=last_slot)
    kept = kept_slot(job, state, now)
    assert kept is not None
    assert kept == next_us or now < kept < next_us


@given(jobs(), INSTANTS, st.integers(0, 30 * DAY))
def test_a_slot_that_was_planned_is_kept_while_the_clock_goes_on(job: Job, planned_at: int, passed: int) -> None:
    slot = slot_from_now(job, None, planned_at)
    assume(slot is not None)
    state = State("j", planned_at, next_run_us=slot)
    assert kept_slot(job, state, planned_at + passed) == slot


def test_a_job_without_a_next_slot_keeps_none() -> None:
    job = Job("j", "app.a", parse("every", "1m"), "p")
    assert kept_slot(job, State("j", NOON), NOON) is None


@given(jobs(), INSTANTS)
def test_a_job_is_late_after_two_slots_that_lie_ahead(job: Job, now: int) -> None:
    late = late_after(job, now)
    if late is not None:
        first = job.schedule.next_after(max(now, (job.start_us or now) - 1))
        assert first is not None
        assert now < first < late
        assert job.schedule.next_after(first) == late


# ---------------------------------------------------------------- verdicts


@given(cases())
def test_a_job_waits_exactly_while_its_own_run_is_in_flight_and_its_slots_are_worth_waiting_for(case: Case) -> None:
    job = case.due.job
    waits = job.overlap == "skip" and (job.schedule.relative or job.catch_up == "all")
    assert (decide(case.due, case.moment) is None) == (case.due.busy and waits and not case.due.refusal)


@given(cases())
def test_a_claim_expects_the_slot_that_is_due_and_the_row_it_was_decided_by(case: Case) -> None:
    claim = claim_of(case)
    assert (claim.job_id, claim.rev, claim.expected_us) == ("j", 3, case.due.expected_us)


@given(cases())
def test_every_slot_decided_is_due(case: Case) -> None:
    slots = [run.slot_us for run in claim_of(case).runs]
    assert slots == sorted(set(slots))
    assert all(case.due.expected_us <= slot <= case.moment.now_us for slot in slots)


@given(cases(ABSOLUTE))
def test_every_slot_decided_is_one_of_the_schedule(case: Case) -> None:
    for run in claim_of(case).runs:
        assert case.due.job.schedule.next_after(run.slot_us - 1) == run.slot_us


@given(cases())
def test_the_next_slot_is_later_than_now_unless_a_backlog_is_left(case: Case) -> None:
    claim, job = claim_of(case), case.due.job
    if claim.next_us is None or claim.next_us > case.moment.now_us:
        return
    assert job.catch_up == "all"
    assert not job.schedule.relative
    assert claim.next_us == job.schedule.next_after(claim.runs[-1].slot_us)
    alone = job.overlap == "skip" and claim.runs[-1].verdict is Verdict.CLAIMED
    sends = sum(run.verdict is Verdict.CLAIMED for run in claim.runs)
    assert alone or sends == CLAIM_LIMIT or len(claim.runs) == PASS_LIMIT


@given(cases(ABSOLUTE))
def test_verdicts_and_what_they_stand_for_cover_every_due_slot_once(case: Case) -> None:
    claim, schedule = claim_of(case), case.due.job.schedule
    before = case.due.expected_us - 1
    for run in claim.runs:
        assert run.collapsed == schedule.count(before, run.slot_us) - 1
        before = run.slot_us
    until = case.until if claim.next_us is None else min(case.until, claim.next_us - 1)
    assert schedule.count(before, until) == 0


@given(cases(SCHEDULES.filter(lambda schedule: schedule.relative)))
def test_an_interval_decides_its_one_slot_and_is_next_its_period_after_now(case: Case) -> None:
    claim, job = claim_of(case), case.due.job
    assert [(run.slot_us, run.collapsed) for run in claim.runs] == [(case.due.expected_us, 0)]
    following = job.schedule.next_after(case.moment.now_us)
    assert claim.next_us == (following if job.end_us is None or (following or 0) <= job.end_us else None)


@given(cases())
def test_nothing_is_claimed_for_a_refused_job(case: Case) -> None:
    if case.due.refusal:
        for run in claim_of(case).runs:
            assert (run.verdict, run.detail) == (Verdict.REFUSED, case.due.refusal)


@given(cases())
def test_nothing_is_claimed_while_a_run_of_a_job_that_may_not_overlap_is_in_flight(case: Case) -> None:
    claim = decide(case.due, case.moment)
    if claim is not None and case.due.busy and case.due.job.overlap == "skip":
        assert all(run.verdict is not Verdict.CLAIMED for run in claim.runs)


@given(cases())
def test_at_most_one_run_is_claimed_for_a_job_that_may_not_overlap(case: Case) -> None:
    if case.due.job.overlap == "skip":
        assert sum(run.verdict is Verdict.CLAIMED for run in claim_of(case).runs) <= 1


@given(cases())
def test_nothing_is_claimed_after_its_grace(case: Case) -> None:
    grace = case.due.job.grace_us
    if grace is None or case.due.excused:
        return
    for run in claim_of(case).runs:
        since = max(run.slot_us, case.due.first_seen_us) if case.due.fresh else run.slot_us
        assert run.verdict is not Verdict.CLAIMED or case.moment.now_us - since <= grace


@given(cases())
def test_with_skip_nothing_is_claimed_that_passed_while_nobody_was_dispatching(case: Case) -> None:
    if case.due.job.catch_up != "skip" or case.due.excused or case.due.fresh:
        return
    for run in claim_of(case).runs:
        assert run.verdict is not Verdict.CLAIMED or run.slot_us >= case.moment.serving_since_us


@given(cases())
def test_a_claimed_run_has_a_lease_and_no_other_has_one(case: Case) -> None:
    job, now = case.due.job, case.moment.now_us
    for run in claim_of(case).runs:
        if run.verdict is Verdict.CLAIMED:
            assert run.lease_until_us == now + job.max_run_us + (job.expires_s or 0) * SECOND
        else:
            assert run.lease_until_us is None


@given(cases())
def test_lateness_is_never_negative_and_the_task_id_is_the_slot_s(case: Case) -> None:
    for run in claim_of(case).runs:
        assert 0 <= run.late_us <= case.moment.now_us - run.slot_us
        assert run.task_id == task_id(INSTANCE, "j", run.slot_us)


@given(cases())
def test_deciding_twice_gives_the_same(case: Case) -> None:
    assert decide(case.due, case.moment) == decide(case.due, case.moment)


@given(cases(ABSOLUTE))
def test_passes_over_a_backlog_end_and_decide_what_one_pass_would(case: Case) -> None:
    """Deciding pass after pass covers all that was due, whatever the limits of a pass."""
    due = replace(case.due, busy=False, refusal="", excused=True, fresh=False)
    assume(due.job.schedule.count(due.expected_us - 1, case.until) < 5 * PASS_LIMIT)
    covered, passes = 0, 0
    slot: int | None = due.expected_us
    while slot is not None and slot <= case.moment.now_us:
        claim = decide(replace(due, expected_us=slot), case.moment)
        assert claim is not None
        covered += sum(1 + run.collapsed for run in claim.runs)
        assert claim.next_us is None or claim.next_us > slot
        slot, passes = claim.next_us, passes + 1
        if passes > 20:
            # With overlap=skip each pass claims a single slot.
            return
    assert covered == due.job.schedule.count(due.expected_us - 1, case.until)


def due_now(kind: str, text: str, slot: int, **columns: object) -> Due:
    job = Job("j", "app.a", parse(kind, text), "p", rev=3, **columns)  # type: ignore[arg-type]
    return Due(job, slot, first_seen_us=slot)


def test_a_slot_that_the_zone_s_new_rules_removed_is_planned_anew_without_a_verdict() -> None:
    claim = decide(due_now("daily", "13:00", NOON + 5 * MINUTE), Moment(NOON + 6 * MINUTE, 0, INSTANCE))
    assert claim == Claim("j", 3, NOON + 5 * MINUTE, NOON + HOUR)


def test_a_once_job_seen_within_its_tolerance_is_claimed_and_later_it_is_missed() -> None:
    due = due_now("once", "2026-06-01T12:00", NOON)
    for seen, verdict in [(NOON + ONCE_TOLERANCE_US, "claimed"), (NOON + ONCE_TOLERANCE_US + 1, "missed")]:
        claim = decide(replace(due, first_seen_us=seen, fresh=True), Moment(seen, 0, INSTANCE))
        assert claim is not None
        assert [run.verdict for run in claim.runs] == [verdict]


# ---------------------------------------------------------------- by hand, overtaken


@given(jobs(), INSTANTS, st.booleans(), st.sampled_from(["", "no"]))
def test_a_run_by_hand_leaves_the_plan_alone(job: Job, slot: int, busy: bool, refusal: str) -> None:
    moment = Moment(slot, 0, INSTANCE)
    claim = by_hand("j", job, slot, "the name", busy=busy, refusal=refusal, moment=moment)
    assert (claim.expected_us, claim.next_us, len(claim.runs)) == (None, None, 1)
    run = claim.runs[0]
    assert (run.slot_us, run.task_id, run.late_us) == (slot, "the name", 0)
    if refusal:
        assert (run.verdict, run.detail) == (Verdict.REFUSED, "by hand: no")
    elif busy and job.overlap == "skip":
        assert (run.verdict, run.detail) == (Verdict.SKIPPED, f"by hand: {IN_FLIGHT_DETAIL}")
    else:
        assert (run.verdict, run.detail) == (Verdict.CLAIMED, "by hand")


def test_a_run_by_hand_of_a_bad_row_is_refused() -> None:
    moment = Moment(NOON, 0, INSTANCE)
    claim = by_hand("j", None, NOON, "the name", busy=False, refusal="args: bad", moment=moment)
    assert claim.rev is None
    assert claim.runs[0].verdict is Verdict.REFUSED


@given(INSTANTS, st.integers(-5, 5), st.integers(-5, 5))
def test_the_slot_of_a_run_by_hand_is_nobody_elses(now: int, last: int, planned: int) -> None:
    slot = slot_by_hand(now, now + last, now + planned)
    assert now <= slot <= now + 10
    assert slot not in (now + last, now + planned)
    assert slot % SECOND


def test_after_a_step_back_of_the_clock_runs_by_hand_have_the_time_of_the_clock() -> None:
    assert slot_by_hand(NOON + 1, NOON + HOUR, None) == NOON + 1


@pytest.mark.parametrize("next_us", [None, NOON + MINUTE])
def test_an_overtaken_slot_is_missed_whatever_became_of_its_row(next_us: int | None) -> None:
    claim = verdict_for_replaced_definition("j", NOON, next_us, Moment(NOON + 1_500_000, 0, INSTANCE))
    assert (claim.rev, claim.expected_us, claim.next_us) == (None, NOON, next_us)
    assert claim.runs[0].verdict is Verdict.MISSED
    assert claim.runs[0].detail == f"1.5 s late: the row changed {OVERTAKEN_DETAIL}"
