"""A history: a few beats, a few jobs, a few minutes, and whatever the seed makes go wrong."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

from celery_qbeat.core.identity import request_task_id
from celery_qbeat.core.jobs import RowRules
from celery_qbeat.core.privileges import BUILTIN_PRUNE, Privileges
from celery_qbeat.engine import Dependencies, Engine, Limits
from celery_qbeat.testing.database import Database, Edits
from tests.simulation.auditor import Auditor
from tests.simulation.observer import SECOND, Observer
from tests.simulation.rows import START_US, insert_in_flight, random_code_jobs, random_row, three_steps
from tests.simulation.stand_ins import Broker, LockServer, SimCompletions, SimDispatcher, SimGate, SimStandalone
from tests.simulation.store import Link, SimStore
from tests.simulation.troubles import TROUBLES
from tests.simulation.world import Beat, World

WRONG_US = 600 * SECOND
"""A clock that is that far from the database's is wrong: its beat does not dispatch."""

QUIET_S = 75.0
"""How long everything works at the end: longer than the longest lease and the longest freeze."""


@dataclass(frozen=True, slots=True)
class Mutant:
    """What a test breaks on purpose."""

    store: type[SimStore] = SimStore
    engine: type[Engine] = Engine


@dataclass(slots=True)
class Outcome:
    seed: int
    violations: list[str]
    trace: list[str] = field(default_factory=list)
    slots: int = 0
    messages: int = 0
    faults: dict[str, int] = field(default_factory=dict)


def run(seed: int, mutant: Mutant = Mutant(), *, tracing: bool = False) -> Outcome:
    """Play one history and audit it."""
    history = History(seed, mutant, tracing)
    with _log_into(history.world):
        history.play()
    world = history.world
    return Outcome(
        seed,
        world.violations,
        world.trace or [],
        slots=len(history.database.ledger),
        messages=len(history.broker.messages),
        faults=history.faults,
    )


