"""The laws that judge by the incidents of a run: somebody dispatches again, takeovers end, doubts have a cause."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise

from tests.chaos.evidence import NEVER_US, Breach, Entry, Evidence, Incident
from tests.chaos.plan import kind_of
from tests.chaos.recovery import dispatches, recoveries

SECOND = 1_000_000

TICK_S = 2.0
"""The ledger has the begin of the tick in which something happened; a tick may take this long beside other faults."""

SILENT_S = 45.0
"""Nobody may be silent for longer without a fault that goes on meanwhile; the bounds of all kinds are shorter."""

FELT_S = 2.0
"""An incident is felt that many seconds after its end: connections are made again, waits run out."""

TAKEOVERS_WITHOUT_DISPATCH = 3
"""Epochs without a dispatch that may follow each other by themselves; each incident may cause two more."""


def somebody_dispatches_after_each_fault(evidence: Evidence) -> Iterator[Breach]:
    """Within the bound of its kind, unless another fault came in between: then that one is judged."""
    for recovery in recoveries(evidence):
        incident, bound_s = recovery.incident, kind_of(recovery.incident.kind).bound_s
        if incident.ended_us + bound_s * SECOND > evidence.disabled_us:
            continue
        if recovery.alone and (recovery.seconds is None or recovery.seconds > bound_s):
            after = (
                "nothing was" if recovery.seconds is None else f"{recovery.seconds:.1f} s passed until something was"
            )
            yield Breach("silence", "-", f"{after} dispatched after {_told(incident)}; {bound_s:g} s are allowed")


def nobody_is_silent_without_a_fault(evidence: Evidence) -> Iterator[Breach]:
    seen = sorted(dispatch.seen_us for dispatch in dispatches(evidence))
    for before, after in pairwise(seen):
        silent_s = (after - before) / SECOND
        if silent_s > SILENT_S and silent_s - _covered_s(evidence.incidents, before, after) > SILENT_S:
            kinds = sorted({incident.kind for incident in _overlapping(evidence.incidents, before, after)})
            yield Breach("silence", "-", f"nothing arrived in {silent_s:.1f} s from {before} on; faults: {kinds}")


def takeovers_lead_to_dispatches(evidence: Evidence) -> Iterator[Breach]:
    """Epochs are not raised again and again while nothing is dispatched."""
    newest, since_us = 0, 0
    for entry in sorted((e for e in evidence.ledger if e.epoch is not None), key=lambda entry: entry.claimed_us):
        epoch = entry.epoch or 0
        if epoch > newest:
            yield from _without_dispatch(evidence, newest, epoch - 1, since_us, entry.claimed_us)
        newest, since_us = max(newest, epoch), entry.claimed_us
    yield from _without_dispatch(evidence, newest, max(evidence.epochs, default=0), since_us, NEVER_US)


def doubts_have_a_cause(evidence: Evidence) -> Iterator[Breach]:
    """Something ended a beat, or its answers, between the claim and the end of the doubt."""
    for entry in evidence.ledger:
        if entry.verdict == "in doubt" and not any(kind_of(each.kind).doubt for each in _of_doubt(evidence, entry)):
            kinds = sorted({incident.kind for incident in _of_doubt(evidence, entry)}) or "nothing"
            yield Breach(
                "doubt without a cause", entry.job, f"slot {entry.slot_us}; meanwhile: {kinds}: {entry.detail}"
            )


def _without_dispatch(evidence: Evidence, dispatched: int, last: int, since_us: int, until_us: int) -> Iterator[Breach]:
    skipped = last - dispatched
    allowed = TAKEOVERS_WITHOUT_DISPATCH + 2 * len(_overlapping(evidence.incidents, since_us, until_us))
    if skipped > allowed:
        text = f"{skipped} epochs after {dispatched} dispatched nothing, {allowed} are allowed; from {since_us} on"
        yield Breach("takeovers without a dispatch", "-", text)


def _of_doubt(evidence: Evidence, entry: Entry) -> Sequence[Incident]:
    settled_us = NEVER_US if entry.finished_us is None else entry.finished_us + round(TICK_S * SECOND)
    return _overlapping(evidence.incidents, entry.claimed_us, settled_us)


def _overlapping(incidents: Sequence[Incident], first_us: int, last_us: int) -> Sequence[Incident]:
    felt_us = round(FELT_S * SECOND)
    return [each for each in incidents if each.began_us <= last_us and each.ended_us + felt_us >= first_us]


def _covered_s(incidents: Sequence[Incident], first_us: int, last_us: int) -> float:
    """Seconds between two instants in which an incident went on."""
    covered_us, until_us = 0, first_us
    for incident in sorted(incidents, key=lambda each: each.began_us):
        began_us, ended_us = max(incident.began_us, until_us), min(incident.ended_us, last_us)
        if ended_us > began_us:
            covered_us, until_us = covered_us + ended_us - began_us, ended_us
    return covered_us / SECOND


def _told(incident: Incident) -> str:
    return f"{incident.kind!r} ({incident.target}) that ended at {incident.ended_us}"


LIVENESS: Sequence[Callable[[Evidence], Iterator[Breach]]] = (
    somebody_dispatches_after_each_fault,
    nobody_is_silent_without_a_fault,
    takeovers_lead_to_dispatches,
    doubts_have_a_cause,
)
