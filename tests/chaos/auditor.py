"""The laws. Each looks at all the evidence of a run and yields what breaks it, with enough to find out why."""

from __future__ import annotations

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby

from celery_qbeat.core.planning import OVERTAKEN_DETAIL
from tests.chaos.evidence import NEVER_US, Breach, Definition, Entry, Evidence, Message, Traits
from tests.chaos.liveness import LIVENESS

MINUTE_US = 60_000_000
WITHOUT_MESSAGE = frozenset({"missed", "skipped", "refused"})
BUILT_IN = "_builtin."


@dataclass(frozen=True, slots=True)
class Segment:
    """A job from one definition to the next, and its lines of that time by slot."""

    since_us: int
    until_us: int
    definition: Definition
    entries: Sequence[Entry]
    first: bool


def audit(evidence: Evidence, *, liveness: bool = True) -> list[Breach]:
    """All breaches of all laws. `liveness=False`: without those that judge by the incidents of a run."""
    laws = [*LIVENESS, *SAFETY] if liveness else SAFETY
    return [breach for law in laws for breach in law(evidence)]


# ---------------------------------------------------------------- messages


def sent_at_most_once_under_drop(evidence: Evidence) -> Iterator[Breach]:
    for (job, slot), messages in _by_slot(evidence.messages).items():
        if len(messages) > 1 and evidence.traits[job].on_doubt == "drop":
            times = ", ".join(str(message.seen_us) for message in messages)
            yield Breach("sent twice", job, f"slot {slot} arrived {len(messages)} times: {times}")


def every_message_has_its_line(evidence: Evidence) -> Iterator[Breach]:
    ledger = {(entry.job, entry.slot_us): entry for entry in evidence.ledger}
    for message in evidence.messages:
        entry = ledger.get((message.job, message.slot_us))
        if entry is None:
            yield Breach("message without a line", message.job, f"slot {message.slot_us}, seen {message.seen_us}")
        elif entry.task_id != message.task_id:
            yield Breach(
                "another task id", message.job, f"slot {message.slot_us} as {message.task_id}, not {entry.task_id}"
            )
        elif entry.verdict in WITHOUT_MESSAGE:
            yield Breach("sent after all", message.job, f"slot {message.slot_us} is {entry.verdict}")


def nothing_is_lost_in_silence(evidence: Evidence) -> Iterator[Breach]:
    """What the broker has not got was not called sent, and the ledger says what became of it."""
    arrived = _by_slot(evidence.messages)
    for entry in _sendable(evidence):
        if (entry.job, entry.slot_us) in arrived:
            continue
        if entry.sent_us is not None:
            yield Breach("lost in silence", entry.job, f"slot {entry.slot_us} is called sent: {entry}")
        elif entry.verdict != "in doubt":
            yield Breach("lost in silence", entry.job, f"slot {entry.slot_us} is {entry.verdict}: {entry}")


def nothing_is_missing_under_resend(evidence: Evidence) -> Iterator[Breach]:
    """But where nobody wanted it any more: its row was disabled or gone when it was settled, or its grace was over."""
    arrived = _by_slot(evidence.messages)
    for entry in _sendable(evidence):
        if evidence.traits[entry.job].on_doubt != "resend" or (entry.job, entry.slot_us) in arrived:
            continue
        settled = entry.finished_us if entry.finished_us is not None else NEVER_US
        stopped = _stopped(evidence.history.get(entry.job, ()), settled)
        if entry.verdict != "in doubt" or not (stopped or "grace was over" in entry.detail):
            yield Breach("missing under resend", entry.job, f"slot {entry.slot_us}: {entry}")


def reasons_are_given(evidence: Evidence) -> Iterator[Breach]:
    for entry in evidence.ledger:
        if entry.verdict in WITHOUT_MESSAGE | {"in doubt", "lost"} and not entry.detail:
            yield Breach("no reason", entry.job, f"slot {entry.slot_us} is {entry.verdict}")


# ---------------------------------------------------------------- ledger


