"""The runs in flight against the simplest thing that could be right: a dictionary."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from celery_qbeat.flights import STALE, Airborne, Flights

TASKS = st.sampled_from([f"t{number}" for number in range(8)])
TIMES = st.integers(0, 20)


class FlightsMachine(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.flights = Flights()
        self.model: dict[str, Airborne] = {}

    @rule(task=TASKS, sent=TIMES, lease=TIMES)
    def take_off_or_extend(self, task: str, sent: int, lease: int) -> None:
        run = Airborne(task, f"job{int(task[1:]) % 3}", 5, sent, lease)
        self.flights.add(run)
        self.model[task] = run

    @rule(task=TASKS)
    def land(self, task: str) -> None:
        assert self.flights.land(task) == self.model.pop(task, None)

    @rule(now=TIMES, limit=st.integers(1, 10))
    def look_for_leases_that_are_over(self, now: int, limit: int) -> None:
        wanted = {run.task_id: run for run in self.model.values() if run.lease_until_us <= now}
        found = self.flights.overdue(now, limit)
        assert len(found) == min(limit, len(wanted))
        assert all(wanted[run.task_id] == run for run in found)
        shown = {run.task_id for run in found}
        assert all(
            run.lease_until_us >= max((shown_run.lease_until_us for shown_run in found), default=0)
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
            assert self.flights.busy(job) == any(run.job_id == job for run in self.model.values())
        for task in [f"t{number}" for number in range(8)]:
            assert (task in self.flights) == (task in self.model)
            assert self.flights.get(task) == self.model.get(task)


TestFlights = FlightsMachine.TestCase


def test_an_overdue_run_stays_overdue_until_it_is_landed_or_extended() -> None:
    flights = Flights()
    run = Airborne("t", "j", 0, 0, 10)
    flights.add(run)
    assert flights.overdue(10) == flights.overdue(10) == [run]
    flights.add(replace(run, lease_until_us=20))
    assert flights.overdue(10) == []
    assert flights.overdue(20) == [replace(run, lease_until_us=20)]
    flights.land("t")
    assert flights.overdue(20) == []


def test_runs_that_ended_are_not_kept_until_their_leases_would_be_over() -> None:
    flights = Flights()
    for number in range(20 * STALE):
        flights.add(Airborne(str(number), "j", 0, 0, 10**9 + number))
        flights.land(str(number))
    assert len(flights._leases) <= 2 * STALE


def test_every_silent_run_has_its_turn() -> None:
    flights = Flights()
    for number in range(5):
        flights.add(Airborne(str(number), "j", 0, 10 - number, 100))
    assert [[run.task_id for run in flights.silent(50, 2)] for _ in range(3)] == [["4", "3"], ["2", "1"], ["0", "4"]]
    flights.land("3")
    assert [run.task_id for run in flights.silent(9, 9)] == ["2", "1", "4"]
