"""`audit`: the ledger of real tables against the history of definitions."""

from __future__ import annotations

from typing import Any

import pytest

from celery_qbeat.beat_schedule import code_jobs
from celery_qbeat.core.planning import OVERTAKEN_DETAIL
from celery_qbeat.stores import tables
from tests.unit.making_cli import DAY, HOUR, MINUTE, SECOND, Cli, migrated


@pytest.fixture
def cli(sqlite_url: str) -> Cli:
    """A beat lives and knows an hourly job since two days ago."""
    migrated(sqlite_url)
    cli = Cli(sqlite_url)
    cli.beat_seen()
    cli.ok("add", "hourly", "app.a", "--every", "1h")
    cli.known("hourly", cli.now - 2 * DAY, next_run_us=hours(cli)[-1] + HOUR)
    return cli


def hours(cli: Cli) -> list[int]:
    """The slots of a day back that are settled, exactly: the beat was seen at `cli.now`."""
    last = (cli.now - MINUTE) // HOUR * HOUR
    return [last - number * HOUR for number in range(24) if last - number * HOUR >= cli.now - DAY][::-1]


def report(cli: Cli, *, code: int = 0) -> Any:
    """The audit of that day."""
    return cli.json("audit", "--from", str(cli.now - DAY), code=code)


def test_a_ledger_without_a_gap_ends_with_0(cli: Cli) -> None:
    cli.ran("hourly", hours(cli))
    cli.ran("hourly", [cli.now - 30 * MINUTE], by_hand=True)
    found = report(cli)
    assert found["ok"] is True
    assert found["jobs"] == 1
    assert found["counts"]["missing"] == found["counts"]["too soon"] == 0
    assert found["expected"] - found["counts"]["pending"] == len(hours(cli))
    assert found["verdicts"] == {"succeeded": len(hours(cli)) + 1}


def test_a_gap_is_listed_and_ends_with_1(cli: Cli) -> None:
    slots = hours(cli)
    cli.ran("hourly", [*slots[:5], *slots[8:]])
    found = report(cli, code=1)
    (finding,) = [finding for finding in found["findings"] if finding["kind"] == "missing"]
    assert (finding["job_id"], finding["first_us"], finding["last_us"], finding["count"]) == (
        *("hourly", slots[5], slots[7], 3),
    )
    text = cli.run("audit", "--from", str(cli.now - DAY)).stdout
    assert "3 missing" in text
    assert "no verdict" in text


def test_a_run_that_stands_for_older_slots_leaves_no_gap(cli: Cli) -> None:
    slots = hours(cli)
    cli.ran("hourly", [*slots[:5], *slots[9:]])
    cli.ran("hourly", [slots[8]], collapsed=3)
    assert report(cli)["ok"] is True


def test_slots_since_the_last_sign_of_a_beat_are_pending(cli: Cli) -> None:
    slots = hours(cli)
    cli.beat_seen(cli.now - slots[-2])
    cli.ran("hourly", slots[:-2])
    found = report(cli)
    assert found["counts"]["pending"] >= 2
    assert "beat: none is at work" in cli.ok("audit", "--from", str(cli.now - DAY))
    assert found["ok"] is True


def test_a_slot_that_waits_for_its_own_run_is_pending(cli: Cli) -> None:
    slots = hours(cli)
    cli.ran("hourly", slots[:-1])
    cli.update(tables.state, next_run_us=slots[-1])
    assert report(cli, code=1)["ok"] is False
    cli.update(tables.runs, lease_until_us=cli.now + HOUR)
    assert report(cli)["ok"] is True


def test_the_window_is_what_is_asked_for_and_no_more_than_the_ledger_keeps(cli: Cli) -> None:
    slots = hours(cli)
    cli.ran("hourly", slots[5:])
    assert report(cli, code=1)["counts"]["missing"] == 5
    from_, until = str(slots[8]), str(slots[12])
    assert cli.json("audit", "--from", from_, "--until", until)["expected"] == 5
    assert cli.json("audit", "--from", str(slots[8] + 1), "--until", until)["expected"] == 4
    short = Cli(cli.url, qbeat_retention={"other": (short_of(cli, slots[5])) / DAY})
    assert "the ledger is kept for less long" in short.ok("audit", "--from", "7d")


@pytest.mark.parametrize(
    ("range_", "words"),
    [
        (["--from", "1h", "--until", "2h"], "is not before --until"),
        (["--from", "now"], "is not before --until"),
        (["--from", "2126-01-01"], "is not before --until"),
        (["--from", "30d", "--until", "20d"], "the ledger is kept from"),
    ],
)
def test_an_empty_range_is_an_error(cli: Cli, range_: list[str], words: str) -> None:
    result = cli.run("audit", *range_)
    assert result.exit_code == 2
    assert "nothing to audit: " in result.stderr
    assert words in result.stderr
    assert result.stdout == ""