def one_line_a_slot(evidence: Evidence) -> Iterator[Breach]:
    seen: set[tuple[str, int]] = set()
    for entry in evidence.ledger:
        if (entry.job, entry.slot_us) in seen:
            yield Breach("two lines", entry.job, f"slot {entry.slot_us}")
        seen.add((entry.job, entry.slot_us))


def nothing_is_left_open(evidence: Evidence) -> Iterator[Breach]:
    for entry in evidence.ledger:
        if entry.verdict == "claimed":
            yield Breach("open", entry.job, f"slot {entry.slot_us} is still claimed")
    if evidence.open_batches:
        yield Breach("open", "-", f"{evidence.open_batches} batches")


def epochs_only_grow(evidence: Evidence) -> Iterator[Breach]:
    """In the order in which claims were made, and as anybody could read them."""
    newest = 0
    for entry in evidence.ledger:
        epoch = entry.epoch
        if epoch is None:
            continue
        if epoch < newest:
            yield Breach("epoch went back", entry.job, f"line {entry.id} was claimed under {epoch} after {newest}")
        newest = max(newest, epoch)
    for before, after in zip(evidence.epochs, evidence.epochs[1:], strict=False):
        if after < before:
            yield Breach("epoch went back", "-", f"{before}, then {after}")


def beats_live(evidence: Evidence) -> Iterator[Breach]:
    for complaint in evidence.complaints:
        yield Breach("beat", "-", complaint)


# ---------------------------------------------------------------- slots


def every_due_slot_has_one_verdict(evidence: Evidence) -> Iterator[Breach]:
    lines: dict[str, list[Entry]] = defaultdict(list)
    for entry in evidence.ledger:
        if not entry.by_hand:
            lines[entry.job].append(entry)
    for job, traits in evidence.traits.items():
        entries = sorted(lines.get(job, ()), key=lambda entry: entry.slot_us)
        definitions = evidence.history.get(job, ())
        if entries and not definitions:
            yield Breach("no definition", job, f"{len(entries)} lines")
        check = _relative if traits.kind == "interval" else _absolute
        for segment in _segments(job, definitions, entries, evidence.first_seen_us):
            for text in check(segment, traits):
                yield Breach("slots", job, f"{text}; defined {segment.since_us}..{segment.until_us}")


def _segments(
    job: str, definitions: Sequence[Definition], entries: Sequence[Entry], first_seen: Mapping[str, int]
) -> Iterator[Segment]:
    # A plan that was stored, but whose answer was lost, is stored again with the same values.
    definitions = [each for each, _ in groupby(definitions)]
    for number, definition in enumerate(definitions):
        until = definitions[number + 1].since_us if number + 1 < len(definitions) else NEVER_US
        since = definition.since_us if number else min(definition.since_us, first_seen.get(job, NEVER_US))
        own = [entry for entry in entries if definition.since_us <= entry.claimed_us < until or _ends(entry, until)]
        # What ended the definition before belongs to that one; one that lasted no time may have had its first slot.
        own = [e for e in own if not _ends(e, since) or (since == until and e.slot_us >= since)]
        if definition.spec is not None:
            yield Segment(since, until, definition, own, first=number == 0)
        elif own:
            yield Segment(since, until, definition, own, first=False)


def _ends(entry: Entry, instant_us: int) -> bool:
    """Whether this is the last line of a definition that was replaced then."""
    return entry.claimed_us == instant_us and _stands_for_the_rest(entry)


def _stands_for_the_rest(entry: Entry) -> bool:
    """Whether it is the verdict on all slots of a definition from its own on, given because another one came."""
    return entry.verdict == "missed" and OVERTAKEN_DETAIL in entry.detail


