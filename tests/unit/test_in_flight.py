"""The runs in flight against the simplest thing that could be right: a dictionary."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from celery_qbeat.core.in_flight import MOST_LOOKED_AT, SECOND_US, STALE, InFlightRun, InFlightRuns

TASKS = st.sampled_from([f"t{number}" for number in range(8)])
TIMES = st.integers(0, 20).map(lambda halves: halves * SECOND_US // 2)


class FlightsMachine(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.flights = InFlightRuns()
        self.model: dict[str, InFlightRun] = {}

    @rule(task=TASKS, sent=TIMES, lease=TIMES)
    def take_off_or_extend(self, task: str, sent: int, lease: int) -> None:
        run = InFlightRun(task, f"job{int(task[1:]) % 3}", 5, sent, lease)
        self.flights.add(run)
        self.model[task] = run

    @rule(task=TASKS)
    def land(self, task: str) -> None:
        assert self.flights.remove(task) == self.model.pop(task, None)

    @rule(now=TIMES, limit=st.integers(1, 10))
    def look_for_leases_that_are_over(self, now: int, limit: int) -> None:
        wanted = {run.task_id: run for run in self.model.values() if run.lease_until_us <= now}
        found = self.flights.expired(now, limit)
        assert len(found) == min(limit, len(wanted))
        assert all(wanted[run.task_id] == run for run in found)
        shown = {run.task_id for run in found}
        assert all(
            run.lease_until_us // SECOND_US
            >= max((shown_run.lease_until_us // SECOND_US for shown_run in found), default=0)
            for task, run in wanted.items()
            if task not in shown
        )

    @rule(before=TIMES, limit=st.integers(1, 10))
    def look_for_silence(self, before: int, limit: int) -> None:
        wanted = {run.task_id for run in self.model.values() if run.sent_us <= before}
        found = [run.task_id for run in self.flights.silent(before, limit)]
        assert len(found) == len(set(found)) == min(limit, len(wanted))
        assert wanted >= set(found)

    @invariant()
    def same_runs(self) -> None:
        assert len(self.flights) == len(self.model)
        for number in range(3):
            job = f"job{number}"
            assert self.flights.has_run_of(job) == any(run.job_id == job for run in self.model.values())
        for task in [f"t{number}" for number in range(8)]:
            assert (task in self.flights) == (task in self.model)
            assert self.flights.get(task) == self.model.get(task)


TestFlights = FlightsMachine.TestCase


def test_an_overdue_run_stays_overdue_until_it_is_landed_or_extended() -> None:
    flights = InFlightRuns()
    run = InFlightRun("t", "j", 0, 0, 10)
    flights.add(run)
    assert flights.expired(10) == flights.expired(10) == [run]
    flights.add(replace(run, lease_until_us=20))
    assert flights.expired(10) == []
    assert flights.expired(20) == [replace(run, lease_until_us=20)]
    flights.remove("t")
    assert flights.expired(20) == []


def test_runs_that_ended_leave_nothing_behind() -> None:
    flights = InFlightRuns()
    for number in range(20 * STALE):
        flights.add(InFlightRun(str(number), "j", 0, 0, 10**9 + number * SECOND_US))
        flights.remove(str(number))
    assert len(flights) == 0
    assert not flights._leases._by_second
    assert len(flights._leases._seconds) <= 2 * STALE


def test_every_silent_run_has_its_turn() -> None:
    flights = InFlightRuns()
    for number in range(5):
        flights.add(InFlightRun(str(number), "j", 0, number, 100))
    assert [[run.task_id for run in flights.silent(50, 2)] for _ in range(3)] == [["0", "1"], ["2", "3"], ["4", "0"]]
    flights.remove("3")
    flights.add(InFlightRun("5", "j", 0, 5, 100))
    assert [run.task_id for run in flights.silent(4, 9)] == ["1", "2", "4", "0"]


class Counted(int):
    """A time that counts how often it is compared."""

    compared = 0

    def __le__(self, other: int) -> bool:
        Counted.compared += 1
        return int(self) <= other


def test_a_search_costs_the_same_with_very_many_runs_in_flight() -> None:
    flights = InFlightRuns()
    for number in range(3 * MOST_LOOKED_AT):
        moment = Counted(number * SECOND_US)
        flights.add(InFlightRun(str(number), str(number), 0, moment, moment))
    Counted.compared = 0
    assert len(flights.silent(10**18, 100)) == 100
    assert len(flights.expired(10**18, 100)) == 100
    assert Counted.compared == 200
    assert flights.silent(-1) == []
    assert Counted.compared == 200 + MOST_LOOKED_AT
    assert len(flights.expired(50 * SECOND_US)) == 51
    assert Counted.compared < 300 + MOST_LOOKED_AT
