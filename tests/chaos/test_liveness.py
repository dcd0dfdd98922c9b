"""The laws that judge by incidents find each kind of breach, and nothing in a run where all was kept."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from tests.chaos.auditor import audit
from tests.chaos.evidence import Entry, Evidence, Incident, Traits
from tests.chaos.recovery import recoveries, recovery_table
from tests.chaos.test_auditor import SECOND, START, arrived, line


def run(ledger: Sequence[Entry], *incidents: Incident, epochs: Sequence[int] = ()) -> Evidence:
    """A run of rows that nobody defined, so that only the laws of liveness have something to judge."""
    return Evidence({"drop": Traits("interval")}, arrived(ledger), ledger, {}, incidents=incidents, epochs=epochs)


def incident(kind: str, began_s: float, ended_s: float, target: str = "beat 0") -> Incident:
    return Incident(kind, target, START + round(began_s * SECOND), START + round(ended_s * SECOND))


def seconds(first: int, last: int, **more: object) -> list[Entry]:
    return [line(number, "drop", number, **more) for number in range(first, last)]  # type: ignore[arg-type]


def broken(evidence: Evidence) -> set[str]:
    of_rows = {"no definition", "slots"}
    return {breach.law for breach in audit(evidence)} - of_rows


def test_a_recovery_within_its_bound_is_no_breach() -> None:
    evidence = run([*seconds(0, 10), *seconds(25, 40)], incident("kill beat", 10, 12))
    (recovery,) = recoveries(evidence)
    assert (recovery.seconds, recovery.alone) == (13.0, True)
    assert broken(evidence) == set()


def test_silence_after_a_fault_is_found() -> None:
    late = run([*seconds(0, 10), *seconds(40, 50)], incident("kill beat", 10, 12))
    never = run(seconds(0, 10), incident("kill beat", 10, 12))
    assert broken(late) == broken(never) == {"silence"}


def test_of_two_faults_in_a_row_the_last_one_is_judged() -> None:
    faults = incident("kill beat", 10, 12), incident("hang the database", 20, 35, "database of all beats")
    evidence = run([*seconds(0, 10), *seconds(60, 70)], *faults)
    assert [recovery.alone for recovery in recoveries(evidence)] == [False, True]
    assert broken(evidence) == set()
    assert broken(run([*seconds(0, 10), *seconds(70, 80)], *faults)) == {"silence"}


def test_silence_without_a_fault_is_found() -> None:
    assert broken(run([*seconds(0, 10), *seconds(60, 70)])) == {"silence"}


def test_a_message_that_was_held_back_is_no_dispatch() -> None:
    held = [line(10, "drop", 10)]
    evidence = run([*seconds(0, 10), *held, *seconds(45, 50)], incident("hang the broker", 9, 12, "broker of beat 0"))
    late = [replace(m, seen_us=START + 13 * SECOND) if m.tag == "tag 10" else m for m in evidence.messages]
    (recovery,) = recoveries(replace(evidence, messages=late))
    assert recovery.seconds == 33.0


def test_epochs_without_a_dispatch_are_found() -> None:
    looping = [*seconds(0, 10), *seconds(10, 20, epoch=12)]
    assert broken(run(looping)) == {"takeovers without a dispatch"}
    assert broken(run(seconds(0, 10), epochs=(1, 2, 12))) == {"takeovers without a dispatch"}
    kills = [incident("kill beat", 10, 10 + number / 10) for number in range(4)]
    assert broken(run(looping, *kills)) == set()


def test_a_doubt_that_nothing_explains_is_found() -> None:
    doubt = line(5, "drop", 5, "in doubt")
    evidence = run([*seconds(0, 5), doubt, *seconds(6, 10)])
    assert broken(evidence) == {"doubt without a cause"}
    ended = replace(evidence, incidents=[incident("end beat in a burst", 5, 6)])
    assert broken(ended) == {"doubt without a cause"}
    for began in (5, 7):
        killed = replace(evidence, incidents=[incident("kill beat", began, 7.5)])
        assert broken(killed) == set()
    later = replace(evidence, incidents=[incident("kill beat", 8.5, 9)])
    assert broken(later) == {"doubt without a cause"}


def test_the_table_has_the_worst_of_each_kind() -> None:
    faults = (
        incident("kill beat", 3, 4),
        incident("kill beat", 20, 21),
        incident("hang the gate", 40, 41, "gate of beat 1"),
        incident("dies at claimed:3:SIGKILL", 41, 42),
    )
    evidence = run([*seconds(0, 10), *seconds(25, 40), *seconds(45, 50)], *faults)
    assert list(recovery_table(evidence))[2:] == [
        "| dies at claimed | 1 | 3.0 | 1 | 3.0 |  |",
        "| hang the gate, one beat | 1 | 4.0 | 0 |  |  |",
        "| kill beat | 2 | 4.0 | 2 | 4.0 | 1.0 |",
    ]
