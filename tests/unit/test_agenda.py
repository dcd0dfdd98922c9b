"""The agenda against the simplest thing that could be right: a dictionary that is sorted at every look."""

from __future__ import annotations

from dataclasses import dataclass, replace

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from celery_qbeat.core.agenda import STALE, UNPLANNED, Agenda, AgendaEntry
from celery_qbeat.core.jobs import Job, Reading, State
from celery_qbeat.core.planning import Plan
from celery_qbeat.core.schedules import Every, Interval, Schedule

SECOND = 1_000_000
NOON = 1_780_315_200 * SECOND
IDS = st.sampled_from("abcdef")
SCHEDULES = [Every(60 * SECOND), Every(7 * SECOND), Interval(13), Interval(3600)]


def reading(job_id: str, schedule: Schedule, *, enabled: bool = True, bad: bool = False) -> Reading:
    if bad:
        return Reading(job_id, None, "schedule: bad")
    key = repr(schedule)
    return Reading(job_id, Job(job_id, "app.a", schedule, plan_key=key, spec=key, rev=1, enabled=enabled))


def stored(plan: Plan | None, state: State | None) -> State | None:
    """The state row after the plan was written, and the verdict on the slot that it overtakes."""
    if plan is None:
        return state
    before = state or State(plan.job_id, plan.first_seen_us)
    return replace(
        before,
        next_run_us=plan.next_run_us,
        plan_key=plan.plan_key,
        problem=plan.problem,
        late_after_us=plan.late_after_us,
        last_slot_us=before.last_slot_us if plan.overtaken_us is None else plan.overtaken_us,
    )


@dataclass(slots=True)
class Model:
    next_us: int | None
    waiting: bool = False


