"""How long nobody sent when one writer followed another, and the figures of a run."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from tests.chaos.evidence import MACHINE, Evidence, Incident


@dataclass(frozen=True, slots=True)
class Takeover:
    """From the last message under one epoch to the first under a newer one. `causes`: what was going on meanwhile."""

    epoch: int
    seconds: float
    causes: tuple[str, ...]
    only_beats: bool


def takeovers(evidence: Evidence) -> list[Takeover]:
    """All of them, in order. What is sent again counts for nobody."""
    epochs = {entry.task_id: entry.epoch for entry in evidence.ledger}
    found: list[Takeover] = []
    newest, last_us = 0, 0
    seen: set[str] = set()
    for message in evidence.messages:
        epoch = epochs.get(message.task_id)
        if epoch is None or message.task_id in seen:
            continue
        seen.add(message.task_id)
        if epoch > newest:
            if newest:
                causes = _between(evidence.incidents, last_us, message.seen_us)
                only_beats = bool(causes) and all(cause.target.startswith("beat ") for cause in causes)
                names = tuple(sorted({cause.kind for cause in causes}))
                found.append(Takeover(epoch, (message.seen_us - last_us) / 1_000_000, names, only_beats))
            newest = epoch
        last_us = message.seen_us
    return found


def _between(incidents: Sequence[Incident], first_us: int, last_us: int) -> list[Incident]:
    # A fault is felt for a while after its end: connections are made anew, waits run out.
    return [each for each in incidents if each.began_us <= last_us and each.ended_us + 2_000_000 >= first_us]


def figures(evidence: Evidence) -> dict[str, int | float | str]:
    """What there is to tell of a run, beside its breaches."""
    lines = [entry for entry in evidence.ledger if not entry.job.startswith("_builtin.")]
    arrivals = Counter((message.job, message.slot_us) for message in evidence.messages)
    again = {key: count for key, count in arrivals.items() if count > 1}
    resend = {key for key in again if evidence.traits[key[0]].on_doubt == "resend"}
    silent = [e for e in lines if e.sent_us is not None and (e.job, e.slot_us) not in arrivals]
    doubts = [entry for entry in lines if entry.verdict == "in doubt"]
    changes = takeovers(evidence)
    clean = [change for change in changes if change.only_beats]
    worst = max(changes, key=lambda change: change.seconds, default=None)
    return {
        "faults": sum(incident.target != MACHINE for incident in evidence.incidents),
        "slots with a verdict": len(lines) + sum(entry.collapsed for entry in lines),
        "messages": len(evidence.messages),
        "sent twice under drop": len(again) - len(resend),
        "sent again under resend, same id": len(resend),
        "in doubt": len(doubts),
        "in doubt, but arrived": sum((entry.job, entry.slot_us) in arrivals for entry in doubts),
        "missed": sum(entry.verdict == "missed" for entry in lines),
        "skipped": sum(entry.verdict == "skipped" for entry in lines),
        "lost in silence": len(silent),
        "first message after the start, s": round(_first_s(evidence), 2),
        "epochs": max((entry.epoch or 0 for entry in lines), default=0),
        "takeovers": len(changes),
        "takeovers with faults of beats only": len(clean),
        "worst of those, s": round(max((change.seconds for change in clean), default=0.0), 2),
        "SIGTERM, worst end, s": round(max(evidence.ends_s, default=0.0), 2),
        "worst takeover, s": round(worst.seconds, 2) if worst else 0.0,
        "during": ", ".join(worst.causes) if worst else "",
    }


def _first_s(evidence: Evidence) -> float:
    first_us = evidence.messages[0].seen_us if evidence.messages else evidence.started_us
    return (first_us - evidence.started_us) / 1_000_000
