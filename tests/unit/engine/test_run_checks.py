"""Which runs in flight are asked about, when one of them is lost, and what is said of a job that waits."""

from __future__ import annotations

import logging
from collections.abc import Collection
from dataclasses import dataclass, field

import pytest

from celery_qbeat.core.jobs import Verdict
from celery_qbeat.core.worker_answers import Answers, Holder, QueueSeen, WorkerSeen
from celery_qbeat.engine import run_checks
from tests.unit.engine.rig import HOUR, MINUTE, Rig

DAY_S = 86_400.0


@dataclass
class Fleet:
    """Workers and one queue that answer as a test wants. `up`: each worker's uptime in seconds."""

    up: dict[str, float] = field(default_factory=lambda: {"old": DAY_S})
    holder: str = ""
    queue: QueueSeen = field(default_factory=lambda: QueueSeen(waiting=0, searched=True))
    listeners: int | None = None
    goodbyes: dict[str, float] = field(default_factory=dict)
    listening_s: float = DAY_S

    def __call__(self, asked: Collection[str]) -> Answers:
        return Answers(
            holders={task_id: Holder(self.holder, "active") for task_id in asked if self.holder},
            workers={name: WorkerSeen(frozenset({"q"}), up) for name, up in self.up.items()},
            queues={"q": self.queue},
            queue_of=dict.fromkeys(asked, "q"),
            listeners=len(self.up) if self.listeners is None else self.listeners,
            goodbyes=self.goodbyes,
            listening_s=self.listening_s,
        )


def blocked(fleet: Fleet, kind: str = "every", schedule: str = "1m", **columns: object) -> Rig:
    """A job whose first run is on the worker `old`, asked about once."""
    rig = Rig()
    rig.landings.reply = fleet
    rig.insert("j", kind, schedule, overlap="skip", **columns)
    rig.tick()
    fleet.holder = "old"
    rig.run(63)
    assert len(rig.landings.asked) == 1
    fleet.holder = ""
    return rig


def test_a_run_whose_worker_is_gone_is_lost_long_before_its_lease_ends(caplog: pytest.LogCaptureFixture) -> None:
    fleet = Fleet()
    rig = blocked(fleet)
    fleet.up = {"new": 1.0}
    rig.run(60)
    assert rig.verdicts() == ["lost", "skipped", "sent"]
    assert rig.store.ledger[0].detail == "no worker has it and no queue holds it: its worker is gone"
    assert "its worker is gone" in caplog.text


def test_an_interval_job_runs_at_once_when_its_run_is_lost() -> None:
    fleet = Fleet()
    rig = blocked(fleet, "interval", "60")
    fleet.up = {"new": 1.0}
    rig.run(50)
    assert rig.verdicts() == ["lost", "sent"]


CASES = {
    "the worker still has it": Fleet(holder="old"),
    "the same process says that it has it no more": Fleet(),
    "a worker is silent": Fleet(up={"new": 1.0}, listeners=2),
    "nobody can count the workers": Fleet(up={"new": 1.0}, listeners=None),
    "nobody reads the queue": Fleet(up={}),
    "its message is in the queue": Fleet(up={"new": 1.0}, queue=QueueSeen(1, searched=True)),
    "its message waits to be delivered again": Fleet(up={"new": 1.0}, queue=QueueSeen(0, searched=True)),
    "the queue could not be searched to its end": Fleet(up={"new": 1.0}, queue=QueueSeen(5_000)),
    "its worker said goodbye": Fleet(up={"new": 1.0}, goodbyes={"old": 5.0}),
}


@pytest.mark.parametrize("case", list(CASES))
def test_a_run_is_not_lost_while_somebody_may_have_it(case: str) -> None:
    fleet = Fleet()
    rig = blocked(fleet)
    there = CASES[case]
    fleet.up, fleet.holder, fleet.listeners, fleet.goodbyes = there.up, there.holder, there.listeners, there.goodbyes
    fleet.queue = there.queue
    if "message" in case:
        ids = frozenset({rig.sent_id()})
        fleet.queue = QueueSeen(1, ready=ids, searched=True) if "is in" in case else QueueSeen(0, delivered=ids)
    if case == "nobody can count the workers":
        rig.landings.reply = lambda asked: Answers(queue_of=dict.fromkeys(asked, "q"), queues={"q": fleet.queue})
    rig.run(300)
    assert set(rig.verdicts()) == {"sent", "skipped"}


