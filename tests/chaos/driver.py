"""One run: rows, beats, faults in their order, edits between them, and at the end everything settles."""

from __future__ import annotations

import heapq
import itertools
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from random import Random

import sqlalchemy as sa

from celery_qbeat.stores import tables
from tests.chaos import faults
from tests.chaos.evidence import Evidence, Incident, read_database
from tests.chaos.plan import Fault, make_plan
from tests.chaos.population import INSTANTS, Population
from tests.chaos.tap import Tap
from tests.chaos.world import World, now_us

BUSY = sa.exc.OperationalError
"""Somebody holds a lock for longer than an editor waits."""

EDIT_EVERY_S = 1.0
SETTLES_S = 90.0


@dataclass(frozen=True, slots=True)
class Order:
    """What to run. `jobs`: how many intervals; `pause_s`: from the begin of one fault to that of the next."""

    database: str
    seed: int
    rounds: int
    jobs: int = 200
    pause_s: tuple[float, float] = (0.8, 2.6)

    @property
    def beats(self) -> int:
        return 2 if self.database == "sqlite" else 3


def run(order: Order, folder: Path, say: Callable[[str], None]) -> Evidence:
    """Do what is ordered; raises AssertionError when it does not settle."""
    plan = make_plan(order.seed, order.rounds, order.database, order.beats, order.pause_s)
    with World(order.database, order.beats, folder) as world:
        tap = Tap(world.broker, _answers(Random(f"answers {order.seed}")))
        tap.start()
        try:
            driver = Driver(world, order, tap, say)
            driver.warm_up()
            driver.run(plan)
            driver.settle()
        finally:
            tap.close()
        return driver.evidence()


def _answers(rng: Random) -> Callable[[str, int], bool]:
    """Runs that others wait for are mostly answered, of the rest a few: the queue of ends costs much on Redis."""
    return lambda job, _place: rng.random() < (0.8 if "-skip-" in job else 0.1)