def _relative(segment: Segment, _traits: Traits) -> Iterator[str]:
    """Each slot follows from when the one before was decided."""
    if segment.definition.spec is None:
        yield f"decided while it was not to run: {segment.entries[0]}"
        return
    period = segment.definition.period_us
    earliest = segment.since_us if segment.first else segment.since_us + 1
    latest = segment.since_us if segment.first else segment.since_us + period
    for entry in segment.entries:
        if not earliest <= entry.slot_us <= latest:
            yield f"slot {entry.slot_us} where {earliest}..{latest} was planned"
        if entry.collapsed:
            yield f"slot {entry.slot_us} stands for {entry.collapsed} others"
        earliest = latest = entry.claimed_us + period
        if _stands_for_the_rest(entry):
            # Planned anew from when the next beat took it in; where that was the one that wrote this, the segment ends.
            earliest, latest = entry.claimed_us + 1, NEVER_US
    if latest <= segment.until_us != NEVER_US:
        yield f"slot {latest} was due and has no verdict"
    if segment.until_us == NEVER_US:
        yield "it still runs"


def _absolute(segment: Segment, traits: Traits) -> Iterator[str]:
    """Each slot has a line of its own, or a later line counts it, or the last one stands for all that were left."""
    if segment.definition.spec is None:
        yield f"decided while it was not to run: {segment.entries[0]}"
        return
    if segment.until_us == NEVER_US:
        yield "it still runs"
        return
    slots = _instants(traits, segment)
    done, replanned = 0, False
    for entry in segment.entries:
        place = bisect_right(slots, entry.slot_us)
        if not place or slots[place - 1] != entry.slot_us:
            yield f"{entry.slot_us} is no slot: {entry}"
            continue
        between = place - 1 - done
        if between != entry.collapsed and not (replanned and between > entry.collapsed):
            yield f"{between} slots before {entry.slot_us}, which stands for {entry.collapsed}: {entry}"
        replanned = _stands_for_the_rest(entry)
        # When it is planned anew, by the next beat that takes it in, what passed until then is no slot any more.
        done = bisect_right(slots, entry.claimed_us) if replanned else place
    if replanned:
        return
    if done < len(slots):
        yield f"{len(slots) - done} slots from {slots[done]} on were due and have no verdict"


def _instants(traits: Traits, segment: Segment) -> list[int]:
    """All slots of the segment, ascending."""
    if traits.kind == "once" and segment.first and segment.entries:
        # One that was over when the row was first seen may have been decided all the same.
        return list(traits.instants)
    if traits.instants:
        return [slot for slot in traits.instants if segment.since_us < slot <= segment.until_us]
    # Minutes; a new `every` job takes the current one, and one that begins on the minute takes that.
    takes_current = traits.kind == "every" and segment.first
    start = segment.since_us // MINUTE_US * MINUTE_US + (0 if takes_current else MINUTE_US)
    return list(range(start, segment.until_us + 1, MINUTE_US))


# ---------------------------------------------------------------- helpers


def _stopped(definitions: Sequence[Definition], instant_us: int) -> bool:
    """Whether the job did not run then; it may have been enabled at the same instant, after what happened then."""
    before = [definition for definition in definitions if definition.since_us < instant_us]
    at = [definition for definition in definitions if definition.since_us == instant_us]
    return any(definition.spec is None for definition in [*before[-1:], *at])


def _by_slot(messages: Sequence[Message]) -> Mapping[tuple[str, int], Sequence[Message]]:
    found: dict[tuple[str, int], list[Message]] = defaultdict(list)
    for message in messages:
        found[message.job, message.slot_us].append(message)
    return found


def _sendable(evidence: Evidence) -> Iterator[Entry]:
    """Lines of slots that were to be sent, but for the chores, which run inside the beat."""
    for entry in evidence.ledger:
        if entry.verdict not in WITHOUT_MESSAGE and not entry.job.startswith(BUILT_IN):
            yield entry


SAFETY: Sequence[Callable[[Evidence], Iterator[Breach]]] = (
    sent_at_most_once_under_drop,
    every_message_has_its_line,
    nothing_is_lost_in_silence,
    nothing_is_missing_under_resend,
    reasons_are_given,
    one_line_a_slot,
    nothing_is_left_open,
    epochs_only_grow,
    beats_live,
    every_due_slot_has_one_verdict,
)
