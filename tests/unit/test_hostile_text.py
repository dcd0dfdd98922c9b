"""Text of strangers makes one log line and one printed line, and sends no control character to a terminal."""

from __future__ import annotations

import importlib
import inspect
import io
import json
import logging
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, get_type_hints

import pytest
import sqlalchemy as sa

import celery_qbeat
from celery_qbeat.core.jobs import Job, Run, Verdict
from celery_qbeat.core.planning import Claim
from celery_qbeat.core.safe_text import one_line
from celery_qbeat.core.schedules import parse
from celery_qbeat.engine import log_events
from celery_qbeat.errors import QbeatError
from celery_qbeat.ports import Request
from celery_qbeat.stores import tables
from tests.unit.making_cli import MINUTE, Cli, migrated

HOSTILE = "evil\r\n[2026-01-01 00:00:00,000: INFO/MainProcess] forged\x1b[2J\x9b31m\u202etxet\u2066\x00\x08\u2028end"
RUN = Run(HOSTILE, 1, HOSTILE, Verdict.MISSED, detail=HOSTILE)
JOB = Job(HOSTILE, HOSTILE, parse("every", "1h"), HOSTILE)
VALUES: dict[Any, Any] = {
    str: HOSTILE,
    int: 7,
    float: 7.0,
    bool: True,
    BaseException: RuntimeError(HOSTILE),
    Exception: RuntimeError(HOSTILE),
    Verdict: Verdict.FAILED,
    Job: JOB,
    Run: RUN,
    Claim: Claim(HOSTILE, 1, None, None, (RUN,)),
    Request: Request(7, HOSTILE, 7, HOSTILE, HOSTILE, HOSTILE),
    dict[str, int]: dict.fromkeys(("rows", "running", "disabled", "refused", "bad", "code"), 7),
    dict[str, str]: {},
}


@pytest.fixture
def logged() -> Iterator[Callable[[], list[str]]]:
    """The lines that a plain handler of the root logger has written."""
    stream, root = io.StringIO(), logging.getLogger()
    handler = logging.StreamHandler(stream)
    ours = logging.getLogger("celery_qbeat")
    before = ours.level
    ours.setLevel(logging.DEBUG)
    root.addHandler(handler)
    yield lambda: stream.getvalue().removesuffix("\n").split("\n")
    root.removeHandler(handler)
    ours.setLevel(before)


def is_safe(lines: list[str]) -> None:
    assert [line for line in lines if not line.isprintable()] == []


def events() -> dict[str, Callable[..., None]]:
    """The functions of `report` that write to the log."""
    found = inspect.getmembers(log_events, inspect.isfunction)
    return {
        name: call
        for name, call in found
        if call.__module__ == log_events.__name__ and name not in ("instant", "duration")
    }


@pytest.mark.parametrize("name", events())
def test_every_event_is_one_line(name: str, logged: Callable[[], list[str]]) -> None:
    call = events()[name]
    kinds = {key: kind for key, kind in get_type_hints(call).items() if key != "return"}
    call(**{key: VALUES[kind] for key, kind in kinds.items()})
    lines = logged()
    is_safe(lines)
    if name in ("bug", "chore_failed", "schedule_raised"):
        assert all(line.startswith("  ") for line in lines[1:]), "a line of a traceback cannot look like a record"
    else:
        assert len(lines) == 1


def test_a_traceback_cannot_forge_a_record(logged: Callable[[], list[str]]) -> None:
    try:
        raise QbeatError(HOSTILE) from ValueError("redis://:s3cr3t@host/0")
    except QbeatError as error:
        log_events.bug(error)
    first, *others = logged()
    assert first.startswith("beat: unexpected error, going on: QbeatError(")
    is_safe(others)
    assert all(line.startswith("  ") for line in others)
    assert any("redis://***@host/0" in line for line in others)
    assert not any("s3cr3t" in line for line in others)


