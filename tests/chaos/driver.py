"""One run: rows, beats, faults in their order, edits between them, and at the end everything settles."""

from __future__ import annotations

import heapq
import itertools
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any

import sqlalchemy as sa

from celery_qbeat.stores import tables
from tests.chaos import faults
from tests.chaos.evidence import MACHINE, NEVER_US, Evidence, Incident, read_database
from tests.chaos.plan import END_IN_BURST, Fault, make_plan
from tests.chaos.population import INSTANTS, Population
from tests.chaos.tap import Tap
from tests.chaos.world import World, now_us

BUSY = sa.exc.OperationalError
"""Somebody holds a lock for longer than an editor waits."""

EDIT_EVERY_S = 1.0
SETTLES_S = 90.0

LOST_S = 5.0
"""Seconds to wait for anything more when something has not settled."""

REST_EVERY = 20
"""Faults between two rests: at a rest all faults have ended, and the next ones begin when somebody dispatches."""

REST_S = 60.0
"""Seconds after which a rest ends though nobody dispatches; longer than any kind of fault may be felt."""

BURST = 60
"""Rows that are due at one instant."""

STALLS_S = 0.7
"""This machine stalls when the driver's clock thread wakes up that many seconds late: beats stall as well."""


@dataclass(frozen=True, slots=True)
class Order:
    """What to run.

    Attributes:
        rounds: how many faults.
        jobs: how many intervals.
        pause_s: bounds of the seconds from the begin of one fault to that of the next.
        only: the kinds of faults; empty for all.
        in_flight: how many runs are in flight before the first beat starts.
        threads: whether the beats' app starts threads of its own.
    """

    database: str
    seed: int
    rounds: int
    jobs: int = 200
    pause_s: tuple[float, float] = (0.8, 2.6)
    only: tuple[str, ...] = ()
    in_flight: int = 0
    threads: bool = True

    @property
    def beats(self) -> int:
        return 2 if self.database == "sqlite" else 3


