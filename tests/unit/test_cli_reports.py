"""`list`, `show`, `preview`, `check`, `status`, `runs`: what they tell of rows and of a ledger."""

from __future__ import annotations

import json
import os
import socket
from typing import Any

import click
import pytest
from click.testing import CliRunner

from celery_qbeat.cli import COMMANDS, Chosen, main, qbeat
from celery_qbeat.stores import tables
from tests.unit.making_cli import DAY, HOUR, MINUTE, SECOND, Cli, make_app, make_runner, migrated


@pytest.fixture
def cli(sqlite_url: str) -> Cli:
    migrated(sqlite_url)
    return Cli(sqlite_url)


@pytest.fixture
def mixed(cli: Cli) -> Cli:
    """A row of each condition, named after it."""
    job = {"fn": "app.a", "schedule_kind": "every", "schedule": "1h"}
    cli.insert(tables.workers, {"name": "off", "enabled": False})
    cli.insert(
        tables.jobs,
        {**job, "id": "ready"},
        {**job, "id": "late"},
        {**job, "id": "finished"},
        {**job, "id": "refused", "fn": "celery.map"},
        {**job, "id": "bad", "schedule": "now and then"},
        {**job, "id": "reserved", "schedule_kind": "cron", "schedule": "0 * * * *"},
        {**job, "id": "paused", "worker": "off"},
        {**job, "id": "disabled", "enabled": False},
    )
    cli.known("ready", cli.now - DAY, next_run_us=cli.now + 5 * MINUTE, last_run_us=cli.now - HOUR, last_verdict="sent")
    cli.known("late", cli.now - DAY, next_run_us=cli.now, late_after_us=cli.now - 1)
    cli.known("finished", cli.now - DAY)
    return cli


def test_list_tells_how_each_row_stands(mixed: Cli) -> None:
    mixed.beat_seen()
    assert {row["id"] for row in mixed.json("list") if row["id"] == row["condition"]} == {
        *("ready", "late", "finished", "refused", "bad", "reserved", "paused", "disabled")
    }
    reasons = {row["id"]: row["reason"] for row in mixed.json("list")}
    assert "now and then" in reasons["bad"]
    assert "qbeat_cron = True" in reasons["reserved"]
    assert "worker 'off' is disabled" in reasons["paused"]


@pytest.mark.parametrize(
    ("options", "ids"),
    [
        (["--late"], ["late"]),
        (["--problem"], ["bad", "refused", "reserved"]),
        (["--disabled"], ["disabled", "paused"]),
        (["--late", "--problem"], ["bad", "late", "refused", "reserved"]),
        (["--worker", "off"], ["paused"]),
        (["re*"], ["ready", "refused", "reserved"]),
        (["re*", "--problem"], ["refused", "reserved"]),
    ],
)
def test_list_narrows_down(mixed: Cli, options: list[str], ids: list[str]) -> None:
    assert [row["id"] for row in mixed.json("list", *options)] == ids


