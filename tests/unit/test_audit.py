"""The audit of the ledger: what it finds, and that it finds nothing where an engine did its work."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from celery_qbeat.core.audit import (
    FAULTS,
    SETTLING_US,
    Kind,
    Line,
    Record,
    Result,
    Subject,
    Window,
    audit,
    definitions,
    read_spec,
)
from celery_qbeat.core.jobs import RowRules, read_row
from celery_qbeat.core.planning import OVERTAKEN_DETAIL
from celery_qbeat.core.schedules import parse
from tests.unit.engine.rig import DAY, HOUR, MINUTE, SECOND, Rig, at

T0 = at("2026-06-01T00:00:00")
NOW = at("2026-06-01T12:00:00")


def spec(kind: str, text: str, **columns: Any) -> str:
    row = {"id": "j", "fn": "app.a", "schedule_kind": kind, "schedule": text, **columns}
    job = read_row(row, RowRules(cron=True), {}).job
    assert job is not None
    return job.spec


def found(
    records: list[Record],
    lines: list[Line],
    *,
    from_us: int = T0,
    until_us: int = NOW,
    settled_us: int = NOW,
    first_seen_us: int | None = None,
    **more: Any,
) -> Result:
    known, complete = definitions("j", records, first_seen_us, {})
    assert complete
    return audit(Subject("j", known, lines, **more), Window(from_us, until_us, settled_us))


def lines(*slots: int, **more: Any) -> list[Line]:
    return [Line(slot, slot, **more) for slot in slots]


HOURLY = [Record(T0 - DAY, spec("every", "1h"))]
HOURS = [T0 + n * HOUR for n in range(13)]


def test_a_ledger_with_every_slot_has_no_findings_and_counts_them() -> None:
    assert found(HOURLY, lines(*HOURS)) == Result(13, ())


def test_a_slot_without_a_verdict_is_missing() -> None:
    result = found(HOURLY, lines(*(slot for slot in HOURS if slot != HOURS[5])))
    (finding,) = result.findings
    assert (finding.kind, finding.first_us, finding.last_us, finding.count) == (Kind.MISSING, HOURS[5], HOURS[5], 1)


def test_slots_missing_in_a_row_make_one_finding() -> None:
    (finding,) = found(HOURLY, lines(*HOURS[:3], *HOURS[7:])).findings
    assert (finding.first_us, finding.last_us, finding.count) == (HOURS[3], HOURS[6], 4)


def test_a_later_slot_stands_for_the_older_ones_that_it_collapsed() -> None:
    assert found(HOURLY, [*lines(*HOURS[:3]), Line(HOURS[7], NOW, 4), *lines(*HOURS[8:])]).findings == ()


def test_a_slot_stands_for_older_ones_beyond_slots_decided_since() -> None:
    """The clock was ahead, one slot was decided for many, and the clock came back."""
    ahead = Line(HOURS[12], NOW, 10)
    assert found(HOURLY, [*lines(*HOURS[:2], *HOURS[5:9]), ahead]).findings == ()
    assert found(HOURLY, [*lines(*HOURS[:2], *HOURS[5:9]), ahead], until_us=HOURS[8]).findings == ()
    (finding,) = found(HOURLY, [*lines(*HOURS[:2], *HOURS[5:9]), Line(HOURS[12], NOW, 9)]).findings
    assert (finding.first_us, finding.count) == (HOURS[2], 1)


def test_a_later_slot_that_collapsed_too_few_leaves_the_oldest_missing() -> None:
    (finding,) = found(HOURLY, [*lines(*HOURS[:3]), Line(HOURS[7], NOW, 2), *lines(*HOURS[8:])]).findings
    assert (finding.first_us, finding.last_us, finding.count) == (HOURS[3], HOURS[4], 2)


def test_a_slot_after_the_window_stands_for_slots_in_it() -> None:
    result = found(HOURLY, [*lines(*HOURS[:3]), Line(HOURS[7], NOW, 4)], until_us=HOURS[5])
    assert result == Result(6, ())
    (finding,) = found(HOURLY, [*lines(*HOURS[:3]), Line(HOURS[7], NOW, 2)], until_us=HOURS[3]).findings
    assert (finding.first_us, finding.count) == (HOURS[3], 1)


def test_a_line_that_is_no_slot_covers_no_slot() -> None:
    (finding,) = found(HOURLY, [*lines(*HOURS[:5]), *lines(HOURS[5] + 1), *lines(*HOURS[6:])]).findings
    assert finding.first_us == HOURS[5]


def test_slots_younger_than_the_last_sign_of_the_beat_are_pending() -> None:
    (finding,) = found(HOURLY, lines(*HOURS[:10]), settled_us=HOURS[9] + SECOND).findings
    assert (finding.kind, finding.count) == (Kind.PENDING, 3)


def test_slots_on_both_sides_of_the_last_sign_are_told_apart() -> None:
    first, second = found(HOURLY, lines(*HOURS[:10]), settled_us=HOURS[10]).findings
    assert (first.kind, first.first_us, first.count) == (Kind.MISSING, HOURS[10], 1)
    assert (second.kind, second.first_us, second.count) == (Kind.PENDING, HOURS[11], 2)


@pytest.mark.parametrize(("busy", "kind"), [(True, Kind.PENDING), (False, Kind.MISSING)])
def test_a_slot_that_is_still_planned_is_pending_only_while_its_last_run_is_in_flight(busy: bool, kind: Kind) -> None:
    (finding,) = found(HOURLY, lines(*HOURS[:12]), next_run_us=HOURS[12], busy=busy).findings
    assert finding.kind is kind


def test_a_slot_behind_the_plan_is_missing_even_while_a_run_is_in_flight() -> None:
    (finding,) = found(HOURLY, lines(*HOURS[:12]), next_run_us=HOURS[12] + HOUR, busy=True).findings
    assert finding.kind is Kind.MISSING


def test_a_definition_asks_for_slots_after_it_was_taken_in_and_until_the_next_one() -> None:
    records = [Record(HOURS[2], spec("every", "1h")), Record(HOURS[6] + 1, None), Record(HOURS[9], spec("every", "2h"))]
    result = found(records, lines(*HOURS[3:7], HOURS[10], HOURS[12]))
    assert result == Result(6, ())
    assert found(records, lines(*HOURS[3:6], HOURS[10])).expected == 6


def test_an_overtaken_slot_stands_for_the_rest_of_its_definition_and_for_no_more() -> None:
    records = [Record(T0 - DAY, spec("every", "1h")), Record(HOURS[9] + 1, spec("every", "1h", timezone="Asia/Tokyo"))]
    overtaken = [*lines(*HOURS[:4]), Line(HOURS[4], HOURS[9] + 1, overtaken=True)]
    assert found(records, [*overtaken, *lines(*HOURS[10:])]).findings == ()
    (finding,) = found(records, [*overtaken, *lines(*HOURS[11:])]).findings
    assert (finding.first_us, finding.count) == (HOURS[10], 1)


def test_an_overtaken_slot_from_before_the_window_stands_for_slots_in_it() -> None:
    records = [Record(T0 - DAY, spec("every", "1h")), Record(HOURS[9] + 1, None)]
    before = [Line(T0 - 2 * HOUR, HOURS[9] + 1, overtaken=True)]
    assert found(records, before) == Result(0, ())
    assert found(records, lines(T0 - 2 * HOUR)).findings != ()


def test_a_job_first_seen_owes_its_first_slot_even_when_that_lies_before() -> None:
    records = [Record(HOURS[3] + 5 * MINUTE, spec("every", "1h"))]
    assert found(records, lines(*HOURS[3:]), first_seen_us=HOURS[3] + 5 * MINUTE) == Result(10, ())
    (finding,) = found(records, lines(*HOURS[4:]), first_seen_us=HOURS[3] + 5 * MINUTE).findings
    assert finding.first_us == HOURS[3]
    assert found(records, lines(*HOURS[4:]), first_seen_us=T0 - DAY).findings == ()


def test_start_and_end_bound_what_is_asked_for() -> None:
    bounds = {"start_us": HOURS[3], "end_us": HOURS[8]}
    assert found([Record(T0 - DAY, spec("every", "1h", **bounds))], lines(*HOURS[3:9])) == Result(6, ())


def test_a_run_by_hand_takes_the_place_of_a_slot_at_the_same_microsecond() -> None:
    left = lines(*(slot for slot in HOURS if slot != HOURS[5]))
    assert found(HOURLY, left, by_hand=frozenset({HOURS[5]})).findings == ()
    assert found(HOURLY, left, by_hand=frozenset({HOURS[5] + 1})).findings != ()


def test_a_daily_job_is_audited_over_a_change_of_the_clocks() -> None:
    start, end = at("2026-10-20T00:00:00"), at("2026-10-30T00:00:00")
    schedule = parse("daily", "02:30,14:00", timezone="Europe/Berlin")
    slots: list[int] = []
    while (slot := schedule.next_after(slots[-1] if slots else start)) is not None and slot <= end:
        slots.append(slot)
    records = [Record(start - DAY, spec("daily", "02:30,14:00", timezone="Europe/Berlin"))]
    assert found(records, lines(*slots), from_us=start, until_us=end, settled_us=end) == Result(len(slots), ())
    (finding,) = found(records, lines(*slots[:9], *slots[10:]), from_us=start, until_us=end, settled_us=end).findings
    assert finding.first_us == slots[9]


def test_a_definition_of_a_code_entry_is_read_from_the_code_and_otherwise_said_to_be_unknown() -> None:
    text = json.dumps(["code", "<Every>"])
    assert read_spec(text) is None
    records = [Record(T0, text)]
    assert definitions("code:x", records, None, {}) == ([], False)
    known, complete = definitions("code:x", records, None, {text: parse("every", "1h")})
    assert complete
    assert [definition.since_us for definition in known] == [T0]


# ---------------------------------------------------------------- intervals


def interval(*gaps: int, start: int = T0) -> list[Line]:
    """Runs of a job, each this long after the one before."""
    slots = [start]
    for gap in gaps:
        slots.append(slots[-1] + gap)
    return [Line(slot, slot) for slot in slots]


EACH_HOUR = [Record(T0, spec("interval", "3600"))]


def test_interval_runs_that_follow_each_other_are_in_order() -> None:
    assert found(EACH_HOUR, interval(*[HOUR] * 12), first_seen_us=T0) == Result(13, ())


def test_an_interval_counts_from_the_dispatch_and_not_from_the_slot() -> None:
    ran_late = Line(T0 + HOUR, T0 + 5 * HOUR)
    runs = [Line(T0, T0), ran_late, *interval(*[HOUR] * 6, start=T0 + 6 * HOUR)]
    assert found(EACH_HOUR, runs, first_seen_us=T0) == Result(9, ())


def test_an_interval_run_that_did_not_follow_is_missing() -> None:
    (finding,) = found(EACH_HOUR, interval(HOUR, HOUR, 3 * HOUR, *[HOUR] * 7), first_seen_us=T0).findings
    assert (finding.kind, finding.first_us) == (Kind.MISSING, T0 + 3 * HOUR)


def test_an_interval_job_that_never_ran_is_missing_its_first_run() -> None:
    (finding,) = found(EACH_HOUR, [], first_seen_us=T0).findings
    assert (finding.kind, finding.first_us) == (Kind.MISSING, T0)


def test_an_interval_run_that_came_too_soon_is_found_and_a_small_step_of_the_clock_is_not() -> None:
    (finding,) = found(EACH_HOUR, interval(HOUR, HOUR // 2, *[HOUR] * 10), first_seen_us=T0).findings
    assert (finding.kind, finding.first_us) == (Kind.TOO_SOON, T0 + HOUR + HOUR // 2)
    assert found(EACH_HOUR, interval(HOUR, HOUR - 3 * SECOND, *[HOUR] * 10), first_seen_us=T0).findings == ()


def in_the_ledger(lines: list[Line]) -> list[Line]:
    """As they stand in the ledger, one after the other; then in the order of their slots."""
    return sorted((replace(line, number=number) for number, line in enumerate(lines)), key=lambda line: line.slot_us)


def test_intervals_after_a_step_back_of_the_clock_are_checked_in_the_order_of_the_ledger() -> None:
    before = interval(*[HOUR] * 8)
    after = interval(*[HOUR] * 9, start=T0 + 3 * HOUR + 20 * MINUTE)
    assert found(EACH_HOUR, in_the_ledger([*before, *after]), first_seen_us=T0).findings == ()
    soon = interval(HOUR, HOUR // 2, *[HOUR] * 8, start=T0 + 3 * HOUR + 20 * MINUTE)
    (finding,) = found(EACH_HOUR, in_the_ledger([*before, *soon]), first_seen_us=T0).findings
    assert (finding.kind, finding.first_us) == (Kind.TOO_SOON, T0 + 4 * HOUR + 50 * MINUTE)


def test_intervals_after_a_step_forth_and_back_of_the_clock_are_not_too_soon() -> None:
    astray = Line(T0 + 2 * HOUR, T0 + 11 * HOUR)
    lines = [*interval(HOUR), astray, *interval(*[HOUR] * 9, start=T0 + 3 * HOUR)]
    assert found(EACH_HOUR, in_the_ledger(lines), first_seen_us=T0).findings == ()


@pytest.mark.parametrize(
    ("state", "kind"),
    [
        ({"next_run_us": T0 + 12 * HOUR, "busy": True}, Kind.PENDING),
        ({"next_run_us": T0 + 12 * HOUR}, Kind.MISSING),
        ({"next_run_us": T0 + 12 * HOUR, "settled_us": T0 + 12 * HOUR - 1}, Kind.PENDING),
    ],
)
def test_an_interval_run_that_is_due_waits_for_its_own_run_or_is_missing(state: dict[str, Any], kind: Kind) -> None:
    (finding,) = found(EACH_HOUR, interval(*[HOUR] * 11), first_seen_us=T0, **state).findings
    assert (finding.kind, finding.first_us) == (kind, T0 + 12 * HOUR)


def test_the_last_run_before_the_window_says_when_the_next_one_was_due() -> None:
    records = [Record(T0 - DAY, spec("interval", "36000"))]
    before = Line(T0 - HOUR, T0 + 3 * HOUR)
    assert found(records, [before]) == Result(0, ())
    (finding,) = found(records, [Line(T0 - HOUR, T0 - HOUR)]).findings
    assert (finding.kind, finding.first_us) == (Kind.MISSING, T0 + 9 * HOUR)
    (finding,) = found(records, []).findings
    assert (finding.kind, finding.first_us) == (Kind.MISSING, T0 + 10 * HOUR)


# ---------------------------------------------------------------- an engine and its auditor


def of_rig(rig: Rig, job_id: str = "j") -> Subject:
    base = rig.store.database
    state = base.state.get(job_id)
    records = [Record(since, text) for job, since, text in base.history if job == job_id]
    known, complete = definitions(job_id, records, state.first_seen_us if state else None, {})
    assert complete
    ledger = sorted((e for e in base.ledger if e.job_id == job_id and not e.by_hand), key=lambda e: e.slot_us)
    decided = [Line(e.slot_us, e.claimed_us, e.collapsed, OVERTAKEN_DETAIL in e.detail) for e in ledger]
    by_hand = frozenset(e.slot_us for e in base.ledger if e.job_id == job_id and e.by_hand)
    return Subject(job_id, known, decided, state.next_run_us if state else None, by_hand=by_hand)


def faults(rig: Rig) -> list[str]:
    now = rig.clock.now_us()
    result = audit(of_rig(rig), Window(0, now, now - SETTLING_US))
    return [
        f"{finding.kind} {finding.first_us - now} {finding.why}"
        for finding in result.findings
        if finding.kind in FAULTS
    ]


def run(seconds: float) -> Callable[[Rig], None]:
    return lambda rig: rig.run(seconds)


def restart(seconds: float) -> Callable[[Rig], None]:
    return lambda rig: rig.restart(down_for=seconds)


def edit(**columns: Any) -> Callable[[Rig], None]:
    return lambda rig: rig.store.update("j", **columns) if "j" in rig.store.rows else rig.insert(**columns)


def delete(rig: Rig) -> None:
    if "j" in rig.store.rows:
        rig.store.delete("j")


def ask(rig: Rig) -> None:
    rig.store.ask("j", rig.clock.now_us())


def broker(away: bool) -> Callable[[Rig], None]:
    def switch(rig: Rig) -> None:
        rig.outbox.away = away

    return switch


def clock(seconds: int) -> Callable[[Rig], None]:
    """Somebody sets the clock."""
    return lambda rig: rig.clock.set_wall(rig.clock.now_us() + seconds * SECOND)


SCHEDULES = [
    ("every", "1m"),
    ("every", "3m"),
    ("interval", "45"),
    ("interval", "200"),
    ("cron", "*/2 * * * *"),
    ("daily", "12:02,12:09"),
]
CLOCK_STEPS = st.one_of(
    st.floats(0.5, 400).map(run),
    st.floats(0, 600).map(restart),
    st.sampled_from([-7200, -1800, -300, -120, -61, -3, 3, 61, 300, 1800, 7200]).map(clock),
    st.sampled_from(["once", "skip", "all"]).map(lambda policy: edit(catch_up=policy)),
    st.booleans().map(broker),
)
STEPS = st.one_of(
    st.floats(0.5, 400).map(run),
    st.floats(0, 600).map(restart),
    st.sampled_from(SCHEDULES).map(lambda pair: edit(schedule_kind=pair[0], schedule=pair[1])),
    st.sampled_from(["once", "skip", "all"]).map(lambda policy: edit(catch_up=policy)),
    st.booleans().map(lambda on: edit(enabled=on)),
    st.sampled_from([None, 30, 0]).map(lambda grace: edit(grace_seconds=grace)),
    st.just(edit(kwargs="{broken")),
    st.just(edit(kwargs="{}")),
    st.sampled_from(["app.a", "celery.map"]).map(lambda fn: edit(fn=fn)),
    st.just(delete),
    st.just(ask),
    st.booleans().map(broker),
)


@settings(max_examples=150)
@given(st.sampled_from(SCHEDULES), st.lists(STEPS, max_size=14))
def test_whatever_happens_an_engine_leaves_no_slot_without_a_verdict(
    first: tuple[str, str], steps: list[Callable[[Rig], None]]
) -> None:
    rig = Rig()
    rig.insert(kind=first[0], schedule=first[1])
    for step in steps:
        step(rig)
    broker(False)(rig)
    rig.run(130)
    assert faults(rig) == []


@settings(max_examples=150)
@given(st.sampled_from(SCHEDULES), st.lists(CLOCK_STEPS, max_size=10))
def test_no_step_of_the_clock_makes_a_slot_missing(
    schedule: tuple[str, str], steps: list[Callable[[Rig], None]]
) -> None:
    rig = Rig()
    rig.insert(kind=schedule[0], schedule=schedule[1])
    for step in steps:
        step(rig)
    broker(False)(rig)
    rig.run(130)
    assert [fault for fault in faults(rig) if fault.startswith("missing")] == []


def test_slots_decided_while_the_clock_was_ahead_are_not_missing_when_it_is_back() -> None:
    rig = Rig()
    rig.insert(kind="every", schedule="1m")
    for step in (run(336), clock(7200), run(160), clock(-7200), run(190)):
        step(rig)
    assert faults(rig) == []


@settings(max_examples=60)
@given(st.sampled_from(SCHEDULES[:5]), st.data())
def test_a_verdict_that_is_taken_out_of_a_ledger_is_missed(schedule: tuple[str, str], data: st.DataObject) -> None:
    rig = Rig()
    rig.insert(kind=schedule[0], schedule=schedule[1])
    rig.run(1300)
    assert faults(rig) == []
    ledger = rig.store.database.ledger
    gone = data.draw(st.integers(0, len(ledger) - 2))
    del ledger[gone]
    assert len(faults(rig)) == 1
