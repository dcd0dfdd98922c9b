"""Which faults come when: made from a seed alone, so that a run can be done again."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from random import Random

WRITER = -1
"""As `beat` of a fault: the one that has the lock at that moment."""


@dataclass(frozen=True, slots=True)
class Kind:
    """A kind of fault. Two faults on the same target never overlap; `seconds` bounds how long it lasts."""

    name: str
    target: str
    weight: int
    seconds: tuple[float, float] = (0.0, 0.0)


ARM = "arm beat"
"""Kill a beat; the next one in its place kills or freezes itself at a fail point."""

POINTS = ("claimed", "sending", "published", "marked")

BEATS = (
    Kind("kill beat", "beat", 14, (0.0, 3.0)),
    Kind("freeze beat", "beat", 14, (0.5, 5.0)),
    Kind("end beat", "beat", 10, (0.0, 2.0)),
    Kind(ARM, "beat", 12, (0.0, 1.0)),
)
GATE = (
    Kind("flush the gate", "gate", 4),
    Kind("delete the lock", "gate", 4),
    Kind("another takes the lock", "gate", 3),
    Kind("restart the gate", "gate", 5, (0.0, 3.0)),
    Kind("freeze the gate", "gate", 4, (0.5, 4.0)),
)
BROKER = (
    Kind("restart the broker", "broker", 5, (0.0, 2.0)),
    Kind("kill the broker", "broker", 5, (0.0, 2.0)),
    Kind("freeze the broker", "broker", 4, (0.5, 4.0)),
)
SERVER = (
    Kind("restart the database", "database", 4, (0.0, 3.0)),
    Kind("kill the database", "database", 4, (0.0, 3.0)),
    Kind("freeze the database", "database", 4, (0.5, 4.0)),
    Kind("lock the leader row", "database", 3, (0.5, 4.0)),
    Kind("lock the states", "database", 3, (0.5, 4.0)),
)
FILE = (Kind("lock the file", "database", 14, (0.5, 7.0)),)

KINDS = {
    "postgresql": BEATS + GATE + BROKER + SERVER,
    "mariadb": BEATS + GATE + BROKER + SERVER,
    "sqlite": BEATS + GATE + BROKER + FILE,
}


@dataclass(frozen=True, slots=True)
class Fault:
    """At `at_s` seconds of the run, for `lasts_s`. `beat`: which one, or WRITER; where that one is busy, the next.

    `point`: of ARM, the fail point.
    """

    at_s: float
    kind: str
    target: str
    lasts_s: float
    beat: int = WRITER
    point: str = ""


def make_plan(seed: int, rounds: int, database: str, beats: int, pause_s: tuple[float, float]) -> Sequence[Fault]:
    """`rounds` faults for this kind of database; `pause_s` bounds the time from one begin to the next."""
    return list(_faults(Random(f"plan {seed}"), rounds, KINDS[database], beats, pause_s))


def _faults(
    rng: Random, rounds: int, kinds: Sequence[Kind], beats: int, pause_s: tuple[float, float]
) -> Iterator[Fault]:
    at_s = 0.0
    free_at: dict[str, float] = {}
    for _ in range(rounds):
        at_s += rng.uniform(*pause_s)
        kind = rng.choices(kinds, [kind.weight for kind in kinds])[0]
        # A target recovers for a second before it is hit again. Beats have places of their own, see `Fault.beat`.
        at_s = max(at_s, free_at.get(kind.target, 0.0))
        lasts_s = rng.uniform(*kind.seconds)
        if kind.target != "beat":
            free_at[kind.target] = at_s + lasts_s + 1.0
        beat = rng.choice([WRITER, WRITER, *range(beats)])
        point = ""
        if kind.name == ARM:
            # Messages are passed by often: so deep in that a batch is in the middle.
            passing = rng.randrange(1, 400 if (name := rng.choice(POINTS)) == "sending" else 12)
            point = f"{name}:{passing}:{rng.choice(('SIGKILL', 'SIGSTOP'))}"
        yield Fault(round(at_s, 3), kind.name, kind.target, round(lasts_s, 3), beat, point)