class History:
    def __init__(self, seed: int, mutant: Mutant, tracing: bool) -> None:
        self.world = world = World(seed, START_US, tracing=tracing)
        self.rng = rng = world.rng
        self.mutant = mutant
        self.database = Database()
        self.table = Edits(self.database)
        self.broker = Broker(world)
        self.server = LockServer()
        self.code = random_code_jobs(rng) if rng.random() < 0.4 else []
        self.observer = Observer(world, self.database, self.code)
        self.auditor = Auditor(world, self.database, self.broker, self.observer)
        self.observer.race = self.edit
        self.faults: dict[str, int] = {}
        self.standalone = rng.random() < 0.2
        self.ttl_s = rng.choice((6.5, 9.0))
        self.limits = Limits(
            poll_s=2.0,
            batch=rng.choice((2, 50)),
            chunk=rng.choice((1, 2, 10)),
            heartbeat_s=5.0,
            drift_s=rng.choice((30.0, 1000.0)),
            look_up_s=7.0,
            lease_check_s=3.0,
            chore_s=0.0,
        )
        self.seconds = rng.choice((60.0, 120.0, 180.0))
        self.wanted = rng.choice((1, 2, 2, 3))
        self.last_beat = 0
        self.skews = (0, 0)
        self.copied = self.replaced = self.healed = False
        self.slow_start = rng.random() < 0.15

    # ------------------------------------------------------------ beats

    def start_beat(self) -> None:
        self.last_beat += 1
        skew = self.rng.choice((0, 0, 0, -2 * SECOND, 3 * SECOND)) if self.wanted > 1 else 0
        beat = Beat(self.world, f"b{self.last_beat}", skew)
        self.skewed(skew)
        gate = SimStandalone(beat) if self.standalone else SimGate(beat, self.server, self.ttl_s)
        beat.engine = self.mutant.engine(
            Dependencies(
                store=self.mutant.store(self.database, Link(beat, self.observer)),
                gate=gate,
                dispatcher=SimDispatcher(beat, self.broker, gate),
                clock=beat,
                privileges=Privileges(registered=frozenset({"app.a", "app.b"})),
                completions=SimCompletions(beat, self.broker) if self.seconds != 60.0 else None,
                rules=RowRules(cron=True),
                limits=self.limits,
                holder=beat.name,
                code_jobs=self.code,
                builtin_tasks={BUILTIN_PRUNE: three_steps},
            )
        )
        self.world.say(f"--- {beat.name} starts, its clock {skew / SECOND:+g} s")
        if self.slow_start and not self.healed:
            beat.round_trip_s = self.ttl_s / 10
        beat.start()

    def kill_beat(self) -> None:
        if self.world.alive:
            beat = self.rng.choice(self.world.alive)
            beat.dead = True
            self.world.say(f"--- {beat.name} is killed")
            self.world.at(self.world.now + self.rng.choice((0.5, 5.0, 20.0)), self.start_beat)

    def keep_alive(self) -> None:
        """Somebody looks after the beats now and then."""
        idle = [beat for beat in self.world.alive if beat.idle]
        nobody = bool(idle) and not any(beat.engine.writing for beat in idle)
        if len(self.world.alive) < self.wanted or (self.standalone and nobody):
            self.start_beat()
        self.world.at(self.world.now + 20.0, self.keep_alive)

    # ------------------------------------------------------------ the course of events

    def play(self) -> None:
        world, rng = self.world, self.rng
        for number in range(rng.choice((1, 2, 4))):
            self.insert(f"j{number}")
        if rng.random() < 0.2:
            self.table.insert(id=BUILTIN_PRUNE, fn=BUILTIN_PRUNE, schedule_kind="interval", schedule="15")
        if self.slow_start:
            insert_in_flight(self.database, self.broker, 25)
        self._choose_rates()
        for _ in range(self.wanted):
            world.at(rng.random() * 4.0, self.start_beat)
        for _ in range(rng.choice((0, 4, 10, 20))):
            world.at(rng.random() * self.seconds, self.something_happens)
        world.at(20.0, self.keep_alive)
        world.at(self.seconds, self.heal)
        world.run()

    def _choose_rates(self) -> None:
        rng, rates = self.rng, self.world.rates
        storm = rng.choice((0.0, 1.0, 1.0, 3.0))
        rates.freeze = storm * rng.choice((0.0, 0.002, 0.004))
        rates.kill = storm * rng.choice((0.0, 0.001, 0.002))
        rates.store = storm * rng.choice((0.0, 0.005, 0.02))
        rates.publish = storm * rng.choice((0.0, 0.05, 0.2))
        rates.slow = storm * rng.choice((0.0, 0.02))
        rates.race = rng.choice((0.0, 0.0, 0.03))
        self.world.say(f"--- rates: {rates}")

    def heal(self) -> None:
        """From here on everything works; what is due must come to its end."""
        world = self.world
        world.say("--- everything works from here on")
        self.healed = True
        for name in ("freeze", "kill", "store", "publish", "slow", "race"):
            setattr(world.rates, name, 0.0)
        self.database.down = self.broker.away = self.server.split = False
        self.server.away_for.clear()
        for beat in world.alive:
            beat.cut_off, beat.read_only, beat.strange = False, 0.0, 0.0
            beat.round_trip_s = 0.0
            if beat.wrong_since is not None:
                self.set_clock(beat, 0)
        self.broker.bad.clear()
        self.broker.refused.clear()
        if self.standalone or not world.alive:
            self.start_beat()
        world.at(world.now + QUIET_S, self.close)

    def close(self) -> None:
        """End between two ticks."""
        if all(beat.idle for beat in self.world.alive):
            for finding in self.auditor.findings():
                self.world.broken(finding)
            self.world.finish()
        else:
            self.world.at(self.world.now + 0.05, self.close)

    def something_happens(self) -> None:
        if self.world.now >= self.seconds:
            return
        what = self.rng.choice(EVENTS)
        self.faults[what.__name__] = self.faults.get(what.__name__, 0) + 1
        what(self)

    def for_a_while(self, begin: Callable[[], None], end: Callable[[], None]) -> None:
        begin()
        self.world.at(self.world.now + self.rng.choice((1.0, 5.0, 15.0, 40.0)), end)

    # ------------------------------------------------------------ rows

    def insert(self, job_id: str) -> None:
        row = random_row(self.rng, self.world)
        self.world.say(f"--- INSERT {job_id}: {row}")
        self.table.insert(id=job_id, **row)

    def edit_row(self) -> None:
        rows = [job_id for job_id in self.database.jobs if job_id.startswith("j")]
        if rows:
            self.edit(self.rng.choice(rows))
        else:
            self.insert("j0")

    def edit(self, job_id: str) -> None:
        rng = self.rng
        if job_id not in self.database.jobs or not job_id.startswith("j"):
            return
        self.auditor.edited.add(job_id)
        change = rng.choice(("schedule", "toggle", "args", "fn", "policy", "break", "delete", "replace"))
        self.world.say(f"--- {change} {job_id}")
        fresh = random_row(rng, self.world)
        if change == "schedule":
            self.table.update(job_id, schedule_kind=fresh["schedule_kind"], schedule=fresh["schedule"])
        elif change == "toggle":
            self.table.update(job_id, enabled=not self.database.jobs[job_id]["enabled"])
        elif change == "args":
            self.table.update(job_id, args=f"[{rng.randrange(9)}]")
        elif change == "fn":
            self.table.update(job_id, fn=rng.choice(("app.b", "os.system", "celery.map")))
        elif change == "policy":
            self.table.update(job_id, catch_up=fresh["catch_up"], grace_seconds=fresh["grace_seconds"])
        elif change == "break":
            self.table.update(job_id, kwargs="{'a': 1}")
            self.world.at(self.world.now + rng.random() * 30, lambda: self._repair(job_id))
        else:
            self.auditor.deleted.add(job_id)
            self.table.delete(job_id)
            if change == "replace":
                self.insert(job_id)
            else:
                self.world.at(self.world.now + rng.random() * 20, lambda: self._reinsert(job_id))

    def _repair(self, job_id: str) -> None:
        if job_id in self.database.jobs:
            self.table.update(job_id, kwargs="{}")

    def _reinsert(self, job_id: str) -> None:
        if job_id not in self.database.jobs:
            self.insert(job_id)

    def edit_worker(self) -> None:
        enabled = self.rng.random() < 0.5
        self.auditor.edited.update(job_id for job_id, row in self.database.jobs.items() if row["worker"])
        self.world.say(f"--- worker shop: enabled={enabled}")
        self.table.set_worker(name="shop", enabled=enabled)

    def ask_by_hand(self) -> None:
        if self.database.jobs:
            job_id = self.rng.choice(list(self.database.jobs))
            # Anything may be in a request.
            asked_us = self.rng.choice((0, -(2**63), self.world.base_us + round(self.world.now * SECOND) + 1))
            request = self.table.ask(job_id, asked_us)
            self.world.say(f"--- somebody asks for {job_id} (request {request.id})")
            self.auditor.requested[request_task_id(self.database.instance, job_id, request.id, asked_us)] = job_id

    # ------------------------------------------------------------ clocks

    def set_clock(self, beat: Beat, skew_us: int) -> None:
        self.world.say(f"--- the clock of {beat.name} steps by {(skew_us - beat.skew_us) / SECOND:+g} s")
        beat.skew_us = skew_us
        if abs(skew_us) < WRONG_US:
            beat.wrong_since = None
        elif beat.wrong_since is None:
            beat.wrong_since = self.world.now
        self.skewed(skew_us)

    def skewed(self, skew_us: int) -> None:
        """Clocks that are a minute apart may plan and count slots twice; that none is sent twice is still law."""
        self.skews = (min(self.skews[0], skew_us), max(self.skews[1], skew_us))
        self.auditor.exact = self.skews == (0, 0) and not self.replaced
        self.observer.stepped_back = self.skews[1] - self.skews[0] > 60 * SECOND


EVENTS: Sequence[Callable[[History], None]] = (
    *(History.edit_row,) * 4,
    History.edit_worker,
    *(History.ask_by_hand,) * 2,
    *(History.kill_beat,) * 2,
    *TROUBLES,
)


class _Into(logging.Handler):
    def __init__(self, world: World) -> None:
        super().__init__()
        self._world = world

    def emit(self, record: logging.LogRecord) -> None:
        self._world.say(f"    log: {record.getMessage()}")


@contextmanager
def _log_into(world: World) -> Iterator[None]:
    """The beats' log lines belong to the history; without a trace nobody reads them."""
    log = logging.getLogger("celery_qbeat")
    level, propagate, handler = log.level, log.propagate, _Into(world)
    log.propagate = False
    log.setLevel(logging.INFO if world.trace is not None else logging.CRITICAL + 1)
    log.addHandler(handler)
    try:
        yield
    finally:
        log.removeHandler(handler)
        log.setLevel(level)
        log.propagate = propagate
