"""The commands that need the tables only, on each database."""

from __future__ import annotations

import json

import pytest
import sqlalchemy as sa
from click.testing import CliRunner

from celery_qbeat.cli import main
from celery_qbeat.core.planning import OVERTAKEN_DETAIL
from celery_qbeat.stores import tables
from tests.servers import PostgreSQL
from tests.unit.making_cli import DAY, HOUR, MINUTE, Cli, migrated


@pytest.fixture
def cli(database_url: str) -> Cli:
    migrated(database_url)
    return Cli(database_url)


def test_a_row_is_added_shown_changed_switched_and_deleted(cli: Cli) -> None:
    kwargs = {"text": 'quote " backslash \\ percent % ü 🐇', "n": [1, 2.5, None]}
    made = ("add", "größe %1", "app.a", "--daily", "02:30", "--timezone", "Europe/Berlin", "--queue", "celery")
    cli.run(*made, "--kwargs", json.dumps(kwargs), "--args", "[1]", "--dates-skip", "2126-12-25")
    row = cli.json("show", "größe %1")["row"]
    assert json.loads(row["kwargs"]) == kwargs
    assert (row["args"], row["enabled"], row["catch_up"], row["grace_seconds"]) == ("[1]", True, "once", None)
    rev = row["rev"]
    cli.ok("set", "größe %1", "queue=", "kwargs={}", "grace_seconds=60", "--start", "2126-01-01")
    row = cli.json("show", "größe %1")["row"]
    assert (row["queue"], row["kwargs"], row["grace_seconds"]) == (None, "{}", 60)
    assert row["rev"] > rev
    assert cli.json("preview", "größe %1", "--count", "1")[0]["local"] == "2126-01-01T02:30:00+01:00"
    assert cli.ok("disable", "gr*", "--yes") == "disabled 1 row\n"
    assert cli.ok("disable", "größe %1") == "disabled 0 rows; 1 row was disabled already\n"
    assert cli.json("list", "--disabled")[0]["condition"] == "disabled"
    assert cli.ok("delete", "größe %1") == "deleted 1 row\n"
    assert cli.json("list") == []


def test_patterns_know_case_and_the_signs_of_like(cli: Cli) -> None:
    for name in ("a.1", "A.1", "a_1", "a%1", "a!1", "ab"):
        cli.ok("add", name, "app.a", "--every", "15m")
    assert [row["id"] for row in cli.json("list", "a_1")] == ["a_1"]
    assert {row["id"] for row in cli.json("list", "a?1")} == {"a.1", "a_1", "a%1", "a!1"}
    assert cli.json("delete", "a%*", "a!*", "--yes") == {"deleted": 2, "ids": ["a%1", "a!1"]}


def test_a_value_that_the_database_refuses_is_one_sentence(cli: Cli) -> None:
    cli.ok("add", "x", "app.a", "--every", "15m")
    assert "is JSON" not in cli.refused("set", "x", "kwargs={1}")
    assert "at most 191" in cli.refused("add", "i" * 192, "app.a", "--every", "15m")


