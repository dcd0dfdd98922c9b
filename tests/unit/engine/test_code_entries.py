"""Entries of `app.conf.beat_schedule` beside the rows: trusted, without a row, gone when they leave the code."""

from __future__ import annotations

import pytest

from celery_qbeat.core.jobs import Job
from celery_qbeat.core.schedules import Daily, Every, Interval, Schedule, parse
from tests.unit.engine.rig import MINUTE, SECOND, Rig, at

NOON = at("2026-06-01T12:00:00")


def code(name: str = "mine", seconds: int = 60, **fields: object) -> Job:
    values = {"overlap": "allow", "plan_key": f"every {seconds}", "schedule": Every(seconds * SECOND), **fields}
    return Job(id=f"code:{name}", fn="any.name", **values)  # type: ignore[arg-type]


def test_an_entry_in_code_runs_beside_the_rows_and_is_no_row() -> None:
    rig = Rig(code_jobs=[code()])
    rig.insert("j", "every", "1m")
    rig.run(121)
    assert rig.slots("code:mine") == rig.slots("j")[1:] == [NOON + MINUTE, NOON + 2 * MINUTE]
    assert set(rig.store.rows) == {"j"}
    assert rig.state("code:mine").last_slot_us == NOON + 2 * MINUTE


@pytest.mark.parametrize("schedule", [Interval(600.0), Every(10 * MINUTE)])
def test_an_entry_in_code_first_fires_after_its_interval_also_over_a_restart(schedule: Schedule) -> None:
    rig = Rig(code_jobs=[code(schedule=schedule, plan_key="i")])
    rig.run(300)
    rig.restart(down_for=5)
    rig.run(600)
    assert rig.slots("code:mine") == [NOON + 10 * MINUTE]


def test_an_entry_in_code_is_trusted() -> None:
    rig = Rig(code_jobs=[Job("code:x", "celery.backend_cleanup", Every(MINUTE), plan_key="x")])
    rig.run(61)
    assert [shipment.job.fn for shipment in rig.outbox.sent] == ["celery.backend_cleanup"]


def test_a_restart_keeps_the_state_of_entries_in_code() -> None:
    rig = Rig(code_jobs=[code(schedule=Interval(600.0), plan_key="i")])
    rig.run(605)
    rig.restart(down_for=5)
    rig.run(600)
    assert rig.slots("code:mine") == [NOON + 10 * MINUTE, NOON + 20 * MINUTE]


def test_an_entry_that_left_the_code_is_gone() -> None:
    rig = Rig(code_jobs=[code("old"), code("kept")])
    rig.run(65)
    rig.parts["code_jobs"] = [code("kept")]
    rig.restart(down_for=60)
    rig.run(120)
    assert len(rig.slots("code:old")) == 1
    assert "code:old" not in rig.store.state
    assert rig.store.history[-1] == ("code:old", at("2026-06-01T12:02:05"), None)
    assert rig.verdicts("code:old") == ["sent", "missed"], "the slot of 12:02 was due when it left"


def test_an_entry_whose_schedule_changed_in_the_code_is_planned_from_now() -> None:
    rig = Rig(code_jobs=[code()])
    rig.run(5)
    rig.parts["code_jobs"] = [code(schedule=Daily((3 * 3600,)), plan_key="daily")]
    rig.restart(down_for=5)
    rig.tick()
    assert rig.state("code:mine").next_run_us == at("2026-06-02T03:00:00")


def test_a_reload_and_a_table_without_rows_leave_entries_in_code_alone() -> None:
    rig = Rig(code_jobs=[code()])
    rig.tick()
    rig.store.database.log.append(("T", None))
    rig.run(120)
    assert rig.slots("code:mine") == [NOON + MINUTE, NOON + 2 * MINUTE]


def test_a_row_with_the_id_of_an_entry_in_code_does_not_touch_it(caplog: pytest.LogCaptureFixture) -> None:
    rig = Rig(code_jobs=[code()])
    rig.insert("code:mine", "interval", "0")
    rig.run(61)
    rig.store.update("code:mine", schedule="5")
    rig.run(60)
    rig.store.delete("code:mine")
    rig.run(60)
    assert rig.slots("code:mine") == [NOON + minute * MINUTE for minute in range(1, 4)]
    assert [message for message in caplog.messages if "code:mine" in message] == [
        "row 'code:mine' will not run: an entry of beat_schedule has this id; choose another one for the row"
    ] * 2


def test_an_entry_in_code_overlaps_as_it_says() -> None:
    rig = Rig(code_jobs=[code(overlap="skip")])
    rig.run(121)
    assert rig.verdicts("code:mine") == ["sent", "skipped"]


def test_a_request_runs_no_entry_in_code(caplog: pytest.LogCaptureFixture) -> None:
    rig = Rig(code_jobs=[code()])
    rig.tick()
    rig.store.ask("code:mine", NOON, "mallory")
    rig.run(30)
    assert rig.slots("code:mine") == []
    assert rig.verdicts("code:mine") == ["refused"]
    assert rig.entry("code:mine").detail == (
        "by hand: it is an entry in code, and those run by hand only with qbeat_run_code_entries = True"
    )
    assert rig.store.database.requests == {}
    (line,) = caplog.messages
    assert line.startswith("request 1 is refused: job 'code:mine' (asked by mallory): it is an entry in code")


def test_a_setting_lets_requests_run_entries_in_code() -> None:
    rig = Rig(code_jobs=[code()], run_code_entries=True)
    rig.tick()
    rig.store.ask("code:mine", NOON)
    rig.run(5)
    assert len(rig.slots("code:mine")) == 1
    assert rig.entry("code:mine").detail == "by hand"


