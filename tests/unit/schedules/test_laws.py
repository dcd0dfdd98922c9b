"""What holds for every schedule at every instant."""

from __future__ import annotations

import copy
import pickle
from dataclasses import replace
from itertools import islice, pairwise

from hypothesis import given, settings
from hypothesis import strategies as st

from celery_qbeat.core.schedules import KINDS, DayFilters, parse, parse_dates, parse_days, preview
from celery_qbeat.core.schedules.allowed_days import allowed_from, allowed_until
from celery_qbeat.core.schedules.time_zones import zone_named
from celery_qbeat.errors import ScheduleError

from .instants import DAY, slots
from .making import absolute, everies, filters, instants, intervals, zones

laws = settings(max_examples=300)
# Beyond what a datetime can hold, and what a bigint can.
anything = st.one_of(instants, st.integers(-(1 << 70), 1 << 70))


@laws
@given(absolute() | intervals, anything)
def test_the_next_slot_is_strictly_later(schedule, t):
    slot = schedule.next_after(t)
    assert slot is None or slot > t


@laws
@given(absolute(), instants, st.data())
def test_no_slot_is_stepped_over(schedule, t, data):
    slot = schedule.next_after(t)
    if slot is None:
        assert schedule.next_after(t + data.draw(st.integers(0, 10_000 * DAY))) is None
    else:
        between = data.draw(st.integers(t, slot - 1) | st.integers(max(t, slot - DAY), slot - 1))
        assert schedule.next_after(between) == slot


@laws
@given(absolute() | intervals, anything, anything)
def test_asking_later_never_answers_earlier(schedule, t, u):
    first, second = schedule.next_after(min(t, u)), schedule.next_after(max(t, u))
    if first is None:
        assert second is None
    assert second is None or first <= second


@laws
@given(absolute(), instants, st.integers(1, 40))
def test_count_and_latest_agree_with_walking_from_slot_to_slot(schedule, after, many):
    walked = list(islice(slots(schedule, after, 1 << 62), many))
    for number, slot in enumerate(walked):
        assert schedule.count(after, slot) == number + 1
        assert schedule.count(after, slot - 1) == number
        assert schedule.latest(slot) == slot
    for slot, following in pairwise(walked):
        if following - slot < 10_000 * DAY:
            assert schedule.latest(following - 1) == slot
    assert schedule.count(after, after) == schedule.count(after, after - 1) == 0


@laws
@given(absolute(), anything)
def test_the_latest_slot_is_the_one_with_no_other_up_to_now(schedule, now):
    slot = schedule.latest(now)
    if slot is None:
        assert schedule.count(now - 10_000 * DAY, now) == 0
    else:
        assert slot <= now
        assert schedule.next_after(slot - 1) == slot
        assert schedule.count(slot, now) == 0


@laws
@given(absolute(), instants, st.integers(0, 3_000 * DAY), st.integers(0, 3_000 * DAY))
def test_counts_of_neighbouring_windows_add_up(schedule, after, length, more):
    middle, until = after + length, after + length + more
    assert schedule.count(after, middle) + schedule.count(middle, until) == schedule.count(after, until)


@laws
@given(absolute(), instants, instants)
def test_after_a_run_comes_the_next_slot_after_both_the_slot_and_now(schedule, slot, now):
    assert schedule.after_run(slot, now) == schedule.next_after(max(slot, now))


@laws
@given(intervals, instants, instants)
def test_an_interval_counts_from_the_dispatch_alone(schedule, slot, now):
    following = schedule.after_run(slot, now)
    assert following == schedule.next_after(now)
    assert following >= now + schedule.period_us
    if schedule.days.unfiltered:
        assert following == now + schedule.period_us
    assert schedule.latest(now) is None
    assert schedule.count(slot, now) == 0
    assert schedule.relative


@laws
@given(everies(), instants)
def test_the_first_slot_of_a_period_is_the_current_one_or_the_next(schedule, now):
    current = now // schedule.period_us * schedule.period_us
    allowed = schedule.latest(now) == current
    assert schedule.first(now) == (current if allowed else schedule.next_after(now))