def test_a_report_after_all_corrects_a_run_that_was_lost() -> None:
    fleet = Fleet()
    rig = blocked(fleet)
    first = rig.sent_id()
    fleet.up = {"new": 1.0}
    rig.run(60)
    rig.landings.end(first)
    rig.run(2)
    assert rig.verdicts()[0] == "succeeded"


def test_a_goodbye_keeps_a_run_for_ten_minutes_and_no_longer() -> None:
    fleet = Fleet()
    rig = blocked(fleet, max_run_seconds=7_200)
    for minute in range(12):
        fleet.up, fleet.goodbyes = {"new": minute * 60.0 + 1}, {"old": minute * 60.0 + 5}
        rig.run(60)
    assert rig.verdicts()[0] == "lost"
    assert rig.store.ledger[0].finished_us - rig.store.ledger[0].slot_us > 10 * MINUTE


def test_a_worker_that_was_never_asked_is_gone_when_another_one_of_its_queue_started_since() -> None:
    fleet = Fleet(up={"other": DAY_S})
    rig = Rig()
    rig.landings.reply = fleet
    rig.insert("j", overlap="skip")
    rig.run(200)
    assert "lost" not in rig.verdicts()
    fleet.up = {"other": DAY_S, "new": 1.0}
    rig.run(60)
    assert rig.verdicts()[0] == "lost"


def test_a_beat_that_did_not_hear_goodbyes_waits_as_if_there_was_one() -> None:
    fleet = Fleet(up={"new": 1.0}, listening_s=30.0)
    rig = Rig()
    rig.landings.reply = fleet
    rig.insert("j", overlap="skip")
    rig.run(200)
    assert "lost" not in rig.verdicts()
    fleet.listening_s = 700.0
    rig.run(60)
    assert rig.verdicts()[0] == "lost"


def test_nobody_is_asked_about_young_runs_nor_without_a_need() -> None:
    rig = Rig()
    rig.insert("quick", "interval", "1", overlap="skip")
    rig.insert("long", "every", "1d", overlap="skip")
    for _ in range(30):
        rig.run(3)
        rig.landings.end(rig.sent_id("quick"))
    assert rig.landings.asked == []


def test_at_most_five_hundred_runs_are_asked_about_every_ten_seconds_in_turns() -> None:
    rig = Rig()
    rig.landings.reply = Fleet(holder="old")
    for number in range(800):
        rig.insert(f"j{number}", "interval", "10", overlap="skip")
    rig.run(36)
    sizes = [len(asked) for asked in rig.landings.asked]
    assert sizes == [100, 500, 500], "the first one when only a batch of the jobs was known to wait"
    assert len(frozenset().union(*rig.landings.asked)) == 800


def test_while_the_broker_is_away_nothing_is_concluded() -> None:
    fleet = Fleet()
    rig = blocked(fleet)
    fleet.up = {"new": 1.0}
    rig.landings.away = True
    rig.run(200)
    assert "lost" not in rig.verdicts()


# ---------------------------------------------------------------- the broker came back empty


def test_runs_that_an_emptied_broker_lost_end_within_a_minute() -> None:
    fleet = Fleet()
    rig = Rig()
    rig.landings.reply = fleet
    rig.insert("j", overlap="skip")
    rig.insert("k", "every", "1d", overlap="skip", max_run_seconds=36_000)
    rig.run(10)
    rig.engine.leader.recheck_all_runs()
    rig.run(40)
    assert rig.verdicts("j") == ["lost"]
    assert rig.entry("j").detail == "no worker has it and no queue holds it: the broker lost it"
    asked = len(rig.landings.asked)
    rig.run(9)
    assert len(rig.landings.asked) == asked, "all of them are ended"
    rig.run(10)
    assert rig.verdicts("j") == ["lost", "sent"]


def test_a_broker_that_restarted_empty_is_noticed() -> None:
    rig = Rig()
    rig.landings.reply = Fleet()
    rig.outbox.memory = "run 1"
    rig.insert("j", overlap="skip")
    rig.run(20)
    assert rig.landings.asked == []
    rig.outbox.memory = "run 2"
    rig.run(55)
    assert rig.verdicts()[0] == "lost"