def test_the_ledger_is_told_counted_and_audited(cli: Cli) -> None:
    cli.ok("add", "hourly", "app.a", "--every", "1h")
    cli.ok("add", "slow", "app.a", "--interval", "7200")
    slots = [cli.now // HOUR * HOUR - number * HOUR for number in range(2, 12)][::-1]
    cli.known("hourly", slots[0] - MINUTE, first_seen_us=1, next_run_us=cli.now + HOUR, late_after_us=cli.now - 1)
    cli.known("slow", slots[0], next_run_us=slots[0] + 2 * HOUR)
    cli.insert(tables.history, {"job_id": "hourly", "since_us": slots[-1] + MINUTE, "spec": None})
    cli.ran("hourly", slots[:4])
    cli.ran("hourly", [slots[6]], "failed", collapsed=2, detail="ValueError: no")
    cli.ran("hourly", [slots[7]], "missed", claimed_us=slots[-1] + MINUTE, detail=f"9 s late: {OVERTAKEN_DETAIL}")
    cli.ran("hourly", [slots[8] + 1], by_hand=True)
    cli.ran("slow", [slots[0]], "sent", lease_until_us=cli.now + DAY, finished_us=None)
    cli.beat_seen()
    report = cli.json("audit")
    assert report["counts"] == {"missing": 0, "too soon": 0, "pending": 1}
    assert report["verdicts"] == {"succeeded": 5, "failed": 1, "missed": 1, "sent": 1}
    with cli.engine.begin() as connection:
        connection.execute(sa.delete(tables.runs).where(tables.runs.c.slot_us == slots[2]))
    assert cli.json("audit", code=1)["counts"]["missing"] == 1
    assert [run["slot_us"] for run in cli.json("runs", "hourly", "--verdict", "failed")] == [slots[6]]
    assert len(cli.json("runs", "--since", "7d", "--limit", "3")) == 3
    assert cli.json("show", "hourly")["statistics"]["success_rate"] == 0.8
    assert cli.json("status")["runs_in_flight"] == 1
    assert [problem["id"] for problem in cli.json("check", code=1)["problems"]] == ["hourly"]


def test_check_finds_damage_and_migrate_repairs_it(cli: Cli) -> None:
    cli.beat_seen()
    assert cli.json("check")["schema"] == ""
    names = {"postgresql": "DROP TRIGGER qbeat_jobs_upd ON qbeat_jobs"}
    with cli.engine.begin() as connection:
        connection.exec_driver_sql(names.get(connection.dialect.name, "DROP TRIGGER qbeat_jobs_upd"))
    assert "edits of qbeat_jobs would not be noticed" in cli.json("check", code=1)["schema"]
    cli.ok("migrate")
    assert cli.json("check")["ok"] is True


def test_missing_tables_are_one_sentence(database_url: str) -> None:
    cli = Cli(database_url, qbeat_create_tables=False)
    for command in (["list"], ["show", "x"], ["status"], ["audit"], ["runs"], ["add", "x", "app.a", "--every", "1h"]):
        assert "run celery -A proj qbeat migrate" in cli.refused(*command)


def test_a_role_that_may_edit_rows_only_can_edit_rows(postgres_server: PostgreSQL, postgres_url: str) -> None:
    migrated(postgres_url)
    cli = Cli(postgres_url)
    role = f"editor_{cli.now}"
    with cli.engine.begin() as connection:
        connection.exec_driver_sql(f"CREATE ROLE {role} LOGIN PASSWORD 'x'")
        connection.exec_driver_sql(f"GRANT USAGE ON SCHEMA public TO {role}")
        for table in ("qbeat_jobs", "qbeat_workers", "qbeat_requests"):
            connection.exec_driver_sql(f"GRANT SELECT, INSERT, UPDATE, DELETE ON {table} TO {role}")
        connection.exec_driver_sql(f"GRANT SELECT ON qbeat_status, qbeat_state, qbeat_runs, qbeat_leader TO {role}")
    url = sa.make_url(postgres_url).set(username=role, password="x").render_as_string(hide_password=False)
    editor = Cli(url)
    editor.ok("add", "x", "app.a", "--every", "1h")
    editor.ok("set", "x", "schedule=2h")
    assert editor.json("list")[0]["schedule"] == "2h"
    assert editor.json("disable", "x")["disabled"] == 1
    assert "permission denied" in editor.refused("audit")
    with cli.engine.begin() as connection:
        connection.exec_driver_sql(f"DROP OWNED BY {role}")
        connection.exec_driver_sql(f"DROP ROLE {role}")


def test_the_program_finds_the_tables_by_their_url_alone(cli: Cli) -> None:
    cli.ok("add", "x", "app.a", "--every", "1h")
    result = CliRunner().invoke(main, ["--database-url", cli.url, "list", "--json"])
    assert json.loads(result.stdout)[0]["id"] == "x"
