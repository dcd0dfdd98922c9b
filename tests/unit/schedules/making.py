"""Strategies that make schedules and instants, with a liking for clock changes."""

from __future__ import annotations

from datetime import date

from hypothesis import strategies as st

from celery_qbeat.core.schedules import Cron, Daily, DayFilters, Every, Interval, Once, Schedule
from celery_qbeat.errors import ScheduleError

from .instants import DAY, HOUR, MINUTE, us

# West, east, half an hour, at midnight, twice a year for Ramadan, a skipped day, a repeated day, never.
ZONES = (
    "UTC",
    "Europe/Berlin",
    "America/New_York",
    "Australia/Lord_Howe",
    "America/Santiago",
    "America/St_Johns",
    "Africa/Cairo",
    "Africa/Casablanca",
    "America/Scoresbysund",
    "Antarctica/Casey",
    "Antarctica/Troll",
    "Asia/Kathmandu",
    "Pacific/Apia",
    "Pacific/Kwajalein",
)
CHANGES = tuple(
    us(text)
    for text in (
        "1969-10-01T13:00Z",
        "1993-08-21T12:00Z",
        "2006-10-29T02:31Z",
        "2006-04-02T03:31Z",
        "2011-12-30T10:00Z",
        "2019-10-03T19:00Z",
        "2026-03-08T07:00Z",
        "2026-03-29T01:00Z",
        "2026-04-04T15:00Z",
        "2026-04-05T03:00Z",
        "2026-04-23T22:00Z",
        "2026-09-06T04:00Z",
        "2026-10-03T15:30Z",
        "2026-10-25T01:00Z",
        "2026-11-01T06:00Z",
    )
)

zones = st.sampled_from(ZONES)
instants = st.one_of(
    st.builds(
        lambda change, minutes, more: change + minutes * MINUTE + more,
        st.sampled_from(CHANGES),
        st.integers(-2_000, 2_000),
        st.sampled_from((0, 0, -1, 1, 30_000_000)),
    ),
    st.integers(us("1960-01-01T00:00Z"), us("2100-01-01T00:00Z")),
    st.integers(-(10**6), 10**6),
)
dates = st.dates(date(2026, 3, 1), date(2026, 11, 30))
filters = st.one_of(
    st.just(DayFilters()),
    st.builds(
        DayFilters,
        only=st.frozensets(st.integers(0, 6), max_size=3),
        skip=st.just(frozenset()),
        dates_skip=st.frozensets(dates, max_size=5),
    ),
    st.builds(
        DayFilters, skip=st.frozensets(st.integers(0, 6), max_size=5), dates_skip=st.frozensets(dates, max_size=40)
    ),
)
intervals = st.builds(Interval, st.integers(1, 10 * 86_400), zones, filters)


def _some(low: int, high: int) -> st.SearchStrategy[frozenset[int]]:
    return st.one_of(
        st.just(frozenset(range(low, high + 1))),
        st.frozensets(st.integers(low, high), min_size=1, max_size=4),
        st.integers(1, high).map(lambda step: frozenset(range(low, high + 1, step))),
    )


@st.composite
def crons(draw: st.DrawFn) -> Cron:
    """Any cron that is not refused for never firing."""
    try:
        return Cron(
            draw(_some(0, 59)),
            draw(_some(0, 23)),
            draw(st.none() | _some(1, 31)),
            draw(_some(1, 12)),
            draw(st.none() | _some(0, 6)),
            draw(st.sampled_from(("or", "and"))),
            draw(st.booleans()),
            draw(zones),
            draw(filters),
        )
    except ScheduleError:
        return Cron(zone=draw(zones))


@st.composite
def everies(draw: st.DrawFn) -> Every:
    """Any period that is not refused for never falling on an allowed day."""
    period = draw(st.one_of(st.integers(1, 10_080).map(lambda m: m * MINUTE), st.sampled_from((HOUR, DAY, 7 * DAY))))
    try:
        return Every(period, draw(zones), draw(filters))
    except ScheduleError:
        return Every(period, draw(zones))


quarters = st.integers(0, 95).map(lambda quarter: quarter * 900)
dailies = st.builds(Daily, st.lists(st.integers(0, 86_399) | quarters, min_size=1).map(tuple), zones, filters)
onces = st.builds(Once, instants, zones)


def absolute() -> st.SearchStrategy[Schedule]:
    """Every kind whose slots are its own."""
    return st.one_of(crons(), dailies, everies(), onces)