def test_a_run_that_a_worker_has_is_no_longer_suspected() -> None:
    rig = Rig()
    rig.landings.reply = Fleet(holder="old")
    rig.insert("j", "every", "1d", overlap="skip")
    rig.run(10)
    rig.engine.leader.recheck_all_runs()
    rig.run(100)
    assert len(rig.landings.asked) == 1
    assert rig.verdicts() == ["sent"]


def test_very_many_jobs_that_wait_have_their_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run_checks, "MOST_JOBS", 10)
    monkeypatch.setattr(run_checks, "MOST_BLOCKING", 6)
    rig = Rig()
    rig.landings.reply = Fleet(up={})
    for number in range(40):
        rig.insert(f"j{number}", "every", "1m", overlap="skip")
    rig.run(65)
    rig.landings.asked.clear()
    rig.run(100)
    assert {len(asked) for asked in rig.landings.asked} == {6}
    assert frozenset.union(*rig.landings.asked) == {shipment.run.task_id for shipment in rig.outbox.sent}


def test_runs_are_checked_again_in_turns_and_not_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run_checks, "MOST_RECHECKED", 10)
    monkeypatch.setattr(run_checks, "MOST_ROUNDS", 20)
    rig = Rig()
    rig.landings.reply = Fleet(up={})
    for number in range(15):
        rig.insert(f"j{number}", "every", "1d", overlap="skip")
    rig.run(10)
    rig.engine.leader.recheck_all_runs()
    rig.run(8)
    assert [len(asked) for asked in rig.landings.asked] == [10, 10, 10]
    assert len(frozenset().union(*rig.landings.asked)) == 15
    rig.run(200)
    asked = len(rig.landings.asked)
    rig.run(60)
    assert len(rig.landings.asked) == asked
    assert {entry.verdict for entry in rig.store.ledger} == {"sent"}


# ---------------------------------------------------------------- what is said


def warnings(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING]


