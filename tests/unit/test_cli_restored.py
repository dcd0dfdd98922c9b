"""`audit --since-last-beat`: what nobody can know after a restored backup."""

from __future__ import annotations

import pytest

from celery_qbeat.beat_schedule import code_jobs
from celery_qbeat.cli import undecided
from celery_qbeat.stores import tables
from tests.unit.making_cli import DAY, HOUR, MINUTE, SECOND, Cli, migrated

pytestmark = pytest.mark.clock_at("2026-06-10T12:20:00Z")

OPTION = ("audit", "--since-last-beat")


@pytest.fixture
def cli(sqlite_url: str) -> Cli:
    """The copy is three hours old."""
    migrated(sqlite_url)
    cli = Cli(sqlite_url)
    cli.beat_seen(3 * HOUR)
    return cli


def hour(cli: Cli, ago: int) -> int:
    return (cli.now // HOUR - ago) * HOUR


def add(cli: Cli, job_id: str, *options: str, planned: int, kind: str = "--every=1h") -> None:
    cli.ok("add", job_id, "app.a", kind, *options)
    cli.known(job_id, cli.now - DAY, next_run_us=planned)


def test_slots_due_since_the_copy_was_made_are_listed_by_job(cli: Cli) -> None:
    add(cli, "once", planned=hour(cli, 2))
    add(cli, "each", "--catch-up", "all", planned=hour(cli, 1))
    add(cli, "none", "--catch-up", "skip", planned=hour(cli, 0))
    add(cli, "fresh", "--catch-up", "skip", kind="--every=20m", planned=hour(cli, 0) + 20 * MINUTE)
    add(cli, "later", planned=hour(cli, -1))
    found = {job["job_id"]: (job["count"], job["next_beat"]) for job in cli.json(*OPTION)["jobs"]}
    assert found == {
        "once": (3, "one run"),
        "each": (2, "a run for each"),
        "none": (1, "no run: catch_up=skip"),
        "fresh": (1, "one run"),
    }
    (first,) = [job for job in cli.json(*OPTION)["jobs"] if job["job_id"] == "once"]
    assert (first["first_us"], first["last_us"]) == (hour(cli, 2), hour(cli, 0))
    text = " ".join(cli.ok(*OPTION).split())
    assert "3 h ago" in text
    assert "7 slots due and undecided until now" in text
    assert "the database that it replaces may have sent them: nobody can know" in text


def test_what_a_beat_would_not_run_is_listed_with_the_reason(cli: Cli) -> None:
    add(cli, "off", planned=hour(cli, 1))
    add(cli, "grace", "--grace-seconds", "1", planned=hour(cli, 30))
    cli.ok("set", "grace", "end_us=" + str(hour(cli, 29)))
    cli.ok("disable", "off")
    assert {job["job_id"]: job["next_beat"] for job in cli.json(*OPTION)["jobs"]} == {
        "off": "no run: disabled",
        "grace": "no run: grace is over",
    }


def test_runs_of_an_interval_are_counted_as_if_in_time(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    add(cli, "slow", kind="--interval=600", planned=cli.now - 61 * MINUTE)
    (job,) = cli.json(*OPTION)["jobs"]
    assert (job["count"], job["first_us"], job["last_us"]) == (7, cli.now - 61 * MINUTE, cli.now - MINUTE)
    monkeypatch.setattr(undecided, "COUNT_LIMIT", 3)
    assert "3 or more" in " ".join(cli.ok(*OPTION).split())


def test_the_newest_claim_is_a_sign_of_life_too(cli: Cli) -> None:
    cli.insert(tables.batches, {"batch_id": 7, "epoch": 3, "claimed_us": cli.now - 2 * HOUR, "n": 1})
    assert cli.json(*OPTION)["last_sign_us"] == cli.now - 2 * HOUR


def test_entries_in_code_are_listed(sqlite_url: str) -> None:
    migrated(sqlite_url)
    cli = Cli(sqlite_url, beat_schedule={"often": {"task": "app.a", "schedule": 600.0}})
    (job,) = code_jobs(cli.app)
    cli.beat_seen(HOUR)
    cli.insert(tables.state, {"job_id": job.id, "first_seen_us": 1, "next_run_us": cli.now - 30 * SECOND})
    assert [job["job_id"] for job in cli.json(*OPTION)["jobs"]] == ["code:often"]


def test_nothing_undecided_is_said_in_one_line(cli: Cli) -> None:
    add(cli, "later", planned=hour(cli, -1))
    assert "0 slots due and undecided until now" in cli.ok(*OPTION)
    assert cli.json(*OPTION)["jobs"] == []


def test_tables_on_which_no_beat_ever_ran_have_nothing_to_tell(sqlite_url: str) -> None:
    migrated(sqlite_url)
    assert "no beat has ever run on these tables" in Cli(sqlite_url).refused(*OPTION)


def test_a_range_beside_it_is_an_error(cli: Cli) -> None:
    assert cli.run(*OPTION, "--from", "1h").exit_code == 2