@laws
@given(zones, filters, instants)
def test_the_nearest_allowed_instants_are_allowed_and_nearest(name, days, us):
    zone = zone_named(name)
    ahead, behind = allowed_from(zone, days, us), allowed_until(zone, days, us)
    assert behind <= us <= ahead
    for edge in (ahead, behind):
        local = edge + zone.span(edge).offset
        assert days.allows(local // DAY)
    # Nothing between is allowed; offsets change at whole seconds, so hours and the edges are looked at.
    if behind < us < ahead:
        for between in {behind + 1, ahead - 1, *range(behind + 1, ahead, DAY // 24)}:
            assert not days.allows((between + zone.span(between).offset) // DAY)


@laws
@given(absolute() | intervals)
def test_a_schedule_is_a_value(schedule):
    for twin in (pickle.loads(pickle.dumps(schedule)), copy.deepcopy(schedule), replace(schedule)):
        assert twin == schedule
        assert hash(twin) == hash(schedule)
        assert twin.next_after(0) == schedule.next_after(0)


@laws
@given(absolute() | intervals, anything, anything, anything, anything)
def test_a_preview_stays_within_its_bounds_and_ascends(schedule, after, until, start, end):
    shown = preview(schedule, after, count=5, until_us=until, start_us=start, end_us=end)
    assert len(shown) <= 5
    assert all(max(after, start - 1) < firing.us <= min(until, end) for firing in shown)
    assert all(one.us < two.us for one, two in pairwise(shown))


plain = st.text(max_size=40)
words = ["mon", "sun", "jan", "feb", "31", "29", "2026-12-25", "02:30", "1d", "7d", "0 0 31 2 *"]
pieces = st.lists(st.sampled_from([*"0123456789*/-,:.?#LWH@TZ+ \t\n\0١٢", *words]), max_size=16).map("".join)
# One field near the truth, so that each parser is reached in its depth.
near = st.one_of(
    plain,
    pieces,
    st.lists(pieces, min_size=5, max_size=5).map(" ".join),
    st.sampled_from([kind.example for kind in KINDS.values()]),
)


@settings(laws, max_examples=1_500)
@given(
    st.sampled_from([*KINDS]) | plain,
    near,
    st.sampled_from(["UTC", "Europe/Berlin", ""]) | plain,
    st.just("") | near,
    st.just("") | near,
    st.just("") | near,
    instants,
)
def test_any_text_is_a_schedule_or_a_schedule_error(kind, text, timezone, only, skip, dates, t):
    error = refusal(parse, kind, text, timezone=timezone, days_only=only, days_skip=skip, dates_skip=dates)
    if error is None:
        schedule = parse(kind, text, timezone=timezone, days_only=only, days_skip=skip, dates_skip=dates)
        assert (schedule.kind, schedule.zone) == (kind, timezone)
        assert schedule.count(t, t + DAY) >= 0
        for slot in (schedule.next_after(t), schedule.first(t), schedule.after_run(t, t), schedule.latest(t)):
            assert slot is None or isinstance(slot, int)
    else:
        assert error.field in {"schedule_kind", "schedule", "timezone", "days_only", "days_skip", "dates_skip"}
        assert str(error).startswith(f"{error.field} ")
        assert "\n" not in str(error)


def refusal(read, *texts, **more):
    """The ScheduleError of a call, None when it succeeds; any other error passes through."""
    try:
        read(*texts, **more)
    except ScheduleError as error:
        return error
    return None


@laws
@given(near)
def test_any_text_is_days_or_a_schedule_error(text):
    for read, field in ((parse_days, "days_skip"), (parse_dates, "dates_skip")):
        error = refusal(read, text, field)
        assert isinstance(read(text, field), frozenset) if error is None else error.field == field


@laws
@given(st.frozensets(st.integers(0, 6)))
def test_weekdays_read_back_what_was_written(days):
    assert parse_days(",".join(str(day) for day in sorted(days))) == days


def test_days_are_equal_by_definition():
    assert DayFilters(only=frozenset({1})) == DayFilters(only=frozenset({1}), skip=frozenset())
    assert pickle.loads(pickle.dumps(DayFilters(skip=frozenset({2})))) == DayFilters(skip=frozenset({2}))
