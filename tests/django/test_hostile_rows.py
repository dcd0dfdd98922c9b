"""Rows that no form would save: each page still answers, and the admin shows and deletes them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any
from urllib.parse import quote as percent

import pytest
from celery import Celery
from django.contrib.admin.utils import quote
from django.core.management import call_command
from django.db import connections, transaction
from django.test import Client

from tests.clock import now_us
from tests.django.databases import register

LIST, RUNS, SCOPES = "/admin/qbeat/job/", "/admin/qbeat/run/", "/admin/qbeat/worker/"
PAGES = (LIST, LIST + "?q=shop", LIST + "forecast/", LIST + "status/", LIST + "add/")
DEEP = "[" * 3_000 + "]" * 3_000

EVERYWHERE: dict[str, dict[str, Any]] = {
    "empty id": {"id": ""},
    "blank id": {"id": " "},
    "id of a new job": {"id": "add"},
    "id with slashes": {"id": "//a/../b/change/"},
    "5,000 digits": {"args": f"[{'9' * 5_000}]"},
    "huge start": {"start_us": 2**63 - 1, "end_us": -(2**63)},
    "huge dates": {"dates_skip": "2026-12-25," * 5_900},
    "bad zone": {"timezone": "../etc"},
    "bad kind": {"schedule_kind": "moon", "schedule": "x" * 255},
    "typed object": {"kwargs": '{"__type__": "uuid", "__value__": "x"}'},
    "markup": {"id": "<script>%s%(x)s{{", "fn": "\x1b[31m\n"},
    "no list": {"args": '"text"', "kwargs": "[]"},
}
SQLITE: dict[str, dict[str, Any]] = {
    "text in a number": {"start_us": "soon", "end_us": "late", "grace_seconds": "x", "priority": "y", "rev": "z"},
    "bytes in a number": {"start_us": b"\xff", "max_run_seconds": b"\x00"},
    "no UTF-8": {"fn": b"\xed\xa0\x80", "schedule": b"\xff", "description": b"\xfe", "worker": b"\xff"},
    "a real as a time": {"start_us": 1.5, "end_us": float("inf")},
    "1e999": {"args": "[1e999, -1e999]"},
    "surrogate": {"args": r'["\ud800"]', "kwargs": r'{"\udfff": 1}'},
    "NUL": {"fn": "a\0b", "description": "\0"},
    "10 MB": {"args": '["' + "x" * 10_000_000 + '"]'},
    "long texts": {"fn": "x" * 100_000, "schedule": "y" * 100_000, "timezone": "z" * 100_000},
}
CASES = {
    "sqlite": {**EVERYWHERE, **SQLITE, "900 deep": {"args": DEEP[2_100:-2_100]}},
    "postgresql": {**EVERYWHERE, "3,000 deep": {"args": DEEP}},
    "mysql": EVERYWHERE,
}


@pytest.fixture(scope="module")
def migrated(request: pytest.FixtureRequest) -> Iterator[str]:
    """The alias of a migrated database of the kind in the parameter."""
    if request.param == "sqlite":
        url = f"sqlite:///{request.getfixturevalue('tmp_path_factory').mktemp('hostile') / 'hostile.sqlite3'}"
    else:
        server = request.getfixturevalue({"postgresql": "postgres_server", "mysql": "mariadb_server"}[request.param])
        url = server.url_of(server.create_database())
    alias = register(url)
    call_command("migrate", database=alias, verbosity=0)
    yield alias
    connections[alias].close()
    del connections[alias]
    del connections.databases[alias]


@pytest.fixture
def boss(migrated: str, celery_app: Celery) -> Iterator[Client]:
    """A superuser's browser on that database, in a transaction that is rolled back."""
    from django.contrib.auth.models import User

    before = connections["default"]
    connections["default"] = connections[migrated]
    try:
        with transaction.atomic():
            client = Client()
            client.force_login(User.objects.create_superuser("boss"))
            yield client
            transaction.set_rollback(True)
    finally:
        connections["default"] = before


