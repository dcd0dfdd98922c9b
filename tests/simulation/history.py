"""A history: a few beats, a few jobs, a few minutes, and whatever the seed makes go wrong."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from copy import deepcopy
from dataclasses import dataclass, field, fields
from datetime import UTC, datetime, timedelta
from typing import Any

from celery_qbeat.engine import Engine, Limits, Parts
from celery_qbeat.jobs import Job, RowRules
from celery_qbeat.ports import Store
from celery_qbeat.privileges import BUILTIN_PRUNE, Privileges
from celery_qbeat.schedules import Every
from celery_qbeat.testing.database import Database, Edits
from tests.simulation.auditor import Auditor
from tests.simulation.observer import SECOND, Course, Observer
from tests.simulation.stand_ins import Broker, LockServer, SimCompletions, SimDispatcher, SimGate, SimStandalone
from tests.simulation.store import Link, SimStore
from tests.simulation.world import Beat, World

START = datetime(2026, 6, 1, 11, 58, 0, tzinfo=UTC)
LETS_GO_S = 20.0
"""After that long a beat that can do nothing must have given the lock back; it tries for five seconds."""

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
        self.world = world = World(seed, round(START.timestamp()) * SECOND, tracing=tracing)
        self.rng = rng = world.rng
        self.mutant = mutant
        self.database = Database()
        self.table = Edits(self.database)
        self.broker = Broker(world)
        self.server = LockServer()
        self.code = _code_jobs(rng) if rng.random() < 0.4 else []
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

    # ------------------------------------------------------------ beats

    def start_beat(self) -> None:
        self.last_beat += 1
        skew = self.rng.choice((0, 0, 0, -2 * SECOND, 3 * SECOND)) if self.wanted > 1 else 0
        beat = Beat(self.world, f"b{self.last_beat}", skew)
        self.skewed(skew)
        gate = SimStandalone(beat) if self.standalone else SimGate(beat, self.server, self.ttl_s)
        beat.engine = self.mutant.engine(
            Parts(
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
                chores={BUILTIN_PRUNE: _chore},
            )
        )
        self.world.say(f"--- {beat.name} starts, its clock {skew / SECOND:+g} s")
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
        row = _row(self.rng, self.world)
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
        fresh = _row(rng, self.world)
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
            slot = self.world.base_us + round(self.world.now * SECOND) * 10 // 10 + 1
            self.world.say(f"--- somebody asks for {job_id}@{slot}")
            if (job_id, slot) not in self.auditor.requested:
                self.auditor.requested[job_id, slot] = job_id
                self.table.ask(job_id, slot)

    # ------------------------------------------------------------ the world around

    def flush_lock(self) -> None:
        self.world.say("--- the lock server is flushed")
        self.world.disturb()
        self.server.flush()

    def split_lock(self) -> None:
        def begin() -> None:
            self.world.say("--- the lock server hands out two locks")
            self._disturb_while(lambda: self.server.split)
            self.server.split = True

        def end() -> None:
            self.server.split = False

        self.for_a_while(begin, end)

    def lose_lock_server(self) -> None:
        name = f"b{self.rng.randint(1, max(1, self.last_beat))}"
        self.world.say(f"--- {name} cannot reach the lock server")
        self.for_a_while(lambda: self.server.away_for.add(name), lambda: self.server.away_for.discard(name))

    def lose_database(self) -> None:
        self.world.say("--- the database is down")
        self.for_a_while(lambda: setattr(self.database, "down", True), lambda: setattr(self.database, "down", False))

    def cut_off(self) -> None:
        """One beat loses its way to the database."""
        if self.world.alive:
            beat = self.rng.choice(self.world.alive)
            self.world.say(f"--- {beat.name} cannot reach the database")
            self.for_a_while(lambda: setattr(beat, "cut_off", True), lambda: setattr(beat, "cut_off", False))

    def lose_broker(self) -> None:
        self.world.say("--- the broker is down")
        self.for_a_while(lambda: setattr(self.broker, "away", True), lambda: setattr(self.broker, "away", False))

    def spoil_payload(self) -> None:
        job_id = f"j{self.rng.randrange(4)}"
        self.for_a_while(lambda: self.broker.bad.add(job_id), lambda: self.broker.bad.discard(job_id))

    def slow_link(self) -> None:
        """One beat's way to the database becomes long: a takeover may take longer than its lock is trusted."""
        if not self.world.alive:
            return
        beat = self.rng.choice(self.world.alive)
        seconds = self.rng.choice((0.2, self.ttl_s / 10, self.ttl_s / 10, self.ttl_s / 3))
        self.world.say(f"--- each round trip of {beat.name} takes {seconds:g} s")
        if seconds > self.ttl_s / 10:
            # So slow that no beat can be expected to keep its lock.
            self._disturb_while(lambda: beat.round_trip_s == seconds)
        self.for_a_while(lambda: setattr(beat, "round_trip_s", seconds), lambda: setattr(beat, "round_trip_s", 0.0))

    def _disturb_while(self, lasts: Callable[[], bool]) -> None:
        def disturb() -> None:
            self.world.disturb()
            if lasts():
                self.world.at(self.world.now + 0.5, disturb)

        self.world.at(self.world.now, disturb)

    def lose_writes(self) -> None:
        """The sessions of one beat can only read: it was led to a replica."""
        self._last("read_only", "has sessions that can only read")

    def strange_error(self) -> None:
        self._last("strange", "gets errors of an unknown kind")

    def _last(self, trouble: str, words: str) -> None:
        """Something is wrong for one beat; when that lasts, the beat may not keep the lock from the others."""
        if not self.world.alive:
            return
        beat, began = self.rng.choice(self.world.alive), self.world.now
        self.world.say(f"--- {beat.name} {words}")

        def check() -> None:
            lock, hindered = self.server.of(beat), beat.hindered_at > began
            long = lock.since < self.world.now - LETS_GO_S / 2
            holds = long and lock.value.startswith(f"{beat.name}:") and lock.until > self.world.now
            if getattr(beat, trouble) == began and holds and not hindered and not beat.dead:
                self.world.broken(f"{beat.name} keeps the lock, though it {words} since {began:.1f}")

        def end() -> None:
            if getattr(beat, trouble) == began:
                setattr(beat, trouble, 0.0)

        self.world.at(began + LETS_GO_S, check)
        self.for_a_while(lambda: setattr(beat, trouble, began), end)

    def restore_database(self) -> None:
        """Copy the database now, and put the copy in its place some time later."""
        if self.copied:
            return
        self.copied = True
        base, courses = self.database, self.observer.copy()
        names = [each.name for each in fields(base) if each.name not in ("lock", "log", "down", "instance")]
        copy = {name: deepcopy(getattr(base, name)) for name in names}
        # One entry is found by its task and by its slot.
        copy["by_task"] = {entry.task_id: entry for entry in copy["ledger"]}
        copy["by_slot"] = {(entry.slot_us, entry.job_id): entry for entry in copy["ledger"]}
        self.world.say("--- the database is copied")
        self.world.at(self.world.now + self.rng.choice((5.0, 15.0, 40.0)), lambda: self._restore(copy, courses))

    def _restore(self, copy: Mapping[str, Any], courses: dict[str, Course]) -> None:
        if self.healed:
            return
        world, base, auditor = self.world, self.database, self.auditor
        world.say("--- the database is replaced by its copy")
        world.disturb()
        writers = {beat.name: beat.engine.desk.epoch for beat in world.alive if beat.engine.writing}
        for message in self.broker.messages:
            entry = base.by_task.get(message.task_id)
            current = entry is not None and writers.get(message.by) == entry.epoch == base.epoch
            if current and message.task_id in self.broker.acknowledged:
                auditor.remembered[message.task_id] = message.by
        for name, value in copy.items():
            setattr(base, name, value)
        base.log.append(("T", None))
        self.observer.restored(courses)
        for beat in world.alive:
            beat.ended_session = True
        auditor.exact, auditor.replaced, self.replaced = False, True, True
        auditor.requested.clear()
        auditor.edited.update(base.jobs)
        auditor.deleted.update(base.jobs)

    def refuse_messages(self) -> None:
        """The broker refuses the messages of one job, and takes others."""
        job_id = f"j{self.rng.randrange(4)}"
        self.world.say(f"--- the broker refuses messages of {job_id}")
        self.for_a_while(lambda: self.broker.refused.add(job_id), lambda: self.broker.refused.discard(job_id))

    def step_clock(self) -> None:
        if not self.world.alive:
            return
        beat = self.rng.choice(self.world.alive)
        by = self.rng.choice((-3, -3, -40, 5, 70, -1800, 7200, -7200)) * SECOND
        self.set_clock(beat, beat.skew_us + by)

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
    History.edit_row,
    History.edit_row,
    History.edit_row,
    History.edit_row,
    History.edit_worker,
    History.ask_by_hand,
    History.ask_by_hand,
    History.flush_lock,
    History.split_lock,
    History.lose_lock_server,
    History.lose_database,
    History.cut_off,
    History.lose_broker,
    History.lose_broker,
    History.spoil_payload,
    History.refuse_messages,
    History.slow_link,
    History.slow_link,
    History.lose_writes,
    History.strange_error,
    History.restore_database,
    History.step_clock,
    History.kill_beat,
    History.kill_beat,
)


