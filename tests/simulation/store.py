"""One beat's connection to the shared database: every call may find it away, or lose the answer."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from celery_qbeat.errors import Doubt, QbeatError, Unavailable
from celery_qbeat.ports import Loaded
from celery_qbeat.testing import MemoryStore
from celery_qbeat.testing.database import Database
from tests.simulation.observer import Observer
from tests.simulation.world import Beat, Strange

READS = ("open", "workers", "read_changes", "read_states", "pending_requests", "has_drifted")
WRITES = (
    *(
        "take_epoch",
        "record_heartbeat",
        "write_plans",
        "delete_states",
        "claim",
        "mark_sent",
        "release_claims",
        "record_outcomes",
        "close_batches",
        "delete_requests",
    ),
    "shorten_leases",
)
LATE = frozenset(
    {
        "write_plans",
        "delete_states",
        "claim",
        "mark_sent",
        "release_claims",
        "record_outcomes",
        "delete_requests",
        "shorten_leases",
    }
)
"""Calls that may be carried out a moment after their caller was cut off."""


@dataclass(frozen=True, slots=True)
class Link:
    """What a store needs to know of the beat that it belongs to."""

    beat: Beat
    observer: Observer


class SimStore(MemoryStore):
    """A session of the database of `link.observer`."""

    def __init__(self, database: Database, link: Link) -> None:
        super().__init__(database)
        self.link = link
        self.reading = False

    def load(self) -> Iterator[Loaded]:
        self._step("loads")
        for part in super().load():
            for row in part.rows:
                self._step("loads a part")
                yield Loaded(rows=[row])
            if part.orphans:
                yield Loaded(orphans=part.orphans)

    def unfinished_runs(self) -> Iterator[Any]:
        self._step("reads the runs in flight")
        for part in super().unfinished_runs():
            for flight in part:
                self._step("reads a part of them")
                yield [flight]

    def clock_us(self) -> int | None:
        """The database's clock is right."""
        self._step("reads the clock")
        world = self.link.beat.world
        return world.base_us + round(world.now * 1_000_000)

    def _step(self, what: str) -> None:
        beat, world = self.link.beat, self.link.beat.world
        self._take_time(what)
        if beat.cut_off or world.rng.random() < world.rates.store:
            world.disturb()
            world.say(f"--- the database is away for {beat.name}")
            raise Unavailable("connection refused")

    def _take_time(self, what: str) -> None:
        """A round trip; then the errors that last."""
        beat, world = self.link.beat, self.link.beat.world
        world.step(beat, what, beat.round_trip_s or None)
        if beat.ended_session:
            beat.ended_session = False
            world.disturb()
            raise Unavailable("terminating connection due to administrator command")
        if beat.strange:
            world.disturb()
            raise Strange("something that nobody knows")

    def _write(self, name: str, plain: Callable[[], Any], args: Sequence[Any]) -> Any:
        beat, world = self.link.beat, self.link.beat.world
        self._take_time(f"writes: {name}")
        if self.database.down or beat.cut_off:
            world.disturb()
            raise Unavailable("the database is down")
        if beat.read_only:
            world.disturb()
            raise Unavailable("cannot write in a read-only transaction")
        if name == "claim" and world.rng.random() < world.rates.race:
            return self._pass_over(args)
        roll = world.rng.random()
        if roll < world.rates.store:
            return self._cut(name, plain, args)
        return self.link.observer.watch(beat, name, args, plain)

    def _pass_over(self, args: Sequence[Any]) -> frozenset[str]:
        """Somebody holds a lock on one of the states: its claim is lost for now."""
        epoch, batch_id, claims, now_us = args
        beat, locked = self.link.beat, self.link.beat.world.rng.choice(claims).job_id
        beat.world.say(f"--- somebody holds a lock on the state of {locked}")
        rest = [epoch, batch_id, [claim for claim in claims if claim.job_id != locked], now_us]
        lost = self.link.observer.watch(beat, "claim", rest, lambda: MemoryStore.claim(self, *rest))
        return frozenset(lost) | {locked}

    def _cut(self, name: str, plain: Callable[[], Any], args: Sequence[Any]) -> Any:
        """The connection is lost: before anything was done, after it, or the server goes on alone."""
        beat, world = self.link.beat, self.link.beat.world
        fate = world.rng.choice(("refused", "undone", "done", "late"))
        world.say(f"--- {beat.name} loses its connection ({fate})")
        world.disturb()
        if fate == "refused":
            raise Unavailable("connection refused")
        if fate == "done":
            self.link.observer.watch(beat, name, args, plain)
        if fate == "late" and name in LATE:
            observer, restored_at = self.link.observer, self.link.observer.restored_at

            def later() -> None:
                if observer.restored_at != restored_at:
                    return
                try:
                    observer.watch(beat, name, args, plain)
                except QbeatError as error:
                    world.say(f"    too late for {name} of {beat.name}: {error}")

            world.at(world.now + world.rng.random() * 2.0, later)
        raise Doubt("the server went away in the middle")


def _reading(name: str) -> Callable[..., Any]:
    plain = getattr(MemoryStore, name)

    def call(self: SimStore, *args: Any) -> Any:
        if self.reading:
            return plain(self, *args)
        self._step(f"reads: {name}")
        self.reading = True
        try:
            return plain(self, *args)
        finally:
            self.reading = False

    return call


def _writing(name: str) -> Callable[..., Any]:
    def call(self: SimStore, *args: Any, **kwargs: Any) -> Any:
        def plain() -> Any:
            # By name, so that a mutant's own method is used.
            return getattr(self, f"do_{name}")(*args, **kwargs)

        return self._write(name, plain, args)

    return call


for _name in READS:
    setattr(SimStore, _name, _reading(_name))
for _name in WRITES:
    setattr(SimStore, f"do_{_name}", getattr(MemoryStore, _name))
    setattr(SimStore, _name, _writing(_name))