def test_a_plain_celery_schedule_kept_as_parsed_text_is_the_same_entry_after_a_restart() -> None:
    schedule = parse("cron", "* * * * *")
    rig = Rig(code_jobs=[code(schedule=schedule, plan_key="c")])
    rig.run(61)
    rig.restart(down_for=1)
    rig.run(60)
    assert rig.slots("code:mine") == [NOON + MINUTE, NOON + 2 * MINUTE]


def test_entries_in_code_may_change_while_the_beat_runs() -> None:
    rig = Rig(code_jobs=[code("old"), code("kept")])
    rig.insert("j", "every", "1m", overlap="skip")
    rig.run(65)
    assert rig.engine.use_code_jobs([code("kept"), code("new")])
    rig.run(65)
    assert [len(rig.slots(f"code:{name}")) for name in ("old", "kept", "new")] == [1, 2, 1]
    assert rig.verdicts("j")[-1] == "skipped", "the run in flight is still known"
    assert "code:old" not in rig.store.state


def test_entries_in_code_do_not_change_in_the_middle_of_something() -> None:
    rig = Rig(code_jobs=[code("old")])
    rig.run(5)
    rig.engine.leader.pending_writes.append(lambda epoch: None)
    assert not rig.engine.use_code_jobs([code("new")])
    rig.run(1)
    assert rig.engine.use_code_jobs([code("new")])


class Oracle:
    """Decides for itself; `answers` come in turn, the last one for ever."""

    kind, zone, relative, decides = "celery", "UTC", True, True

    def __init__(self, *answers: tuple[bool, int] | Exception) -> None:
        self.answers = list(answers)
        self.asked: list[int] = []

    def next_after(self, t: int, /) -> int:
        return t + 1

    def first(self, now: int, /) -> int:
        return now + 1

    def after_run(self, slot: int, now: int, /) -> int:
        return now + 1

    def latest(self, now: int, /) -> None:
        return None

    def count(self, after: int, until: int, /) -> int:
        return 0

    def ask(self, last_run_us: int) -> tuple[bool, int]:
        self.asked.append(last_run_us)
        answer = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        if isinstance(answer, Exception):
            raise answer
        return answer


def test_a_schedule_that_decides_is_asked_before_each_run() -> None:
    oracle = Oracle((False, 30 * SECOND), (False, 30 * SECOND), (True, 600 * SECOND))
    rig = Rig(code_jobs=[code(schedule=oracle, plan_key="o")])
    rig.run(70)
    assert [slot // SECOND for slot in rig.slots("code:mine")] == [(NOON + MINUTE) // SECOND]
    assert oracle.asked == [NOON] * 3, "the last run: there was none since it was first seen"
    rig.run(595)
    assert len(rig.slots("code:mine")) == 2
    assert oracle.asked[-1] // SECOND == (NOON + MINUTE) // SECOND
    assert rig.state("code:mine").late_after_us is None


def test_an_error_in_a_schedule_that_decides_hurts_its_entry_alone(caplog: pytest.LogCaptureFixture) -> None:
    oracle = Oracle(RuntimeError("no tide table"), (True, 3600 * SECOND))
    rig = Rig(code_jobs=[code(schedule=oracle, plan_key="o"), code("other")])
    rig.run(299)
    assert (rig.slots("code:mine"), len(rig.slots("code:other"))) == ([], 4)
    assert caplog.text.count("its schedule raised RuntimeError: no tide table; it is asked again in 300 s") == 1
    rig.run(2)
    assert len(rig.slots("code:mine")) == 1


def daily(time: str) -> Job:
    return code(schedule=parse("daily", time), plan_key=f"daily {time}")


@pytest.mark.parametrize(
    ("before", "after", "restarted", "missed"),
    [
        ("00:45", "00:10", "2026-06-02T00:29:00", True),
        ("00:45", "00:50", "2026-06-01T12:00:00", False),
        ("00:45", "00:40", "2026-06-01T12:00:00", False),
        ("00:45", "00:30", "2026-06-02T00:29:00", False),
        ("00:45", "00:45", "2026-06-02T00:29:00", False),
        ("00:45", "00:40", "2026-06-01T00:46:00", False),
    ],
)
def test_a_slot_that_a_new_schedule_moves_into_the_past_is_missed(
    before: str, after: str, restarted: str, missed: bool
) -> None:
    rig = Rig("2026-06-01T00:44:00", code_jobs=[daily(before)])
    rig.run(65)
    rig.parts["code_jobs"] = [daily(after)]
    rig.restart(down_for=(at(restarted) - rig.clock.now_us()) / SECOND)
    rig.run(5)
    assert rig.verdicts("code:mine")[1:] == ["missed"] * missed
    if missed:
        assert rig.entry("code:mine").slot_us == at("2026-06-02T00:10:00")
        assert rig.entry("code:mine").detail == (
            "the start changed its schedule: the slot planned in 960 s moved to this time, which had passed"
        )
        assert rig.state("code:mine").next_run_us == at("2026-06-03T00:10:00")


def test_a_row_that_is_edited_loses_no_slot_that_was_not_due() -> None:
    rig = Rig("2026-06-01T00:44:00")
    rig.insert("j", "daily", "00:45")
    rig.run(65)
    rig.clock.advance((at("2026-06-02T00:29:00") - rig.clock.now_us()) / SECOND)
    rig.run(1)
    rig.store.update("j", schedule="00:10")
    rig.run(5)
    assert len(rig.verdicts("j")) == 1