def _row(rng: Any, world: World) -> dict[str, Any]:
    kind, schedule = rng.choice(
        (
            ("interval", str(rng.randint(3, 25))),
            ("interval", str(rng.randint(3, 25))),
            ("every", rng.choice(("1m", "2m"))),
            ("cron", rng.choice(("* * * * *", "*/2 * * * *"))),
            ("daily", "11:59,12:00,12:01,12:03"),
            ("once", (START + timedelta(seconds=int(world.now) + rng.randint(-70, 90))).strftime("%Y-%m-%dT%H:%M:%S")),
        )
    )
    bound = world.base_us + round(world.now + rng.randint(0, 100)) * SECOND
    return {
        "fn": rng.choice(("app.a", "app.a", "app.a", "app.a", "os.system")),
        "schedule_kind": kind,
        "schedule": schedule,
        "overlap": rng.choice(("skip", "allow")),
        "catch_up": rng.choice(("once", "skip", "all")),
        "grace_seconds": rng.choice((None, None, 5, 30)),
        "on_doubt": rng.choice(("drop", "resend")),
        "max_run_seconds": rng.choice((10, 30)),
        "worker": rng.choice(("", "", "", "shop")),
        "enabled": rng.random() < 0.9,
        "start_us": bound if rng.random() < 0.1 else None,
        "end_us": bound + 60 * SECOND if rng.random() < 0.1 else None,
    }


def _code_jobs(rng: Any) -> list[Job]:
    period = rng.choice((7, 20)) * SECOND
    spec = f'["code","{period}","UTC","","","",null,null,0]'
    policy = {"overlap": rng.choice(("skip", "allow")), "catch_up": rng.choice(("once", "skip", "all"))}
    return [Job("code:x", "any.task", Every(period), plan_key=spec, spec=spec, max_run_us=20 * SECOND, **policy)]


def _chore(store: Store, now_us: int) -> Iterator[int]:
    yield from (1, 2, 3)


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