class AgendaMachine(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.now = NOON
        self.agenda = Agenda()
        self.model: dict[str, Model] = {}
        self.states: dict[str, State] = {}

    @rule(job=IDS, schedule=st.sampled_from(SCHEDULES), enabled=st.booleans(), fault=st.integers(0, 3))
    def take_in_a_row(self, job: str, schedule: Schedule, enabled: bool, fault: int) -> None:
        bad = fault == 0
        row, before = reading(job, schedule, enabled=enabled, bad=bad), self.states.get(job)
        plan = self.agenda.add_or_replace(row, before, self.now)
        after = stored(plan, before)
        assert after is not None
        self.states[job] = after
        entry = self.agenda.entries[job]
        self.model[job] = Model(entry.next_us)
        # What is remembered of an earlier row with this id stays.
        assert replace(entry.state, last_slot_us=after.last_slot_us, last_run_us=after.last_run_us) == after
        assert after.next_run_us == entry.next_us
        assert (entry.next_us is not None) == (enabled and not bad)
        if plan is not None and plan.record:
            assert plan.spec == (repr(schedule) if enabled and not bad else None)
        assert self.agenda.add_or_replace(row, after, self.now) is None, "a plan that was stored is right"

    @rule(job=IDS)
    def forget_a_row(self, job: str) -> None:
        state = self.agenda.remove(job)
        assert (state is not None) == (job in self.model)
        self.model.pop(job, None)
        self.states.pop(job, None)

    @rule(seconds=st.integers(0, 90))
    def time_passes(self, seconds: int) -> None:
        self.now += seconds * SECOND

    @rule(limit=st.integers(1, 7), data=st.data())
    def decide_what_is_due(self, limit: int, data: st.DataObject) -> None:
        wanted = sorted(
            (model.next_us, job)
            for job, model in self.model.items()
            if model.next_us is not None and model.next_us <= self.now and not model.waiting
        )
        found = self.agenda.pop_due(self.now, limit)
        assert [(entry.next_us, entry.id) for entry in found] == wanted[:limit]
        for entry in found:
            self.decide(entry, data.draw(st.sampled_from(["moved", "again", "wait", "put back", "finished"])))

    def decide(self, entry: AgendaEntry, fate: str) -> None:
        model, before = self.model[entry.id], replace(entry)
        if fate == "again":
            self.agenda.return_due(entry.id)
        elif fate == "wait":
            self.agenda.block_until_finished(entry)
            model.waiting = True
        else:
            following = None if fate == "finished" else self.now + 30 * SECOND
            self.agenda.record_claim(entry.id, following, self.now, last_run_us=self.now, last_slot_us=entry.next_us)
            model.next_us = following
        if fate == "put back" and before.next_us is not None:
            self.agenda.undo_claim(before, before.next_us, before.state.last_run_us, None)
            model.next_us = before.next_us
            assert self.agenda.entries[entry.id].state == before.state
        self.states[entry.id] = self.agenda.entries[entry.id].state

    @rule(job=IDS)
    def a_run_ends(self, job: str) -> None:
        self.agenda.unblock(job)
        if job in self.model:
            self.model[job].waiting = False

    @invariant()
    def the_earliest_slot_is_known(self) -> None:
        slots = [model.next_us for model in self.model.values() if model.next_us is not None and not model.waiting]
        assert self.agenda.next_us() == min(slots, default=None)
        assert set(self.agenda.entries) == set(self.model)


TestAgenda = AgendaMachine.TestCase


def test_an_idle_look_reads_only_the_top_of_the_heap() -> None:
    agenda = Agenda()
    for number in range(1000):
        agenda.add_or_replace(
            reading(f"j{number}", Interval(3600)), State(f"j{number}", NOON, NOON + number * SECOND), NOON
        )
    assert agenda.pop_due(NOON - 1, 10) == []
    assert len(agenda._heap) == 1000


def test_a_row_that_is_edited_again_and_again_does_not_fill_the_heap() -> None:
    agenda, state = Agenda(), None
    for number in range(20 * STALE):
        schedule = Interval(3600 + number % 7)
        state = stored(agenda.add_or_replace(reading("j", schedule), state, NOON + number * SECOND), state)
    assert len(agenda._heap) <= 2 * STALE
    assert agenda.next_us() == agenda.entries["j"].next_us


def test_a_job_seen_for_the_first_time_is_due_at_once_and_recorded() -> None:
    plan = Agenda().add_or_replace(reading("j", Interval(60)), None, NOON)
    assert plan is not None
    assert (plan.next_run_us, plan.first_seen_us, plan.record, plan.spec) == (NOON, NOON, True, repr(Interval(60)))
    assert plan.overtaken_us is None


def test_a_disabled_job_seen_for_the_first_time_is_planned_from_now_when_it_is_enabled() -> None:
    agenda = Agenda()
    state = stored(agenda.add_or_replace(reading("j", Interval(60), enabled=False), None, NOON), None)
    assert state is not None
    assert (state.next_run_us, state.plan_key) == (None, UNPLANNED)
    plan = agenda.add_or_replace(reading("j", Interval(60)), state, NOON + SECOND)
    assert plan is not None
    assert (plan.next_run_us, plan.record) == (NOON + 61 * SECOND, True)


def test_a_bad_row_seen_for_the_first_time_starts_like_a_new_one_when_it_is_repaired() -> None:
    agenda = Agenda()
    state = stored(agenda.add_or_replace(reading("j", Interval(60), bad=True), None, NOON), None)
    plan = agenda.add_or_replace(reading("j", Interval(60)), state, NOON + SECOND)
    assert plan is not None
    assert plan.next_run_us == NOON + SECOND


def test_a_due_slot_that_a_new_plan_gives_up_is_named_in_it() -> None:
    agenda = Agenda()
    state = State("j", NOON, NOON + SECOND, plan_key=repr(Interval(60)))
    plan = agenda.add_or_replace(reading("j", Interval(90)), state, NOON + SECOND)
    assert plan is not None
    assert plan.overtaken_us == NOON + SECOND
    early = agenda.add_or_replace(reading("j", Interval(90)), state, NOON)
    assert early is not None
    assert early.overtaken_us is None


def test_after_a_step_back_only_what_lies_too_far_ahead_is_named() -> None:
    agenda = Agenda()
    minutely = Interval(60)
    for job, seconds in [("near", 30), ("far", 90)]:
        state = State(job, 0, NOON + seconds * SECOND, plan_key=repr(minutely))
        agenda.add_or_replace(reading(job, minutely), state, NOON + 60 * SECOND)
    assert [entry.id for entry in agenda.beyond_schedule(NOON)] == ["far"]


def test_marks_on_jobs_that_nobody_knows_do_nothing() -> None:
    agenda = Agenda()
    agenda.record_claim("j", NOON, NOON - 1, last_run_us=None, last_slot_us=None)
    agenda.undo_claim(AgendaEntry("j", None, State("j", NOON)), NOON, None, None)
    agenda.record_success("j", NOON, None)
    agenda.return_due("j")
    agenda.unblock("j")
    assert agenda.remove("j") is None
    assert len(agenda) == 0
