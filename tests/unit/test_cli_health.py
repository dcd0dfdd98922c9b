"""`check`, `list` and `tick`: whether a beat lives, and what that makes of the jobs."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from celery_qbeat.cli import main
from celery_qbeat.core.jobs import CRON_RESERVED
from celery_qbeat.core.liveness import silence_limit_us
from celery_qbeat.stores import tables
from tests.unit.making_cli import DAY, HOUR, MINUTE, SECOND, Cli, migrated


@pytest.fixture
def cli(sqlite_url: str) -> Cli:
    migrated(sqlite_url)
    return Cli(sqlite_url)


@pytest.fixture
def one_job(cli: Cli) -> Cli:
    """A job that waits for its next slot."""
    cli.insert(tables.jobs, {"id": "ready", "fn": "app.a", "schedule_kind": "every", "schedule": "1h"})
    cli.known("ready", cli.now - DAY, next_run_us=cli.now + 5 * MINUTE, last_run_us=cli.now - HOUR, last_verdict="sent")
    return cli


def test_check_ends_with_0_when_nothing_ails(cli: Cli) -> None:
    cli.ok("add", "x", "app.a", "--every", "1h")
    cli.ok("add", "y", "app.a", "--cron", "0 * * * *")
    cli.beat_seen()
    assert cli.json("check")["ok"] is True


def test_check_warns_of_reserved_cron_rows(cli: Cli) -> None:
    cli.ok("add", "y", "app.a", "--cron", "0 * * * *")
    cli.beat_seen()
    result = cli.run("check")
    assert result.exit_code == 0
    assert "1 cron row will never run: cron is reserved: set qbeat_cron = True" in result.stderr
    assert cli.run("check", "--strict").exit_code == 1
    cli.app.conf.qbeat_cron = True
    assert cli.run("check", "--strict").exit_code == 0


def test_check_warns_of_patterns_that_match_no_task(cli: Cli) -> None:
    cli.app.conf.update(qbeat_allow=["app.*", "ap.*"], qbeat_reserved={"billing.*": ["billing"]})
    cli.beat_seen()
    result = cli.run("check")
    assert result.exit_code == 0
    for words in ("qbeat_allow: 'ap.*'", "qbeat_reserved: 'billing.*'"):
        assert f"{words} matches no registered task" in result.stderr
    assert "'app.*'" not in result.stderr
    assert len(cli.json("check")["warnings"]) == 2
    assert cli.run("check", "--strict").exit_code == 1
    cli.app.conf.update(qbeat_allow=["app.*"], qbeat_reserved={})
    assert cli.run("check", "--strict").exit_code == 0


def test_without_the_app_the_beat_tells_whether_cron_rows_run(cli: Cli) -> None:
    cli.ok("add", "y", "app.a", "--cron", "0 * * * *")
    cli.beat_seen()
    alone = ["--database-url", cli.url, "check", "--strict"]
    assert CliRunner().invoke(main, alone).exit_code == 0
    cli.known("y", cli.now, problem=CRON_RESERVED)
    assert CliRunner().invoke(main, alone).exit_code == 1


def test_check_ends_with_1_when_no_beat_lives(cli: Cli) -> None:
    assert "none has ever run" in cli.run("check").stdout
    assert cli.json("check", code=1)["beat"]["alive"] is False
    cli.beat_seen(MINUTE)
    assert cli.json("check", code=1)["ok"] is False
    assert "none is at work" in cli.run("check").stdout


def test_a_beat_with_long_polls_is_not_taken_for_dead(sqlite_url: str) -> None:
    migrated(sqlite_url)
    # The beat wrote its own limit, so it does not matter what the reader polls.
    for cli in (Cli(sqlite_url, qbeat_poll_interval=60), Cli(sqlite_url)):
        cli.beat_seen(20 * SECOND, silence_us=silence_limit_us(60))
        assert cli.json("tick")["ran"] is False
        assert cli.json("status")["writer"]["epoch"] == 3
        assert cli.json("check")["beat"]["alive"] is True
        cli.beat_seen(181 * SECOND, silence_us=silence_limit_us(60))
        assert cli.json("check", code=1)["beat"]["alive"] is False


def test_a_tick_lives_until_the_next_one_is_late(cli: Cli) -> None:
    assert cli.json("tick", "--every", "300")["ran"] is True
    assert cli.json("check")["beat"]["alive"] is True
    cli.beat_seen(899 * SECOND, holder="tick on elsewhere:7", silence_us=900 * SECOND)
    assert cli.json("check")["beat"]["alive"] is True
    assert cli.json("tick")["ran"] is True
    cli.beat_seen(901 * SECOND, holder="tick on elsewhere:7", silence_us=900 * SECOND)
    assert cli.json("check", code=1)["beat"]["alive"] is False


def test_a_tick_touches_the_heartbeat_file(sqlite_url: str, tmp_path: Path) -> None:
    migrated(sqlite_url)
    file = tmp_path / "beat"
    cli = Cli(sqlite_url, qbeat_heartbeat_file=str(file))
    cli.ok("tick", "--every", "300")
    assert json.loads(file.read_text())["silence_s"] == 900
    assert cli.json("check", "--liveness")["ok"] is True
    file.unlink()
    assert "no beat lives" in cli.json("check", "--liveness", code=1)["trouble"]


def test_a_tick_that_may_still_run_is_left_alone(cli: Cli) -> None:
    cli.beat_seen(SECOND, holder="tick on elsewhere:7", silence_us=900 * SECOND)
    assert cli.json("tick")["ran"] is False


def test_list_says_that_no_beat_is_at_work(one_job: Cli) -> None:
    one_job.beat_seen(MINUTE)
    result = one_job.run("list")
    assert {row["id"]: row["condition"] for row in one_job.json("list")}["ready"] == "stopped"
    assert "no beat is at work" in result.stderr


def test_a_job_that_waits_for_its_run_names_the_run(one_job: Cli) -> None:
    one_job.beat_seen()
    since = one_job.now - 20 * MINUTE
    one_job.ran("ready", [since], "sent", batch_id=1, lease_until_us=one_job.now + HOUR, finished_us=None)
    one_job.ran("ready", [one_job.now - MINUTE], "skipped", sent_us=None)
    running = one_job.json("list", "ready")[0]
    assert running["condition"] == "running"
    one_job.update(tables.state, last_slot_us=one_job.now - MINUTE, last_verdict="skipped", last_run_us=since)
    blocked = one_job.json("list", "ready")[0]
    assert (blocked["condition"], blocked["running_since_us"]) == ("blocked", since)
    assert (blocked["last_run_us"], blocked["last_verdict"]) == (since, "sent")
    assert blocked["running_task_id"] in one_job.ok("show", "ready").replace("\n", "").replace(" ", "")
    assert one_job.json("check")["problems"] == []
    one_job.update(tables.state, late_after_us=one_job.now - 1)
    assert "blocked" in [problem["condition"] for problem in one_job.json("check", code=1)["problems"]]


def test_a_manual_run_of_a_new_job_is_its_last_run(cli: Cli) -> None:
    cli.ok("add", "x", "app.a", "--every", "1h")
    cli.known("x", cli.now, next_run_us=cli.now + HOUR, last_verdict="succeeded")
    cli.ran("x", [cli.now - MINUTE], batch_id=1, by_hand=True)
    [shown] = cli.json("list")
    assert (shown["last_run_us"], shown["last_verdict"]) == (cli.now - MINUTE, "succeeded")
