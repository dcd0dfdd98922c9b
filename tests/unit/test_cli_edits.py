"""`add`, `set`, `enable`, `disable`, `delete`."""

from __future__ import annotations

import json
import re
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest
from celery.schedules import BaseSchedule

from celery_qbeat.stores import tables
from tests.unit.making_cli import Cli, migrated

JOB = ("add", "shop.job", "app.a")


@pytest.fixture
def cli(sqlite_url: str) -> Cli:
    return Cli(sqlite_url)


def test_add_makes_the_tables_where_it_may(cli: Cli) -> None:
    assert "added 'shop.job': every 15m, UTC" in cli.ok(*JOB, "--every", "15m")
    assert (cli.row("shop.job")["fn"], cli.row("shop.job")["catch_up"]) == ("app.a", "once")


def test_add_makes_no_tables_where_it_may_not(sqlite_url: str) -> None:
    cli = Cli(sqlite_url, qbeat_create_tables=False)
    assert "run celery -A proj qbeat migrate" in cli.refused(*JOB, "--every", "15m")
    assert not Path(sqlite_url.removeprefix("sqlite:///")).exists()


@pytest.mark.parametrize(
    ("options", "kind", "text"),
    [
        (["--interval", "90"], "interval", "90"),
        (["--every", "15m"], "every", "15m"),
        (["--daily", "02:00,14:00"], "daily", "02:00,14:00"),
        (["--cron", "*/5 * * * *"], "cron", "*/5 * * * *"),
        (["--once", "2126-12-01T09:00"], "once", "2126-12-01T09:00"),
        (["--kind", "every", "--schedule", "1h"], "every", "1h"),
    ],
)
def test_a_schedule_is_named_by_its_kind(cli: Cli, options: list[str], kind: str, text: str) -> None:
    row = cli.json(*JOB, *options)["row"]
    assert (row["schedule_kind"], row["schedule"]) == (kind, text)


@pytest.mark.parametrize("options", [[], ["--kind", "every"], ["--every", "15m", "--daily", "02:00"]])
def test_no_schedule_and_two_schedules_are_wrong_usage(cli: Cli, options: list[str]) -> None:
    assert cli.run(*JOB, *options).exit_code == 2


def test_every_column_has_an_option(cli: Cli) -> None:
    given: dict[str, Any] = {
        "worker": "w",
        "args": '[1, "zwölf"]',
        "kwargs": '{"a": {"b": null}}',
        "timezone": "Europe/Berlin",
        "days_only": "mon-fri",
        "days_skip": "3",
        "dates_skip": "2026-12-25,2026-12-26",
        "overlap": "allow",
        "catch_up": "all",
        "grace_seconds": 60,
        "on_doubt": "resend",
        "max_run_seconds": 120,
        "queue": "slow",
        "priority": 3,
        "expires_seconds": 90,
        "description": "what it is for",
    }
    migrated(cli.url)
    cli.insert(tables.workers, {"name": "w", "queues": "slow"})
    options = [part for name, value in given.items() for part in (f"--{name.replace('_', '-')}", str(value))]
    cli.ok(*JOB, "--daily", "02:00", *options, "--disabled", "--start", "2026-06-01", "--end", "2026-07-01T00:00Z")
    row = dict(cli.row("shop.job"))
    assert {name: row[name] for name in given} == given
    assert row["enabled"] is False
    assert (row["start_us"], row["end_us"]) == (1_780_264_800_000_000, 1_782_864_000_000_000)


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        (["--interval", "0"], "schedule '0' is no interval"),
        (["--daily", "25:00"], "no time of day"),
        (["--every", "15m", "--timezone", "Mars/Base"], "no known IANA time zone"),
        (["--every", "15m", "--kwargs", "{'a': 1}"], "kwargs: .* is not JSON"),
        (["--every", "15m", "--args", "{}"], "args: .* is not a JSON list"),
        (["--every", "15m", "--worker", "nobody"], "'nobody' is not a row of qbeat_workers"),
        (["--every", "15m", "--overlap", "maybe"], "overlap: 'maybe'"),
        (["--every", "15m", "--grace-seconds", "soon"], "'soon' is no whole number"),
        (["--every", "15m", "--grace-seconds", "3000000000"], "too large for the column"),
        (["--every", "15m", "--queue", "q" * 300], "300 characters long; at most 255 fit"),
        (["--every", "15m", "--start", "2026-06-02", "--end", "2026-06-01"], "end_us: lies before start_us"),
        (["--every", "15m", "--start", "someday"], "start_us: 'someday' is no time"),
    ],
)
def test_a_row_that_the_scheduler_could_not_use_is_refused_with_its_reason(
    cli: Cli, options: list[str], reason: str
) -> None:
    migrated(cli.url)
    assert re.search(reason, cli.refused(*JOB, *options))
    assert cli.json("list") == []