def test_every_logger_of_ours_makes_its_records_safe(logged: Callable[[], list[str]]) -> None:
    # It configures Django, without which the modules of the Django app cannot be imported.
    importlib.import_module("tests.django.conftest")
    root = Path(celery_qbeat.__file__).parent
    for path in root.rglob("*.py"):
        if 'get_logger("' in (source := path.read_text()) or "get_logger()" in source:
            importlib.import_module(
                ".".join(("celery_qbeat", *path.relative_to(root).with_suffix("").parts)).removesuffix(".__init__")
            )
    known = logging.Logger.manager.loggerDict
    ours = [
        name for name, logger in known.items() if name.startswith("celery_qbeat") and isinstance(logger, logging.Logger)
    ]
    assert "celery_qbeat" in ours
    for name in ours:
        logging.getLogger(name).error("%s and %s", HOSTILE, RuntimeError("amqp://u:s3cr3t@host//"))
    lines = logged()
    assert len(lines) == len(ours)
    is_safe(lines)
    assert not [line for line in lines if "s3cr3t" in line]


def test_a_safe_record_keeps_its_template(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, logger="celery_qbeat")
    log_events.changed(1, 2)
    log_events.broker_away(HOSTILE)
    safe, hostile = caplog.records
    assert safe.args == (1, 2)
    assert hostile.getMessage().endswith(one_line(HOSTILE))


def test_what_can_be_printed_is_not_touched() -> None:
    assert one_line("naïve ü 日本 \\n 'x' 😀") == "naïve ü 日本 \\n 'x' 😀"
    assert one_line("a\tb\u202ec\ud800") == "a\\tb\\u202ec\\ud800"


@pytest.fixture
def cli(sqlite_url: str) -> Cli:
    """Tables with a hostile text in every column that has room for one."""
    migrated(sqlite_url)
    cli = Cli(sqlite_url)
    row = {"fn": "app.a", "schedule_kind": "every", "schedule": "1h"}
    texts = [column.name for column in tables.jobs.columns if isinstance(column.type, sa.String)]
    for name in sorted({*texts} - {"args", "kwargs"}):
        cli.insert(tables.jobs, {**row, "id": f"job-{name}", name: HOSTILE})
    cli.insert(tables.jobs, {**row, "id": "job-args", "args": json.dumps([HOSTILE], ensure_ascii=False)})
    cli.insert(tables.workers, {"name": HOSTILE, "description": HOSTILE, "queue": HOSTILE})
    cli.beat_seen(holder=HOSTILE)
    cli.insert(tables.state, {"job_id": "job-fn", "first_seen_us": 1, "problem": HOSTILE, "last_error": HOSTILE})
    cli.ran("job-description", [cli.now - MINUTE], detail=HOSTILE)
    cli.ran(HOSTILE, [cli.now - MINUTE], detail=HOSTILE)
    return cli


@pytest.mark.parametrize(
    "command",
    [
        *(("list",), ("status",), ("check",), ("runs",), ("audit",), ("show", "job-fn"), ("show", HOSTILE)),
        *(("preview", "job-worker"), ("preview", HOSTILE), ("show", f"not {HOSTILE}"), ("run-now", f"not {HOSTILE}")),
        *(("set", "job-fn", "--every", HOSTILE), ("disable", HOSTILE), ("release", HOSTILE), ("runs", HOSTILE)),
    ],
    ids=lambda command: " ".join(map(one_line, command))[:20],
)
def test_no_command_prints_a_control_character(cli: Cli, command: tuple[str, ...]) -> None:
    result = cli.run(*command)
    assert isinstance(result.exception, SystemExit | None), result.exception
    is_safe(result.output.split("\n"))


def test_an_app_that_cannot_be_loaded_is_one_line(sqlite_url: str) -> None:
    cli = Cli(sqlite_url, qbeat_namespace=HOSTILE)
    assert cli.refused("list").isprintable() is False
    is_safe(cli.refused("list").split("\n"))