def test_in_a_pipe_a_row_is_one_line_with_nothing_cut(mixed: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    name, times = "a.very.long.name." * 8, ",".join(f"{hour:02}:00" for hour in range(24))
    mixed.insert(tables.jobs, {"id": name, "fn": "app.a", "schedule_kind": "daily", "schedule": times})
    mixed.insert(tables.workers, {"name": "s" * 60})
    lines = mixed.ok("list").splitlines()
    assert len(lines) == 10
    assert any(line.startswith(name) and times in line for line in lines)
    assert all(mixed.json("list", "bad")[0]["reason"] in line for line in lines if line.startswith("bad"))
    assert not any("\x1b" in line or line.endswith(" ") for line in lines)


def test_a_row_cannot_write_on_the_terminal(cli: Cli) -> None:
    row = {"id": "\x1b[31mred", "fn": "[bold]x[/bold]", "schedule_kind": "\x07", "schedule": "1h"}
    cli.insert(tables.jobs, row)
    for command in (["list"], ["show", row["id"]], ["check"]):
        assert "\x1b" not in cli.run(*command).stdout
        assert "\x07" not in cli.run(*command).stdout
    assert "[bold]x[/bold]" in cli.run("show", row["id"]).stdout


def test_bytes_in_place_of_text_are_shown_by_every_command(mixed: Cli) -> None:
    with mixed.engine.begin() as connection:
        connection.exec_driver_sql("UPDATE qbeat_jobs SET schedule = x'ff', description = CAST(x'fe' AS TEXT)")
        connection.exec_driver_sql("INSERT INTO qbeat_workers (name) VALUES (CAST(x'ff' AS TEXT))")
    for command in (["list"], ["show", "bad"], ["status"]):
        assert mixed.run(*command).exit_code == 0
        assert mixed.json(*command)
    assert mixed.json("list")[0]["schedule"] == "b'\\xff'"
    assert {row["condition"] for row in mixed.json("check", code=1)["problems"]} == {"bad", "paused"}


def test_list_of_nothing_says_so(cli: Cli) -> None:
    assert cli.ok("list") == "no jobs\n"
    assert cli.ok("list", "x*") == "no such jobs\n"
    assert cli.json("list") == []


def test_list_reads_a_table_larger_than_one_part(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("celery_qbeat.stores.rows.ROWS_A_PART", 3)
    job = {"fn": "app.a", "schedule_kind": "every", "schedule": "1h"}
    cli.insert(tables.jobs, *({**job, "id": f"job-{number}"} for number in range(7)))
    assert [row["id"] for row in cli.json("list")] == [f"job-{number}" for number in range(7)]
    assert [row["id"] for row in cli.json("list", "job-[56]*")] == []
    assert [row["id"] for row in cli.json("list", "*-?")] == [f"job-{number}" for number in range(7)]


def test_show_tells_all_that_is_known(mixed: Cli) -> None:
    hours = [(mixed.now // HOUR - number) * HOUR for number in range(1, 5)]
    mixed.ran("ready", hours[:3])
    mixed.ran("ready", hours[3:], "failed", detail="ValueError: no", collapsed=2)
    shown = mixed.json("show", "ready")
    assert shown["statistics"] == {
        "ended": 4,
        "succeeded": 3,
        "success_rate": 0.75,
        "durations_are_exact": False,
        "median_us": SECOND,
        "longest_us": SECOND,
    }
    assert [run["slot_us"] for run in shown["last_runs"]] == hours
    assert len(shown["next_slots"]) == 5
    assert shown["state"]["next_run_us"] == mixed.now + 5 * MINUTE
    text = mixed.ok("show", "ready")
    assert "of the last 4 that ended 75 % succeeded" in text
    assert "ValueError: no" in text
    assert "+2 older" in text
    assert "Next slots" in text


def test_show_of_a_row_that_does_not_run_has_no_next_slots(mixed: Cli) -> None:
    for name in ("bad", "refused", "reserved", "paused", "disabled", "finished"):
        assert mixed.json("show", name)["next_slots"] == []
        assert "Next slots" not in mixed.ok("show", name)


@pytest.mark.clock_at("2026-06-10T12:20:00Z")
def test_show_foresees_what_changes_of_the_clocks_do_within_a_year(cli: Cli) -> None:
    cli.ok("add", "night", "app.a", "--daily", "02:30", "--timezone", "Europe/Berlin")
    notes = [slot["note"] for slot in cli.json("show", "night")["clock_changes"]]
    assert len(notes) >= 2
    assert {"first of two" in note or "does not exist" in note for note in notes} == {True}
    assert "Changes of the clocks within a year" in cli.ok("show", "night")
    cli.ok("set", "night", "--daily", "12:00")
    assert cli.json("show", "night")["clock_changes"] == []


def test_show_of_an_unknown_row_names_the_nearest(mixed: Cli) -> None:
    assert "did you mean 'ready'?" in mixed.refused("show", "raedy")


def test_preview_of_a_schedule_marks_what_the_clocks_do(cli: Cli) -> None:
    berlin = ("preview", "--daily", "02:30", "--timezone", "Europe/Berlin")
    assert cli.json(*berlin, "--from", "2026-03-28", "--until", "2026-03-30") == [
        {"utc": "2026-03-28T01:30:00Z", "local": "2026-03-28T02:30:00+01:00", "us": 1_774_661_400_000_000},
        {
            "utc": "2026-03-29T01:00:00Z",
            "local": "2026-03-29T03:00:00+02:00",
            "us": 1_774_746_000_000_000,
            "note": "02:30 does not exist that day: fires when the clock has jumped to 03:00",
        },
    ]
    text = cli.ok(*berlin, "--from", "2026-10-24", "--count", "2")
    assert "2026-10-25 02:30:00+02:00  2026-10-25 00:30:00Z  first of two 02:30" in text


def test_preview_takes_every_filter(cli: Cli) -> None:
    filters = ["--days-only", "mon-fri", "--days-skip", "3", "--dates-skip", "2026-06-01"]
    slots = cli.json(
        "preview", "--kind", "daily", "--schedule", "12:00", *filters, "--from", "2026-06-01", "--count", "4"
    )
    assert [slot["utc"][:10] for slot in slots] == ["2026-06-02", "2026-06-04", "2026-06-05", "2026-06-08"]


def test_preview_of_an_interval_row_starts_from_its_next_run(cli: Cli) -> None:
    cli.ok("add", "slow", "app.a", "--interval", "5400")
    cli.known("slow", cli.now, next_run_us=cli.now + HOUR)
    slots = [slot["us"] for slot in cli.json("preview", "slow", "--count", "3")]
    assert slots == [cli.now + HOUR, cli.now + HOUR + 90 * MINUTE, cli.now + HOUR + 180 * MINUTE]


def test_preview_keeps_to_the_bounds_of_a_row(cli: Cli) -> None:
    cli.ok("add", "x", "app.a", "--every", "1h", "--start", "2126-06-01T10:00", "--end", "2126-06-01T12:00")
    assert [slot["utc"][11:16] for slot in cli.json("preview", "x")] == ["10:00", "11:00", "12:00"]
    assert cli.ok("preview", "x", "--until", "2126-01-01") == "no slots\n"


@pytest.mark.parametrize("args", [[], ["ready", "--every", "1h"], ["--timezone", "UTC"], ["--kind", "every"]])
def test_preview_wants_a_row_or_a_schedule(mixed: Cli, args: list[str]) -> None:
    assert mixed.run("preview", *args).exit_code == 2


def test_preview_says_why_there_are_no_slots(mixed: Cli) -> None:
    assert "'bad' has no slots: schedule 'now and then'" in mixed.refused("preview", "bad")
    assert "'--from'" not in mixed.refused("preview", "ready", "--from", "soon")


def test_check_lists_what_will_not_run_and_ends_with_1(mixed: Cli) -> None:
    report = mixed.json("check", code=1)
    assert report["ok"] is False
    assert sorted(problem["id"] for problem in report["problems"]) == ["bad", "late", "paused", "refused", "reserved"]
    assert report["counts"]["disabled"] == 1
    assert report["beat"]["alive"] is False
    text = mixed.run("check").stdout
    assert "none has ever run on these tables" in text
    assert "8 jobs: 1 stopped, 1 finished, 1 late, 1 refused, 1 bad, 1 reserved, 1 paused, 1 disabled" in text


@pytest.mark.parametrize(
    "damage", ["DROP TRIGGER qbeat_jobs_upd", "DROP TABLE qbeat_history", "UPDATE qbeat_meta SET schema_version = 0"]
)
def test_check_sees_damaged_tables(cli: Cli, damage: str) -> None:
    with cli.engine.begin() as connection:
        connection.exec_driver_sql(damage)
    report = cli.json("check", code=1)
    assert "qbeat migrate" in report["schema"]
    assert report["schema"] in cli.run("check").stdout


def test_status_tells_of_a_writer_and_of_what_is_under_way(mixed: Cli) -> None:
    mixed.beat_seen(SECOND)
    mixed.ran("ready", [mixed.now - MINUTE], "sent", lease_until_us=mixed.now + HOUR, finished_us=None)
    mixed.insert(tables.batches, {"batch_id": 7, "epoch": 3, "claimed_us": mixed.now - MINUTE, "n": 1})
    mixed.insert(tables.requests, {"job_id": "ready", "asked_us": mixed.now})
    status = mixed.json("status")
    assert status["writer"]["alive"] is True
    assert (status["writer"]["holder"], status["writer"]["epoch"]) == ("elsewhere:7", 3)
    assert (status["runs_in_flight"], status["open_batches"], status["requests"]) == (1, 1, 1)
    assert status["jobs"]["late"] == 1
    text = mixed.ok("status")
    assert "elsewhere:7, epoch 3" in text
    assert "standalone: no qbeat_redis_url is set" in text


def test_a_beat_is_dead_when_it_was_silent_or_its_process_is_gone(cli: Cli) -> None:
    cli.beat_seen(MINUTE)
    assert cli.json("status")["writer"]["alive"] is False
    assert "none is at work: the last one was elsewhere:7" in cli.ok("status").replace("\n                ", " ")
    cli.beat_seen(0, f"{socket.gethostname()}:{os.getpid()}")
    assert cli.json("status")["writer"]["alive"] is True
    cli.beat_seen(0, f"{socket.gethostname()}:4194303")
    assert cli.json("status")["writer"]["alive"] is False


def test_runs_are_the_ledger_newest_first(mixed: Cli) -> None:
    mixed.ran("ready", [mixed.now - HOUR, mixed.now - DAY])
    mixed.ran("late", [mixed.now - 2 * HOUR], "failed", detail="ValueError: no")
    mixed.ran("late", [mixed.now - 3 * HOUR], "missed", finished_us=None, sent_us=None)

    def ids(*options: str) -> list[tuple[str, str]]:
        return [(run["job_id"], run["verdict"]) for run in mixed.json("runs", *options)]

    assert ids() == [("ready", "succeeded"), ("late", "failed"), ("late", "missed"), ("ready", "succeeded")]
    assert ids("late") == [("late", "failed"), ("late", "missed")]
    assert ids("--verdict", "missed", "--verdict", "failed") == [("late", "failed"), ("late", "missed")]
    assert ids("--since", "90m") == [("ready", "succeeded")]
    assert ids("--limit", "1") == [("ready", "succeeded")]
    assert mixed.run("runs", "--verdict", "great").exit_code == 2
    assert mixed.ok("runs", "bad") == "no runs\n"
    assert mixed.ok("runs", "ready", "--since", "1s") == "no runs\n"
    assert "there is no row 'reddy'" in mixed.refused("runs", "reddy")
    assert "did you mean 'ready'" in mixed.refused("runs", "reddy", "--json")
    assert "there is no row 'code:nobody'" in mixed.refused("runs", "code:nobody")
    mixed.run("delete", "ready")
    assert mixed.json("runs", "ready")
    assert "ValueError: no" in mixed.ok("runs")


def test_json_of_runs_has_microseconds_and_iso(cli: Cli) -> None:
    cli.ran("x", [1_780_300_800_000_000])
    (run,) = cli.json("runs")
    assert (run["slot_us"], run["slot"]) == (1_780_300_800_000_000, "2026-06-01T08:00:00Z")
    assert (run["lease_until_us"], run["lease_until"], run["by_hand"]) == (None, None, False)


@pytest.mark.parametrize("command", sorted(COMMANDS))
def test_every_command_explains_itself_with_an_example(command: str) -> None:
    result = CliRunner().invoke(qbeat, [command, "--help"], obj=Chosen(app=make_app()))
    assert result.exit_code == 0
    assert f"celery -A proj qbeat {command}" in result.output
    assert "--json" in result.output


@pytest.mark.parametrize("command", sorted(COMMANDS))
def test_the_line_of_a_command_says_what_its_help_says(command: str) -> None:
    """The list of commands has lines of its own, because it imports no command."""
    _, line = COMMANDS[command]
    made = qbeat.get_command(click.Context(qbeat), command)
    assert made is not None
    assert made.help is not None
    assert made.help.split()[0] == line.split()[0]


def test_the_list_of_commands_fits_into_80_columns_uncut() -> None:
    lines = CliRunner().invoke(qbeat, ["--help"], terminal_width=80).output.splitlines()
    for name, (_, line) in COMMANDS.items():
        assert any(said.split() == [name, *line.split()] for said in lines), name


def test_bad_settings_are_one_sentence(sqlite_url: str) -> None:
    assert "unknown setting qbeat_colour" in Cli(sqlite_url, qbeat_colour="red").refused("list")
    assert "qbeat_poll_interval = 'often'" in Cli(sqlite_url, qbeat_poll_interval="often").refused("list")


def test_the_program_of_its_own_works_on_tables_alone(mixed: Cli) -> None:
    def run(*args: str) -> Any:
        return CliRunner().invoke(main, ["--database-url", mixed.url, *args])

    listed = json.loads(run("list", "--json").stdout)
    assert {row["id"]: row["condition"] for row in listed}["refused"] == "refused"
    assert run("add", "x", "not.known.here", "--every", "1h").exit_code == 0
    assert run("show", "x").exit_code == 0
    assert run("tick").exit_code == 2
    assert CliRunner().invoke(main, ["list"], env={"CELERY_APP": None, "QBEAT_DATABASE_URL": None}).exit_code == 2
    assert CliRunner().invoke(main, ["-A", "no_such_module_here", "list"]).exit_code == 1


@pytest.mark.parametrize(
    "url",
    [
        "secret",
        "postgresql://me:secret@h:port/x",
        "mysql+pymysql://me:secret@127.0.0.1:1/x?no_such_option=1",
        "sqlite:///x.sqlite3?timeout=soon",
    ],
)
def test_a_url_that_cannot_be_used_is_one_sentence_without_the_password(url: str) -> None:
    result = make_runner().invoke(main, ["--database-url", url, "migrate"])
    assert result.exit_code == 1
    assert result.stderr.startswith("Error: qbeat_database_url: ")
    assert result.stderr.count("\n") == 1
    assert "secret" not in result.stderr


def test_a_server_that_is_away_is_one_sentence_without_the_password() -> None:
    for url in ("postgresql://me:secret@127.0.0.1:1/x", "mysql+pymysql://me:secret@127.0.0.1:1/x"):
        result = make_runner().invoke(main, ["--database-url", url, "list"])
        assert result.exit_code == 1
        assert result.stderr.count("\n") == 1
        assert "127.0.0.1" in result.stderr
        assert "secret" not in result.stderr
