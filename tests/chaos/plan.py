"""Which faults come when: made from a seed alone, so that a run can be done again."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from random import Random

WRITER = -1
"""As `beat` of a fault: the one that has the lock at that moment."""


EVERY = -2
"""As `beat` of a fault on a link: the links of all beats."""


@dataclass(frozen=True, slots=True)
class Kind:
    """A kind of fault. Two faults on the same target never overlap; `seconds` bounds how long it lasts.

    Attributes:
        variants: ways to do it, see `faults.py`; one is chosen for each fault.
        link: it is done to the way from one beat or from all beats to the target, not to the target itself.
        doubt: it can end a beat, or its answers, between a claim and its mark, so that nobody can know whether the
            message was sent.
        bound_s: seconds after its end within which somebody dispatches again, on a slow machine too.
    """

    name: str
    target: str
    weight: int
    seconds: tuple[float, float] = (0.0, 0.0)
    variants: tuple[str, ...] = ("",)
    link: bool = False
    doubt: bool = True
    bound_s: float = 20.0


ARM = "arm beat"
"""Kill a beat; the next one in its place kills or freezes itself at a fail point."""

END_IN_BURST = "end beat in a burst"
"""SIGTERM to the writer while many slots are due at once; the variant is how many seconds after they became due."""

POINTS = ("claimed", "sending", "published", "marked")

DIRECTIONS = ("both", "both", "requests", "answers", "forget")
"""Variants of a link that hangs. `forget`: the connections that are open hang for ever, new ones work."""

ROUND_TRIPS_S = ("0.1", "0.3", "0.6")
"""Variants of a link that is slow: seconds for each round trip. A gate's timeout is 0.5 s at the TTL of these runs."""

BEATS = (
    Kind("kill beat", "beat", 12, (0.0, 3.0)),
    Kind("freeze beat", "beat", 12, (0.5, 5.0)),
    Kind("end beat", "beat", 6, (0.0, 2.0), doubt=False),
    Kind(END_IN_BURST, "beat", 6, (0.0, 2.0), ("0.01", "0.03", "0.06", "0.1", "0.2"), doubt=False),
    Kind(ARM, "beat", 10, (0.0, 1.0)),
)
GATE = (
    Kind("flush the gate", "gate", 3),
    Kind("delete the lock", "gate", 3),
    Kind("another takes the lock", "gate", 3),
    Kind("restart the gate", "gate", 4, (0.0, 3.0)),
    Kind("freeze the gate", "gate", 3, (0.5, 4.0)),
    Kind("hang the gate", "gate", 4, (2.0, 6.0), DIRECTIONS, link=True),
    Kind("slow down the gate", "gate", 3, (2.0, 6.0), ROUND_TRIPS_S, link=True),
    Kind("fill the gate", "gate", 3, (2.0, 6.0)),
    Kind("make the gate read-only", "gate", 3, (2.0, 6.0)),
)
BROKER = (
    Kind("restart the broker", "broker", 4, (0.0, 2.0), bound_s=30.0),
    Kind("kill the broker", "broker", 4, (0.0, 2.0), bound_s=30.0),
    Kind("freeze the broker", "broker", 3, (0.5, 4.0), bound_s=30.0),
    Kind("hang the broker", "broker", 4, (2.0, 8.0), DIRECTIONS, link=True, bound_s=30.0),
    Kind("slow down the broker", "broker", 2, (2.0, 6.0), ROUND_TRIPS_S, link=True, bound_s=30.0),
    Kind("fill the broker", "broker", 3, (2.0, 6.0), doubt=False, bound_s=30.0),
    Kind("make the broker read-only", "broker", 3, (2.0, 6.0), doubt=False, bound_s=30.0),
    Kind("restart the broker empty", "broker", 3, (0.0, 2.0), bound_s=30.0),
    Kind("flush the broker", "broker", 3, doubt=False, bound_s=30.0),
)
SERVER = (
    Kind("restart the database", "database", 3, (0.0, 3.0), bound_s=30.0),
    Kind("kill the database", "database", 3, (0.0, 3.0), bound_s=30.0),
    Kind("freeze the database", "database", 3, (0.5, 4.0), bound_s=30.0),
    Kind("lock the leader row", "database", 2, (0.5, 4.0), bound_s=30.0),
    Kind("lock the states", "database", 2, (0.5, 4.0), bound_s=30.0),
    Kind("lock the jobs", "database", 2, (0.5, 4.0), bound_s=30.0),
    Kind("hang the database", "database", 5, (5.0, 15.0), DIRECTIONS, link=True, bound_s=30.0),
    Kind("slow down the database", "database", 4, (3.0, 8.0), (*ROUND_TRIPS_S, "1.0"), link=True, bound_s=30.0),
    Kind("make the database read-only", "database", 4, (2.0, 8.0), bound_s=30.0),
    Kind("end the sessions", "database", 4, bound_s=30.0),
)
FILE = (Kind("lock the file", "database", 14, (0.5, 7.0), bound_s=30.0),)

KINDS = {
    "postgresql": BEATS + GATE + BROKER + SERVER,
    "mariadb": BEATS + GATE + BROKER + SERVER,
    "sqlite": BEATS + GATE + BROKER + FILE,
}

ANY = {kind.name: kind for kinds in KINDS.values() for kind in kinds}
"""Every kind by its name."""

ARMED = next(kind for kind in BEATS if kind.name == ARM)


def kind_of(incident: str) -> Kind:
    """The kind of an incident by its name; beats that end or freeze themselves were armed."""
    return ANY.get(incident, ARMED)


@dataclass(frozen=True, slots=True)
class Fault:
    """At `at_s` seconds of the run, for `lasts_s`.

    Attributes:
        beat: which one, or WRITER; where that one is busy, the next. EVERY: of a fault on a link, all of them.
        variant: how it is done; of ARM, the fail point.
    """

    at_s: float
    kind: str
    target: str
    lasts_s: float
    beat: int = WRITER
    variant: str = ""


def make_plan(
    seed: int, rounds: int, database: str, beats: int, pause_s: tuple[float, float], only: Sequence[str] = ()
) -> Sequence[Fault]:
    """`rounds` faults for this kind of database, of the kinds in `only` if it names any.

    `pause_s` bounds the time from one begin to the next. Raises ValueError for a kind that this database has not.
    """
    kinds = [kind for kind in KINDS[database] if not only or kind.name in only]
    unknown = set(only) - {kind.name for kind in kinds}
    if unknown:
        known = ", ".join(kind.name for kind in KINDS[database])
        raise ValueError(f"no such fault on {database}: {', '.join(sorted(unknown))}; there are {known}")
    return list(_faults(Random(f"plan {seed}"), rounds, kinds, beats, pause_s))


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
        beat = rng.choice([WRITER, EVERY] if kind.link else [WRITER, WRITER, *range(beats)])
        if kind.name == END_IN_BURST:
            beat = WRITER
        variant = _fail_point(rng) if kind.name == ARM else rng.choice(kind.variants)
        yield Fault(round(at_s, 3), kind.name, kind.target, round(lasts_s, 3), beat, variant)


def _fail_point(rng: Random) -> str:
    name = rng.choice(POINTS)
    # Messages are passed by often: so deep in that a batch is in the middle.
    passing = rng.randrange(1, 400 if name == "sending" else 12)
    return f"{name}:{passing}:{rng.choice(('SIGKILL', 'SIGSTOP'))}"
