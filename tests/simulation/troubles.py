"""What goes wrong around the beats of a history: each function begins a trouble, and ends it after a while."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from copy import deepcopy
from dataclasses import fields
from typing import TYPE_CHECKING, Any

from tests.simulation.observer import SECOND, Course

if TYPE_CHECKING:
    from tests.simulation.history import History

LETS_GO_S = 20.0
"""After that long a beat that can do nothing must have given the lock back; it tries for five seconds."""


def flush_lock(history: History) -> None:
    history.world.say("--- the lock server is flushed")
    history.world.disturb()
    history.server.flush()


def split_lock(history: History) -> None:
    def begin() -> None:
        history.world.say("--- the lock server hands out two locks")
        _disturb_while(history, lambda: history.server.split)
        history.server.split = True

    def end() -> None:
        history.server.split = False

    history.for_a_while(begin, end)


def lose_lock_server(history: History) -> None:
    name = f"b{history.rng.randint(1, max(1, history.last_beat))}"
    history.world.say(f"--- {name} cannot reach the lock server")
    history.for_a_while(lambda: history.server.away_for.add(name), lambda: history.server.away_for.discard(name))


def lose_database(history: History) -> None:
    history.world.say("--- the database is down")
    history.for_a_while(
        lambda: setattr(history.database, "down", True), lambda: setattr(history.database, "down", False)
    )


def cut_off(history: History) -> None:
    """One beat loses its way to the database."""
    if history.world.alive:
        beat = history.rng.choice(history.world.alive)
        history.world.say(f"--- {beat.name} cannot reach the database")
        history.for_a_while(lambda: setattr(beat, "cut_off", True), lambda: setattr(beat, "cut_off", False))


def lose_broker(history: History) -> None:
    history.world.say("--- the broker is down")
    history.for_a_while(lambda: setattr(history.broker, "away", True), lambda: setattr(history.broker, "away", False))


def spoil_payload(history: History) -> None:
    job_id = f"j{history.rng.randrange(4)}"
    history.for_a_while(lambda: history.broker.bad.add(job_id), lambda: history.broker.bad.discard(job_id))


def slow_link(history: History) -> None:
    """One beat's way to the database becomes long: a takeover may take longer than its lock is trusted."""
    if not history.world.alive:
        return
    beat = history.rng.choice(history.world.alive)
    seconds = history.rng.choice((0.2, history.ttl_s / 10, history.ttl_s / 10, history.ttl_s / 3))
    history.world.say(f"--- each round trip of {beat.name} takes {seconds:g} s")
    if seconds > history.ttl_s / 10:
        # So slow that no beat can be expected to keep its lock.
        _disturb_while(history, lambda: beat.round_trip_s == seconds)
    history.for_a_while(lambda: setattr(beat, "round_trip_s", seconds), lambda: setattr(beat, "round_trip_s", 0.0))


def _disturb_while(history: History, lasts: Callable[[], bool]) -> None:
    def disturb() -> None:
        history.world.disturb()
        if lasts():
            history.world.at(history.world.now + 0.5, disturb)

    history.world.at(history.world.now, disturb)


def lose_writes(history: History) -> None:
    """The sessions of one beat can only read: it was led to a replica."""
    _last(history, "read_only", "has sessions that can only read")


def strange_error(history: History) -> None:
    _last(history, "strange", "gets errors of an unknown kind")


def _last(history: History, trouble: str, words: str) -> None:
    """Something is wrong for one beat; when that lasts, the beat may not keep the lock from the others."""
    if not history.world.alive:
        return
    beat, began = history.rng.choice(history.world.alive), history.world.now
    history.world.say(f"--- {beat.name} {words}")

    def check() -> None:
        lock, hindered = history.server.of(beat), beat.hindered_at > began
        long = lock.since < history.world.now - LETS_GO_S / 2
        holds = long and lock.value.startswith(f"{beat.name}:") and lock.until > history.world.now
        if getattr(beat, trouble) == began and holds and not hindered and not beat.dead:
            history.world.broken(f"{beat.name} keeps the lock, though it {words} since {began:.1f}")

    def end() -> None:
        if getattr(beat, trouble) == began:
            setattr(beat, trouble, 0.0)

    history.world.at(began + LETS_GO_S, check)
    history.for_a_while(lambda: setattr(beat, trouble, began), end)


def restore_database(history: History) -> None:
    """Copy the database now, and put the copy in its place some time later."""
    if history.copied:
        return
    history.copied = True
    base, courses = history.database, history.observer.copy()
    names = [each.name for each in fields(base) if each.name not in ("lock", "log", "down", "instance")]
    copy = {name: deepcopy(getattr(base, name)) for name in names}
    # One entry is found by its task and by its slot.
    copy["by_task"] = {entry.task_id: entry for entry in copy["ledger"]}
    copy["by_slot"] = {(entry.slot_us, entry.job_id): entry for entry in copy["ledger"]}
    history.world.say("--- the database is copied")
    history.world.at(
        history.world.now + history.rng.choice((5.0, 15.0, 40.0)), lambda: _restore(history, copy, courses)
    )


def _restore(history: History, copy: Mapping[str, Any], courses: dict[str, Course]) -> None:
    if history.healed:
        return
    world, base, auditor = history.world, history.database, history.auditor
    world.say("--- the database is replaced by its copy")
    world.disturb()
    writers = {beat.name: beat.engine.leader.epoch for beat in world.alive if beat.engine.writing}
    for message in history.broker.messages:
        entry = base.by_task.get(message.task_id)
        current = entry is not None and writers.get(message.by) == entry.epoch == base.epoch
        if current and message.task_id in history.broker.acknowledged:
            auditor.remembered[message.task_id] = message.by
    for name, value in copy.items():
        setattr(base, name, value)
    base.log.append(("T", None))
    history.observer.restored(courses)
    for beat in world.alive:
        beat.ended_session = True
    auditor.exact, auditor.replaced, history.replaced = False, True, True
    auditor.requested.clear()
    auditor.edited.update(base.jobs)
    auditor.deleted.update(base.jobs)


def refuse_messages(history: History) -> None:
    """The broker refuses the messages of one job, and takes others."""
    job_id = f"j{history.rng.randrange(4)}"
    history.world.say(f"--- the broker refuses messages of {job_id}")
    history.for_a_while(lambda: history.broker.refused.add(job_id), lambda: history.broker.refused.discard(job_id))


def sleep_machine(history: History) -> None:
    """Every machine sleeps, and wakes up long after: slots of a whole hour are due at once."""
    seconds = history.rng.choice((120, 3600))
    history.world.say(f"--- everything sleeps for {seconds} s")
    history.world.disturb()
    history.world.base_us += seconds * SECOND


def step_clock(history: History) -> None:
    if not history.world.alive:
        return
    beat = history.rng.choice(history.world.alive)
    by = history.rng.choice((-3, -3, -40, 5, 70, -1800, 7200, -7200)) * SECOND
    history.set_clock(beat, beat.skew_us + by)


TROUBLES: Sequence[Callable[[History], None]] = (
    flush_lock,
    split_lock,
    lose_lock_server,
    lose_database,
    cut_off,
    lose_broker,
    lose_broker,
    spoil_payload,
    refuse_messages,
    slow_link,
    slow_link,
    lose_writes,
    strange_error,
    restore_database,
    sleep_machine,
    step_clock,
)
"""Every trouble, the likelier ones more than once."""
