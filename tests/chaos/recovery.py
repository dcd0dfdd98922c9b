"""How soon somebody dispatched again after each fault."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from tests.chaos.evidence import MACHINE, NEVER_US, Evidence, Incident
from tests.chaos.plan import kind_of


@dataclass(frozen=True, slots=True)
class Dispatch:
    """A slot that was claimed then, and the first message of it."""

    claimed_us: int
    seen_us: int


@dataclass(frozen=True, slots=True)
class Recovery:
    """From the end of an incident to the first message of a slot that was claimed later.

    Attributes:
        seconds: None when nothing was dispatched any more.
        alone: no other incident began before that, or went on.
        silent_s: the longest time without a message while it went on, if nothing else went on; None otherwise.
    """

    incident: Incident
    seconds: float | None
    alone: bool
    silent_s: float | None


def dispatches(evidence: Evidence) -> list[Dispatch]:
    """All of them, in the order of their claims."""
    first_seen: dict[str, int] = {}
    for message in evidence.messages:
        first_seen.setdefault(message.task_id, message.seen_us)
    found = (Dispatch(e.claimed_us, first_seen[e.task_id]) for e in evidence.ledger if e.task_id in first_seen)
    return sorted(found, key=lambda dispatch: dispatch.claimed_us)


def recoveries(evidence: Evidence) -> list[Recovery]:
    """One for each incident, in the order in which they ended."""
    made = dispatches(evidence)
    claimed = [dispatch.claimed_us for dispatch in made]
    seen = sorted(dispatch.seen_us for dispatch in made)
    first_from = [NEVER_US] * (len(made) + 1)
    for place in range(len(made) - 1, -1, -1):
        first_from[place] = min(first_from[place + 1], made[place].seen_us)
    found = []
    for incident in sorted(evidence.incidents, key=lambda each: each.ended_us):
        first_us = first_from[bisect_left(claimed, incident.ended_us)]
        seconds = None if first_us == NEVER_US else (first_us - incident.ended_us) / 1_000_000
        judged_us = min(first_us, incident.ended_us + round(kind_of(incident.kind).bound_s * 1_000_000))
        others = [each for each in evidence.incidents if each is not incident]
        alone = not any(each.began_us <= judged_us and each.ended_us >= incident.ended_us for each in others)
        among = any(each.began_us <= incident.ended_us and each.ended_us >= incident.began_us for each in others)
        found.append(Recovery(incident, seconds, alone, None if among else _silent_s(incident, seen)))
    return found


def _silent_s(incident: Incident, seen: Sequence[int]) -> float:
    within = seen[bisect_left(seen, incident.began_us) : bisect_right(seen, incident.ended_us)]
    instants = [incident.began_us, *within, incident.ended_us]
    return max(after - before for before, after in pairwise(instants)) / 1_000_000


def recovery_table(*runs: Evidence) -> Sequence[str]:
    """Lines of a Markdown table: faults by kind with the worst recovery, alone and whatever else went on."""
    kinds: dict[str, list[Recovery]] = defaultdict(list)
    for recovery in (each for run in runs for each in recoveries(run)):
        if recovery.incident.target != MACHINE:
            kinds[_label(recovery.incident)].append(recovery)
    lines = [
        "| fault | times | worst recovery, s | of these alone | worst of those, s | longest silence meanwhile, s |",
        "|---|---|---|---|---|---|",
    ]
    for kind, found in sorted(kinds.items()):
        alone = [each for each in found if each.alone]
        silent = max((each.silent_s for each in found if each.silent_s is not None), default=None)
        meanwhile = "" if silent is None else f"{silent:.1f}"
        lines.append(f"| {kind} | {len(found)} | {_worst(found)} | {len(alone)} | {_worst(alone)} | {meanwhile} |")
    return lines


def _label(incident: Incident) -> str:
    """Without the fail point's number, and with what a fault on a link hit."""
    kind = incident.kind.partition(":")[0]
    return (
        f"{kind}, {'all beats' if 'all beats' in incident.target else 'one beat'}"
        if " of " in incident.target
        else kind
    )


def _worst(found: Sequence[Recovery]) -> str:
    if not found:
        return ""
    if any(each.seconds is None for each in found):
        return "never"
    return f"{max(each.seconds or 0.0 for each in found):.1f}"