@pytest.mark.parametrize("fn", ["celery.map", "auth.grant", "system.halt", "app.never"])
def test_a_privileged_task_is_refused_for_good(sqlite_url: str, fn: str) -> None:
    cli = Cli(sqlite_url, qbeat_denied=["app.never"])
    assert "is privileged" in cli.refused("add", "x", fn, "--every", "15m")


@pytest.mark.parametrize(
    "options", [["app.later"], ["app.a", "--queue", "elsewhere"], ["app.a", "--cron", "0 * * * *"]]
)
def test_what_may_be_allowed_later_is_stored_with_a_warning(cli: Cli, options: list[str]) -> None:
    schedule = [] if "--cron" in options else ["--every", "15m"]
    result = cli.run("add", "x", *options, *schedule)
    assert result.exit_code == 0
    assert "Warning: 'x' will not run: " in result.stderr
    assert cli.row("x")["enabled"] is True


def test_an_id_that_is_taken_is_not_overwritten(cli: Cli) -> None:
    cli.ok(*JOB, "--every", "15m")
    assert "there is a row 'shop.job' already" in cli.refused(*JOB, "--every", "30m")
    assert cli.row("shop.job")["schedule"] == "15m"


def test_set_changes_the_columns_that_it_is_given_and_no_others(cli: Cli) -> None:
    cli.ok(*JOB, "--every", "15m", "--queue", "celery", "--description", "old")
    before = dict(cli.row("shop.job"))
    cli.ok("set", "shop.job", "--daily", "03:00", "max_run_seconds=60", "queue=", "args=[1]", "enabled=off")
    after = dict(cli.row("shop.job"))
    changed = {name: after[name] for name in after if after[name] != before[name] and name != "rev"}
    assert changed == {
        "schedule_kind": "daily",
        "schedule": "03:00",
        "max_run_seconds": 60,
        "queue": None,
        "args": "[1]",
        "enabled": False,
    }
    assert after["rev"] != before["rev"]


@pytest.mark.parametrize("pair", ["id=x", "rev=1", "nothing=1", "schedule"])
def test_set_knows_its_columns(cli: Cli, pair: str) -> None:
    cli.ok(*JOB, "--every", "15m")
    assert cli.run("set", "shop.job", pair).exit_code == 2
    assert cli.run("set", "shop.job", "schedule=1h", "schedule=2h").exit_code == 2
    assert cli.run("set", "shop.job").exit_code == 2


def test_set_refuses_what_add_refuses(cli: Cli) -> None:
    cli.ok(*JOB, "--every", "15m")
    assert "is privileged" in cli.refused("set", "shop.job", "fn=celery.map")
    assert "is no period" in cli.refused("set", "shop.job", "schedule=often")
    assert cli.row("shop.job")["fn"] == "app.a"


def test_a_bad_row_can_be_repaired_step_by_step(cli: Cli) -> None:
    cli.ok(*JOB, "--every", "15m")
    cli.update(tables.jobs, kwargs="[]", fn="celery.map")
    result = cli.run("set", "shop.job", "description=under repair")
    assert result.exit_code == 0
    assert "will not run: kwargs" in result.stderr
    assert "will not run: fn: 'celery.map' is privileged" in cli.run("set", "shop.job", "kwargs={}").stderr
    assert cli.run("set", "shop.job", "--fn", "app.b").stderr == ""