def run(order: Order, folder: Path, say: Callable[[str], None]) -> Evidence:
    """Do what is ordered. Raises ValueError for a kind of fault that the database has not."""
    plan = make_plan(order.seed, order.rounds, order.database, order.beats, order.pause_s, order.only)
    with World(order.database, order.beats, folder, threads=order.threads) as world:
        tap = world.tap = Tap(world.broker, _answers(Random(f"answers {order.seed}")))
        tap.start()
        driver = Driver(world, order, tap, say)
        try:
            driver.warm_up()
            driver.run(plan)
            driver.settle()
        finally:
            driver.close()
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
        self._unsettled: list[str] = []
        self._next_daily = 0.0
        self._started_us = 0
        self._disabled_us = NEVER_US
        self._closing = threading.Event()
        threading.Thread(target=self._watch_machine, name="machine", daemon=True).start()

    def warm_up(self) -> None:
        """Rows and beats, until the first messages arrive."""
        with self._world.connect() as connection:
            connection.execute(sa.insert(tables.jobs), self._population.first(self._order.jobs))
        if self._order.in_flight:
            self._world.insert_in_flight(self._order.in_flight)
        self._started_us = now_us()
        self._world.start_beats()
        self._settles(self._messages_arrive(), "the first messages")

    def run(self, plan: Sequence[Fault]) -> None:
        """The faults, each at its time, and edits; now and then a rest."""
        for first in range(0, len(plan), REST_EVERY):
            self._play(plan[first : first + REST_EVERY])
            with suppress(AssertionError):
                # The auditor judges what comes of it.
                self._world.wait_for(self._messages_arrive(), REST_S, "somebody dispatches again")

    def settle(self) -> None:
        """Everything is there again: somebody dispatches; then no row runs any more and nothing is left open."""
        world = self._world
        self._settles(self._messages_arrive(), "somebody dispatches again")
        self._disabled_us = now_us()
        self._settles(self._disabled, "the rows can be disabled")
        for left in (
            "qbeat_state WHERE next_run_us IS NOT NULL",
            "qbeat_runs WHERE verdict = 'claimed'",
            "qbeat_requests",
        ):
            self._settles(lambda left=left: self._count(left) == 0, f"nothing is left of {left}")
        world.look()
        for seat in world.seats:
            seat.end()
        for seat in world.seats:
            seat.await_end()
        self._settles(self._tap.drained, "all messages are seen")

    def close(self) -> None:
        self._closing.set()

    def evidence(self) -> Evidence:
        return Evidence(
            traits=self._population.traits,
            messages=self._tap.messages,
            epochs=self._epochs,
            incidents=sorted(self._incidents + self._world.incidents(), key=lambda incident: incident.began_us),
            complaints=[*self._unsettled, *self._world.complaints()],
            ends_s=self._world.ends_s(),
            started_us=self._started_us,
            disabled_us=self._disabled_us,
            **read_database(self._world.url),
        )

    # ------------------------------------------------------------------

    def _settles(self, condition: Callable[[], Any], what: str) -> None:
        """Wait; what does not come is left to the auditor, which has more to tell than this wait."""
        try:
            self._world.wait_for(condition, LOST_S if self._unsettled else SETTLES_S, what)
        except AssertionError as late:
            self._say(str(late))
            self._unsettled.append(f"it does not settle: {str(late).splitlines()[0]}")

    def _messages_arrive(self) -> Callable[[], bool]:
        before = len(self._tap.messages)
        return lambda: len(self._tap.messages) >= before + 10

    def _play(self, part: Sequence[Fault]) -> None:
        begin, end = part[0].at_s, part[-1].at_s
        self._started = time.monotonic() - begin
        for fault in part:
            what = self._prepare_burst if fault.kind == END_IN_BURST else self._begin
            self._at(fault.at_s, lambda fault=fault, what=what: what(fault))
        for number in range(int((end - begin) / EDIT_EVERY_S)):
            self._at(begin + number * EDIT_EVERY_S, self._edit)
        while self._events:
            at_s, _, event = heapq.heappop(self._events)
            time.sleep(max(0.0, self._started + at_s - time.monotonic()))
            event()
            self._world.look()

    def _watch_machine(self) -> None:
        last = time.monotonic()
        while not self._closing.wait(0.05):
            now = time.monotonic()
            if now - last > STALLS_S:
                ended = now_us()
                began = ended - round((now - last) * 1_000_000)
                self._incidents.append(Incident("the machine stalls", MACHINE, began, ended))
            last = now

    def _at(self, at_s: float, event: Callable[[], None]) -> None:
        heapq.heappush(self._events, (at_s, next(self._numbers), event))

    def _now_s(self) -> float:
        return time.monotonic() - self._started

    def _prepare_burst(self, fault: Fault) -> None:
        """Many rows that are due soon; the fault comes a moment after that, and the rows go later."""
        due_s = int(time.time()) + 2
        rows = self._population.burst(due_s, BURST)
        if not self._change(lambda connection: connection.execute(sa.insert(tables.jobs), rows)):
            rows = []
        at_s = self._now_s() + due_s + float(fault.variant) - time.time()
        self._at(at_s, lambda: self._begin(fault))
        self._at(at_s + fault.lasts_s + 4, lambda: self._remove([row["id"] for row in rows]))

    def _remove(self, job_ids: Sequence[str]) -> None:
        def remove(connection: sa.Connection) -> None:
            connection.execute(sa.delete(tables.jobs).where(tables.jobs.c.id.in_(job_ids)))

        if not self._change(remove):
            self._at(self._now_s() + 1, lambda: self._remove(job_ids))

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
        what = f"{fault.kind} ({target}{', ' * bool(fault.variant)}{fault.variant})"
        self._say(f"{self._now_s():7.1f} s  {what}, for {fault.lasts_s:.1f} s")

        if fault.target != "beat":
            self._taken.add(fault.target)

        def end() -> None:
            undo()
            self._taken.discard(fault.target)
            self._incidents.append(Incident(fault.kind, target, began_us, now_us()))

        self._at(self._now_s() + fault.lasts_s, end)

    def _change(self, change: Callable[[sa.Connection], object]) -> bool:
        """One transaction of an editor; False when nobody can reach the database, or not in time."""
        if not self._world.reachable:
            return False
        with suppress(BUSY), self._world.connect() as connection:
            change(connection)
            return True
        return False

    def _edit(self) -> None:
        """A few changes in one transaction."""
        people, rng = self._population, self._rng

        def edit(connection: sa.Connection) -> None:
            self._epochs.append(connection.execute(sa.select(tables.leader.c.epoch)).scalar_one())
            for change in rng.sample(list(_CHANGES), 2):
                _CHANGES[change](connection, people, rng)
            if rng.random() < 0.2:
                connection.execute(sa.insert(tables.jobs), people.interval())

        self._change(edit)
        if time.monotonic() >= self._next_daily:
            daily = people.daily(int(time.time()) + 2)
            if self._change(lambda connection: connection.execute(sa.insert(tables.jobs), daily)):
                self._next_daily = time.monotonic() + INSTANTS

    def _disabled(self) -> bool:
        return self._change(lambda connection: connection.execute(sa.update(tables.jobs).values(enabled=False)))

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