def test_the_second_skip_in_a_row_is_a_warning_with_its_cause(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    rig = Rig()
    rig.landings.reply = Fleet(holder="old")
    rig.insert("j", overlap="skip")
    rig.run(100)
    assert warnings(caplog) == []
    rig.run(100)
    run = rig.sent_id()
    assert warnings(caplog) == [f"job 'j': 2 slots in a row not run: run {run} is on worker old since 2 min"]
    rig.run(500)
    assert len(warnings(caplog)) == 1, "not more often than every ten minutes"
    rig.run(200)
    assert warnings(caplog)[1].startswith("job 'j': 12 slots in a row not run")


def test_a_row_of_skips_ends_with_the_run(caplog: pytest.LogCaptureFixture) -> None:
    rig = Rig()
    rig.landings.reply = Fleet(holder="old")
    rig.insert("j", overlap="skip")
    for _ in range(5):
        rig.run(90)
        rig.landings.end(rig.sent_id())
        rig.run(30)
    assert rig.verdicts().count("skipped") == 5
    assert warnings(caplog) == []


SAID = {
    "queue 'q' has no worker": Fleet(up={}),
    "1 worker did not answer": Fleet(up={}, listeners=1),
    "waits in queue 'q' (7 messages there) since 2 min": Fleet(queue=QueueSeen(7)),
    "is in flight since 2 min; every worker says that it has not got it": Fleet(),
}


@pytest.mark.parametrize("words", list(SAID))
def test_the_warning_names_the_cause(words: str, caplog: pytest.LogCaptureFixture) -> None:
    rig = Rig()
    rig.landings.reply = SAID[words]
    rig.insert("j", overlap="skip")
    rig.run(130)
    (warning,) = warnings(caplog)
    assert words in warning


def test_an_interval_job_that_waits_for_its_run_is_warned_about_too(caplog: pytest.LogCaptureFixture) -> None:
    rig = Rig()
    rig.landings.reply = Fleet(holder="old")
    rig.insert("j", "interval", "60", overlap="skip")
    rig.run(119)
    assert warnings(caplog) == []
    rig.run(20)
    assert warnings(caplog)[0].startswith("job 'j': 2 slots in a row not run: run ")


# ---------------------------------------------------------------- by hand, and by an edit


def test_a_release_ends_every_run_of_a_job_and_the_next_slot_runs() -> None:
    rig = Rig()
    rig.insert("j", overlap="skip", max_run_seconds=7_200)
    rig.run(10)
    rig.store.ask("j", rig.clock.now_us(), "ann", action="release")
    rig.run(2)
    assert (rig.entry().verdict, rig.entry().detail) == ("lost", "released by ann")
    assert rig.store.database.requests == {}
    rig.run(60)
    assert rig.verdicts() == ["lost", "sent"]


def test_a_released_interval_job_runs_at_once() -> None:
    rig = Rig()
    rig.insert("j", "interval", "60", overlap="skip")
    rig.run(90)
    rig.store.ask("j", rig.clock.now_us(), "ann", action="release", task_id=rig.sent_id())
    rig.run(2)
    assert rig.verdicts() == ["lost", "sent"]


def test_a_release_of_one_run_leaves_the_others() -> None:
    rig = Rig()
    rig.insert("j", overlap="allow")
    rig.run(70)
    first = rig.store.ledger[0].task_id
    rig.store.ask("j", rig.clock.now_us(), "ann", action="release", task_id=first)
    rig.run(2)
    assert rig.verdicts() == ["lost", "sent"]


@pytest.mark.parametrize(
    ("action", "task_id", "words"),
    [
        ("release", "nobody's", "release: run nobody's has no run in flight (asked by ann)"),
        ("release", "", "release: job 'j' has no run in flight (asked by ann)"),
        ("explode", "", "its action is 'explode', and only 'run' and 'release' are known"),
    ],
)
def test_a_request_that_cannot_be_met_is_dropped_and_logged(
    action: str, task_id: str, words: str, caplog: pytest.LogCaptureFixture
) -> None:
    rig = Rig()
    rig.insert("j", "daily", "15:00")
    rig.run(1)
    rig.store.ask("j", rig.clock.now_us(), "ann", action=action, task_id=task_id)
    rig.run(2)
    assert words in caplog.text
    assert rig.store.database.requests == {}
    assert rig.verdicts() == []


def test_a_shorter_max_run_seconds_shortens_open_leases_and_a_failover_keeps_it() -> None:
    rig = Rig()
    rig.insert("j", "every", "1d", overlap="skip", max_run_seconds=3_600)
    rig.run(10)
    sent = rig.entry().sent_us
    rig.store.update("j", max_run_seconds=100)
    rig.run(2)
    assert rig.entry().lease_until_us == sent + 100_000_000
    rig.restart()
    rig.run(80)
    assert rig.verdicts() == ["sent"]
    rig.run(20)
    assert rig.verdicts() == ["lost"]


def test_an_edit_of_something_else_or_a_longer_lease_changes_no_open_lease() -> None:
    rig = Rig()
    rig.insert("j", "every", "1d", overlap="skip", max_run_seconds=3_600)
    rig.landings.running = ()
    rig.run(10)
    before = rig.entry().lease_until_us
    for edit in ({"max_run_seconds": 7_200}, {"description": "new"}):
        rig.store.update("j", **edit)
        rig.run(2)
        assert rig.entry().lease_until_us == before
    rig.landings.running = {rig.sent_id()}
    rig.run(HOUR / 1_000_000)
    rig.store.update("j", description="newer")
    rig.run(2)
    rig.landings.running = ()
    rig.run(HOUR / 1_000_000)
    assert rig.verdicts() == ["sent"], "a lease that was extended is not cut"


def test_of_a_job_that_changed_its_queue_the_old_run_is_left_to_its_lease() -> None:
    fleet = Fleet()
    rig = blocked(fleet)
    plain = rig.landings.ask_workers
    jobs: list[object] = []
    rig.landings.ask_workers = lambda runs: jobs.extend(runs.values()) or plain(runs)  # type: ignore[method-assign]
    rig.store.update("j", queue="elsewhere")
    rig.run(100)
    assert jobs
    assert set(jobs) == {None}


def test_verdict_of_a_released_run_can_be_corrected() -> None:
    rig = Rig()
    rig.insert("j", overlap="skip")
    rig.run(10)
    first = rig.sent_id()
    rig.store.ask("j", rig.clock.now_us(), "ann", action="release")
    rig.run(2)
    rig.landings.end(first, Verdict.SUCCEEDED)
    rig.run(2)
    assert rig.verdicts() == ["succeeded"]
