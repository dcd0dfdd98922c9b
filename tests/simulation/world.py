"""Simulated time, and beats that take turns.

Every beat runs in a thread of its own, but only the one that has the turn runs; it may pass the turn on at every call
of a port. Who is next follows from simulated instants and a seeded random generator alone: a history can be replayed.
"""

from __future__ import annotations

import random
import threading
from collections.abc import Callable
from dataclasses import dataclass
from heapq import heappop, heappush
from typing import Any

FREEZES_MORE = 5
"""How many times likelier a freeze is just before a message."""


class Killed(BaseException):
    """The process is no more: nothing of it may do anything."""


class Strange(Exception):
    """An error of a kind that nobody has thought of."""


@dataclass(slots=True)
class Rates:
    """How likely a fault is at each call of a port, or each message."""

    freeze: float = 0.0
    kill: float = 0.0
    store: float = 0.0
    publish: float = 0.0
    slow: float = 0.0
    race: float = 0.0


class Beat:
    """What a process is to an operating system; and the clocks of the machine that it runs on.

    Attributes:
        skew_us: how much its clock is ahead of the true time.
        wrong_since: since when the skew is so large that it may not dispatch; None when it is not.
        cut_off: it cannot reach the database.
        read_only: since when its sessions of the database cannot write; 0: they can.
        ended_session: the server has ended its session; the next call of the database finds that out.
        strange: since when every call of the database ends with an error of an unknown kind; 0: none does.
        round_trip_s: how long each step of the database takes; 0 for a random short time.
        hindered_at: when it last froze or was slow.
        epochs: how many epochs it took in a row without a tick as the writer, since `epochs_since`.
    """

    def __init__(self, world: World, name: str, skew_us: int = 0) -> None:
        self.world = world
        self.name = name
        self.skew_us = skew_us
        self.dead = False
        self.idle = False
        self.wrong_since: float | None = None
        self.cut_off = False
        self.read_only = 0.0
        self.ended_session = False
        self.strange = 0.0
        self.round_trip_s = 0.0
        self.hindered_at = 0.0
        self.epochs = 0
        self.epochs_since = 0.0
        self.parked = True
        self.engine: Any = None
        self._turn = threading.Lock()
        self._turn.acquire()
        self._thread = threading.Thread(target=self._live, name=name, daemon=True)

    def now_us(self) -> int:
        return self.world.base_us + round(self.world.now * 1_000_000) + self.skew_us

    def monotonic(self) -> float:
        return self.world.now

    def start(self) -> None:
        self.world.beats.append(self)
        self.world.at(self.world.now, self)
        self._thread.start()

    def take_turn(self) -> None:
        self._turn.release()

    def await_turn(self) -> None:
        self._turn.acquire()
        self.parked = False

    def join(self) -> None:
        self._thread.join()

    def _live(self) -> None:
        self.await_turn()
        try:
            while not self.dead:
                pause = self._tick()
                self.idle = True
                self.world.step(self, "sleeps", max(pause, 0.001))
                self.idle = False
        except Killed:
            pass
        except BaseException as error:
            self.world.broken(f"{self.name} ended: {type(error).__name__}: {error}")
        finally:
            self.dead = True
            self.world.pass_on(None)

    def _tick(self) -> float:
        try:
            pause: float = self.engine.tick()
        except Strange as error:
            # The scheduler logs it and goes on after a poll.
            self.world.say(f"    {self.name} logs a bug: {error}")
            return float(self.engine._deps.limits.poll_s)
        if self.engine.writing and self.world.now < self.engine._deps.gate.trusted_until:
            # It could dispatch.
            self.epochs = 0
        return pause


class World:
    """The events to come, the beats, and whose turn it is."""

    def __init__(self, seed: int, base_us: int, *, tracing: bool = False) -> None:
        self.rng = random.Random(seed)
        self.base_us = base_us
        self.now = 0.0
        self.rates = Rates()
        self.beats: list[Beat] = []
        self.violations: list[str] = []
        self.disturbed_at = 0.0
        self.trace: list[str] | None = [] if tracing else None
        self._events: list[tuple[float, int, Beat | Callable[[], None]]] = []
        self._count = 0
        self._over = False
        self._ended = threading.Event()

    @property
    def alive(self) -> list[Beat]:
        return [beat for beat in self.beats if not beat.dead]

    def at(self, when: float, what: Beat | Callable[[], None]) -> None:
        """Let a beat go on, or call a function, at a simulated instant."""
        self._count += 1
        heappush(self._events, (max(when, self.now), self._count, what))

    def run(self) -> None:
        """Until somebody calls `finish` or a law is broken."""
        self.pass_on(None)
        self._ended.wait()
        for beat in self.beats:
            if beat.parked:
                beat.dead = True
                beat.take_turn()
            beat.join()

    def disturb(self) -> None:
        """Note that something happened now that may cost a writer its term."""
        self.disturbed_at = self.now

    def finish(self) -> None:
        self._over = True

    def say(self, text: str) -> None:
        if self.trace is not None:
            self.trace.append(f"{self.now:9.4f}  {text}")

    def broken(self, law: str) -> None:
        self.violations.append(law)
        self.say(f"!!! {law}")
        self._over = True

    def step(self, beat: Beat, what: str, seconds: float | None = None) -> None:
        """A beat is about to do something: time passes, others may have their turn, it may freeze or die."""
        if beat.dead:
            raise Killed
        if self.trace is not None:
            self.say(f"{beat.name} {what}")
        self.at(self.now + (self._delay(beat, what) if seconds is None else seconds), beat)
        self.pass_on(beat)
        if beat.dead:
            raise Killed

    def _delay(self, beat: Beat, what: str) -> float:
        rng, rates = self.rng, self.rates
        fate = rng.random()
        if fate < rates.kill:
            self.say(f"--- {beat.name} is killed before it {what}")
            beat.dead = True
            raise Killed
        # The worst moment to freeze is around a message, and there are few of them among all steps.
        freeze = rates.freeze * (FREEZES_MORE if "publish" in what else 1)
        if fate < rates.kill + freeze:
            seconds = rng.choice((3.0, 8.0, 14.0, 25.0))
            self.disturb()
            beat.hindered_at = self.now + seconds
            self.say(f"--- {beat.name} freezes for {seconds:g} s before it {what}")
            return seconds
        if fate < rates.kill + freeze + rates.slow:
            self.disturb()
            beat.hindered_at = self.now + 1.1
            return rng.choice((0.05, 0.3, 1.1))
        return rng.random() * 0.004

    def pass_on(self, me: Beat | None) -> None:
        """Do what comes next until it is the caller's turn again; `None`: the caller waits for none."""
        while not self._over:
            self.now, _, what = heappop(self._events)
            if not isinstance(what, Beat):
                what()
                continue
            if what is me:
                return
            if me is not None:
                me.parked = True
            what.take_turn()
            if me is not None:
                me.await_turn()
            return
        if me is not None:
            me.parked = True
        self._ended.set()
        if me is not None:
            me.await_turn()
