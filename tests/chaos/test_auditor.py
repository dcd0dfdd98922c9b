"""The auditor finds each kind of breach, and nothing in a run where all was kept."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from celery_qbeat.core.planning import OVERTAKEN_DETAIL
from tests.chaos.auditor import audit
from tests.chaos.evidence import Breach, Definition, Entry, Evidence, Incident, Message, Traits
from tests.chaos.takeovers import figures, takeovers

SECOND = 1_000_000
START = 1_800_000_000 * SECOND
END = START + 100 * SECOND
INTERVAL = json.dumps(["interval", "10", "UTC", "", "", "", None, None, SECOND])
DAILY = json.dumps(["daily", "..."])


def line(number: int, job: str, slot_s: float, verdict: str = "sent", *, epoch: int = 1, **more: object) -> Entry:
    slot_us = START + round(slot_s * SECOND)
    sent = verdict == "sent"
    entry = Entry(
        id=number,
        job=job,
        slot_us=slot_us,
        task_id=f"{job}@{slot_us}",
        batch_id=epoch << 20 | number if verdict in ("sent", "claimed", "in doubt") else None,
        verdict=verdict,
        claimed_us=slot_us,
        sent_us=slot_us if sent else None,
        finished_us=None if verdict in ("sent", "claimed") else slot_us + SECOND,
        collapsed=0,
        detail="" if verdict in ("sent", "claimed") else "a reason",
        by_hand=False,
    )
    return replace(entry, **more)  # type: ignore[arg-type]


def arrived(entries: Sequence[Entry]) -> list[Message]:
    return [Message(e.job, e.slot_us, e.task_id, f"tag {e.id}", e.slot_us) for e in entries if e.verdict == "sent"]


def safety(evidence: Evidence) -> list[Breach]:
    return audit(evidence, liveness=False)


def good() -> Evidence:
    """An interval of ten seconds under each policy, and a list of instants of which a later one counts an older one."""
    instants = tuple(START + s * SECOND for s in (5, 15, 25, 35))
    ledger = [
        *(line(n, "drop", 10 * n) for n in range(10)),
        *(line(20 + n, "resend", 10 * n, epoch=2) for n in range(10)),
        line(40, "daily", 5, epoch=2),
        line(41, "daily", 25, epoch=2, collapsed=1),
        line(42, "daily", 35, "missed", claimed_us=END, detail=f"65.0 s late: {OVERTAKEN_DETAIL}"),
    ]
    # The last slot of an interval is due when its row is disabled.
    ledger += [
        line(43 + n, job, 100, "missed", detail=f"0.0 s late: {OVERTAKEN_DETAIL}")
        for n, job in enumerate(("drop", "resend"))
    ]
    history = {job: [Definition(START, INTERVAL), Definition(END, None)] for job in ("drop", "resend")}
    return Evidence(
        traits={
            "drop": Traits("interval"),
            "resend": Traits("interval", on_doubt="resend"),
            "daily": Traits("daily", instants=instants),
        },
        messages=arrived(ledger),
        ledger=ledger,
        history={**history, "daily": [Definition(START, DAILY), Definition(END, None)]},
        first_seen_us=dict.fromkeys(("drop", "resend", "daily"), START),
        epochs=(1, 1, 2),
    )


def test_nothing_is_found_where_all_was_kept() -> None:
    assert audit(good()) == []


def without_message(evidence: Evidence, job: str) -> Evidence:
    gone = next(message for message in evidence.messages if message.job == job)
    return replace(evidence, messages=[message for message in evidence.messages if message is not gone])


def again(evidence: Evidence, job: str, **changes: str) -> Evidence:
    first = next(message for message in evidence.messages if message.job == job)
    return replace(evidence, messages=[*evidence.messages, replace(first, tag="another", **changes)])


def with_line(evidence: Evidence, number: int, **changes: object) -> Evidence:
    ledger = [replace(e, **changes) if e.id == number else e for e in evidence.ledger]  # type: ignore[arg-type]
    return replace(evidence, ledger=ledger)


def without_line(evidence: Evidence, number: int) -> Evidence:
    gone = next(entry for entry in evidence.ledger if entry.id == number)
    messages = [message for message in evidence.messages if message.task_id != gone.task_id]
    return replace(evidence, ledger=[e for e in evidence.ledger if e is not gone], messages=messages)


def moved(evidence: Evidence, number: int, seconds: float) -> Evidence:
    entry = next(entry for entry in evidence.ledger if entry.id == number)
    slot = entry.slot_us + round(seconds * SECOND)
    messages = [replace(m, slot_us=slot) if m.task_id == entry.task_id else m for m in evidence.messages]
    return replace(with_line(evidence, number, slot_us=slot), messages=messages)


BREACHES: dict[str, tuple[Callable[[Evidence], Evidence], set[str]]] = {
    "a slot of drop arrives twice": (lambda e: again(e, "drop"), {"sent twice"}),
    "a repeat has another task id": (lambda e: again(e, "resend", task_id="x"), {"another task id"}),
    "a message has no line": (
        lambda e: replace(e, messages=[*e.messages, Message("daily", START, "x", "another", START)]),
        {"message without a line"},
    ),
    "a skipped slot arrives": (
        lambda e: with_line(e, 40, verdict="skipped", sent_us=None, detail="busy"),
        {"sent after all"},
    ),
    "what is called sent has not arrived": (lambda e: without_message(e, "drop"), {"lost in silence"}),
    "what ended has not arrived": (
        lambda e: with_line(without_message(e, "drop"), 0, verdict="lost", sent_us=None, detail="lease"),
        {"lost in silence"},
    ),
    "a doubt under resend": (
        lambda e: with_line(
            without_message(e, "resend"), 20, verdict="in doubt", sent_us=None, finished_us=START, detail="x"
        ),
        {"missing under resend"},
    ),
    "no reason for a doubt": (
        lambda e: with_line(without_message(e, "drop"), 0, verdict="in doubt", sent_us=None),
        {"no reason"},
    ),
    "a slot has two lines": (
        lambda e: replace(e, ledger=[*e.ledger, replace(e.ledger[0], id=99, by_hand=True, batch_id=None)]),
        {"two lines"},
    ),
    "a slot is still claimed": (lambda e: with_line(e, 29, verdict="claimed"), {"open"}),
    "a batch is open": (lambda e: replace(e, open_batches=1), {"open"}),
    "an old epoch claims after a new one": (lambda e: with_line(e, 29, batch_id=1 << 20), {"epoch went back"}),
    "the leader's epoch goes back": (lambda e: replace(e, epochs=(2, 1)), {"epoch went back"}),
    "a beat ended": (lambda e: replace(e, complaints=("beat-1 ended by itself",)), {"beat"}),
    "an interval skips a slot": (lambda e: without_line(e, 4), {"slots"}),
    "an interval runs too soon": (lambda e: moved(e, 5, -1), {"slots"}),
    "an interval's first slot is not at once": (lambda e: without_line(e, 0), {"slots"}),
    "the last slot has no verdict": (lambda e: without_line(e, 43), {"slots"}),
    "an instant has no verdict": (lambda e: with_line(e, 41, collapsed=0), {"slots"}),
    "an instant is counted twice": (lambda e: with_line(e, 41, collapsed=2), {"slots"}),
    "the last instant has no verdict": (lambda e: without_line(e, 42), {"slots"}),
    "a slot that nobody asked for": (lambda e: moved(e, 40, 1), {"slots"}),
    "a job without a definition ran": (lambda e: replace(e, history={**e.history, "daily": []}), {"no definition"}),
    "a disabled job runs": (lambda e: replace(e, ledger=[*e.ledger, line(50, "daily", 120, "missed")]), {"slots"}),
}


@pytest.mark.parametrize("name", BREACHES)
def test_it_finds(name: str) -> None:
    spoil, laws = BREACHES[name]
    assert {breach.law for breach in safety(spoil(good()))} == laws


def test_a_repeat_under_resend_is_no_breach() -> None:
    assert safety(again(good(), "resend")) == []


def test_a_doubt_under_resend_is_none_where_the_row_was_disabled_or_its_grace_over() -> None:
    lost = without_message(good(), "resend")
    disabled = with_line(lost, 20, verdict="in doubt", sent_us=None, finished_us=END, detail="x")
    assert safety(disabled) == []
    late = with_line(lost, 20, verdict="in doubt", sent_us=None, finished_us=START, detail="its grace was over")
    assert safety(late) == []


def test_takeovers_are_measured_from_the_last_message_of_the_old_to_the_first_of_the_new() -> None:
    ledger = [line(1, "drop", 0), line(2, "drop", 10), line(3, "drop", 13.5, epoch=2), line(4, "drop", 20, epoch=2)]
    killed = Incident("kill beat", "beat 0", START + 11 * SECOND, START + 12 * SECOND)
    evidence = replace(good(), ledger=ledger, messages=arrived(ledger), incidents=[killed])
    (change,) = takeovers(evidence)
    assert (change.epoch, change.seconds, change.causes, change.only_beats) == (2, 3.5, ("kill beat",), True)
    assert figures(evidence)["worst takeover, s"] == 3.5


def test_after_a_verdict_for_the_rest_of_a_definition_the_plan_begins_anew() -> None:
    """The beat that gave it died before it stored the new plan; the next one took the row in four seconds later."""
    overtaken = f"4.0 s late: {OVERTAKEN_DETAIL}"
    died = with_line(
        good(), 4, verdict="missed", sent_us=None, batch_id=None, claimed_us=START + 44 * SECOND, detail=overtaken
    )
    died = replace(died, messages=[m for m in died.messages if m.task_id != f"drop@{START + 40 * SECOND}"])
    later = [e for e in died.ledger if not (e.job == "drop" and e.slot_us > START + 44 * SECOND)]
    anew = [line(60 + n, "drop", 58 + 10 * n, epoch=2) for n in range(5)]
    assert safety(replace(died, ledger=[*later, *anew], messages=arrived([*later, *anew]))) == []
    gap = [*later, *anew[:2], *anew[3:]]
    assert {breach.law for breach in safety(replace(died, ledger=gap, messages=arrived(gap)))} == {"slots"}


def test_a_row_that_was_disabled_when_it_was_first_seen_has_its_first_slot_missed() -> None:
    overtaken = f"0.0 s late: {OVERTAKEN_DETAIL}"
    first = line(70, "brief", 0, "missed", claimed_us=START, detail=overtaken)
    evidence = good()
    brief = replace(
        evidence,
        traits={**evidence.traits, "brief": Traits("interval")},
        history={**evidence.history, "brief": [Definition(START, INTERVAL), Definition(START, None)]},
        first_seen_us={**evidence.first_seen_us, "brief": START},
        ledger=[*evidence.ledger, first],
    )
    assert safety(brief) == []
    assert {breach.law for breach in safety(replace(brief, ledger=evidence.ledger))} == {"slots"}


def test_a_definition_that_was_stored_twice_counts_once() -> None:
    evidence = good()
    twice = [evidence.history["drop"][0], *evidence.history["drop"]]
    assert audit(replace(evidence, history={**evidence.history, "drop": twice})) == []


def test_evidence_can_be_judged_again(tmp_path: Path) -> None:
    evidence = replace(good(), incidents=[Incident("kill beat", "beat 0", START, END)])
    evidence.save(tmp_path / "evidence.json")
    again_ = Evidence.load(tmp_path / "evidence.json")
    assert safety(again_) == []
    assert figures(again_) == figures(evidence)