def insert(columns: dict[str, Any]) -> str:
    """A hostile row beside a good one; the id of the hostile one."""
    good = {"id": "shop.good", "fn": "shop.cleanup", "schedule_kind": "every", "schedule": "1h"}
    row = {**good, "id": "hostile", **columns}
    connection = connections["default"]
    with connection.cursor() as cursor:
        for values in (good, row):
            marks = ", ".join(
                "CAST(%s AS TEXT)" if isinstance(value, bytes) and name not in ("start_us", "max_run_seconds") else "%s"
                for name, value in values.items()
            )
            cursor.execute(f"INSERT INTO qbeat_jobs ({', '.join(values)}) VALUES ({marks})", list(values.values()))
        cursor.execute("INSERT INTO qbeat_state (job_id, problem, next_run_us) VALUES (%s, 'bad', 5)", [row["id"]])
        cursor.execute(
            "INSERT INTO qbeat_runs (task_id, job_id, slot_us, verdict) VALUES ('t', %s, %s, 'sent')",
            [row["id"], now_us()],
        )
    return str(row["id"])


def cases() -> list[Any]:
    return [
        pytest.param(kind, columns, id=f"{kind}-{name}")
        for kind, known in CASES.items()
        for name, columns in known.items()
    ]


@pytest.mark.parametrize(("migrated", "columns"), cases(), indirect=["migrated"])
def test_every_page_answers_and_a_hostile_row_can_be_deleted(boss: Client, columns: dict[str, Any]) -> None:
    name = insert(columns)
    own = f"{LIST}{percent(quote(name))}/"
    for page in (*PAGES, RUNS, f"{own}change/", f"{own}history/", f"{own}delete/"):
        answer = boss.get(page)
        assert answer.status_code == 200, page
    assert "shop.good" in boss.get(LIST).content.decode()
    typed = {"qbeat_object_id": name, "schedule_kind": "every", "schedule": "1h"}
    assert boss.post(LIST + "preview/", typed).status_code == 200
    assert boss.post(f"{own}run-now/").status_code == 302
    assert boss.post(LIST, {"action": "disable", "_selected_action": [name]}).status_code == 302
    confirm = boss.post(LIST, {"action": "delete_selected", "_selected_action": [name]})
    assert confirm.status_code == 200
    assert boss.post(f"{own}delete/", {"post": "yes"}).status_code == 302
    with connections["default"].cursor() as cursor:
        cursor.execute("SELECT id FROM qbeat_jobs WHERE id <> '_builtin.prune'")
        assert cursor.fetchall() in ([("shop.good",)], (("shop.good",),))


@pytest.mark.parametrize("migrated", list(CASES), indirect=True)
def test_a_nul_in_an_address_finds_nothing(boss: Client) -> None:
    insert({})
    names = (
        "q",
        "kind",
        "verdict",
        "health",
        "scope",
        "job_id",
        "day",
        "enabled__exact",
        "id__contains",
        "zone",
        "p",
        "o",
    )
    for page in (LIST, RUNS, SCOPES, LIST + "forecast/"):
        for name in names:
            assert boss.get(f"{page}?{name}=%00").status_code in (200, 302), (page, name)
    for view in ("change", "history", "delete"):
        for page in (LIST, RUNS, SCOPES):
            assert boss.get(f"{page}a%00b/{view}/").status_code in (302, 403, 404), (page, view)
    for view in ("run-now", "release"):
        assert boss.post(f"{LIST}a%00b/{view}/").status_code == 404
    assert boss.post(LIST + "preview/", {"qbeat_object_id": "\0", "schedule": "1h"}).status_code == 200
    for page in (LIST, RUNS, SCOPES):
        selected = {"action": "delete_selected", "_selected_action": ["\0"]}
        assert boss.post(page, selected).status_code in (200, 302)


@pytest.mark.parametrize("migrated", list(CASES), indirect=True)
@pytest.mark.parametrize("key", ["word", "9" * 30, "\0"])
def test_selected_runs_that_no_table_can_have_are_passed_over(boss: Client, key: str) -> None:
    insert({})
    typed = {"action": "release", "index": "0", "_selected_action": [key]}
    assert boss.post(RUNS, typed).status_code == 302