def test_an_unknown_id_is_answered_with_the_nearest_one(cli: Cli) -> None:
    cli.ok(*JOB, "--every", "15m")
    assert "did you mean 'shop.job'?" in cli.refused("set", "shop.jobs", "schedule=1h")


def test_rows_are_switched_and_deleted_by_id(cli: Cli) -> None:
    migrated(cli.url)
    for name in ("a.1", "a.2", "b"):
        cli.ok("add", name, "app.a", "--every", "15m")
    assert cli.ok("disable", "a.1", "a.2") == "disabled 2 rows\n"
    assert cli.ok("disable", "a.1", "b") == "disabled 1 row; 1 row was disabled already\n"
    assert cli.json("enable", "b") == {"enabled": 1, "ids": ["b"]}
    assert [row["id"] for row in cli.json("list", "--disabled")] == ["a.1", "a.2"]
    assert cli.ok("delete", "a.1", "a.2") == "deleted 2 rows\n"
    assert [row["id"] for row in cli.json("list")] == ["b"]


def test_one_unknown_id_stops_the_whole_command(cli: Cli) -> None:
    migrated(cli.url)
    cli.ok(*JOB, "--every", "15m")
    assert "there is no row 'nope'" in cli.refused("delete", "shop.job", "nope")
    assert len(cli.json("list")) == 1


def test_a_pattern_needs_a_yes_and_knows_case_and_signs(cli: Cli) -> None:
    migrated(cli.url)
    for name in ("a.1", "A.1", "a_1", "a%1", "ab"):
        cli.ok("add", name, "app.a", "--every", "15m")
    refusal = cli.run("delete", "a?1")
    assert refusal.exit_code == 2
    assert "would delete 3 rows: say --yes" in refusal.stderr
    assert len(cli.json("list")) == 5
    cli.ok("delete", "a?1", "--yes")
    assert {row["id"] for row in cli.json("list")} == {"A.1", "ab"}
    assert "no row matches 'z*'" in cli.refused("delete", "z*", "--yes")


def test_a_name_with_a_star_that_is_an_id_is_that_id(cli: Cli) -> None:
    migrated(cli.url)
    cli.ok("add", "a*", "app.a", "--every", "15m")
    cli.ok("add", "ab", "app.a", "--every", "15m")
    cli.ok("delete", "a*")
    assert [row["id"] for row in cli.json("list")] == ["ab"]


def test_entries_in_code_are_not_edited(sqlite_url: str) -> None:
    migrated(sqlite_url)
    cli = Cli(sqlite_url, beat_schedule={"often": {"task": "app.a", "schedule": 30.0}})
    cli.ok(*JOB, "--every", "15m")
    assert [row["id"] for row in cli.json("list")] == ["code:often", "shop.job"]
    assert "change it in the code" in cli.refused("set", "code:often", "schedule=1")
    assert "change it in the code" in cli.refused("delete", "code:often")


def test_what_is_added_reads_back_byte_for_byte(cli: Cli) -> None:
    kwargs = json.dumps({"text": 'quote " backslash \\ percent % colon :x ü 🐇'}, ensure_ascii=False)
    cli.ok("add", "größe %:x", "app.a", "--every", "15m", "--kwargs", kwargs)
    assert json.loads(cli.json("show", "größe %:x")["row"]["kwargs"]) == json.loads(kwargs)


class Tidal(BaseSchedule):
    def is_due(self, last_run_at: datetime) -> Any:
        return False, 60.0


def test_a_schedule_that_decides_in_is_due_has_no_preview(sqlite_url: str) -> None:
    migrated(sqlite_url)
    cli = Cli(sqlite_url, beat_schedule={"tide": {"task": "app.a", "schedule": Tidal()}})
    assert "its schedule decides in is_due when it runs" in cli.refused("preview", "code:tide")
    assert [row["id"] for row in cli.json("list")] == ["code:tide"]