def short_of(cli: Cli, slot: int) -> int:
    return cli.now - slot - MINUTE


def test_a_deleted_job_is_audited_until_it_was_gone(cli: Cli) -> None:
    slots = hours(cli)
    cli.ran("hourly", slots[:10])
    cli.insert(tables.history, {"job_id": "hourly", "since_us": slots[9] + MINUTE, "spec": None})
    cli.ok("delete", "hourly")
    cli.update(tables.state, job_id="somebody else")
    assert report(cli)["expected"] == 10


def test_a_slot_overtaken_by_an_edit_stands_for_those_until_the_edit(cli: Cli) -> None:
    slots = hours(cli)
    edited = slots[9] + MINUTE
    cli.ran("hourly", slots[:4])
    cli.ran("hourly", [slots[4]], "missed", claimed_us=edited, detail=f"9.0 s late: {OVERTAKEN_DETAIL}")
    cli.insert(tables.history, {"job_id": "hourly", "since_us": edited, "spec": None})
    assert report(cli)["ok"] is True
    assert cli.json("audit", "--from", str(slots[6]))["ok"] is True
    cli.update(tables.runs, detail="")
    assert report(cli, code=1)["counts"]["missing"] == 5


def test_intervals_are_checked_run_by_run(cli: Cli) -> None:
    cli.ok("add", "slow", "app.a", "--interval", "3600")
    cli.ran("hourly", hours(cli))
    start = cli.now - 6 * HOUR - 5 * MINUTE
    cli.known("slow", start, next_run_us=start + 7 * HOUR)
    cli.ran("slow", [start + number * HOUR for number in range(7) if number != 3])
    (finding,) = [finding for finding in report(cli, code=1)["findings"] if finding["job_id"] == "slow"]
    assert (finding["kind"], finding["first_us"]) == ("missing", start + 3 * HOUR)
    cli.ran("slow", [start + 6 * HOUR + 3 * MINUTE])
    kinds = [finding["kind"] for finding in report(cli, code=1)["findings"] if finding["job_id"] == "slow"]
    assert "too soon" in kinds


def test_the_last_run_before_the_window_belongs_to_it(cli: Cli) -> None:
    cli.ok("add", "slow", "app.a", "--interval", str(10 * 3600))
    cli.ran("hourly", hours(cli))
    cli.known("slow", cli.now - 2 * DAY, next_run_us=cli.now + 5 * HOUR)
    cli.ran("slow", [cli.now - 5 * HOUR])
    assert cli.json("audit", "--from", "3h")["ok"] is True
    cli.ran("slow", [cli.now - 4 * HOUR], by_hand=True)
    assert cli.json("audit", "--from", "3h")["ok"] is True


def test_entries_in_code_are_audited_as_far_as_their_code_is_here(sqlite_url: str) -> None:
    migrated(sqlite_url)
    cli = Cli(sqlite_url, beat_schedule={"often": {"task": "app.a", "schedule": 600.0}})
    (job,) = code_jobs(cli.app)
    cli.beat_seen()
    since = cli.now - HOUR
    gone = {"job_id": "code:gone", "since_us": since, "spec": '["code","<a schedule of yesterday>"]'}
    cli.insert(tables.history, {"job_id": job.id, "since_us": since, "spec": job.spec}, gone)
    cli.insert(tables.state, {"job_id": job.id, "first_seen_us": since, "next_run_us": cli.now + MINUTE})
    cli.ran(job.id, [since + number * 600 * SECOND for number in range(6)])
    found = report(cli)
    assert found["not_audited"] == ["code:gone"]
    assert (found["jobs"], found["ok"]) == (2, True)
    assert "not audited, because only the code that wrote their schedule can read it: code:gone" in cli.ok("audit")


def test_more_jobs_than_one_part_are_all_audited(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("celery_qbeat.stores.reports.JOBS_A_PART", 2)
    cli.ran("hourly", hours(cli))
    for number in range(4):
        cli.ok("add", f"job-{number}", "app.a", "--once", "2126-01-01T00:00")
        cli.known(f"job-{number}", cli.now - MINUTE, next_run_us=cli.now + DAY)
    assert report(cli)["jobs"] == 5


def test_an_audit_of_nothing_finds_nothing(sqlite_url: str) -> None:
    migrated(sqlite_url)
    assert "0 jobs, 0 slots expected: 0 missing, 0 too soon, 0 pending" in Cli(sqlite_url).ok("audit")