class Driver:
    def __init__(self, world: World, order: Order, tap: Tap, say: Callable[[str], None]) -> None:
        self._world = world
        self._order = order
        self._tap = tap
        self._say = say
        self._population = Population(Random(f"rows {order.seed}"))
        self._rng = Random(f"edits {order.seed}")
        self._epochs: list[int] = []
        self._events: list[tuple[float, int, Callable[[], None]]] = []
        self._numbers = itertools.count()
        self._started = 0.0
        self._incidents: list[Incident] = []
        self._taken: set[str] = set()

    def warm_up(self) -> None:
        """Rows and beats, until the first messages arrive."""
        with self._world.connect() as connection:
            connection.execute(sa.insert(tables.jobs), self._population.first(self._order.jobs))
        self._world.start_beats()
        self._world.wait_for(lambda: len(self._tap.messages) >= 10, 60, "the first messages")

    def run(self, plan: Sequence[Fault]) -> None:
        """The faults, each at its time, and edits."""
        self._started = time.monotonic()
        last = plan[-1].at_s if plan else 0.0
        for fault in plan:
            self._at(fault.at_s, lambda fault=fault: self._begin(fault))
        for number in range(int(last / EDIT_EVERY_S)):
            self._at(number * EDIT_EVERY_S, self._edit)
        for number in range(int(last / INSTANTS) + 1):
            self._at(number * INSTANTS, self._add_daily)
        while self._events:
            at_s, _, event = heapq.heappop(self._events)
            time.sleep(max(0.0, self._started + at_s - time.monotonic()))
            event()
            self._world.look()

    def settle(self) -> None:
        """Everything is there again: somebody dispatches; then no row runs any more and nothing is left open."""
        world, arrived = self._world, len(self._tap.messages)
        world.wait_for(lambda: len(self._tap.messages) > arrived + 10, SETTLES_S, "somebody dispatches again")
        world.wait_for(self._disabled, SETTLES_S, "the rows can be disabled")
        for left in (
            "qbeat_state WHERE next_run_us IS NOT NULL",
            "qbeat_runs WHERE verdict = 'claimed'",
            "qbeat_requests",
        ):
            world.wait_for(lambda left=left: self._count(left) == 0, SETTLES_S, f"nothing is left of {left}")
        world.look()
        for seat in world.seats:
            seat.end()
        for seat in world.seats:
            seat.await_end()
        world.wait_for(self._tap.drained, 30, "all messages are seen")

    def evidence(self) -> Evidence:
        return Evidence(
            traits=self._population.traits,
            messages=self._tap.messages,
            epochs=self._epochs,
            incidents=sorted(self._incidents + self._world.incidents(), key=lambda incident: incident.began_us),
            complaints=self._world.complaints(),
            **read_database(self._world.url),
        )

    # ------------------------------------------------------------------

    def _at(self, at_s: float, event: Callable[[], None]) -> None:
        heapq.heappush(self._events, (at_s, next(self._numbers), event))

    def _now_s(self) -> float:
        return time.monotonic() - self._started

    def _begin(self, fault: Fault) -> None:
        if fault.target in self._taken:
            # An earlier one took longer than was planned.
            self._at(self._now_s() + 0.5, lambda: self._begin(fault))
            return
        began_us = now_us()
        found = faults.begin(self._world, fault)
        if found is None:
            self._say(f"{self._now_s():7.1f} s  {fault.kind}: no beat is free")
            return
        target, undo = found
        what = f"{fault.kind} ({target}{', ' * bool(fault.point)}{fault.point})"
        self._say(f"{self._now_s():7.1f} s  {what}, for {fault.lasts_s:.1f} s")

        if fault.target != "beat":
            self._taken.add(fault.target)

        def end() -> None:
            undo()
            self._taken.discard(fault.target)
            self._incidents.append(Incident(fault.kind, target, began_us, now_us()))

        self._at(self._now_s() + fault.lasts_s, end)

    def _edit(self) -> None:
        """A few changes in one transaction, unless nobody can reach the database."""
        if not self._world.reachable:
            return
        people, rng = self._population, self._rng
        with suppress(BUSY), self._world.connect() as connection:
            self._epochs.append(connection.execute(sa.select(tables.leader.c.epoch)).scalar_one())
            for change in rng.sample(list(_CHANGES), 2):
                _CHANGES[change](connection, people, rng)
            if rng.random() < 0.2:
                connection.execute(sa.insert(tables.jobs), people.interval())

    def _add_daily(self) -> None:
        if self._world.reachable:
            with suppress(BUSY), self._world.connect() as connection:
                connection.execute(sa.insert(tables.jobs), self._population.daily(int(time.time()) + 2))
                return
        self._at(self._now_s() + 1, self._add_daily)

    def _disabled(self) -> bool:
        with suppress(BUSY), self._world.connect() as connection:
            connection.execute(sa.update(tables.jobs).values(enabled=False))
            return True
        return False

    def _count(self, what: str) -> int:
        """How many there are; -1 when nobody can tell at the moment."""
        with suppress(BUSY), self._world.connect() as connection:
            return int(connection.execute(sa.text(f"SELECT count(*) FROM {what}")).scalar_one())
        return -1


def _touch(connection: sa.Connection, people: Population, rng: Random) -> None:
    _update(connection, rng.sample(people.editable, 5), description=f"note {rng.random()}")


def _disable(connection: sa.Connection, people: Population, rng: Random) -> None:
    chosen = rng.sample(people.editable, 3)
    people.paused.extend(chosen)
    _update(connection, chosen, enabled=False)


def _enable(connection: sa.Connection, people: Population, _rng: Random) -> None:
    _update(connection, people.paused, enabled=True)
    people.paused.clear()


def _reschedule(connection: sa.Connection, people: Population, rng: Random) -> None:
    _update(connection, rng.sample(people.editable, 3), schedule=str(rng.choice((1, 2, 3))))


def _delete(connection: sa.Connection, people: Population, rng: Random) -> None:
    gone = people.editable.pop(rng.randrange(len(people.editable)))
    connection.execute(sa.delete(tables.jobs).where(tables.jobs.c.id == gone))


def _ask(connection: sa.Connection, people: Population, rng: Random) -> None:
    for job_id in rng.sample(people.editable, 2):
        connection.execute(sa.insert(tables.requests).values(job_id=job_id, asked_us=now_us(), asked_by="chaos"))


def _update(connection: sa.Connection, job_ids: Sequence[str], **values: object) -> None:
    # In the order of their ids: two editors cannot wait for each other in a circle.
    for job_id in sorted(set(job_ids)):
        connection.execute(sa.update(tables.jobs).where(tables.jobs.c.id == job_id).values(**values))


_CHANGES: dict[str, Callable[[sa.Connection, Population, Random], None]] = {
    "touch": _touch,
    "disable": _disable,
    "enable": _enable,
    "reschedule": _reschedule,
    "delete": _delete,
    "ask": _ask,
}
