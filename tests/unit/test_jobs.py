"""Rows to jobs: a row becomes a Job or a reason, and nothing in it makes the reader fail."""

from __future__ import annotations

import json
import uuid
from collections.abc import Mapping
from typing import Any

import pytest
import sqlalchemy as sa
from hypothesis import example, given
from hypothesis import strategies as st

from celery_qbeat.core.identity import run_token, task_id
from celery_qbeat.core.jobs import (
    CRON_RESERVED,
    Job,
    Reading,
    RowRules,
    WorkerScope,
    fingerprint,
    read_row,
    read_worker,
)
from celery_qbeat.core.limits import MAX_CHARACTERS, MAX_DEPTH, MAX_PAYLOAD
from celery_qbeat.core.payload import BeyondLimits, check_payload, read_json
from celery_qbeat.core.schedules import Every, Interval
from celery_qbeat.errors import JobError
from celery_qbeat.stores import tables
from celery_qbeat.testing.database import JOB_DEFAULTS

INSTANCE = "5f0c6e2e-6f0e-4a62-9a55-0d5b6f6ff001"
WORKERS = {"shop": WorkerScope("shop", queue="shop"), "closed": WorkerScope("closed", enabled=False)}


def row(**columns: Any) -> dict[str, Any]:
    return {**JOB_DEFAULTS, "id": "j", "fn": "app.a", "schedule_kind": "every", "schedule": "1m", "rev": 7, **columns}


def read(rules: RowRules | None = None, workers: Mapping[str, WorkerScope] = WORKERS, **columns: Any) -> Reading:
    return read_row(row(**columns), rules or RowRules(), workers)


def job(**columns: Any) -> Job:
    reading = read(**columns)
    assert reading.job is not None, reading.problem
    assert reading.problem == ""
    return reading.job


def problem(**columns: Any) -> str:
    reading = read(**columns)
    assert reading.job is None
    return reading.problem


# ---------------------------------------------------------------- good rows


def test_a_minimal_row_becomes_a_job_with_the_defaults() -> None:
    minimal = {"id": "shop.cleanup.hourly", "fn": "app.a", "schedule_kind": "every", "schedule": "1h"}
    reading = read_row(minimal, RowRules(), {})
    assert reading.job is not None
    assert reading.job.schedule == Every(3_600_000_000)
    assert (reading.job.args, reading.job.kwargs, reading.job.overlap, reading.job.catch_up) == (
        "[]",
        "{}",
        "skip",
        "once",
    )
    assert (reading.job.on_doubt, reading.job.grace_us, reading.job.max_run_us) == ("drop", None, 3_600_000_000)
    assert reading.job.rev == 0
    assert not reading.job.from_code


def test_every_column_arrives_in_the_job() -> None:
    found = job(
        worker="shop",
        args='[1, "two"]',
        kwargs='{"three": 3}',
        start_us=1,
        end_us=2,
        overlap="allow",
        catch_up="all",
        grace_seconds=5,
        on_doubt="resend",
        max_run_seconds=60,
        queue="fast",
        priority=9,
        expires_seconds=30,
    )
    assert (found.args, found.kwargs, found.start_us, found.end_us) == ('[1, "two"]', '{"three": 3}', 1, 2)
    assert (found.overlap, found.catch_up, found.grace_us, found.on_doubt) == ("allow", "all", 5_000_000, "resend")
    assert (found.max_run_us, found.queue, found.priority, found.expires_s) == (60_000_000, "fast", 9, 30)
    assert (found.scope, found.rev) == (WORKERS["shop"], 7)


@pytest.mark.parametrize(("enabled", "paused"), [(True, False), (1, False), (False, True), (0, True)])
def test_enabled_is_read_as_any_database_gives_it(enabled: object, paused: bool) -> None:
    assert job(enabled=enabled).paused is paused


def test_a_job_of_a_disabled_worker_is_paused() -> None:
    assert job(worker="closed").paused


def test_the_default_scope_may_be_a_row_of_its_own() -> None:
    assert job().scope == WorkerScope()
    default = read(workers={"": WorkerScope("", queue="slow")})
    assert default.job is not None
    assert default.job.scope.queue == "slow"


def test_an_id_of_191_characters_of_any_script_is_an_id() -> None:
    name = "käse.чай.茶" + "ø" * 181
    assert len(name) == 191
    assert job(id=name).id == name


def test_an_empty_queue_is_no_queue() -> None:
    assert job(queue="").queue is None


def test_columns_that_nobody_knows_do_no_harm() -> None:
    assert job(description=b"\xff", owner=object()).id == "j"


def test_an_interval_below_the_floor_is_clamped_up_to_it() -> None:
    reading = read(RowRules(min_interval_us=10_000_000), schedule_kind="interval", schedule="3")
    assert reading.job is not None
    assert reading.job.schedule == Interval(10)
    assert job(schedule_kind="interval", schedule="3").schedule == Interval(3)


def test_a_cron_row_is_reserved_unless_the_rules_allow_it() -> None:
    reserved = read(schedule_kind="cron", schedule="0 3 * * *")
    assert reserved.job is not None
    assert reserved.problem == CRON_RESERVED
    assert "qbeat_cron = True" in CRON_RESERVED
    allowed = read(RowRules(cron=True), schedule_kind="cron", schedule="0 3 * * *")
    assert allowed.job is not None
    assert allowed.problem == ""


def test_a_reserved_cron_row_that_is_wrong_says_what_is_wrong() -> None:
    assert "31" in problem(schedule_kind="cron", schedule="0 0 31 2 *")


# ---------------------------------------------------------------- poison rows

POISON: list[tuple[dict[str, Any], str, str]] = [
    ({"kwargs": "{'a': 1}"}, "kwargs: ", "is not JSON"),
    ({"args": "{}"}, "args: '{}' is not a JSON list", 'write it like [1, "two"]'),
    ({"kwargs": "[]"}, "kwargs: '[]' is not a JSON object", 'write it like {"name": "value"}'),
    ({"args": '"abc"'}, "args: ", "is not a JSON list"),
    ({"args": "null"}, "args: ", "is not a JSON list"),
    ({"args": ""}, "args: '' is not JSON", "write it like"),
    ({"args": "[NaN]"}, "args: '[NaN]' holds NaN", "write null or a string"),
    ({"kwargs": '{"a": Infinity}'}, "kwargs: ", "holds Infinity"),
    ({"kwargs": '{"a": -1e999}'}, "kwargs: ", "holds the number '-1e999', which is too large; write it as a string"),
    ({"args": "[1" + "0" * 5_000 + "]"}, "args: ", "of 5,001 digits, outside of 64 bits"),
    ({"args": "[9223372036854775808]"}, "args: ", "outside of 64 bits"),
    ({"args": "[-9223372036854775809]"}, "args: ", "write it as a string"),
    ({"args": '[{"a": {"__type__": "uuid", "__value__": "x"}}]'}, "args: ", "'__type__'"),
    ({"kwargs": r'{"\u005f_type__": "uuid", "__value__": "x"}'}, "kwargs: ", "use another key"),
    ({"args": "[" * 500 + "]" * 500}, "args: ", "in more than 30 levels"),
    ({"args": "[" * 30_000 + "]" * 30_000}, "args: ", "nested too deeply"),
    ({"args": "[" * 30_000}, "args: ", "nested too deeply"),
    ({"kwargs": '{"a":' * 31 + "1" + "}" * 31}, "kwargs: ", "nested too deeply"),
    ({"args": '["' + "x" * 2_000_000 + '"]'}, "args: args and kwargs take more than 65,536 bytes", "pass its key"),
    ({"dates_skip": ",".join(["2026-12-25"] * 1_001)}, "dates_skip ", "1,001 dates; at most 1,000"),
    ({"dates_skip": " " * 16_385}, "dates_skip: ", "at most 16384 characters"),
    ({"schedule": "x" * 256}, "schedule: ", "at most 255 characters"),
    ({"timezone": "x" * 65}, "timezone: ", "at most 64 characters"),
    ({"queue": "x" * 256}, "queue: ", "at most 255 characters"),
    ({"worker": "x" * 65}, "worker: ", "at most 64 characters"),
    ({"days_only": "mon," * 9}, "days_only: ", "at most 32 characters"),
    ({"timezone": "Mars/Phobos"}, "timezone 'Mars/Phobos' ", "e.g."),
    ({"timezone": ""}, "timezone '' ", "e.g."),
    ({"timezone": "../../etc/passwd"}, "timezone '../../etc/passwd' ", "e.g."),
    ({"fn": ""}, "fn: ''", "at least 1 character"),
    ({"id": ""}, "id: ''", "at least 1 character"),
    ({"id": "x" * 192}, "id: ", "at most 191 characters"),
    ({"fn": "x" * 256}, "fn: ", "at most 255 characters"),
    ({"schedule_kind": "hourly"}, "schedule_kind 'hourly' ", "interval, every, daily, cron, once"),
    ({"schedule_kind": "Every"}, "schedule_kind 'Every' ", "interval, every, daily, cron, once"),
    ({"schedule_kind": ""}, "schedule_kind '' ", "interval, every, daily, cron, once"),
    ({"schedule_kind": "interval", "schedule": "0"}, "schedule '0' ", "treated as disabled"),
    ({"schedule_kind": "interval", "schedule": "-5"}, "schedule '-5' ", "treated as disabled"),
    ({"schedule_kind": "interval", "schedule": "1.5"}, "schedule '1.5' ", "treated as disabled"),
    ({"schedule_kind": "interval", "schedule": "abc"}, "schedule 'abc' ", "e.g. '3600'"),
    ({"schedule_kind": "interval", "schedule": "9" * 12}, "schedule '999999999999' ", "30 years"),
    ({"schedule": "8d"}, "schedule '8d' ", "at most '7d'"),
    ({"schedule": ""}, "schedule '' ", "e.g. '15m'"),
    ({"schedule_kind": "daily", "schedule": "25:00"}, "schedule ", "25:00"),
    ({"days_only": "7"}, "days_only '7' ", "0 (Sunday) to 6 (Saturday)"),
    ({"days_skip": "0,1,2,3,4,5,6"}, "days_skip ", "never fire"),
    ({"dates_skip": "2026-02-31"}, "dates_skip '2026-02-31' ", "not a day of the calendar"),
    ({"worker": "nobody"}, "worker: 'nobody'", "not a row of qbeat_workers"),
    ({"worker": "Shop"}, "worker: 'Shop'", "not a row of qbeat_workers"),
    ({"id": "a\x00b"}, r"id: 'a\x00b'", "cannot be printed"),
    ({"id": "a\nb"}, r"id: 'a\nb'", "cannot be printed"),
    ({"id": "a "}, "id: 'a ' ends with a blank", "MariaDB"),
    ({"schedule": "1m\x00"}, r"schedule '1m\x00' ", "control character"),
    ({"args": '["\x00"]'}, "args: ", "is not JSON"),
    ({"id": "code:mine"}, "id: 'code:mine' ", "kept for entries of beat_schedule"),
    ({"overlap": "queue"}, "overlap: 'queue'", "'skip' or 'allow'"),
    ({"catch_up": "ONCE"}, "catch_up: 'ONCE'", "'once', 'skip' or 'all'"),
    ({"on_doubt": ""}, "on_doubt: ''", "'drop' or 'resend'"),
    ({"enabled": "yes"}, "enabled: 'yes'", "true or false"),
    ({"enabled": None}, "enabled: 'None'", "true or false"),
    ({"enabled": 2}, "enabled: '2'", "true or false"),
    ({"grace_seconds": -1}, "grace_seconds: '-1'", "greater than or equal to 0"),
    ({"max_run_seconds": 0}, "max_run_seconds: '0'", "greater than or equal to 1"),
    ({"max_run_seconds": 1.5}, "max_run_seconds: '1.5'", "integer"),
    ({"max_run_seconds": 10**30}, "max_run_seconds: ", "less than or equal to"),
    ({"priority": 256}, "priority: '256'", "255"),
    ({"expires_seconds": 0}, "expires_seconds: '0'", "1"),
    ({"start_us": "2026-01-01"}, "start_us: '2026-01-01'", "integer"),
    ({"start_us": 10**20}, "start_us: ", "less than or equal to"),
    ({"start_us": 2, "end_us": 1}, "end_us: ", "before start_us"),
    ({"fn": b"app.a"}, "fn: ", "text, not bytes"),
    ({"fn": None}, "fn: 'None'", "string"),
    ({"args": [1]}, "args: '[1]'", "string"),
]


@pytest.mark.parametrize(("columns", "start", "part"), POISON, ids=lambda value: str(value)[:40])
def test_a_bad_row_gets_a_reason_that_names_the_field_and_quotes_it(
    columns: dict[str, Any], start: str, part: str
) -> None:
    reason = problem(**columns)
    assert reason.startswith(start)
    assert part in reason
    assert len(reason) < 400
    assert "\n" not in reason


def test_the_reason_of_python_style_quotes_reads_like_this() -> None:
    assert problem(kwargs="{'a': 1}") == (
        "kwargs: \"{'a': 1}\" is not JSON (Expecting property name enclosed in double quotes: "
        'line 1 column 2 (char 1)); write it like {"name": "value"}'
    )


def test_a_row_without_an_id_that_is_text_is_named_by_what_it_has() -> None:
    assert read(id=None).id == "None"
    assert read(id=5).id == "5"
    assert read(id=b"x").id == "b'x'"
    assert read(id=b"x").job is None


def test_a_row_without_a_needed_column_says_which() -> None:
    assert read_row({"id": "j", "fn": "app.a", "schedule": "1m"}, RowRules(), {}).problem.startswith("schedule_kind: ")


def test_reading_leaves_the_row_as_it_is() -> None:
    for columns, _, _ in POISON:
        poison = row(**columns)
        before = dict(poison)
        read_row(poison, RowRules(), WORKERS)
        assert poison == before


ANYTHING = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.integers(min_value=-(2**63), max_value=2**63 - 1),
    st.floats(),
    st.binary(max_size=20),
    st.text(max_size=40),
    st.text(alphabet=st.characters(exclude_categories=()), max_size=20),
    st.dates(),
    st.lists(st.integers(), max_size=2),
    st.sampled_from(["[]", "{}", "1m", "0 0 * * *", "2026-12-01T09:00", "mon-fri", "UTC", "skip", "07:00", "NaN"]),
    st.builds(json.dumps, st.recursive(st.none() | st.integers(), lambda inner: st.lists(inner, max_size=3))),
)
COLUMNS = sorted({*JOB_DEFAULTS, "id", "fn", "schedule_kind", "schedule"})


@given(st.dictionaries(st.sampled_from(COLUMNS), ANYTHING, max_size=5))
@example({"priority": 10**5000})
@example({"id": -(10**5000)})
@example({"args": "[" + "9" * 5000 + "]"})
@example({"fn": "\ud800"})
@example({"schedule": "\ud800"})
@example({"args": '["\ud800"]'})
def test_no_value_in_any_column_makes_reading_fail(columns: dict[str, Any]) -> None:
    reading = read(RowRules(cron=True), **columns)
    assert (reading.job is None) == (reading.problem != "")
    assert "\n" not in reading.problem


class Name(str):
    """A driver's own kind of text."""

    __slots__ = ()


@pytest.mark.parametrize("column", [c for c in COLUMNS if isinstance(row()[c], str)])
def test_a_driver_s_own_kind_of_text_is_text(column: str) -> None:
    assert read(**{column: Name(row()[column])}) == read()


# ---------------------------------------------------------------- payloads, keys, ids


def test_args_and_kwargs_together_may_take_64_kib_of_utf_8() -> None:
    room = MAX_PAYLOAD - len('["ä"]'.encode()) - len("{}")
    check_payload('["ä' + "x" * room + '"]', "{}")
    with pytest.raises(JobError, match=r"take more than 65,536 bytes together"):
        check_payload('["ä' + "x" * (room + 1) + '"]', "{}")


@given(
    st.lists(st.integers(-(2**63), 2**63 - 1) | st.text()),
    st.dictionaries(st.text(), st.none() | st.floats(allow_nan=False, allow_infinity=False)),
)
def test_every_json_list_and_object_within_limits_is_a_payload(args: list[Any], kwargs: dict[str, Any]) -> None:
    check_payload(json.dumps(args), json.dumps(kwargs))


JSON_VALUES = st.recursive(
    st.none() | st.integers(-5, 5) | st.text(alphabet='[]{}"\\a'),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.text(alphabet='[]{}"\\a'), inner, max_size=2),
    max_leaves=40,
)


@given(JSON_VALUES, st.integers(0, 40))
def test_depth_is_counted_without_the_brackets_in_strings(value: Any, levels: int) -> None:
    for _ in range(levels):
        value = [value]
    if depth_of(value) <= MAX_DEPTH:
        assert read_json(json.dumps(value)) == value
    else:
        with pytest.raises(BeyondLimits):
            read_json(json.dumps(value))


def depth_of(value: Any) -> int:
    inner = value.values() if isinstance(value, dict) else value if isinstance(value, list) else None
    return 0 if inner is None else 1 + max(map(depth_of, inner), default=0)


def test_the_limits_are_the_lengths_of_the_columns() -> None:
    columns = tables.jobs.columns
    lengths = {column.name: length for column in columns if (length := getattr(column.type, "length", None))}
    assert lengths == {name: MAX_CHARACTERS[name] for name in lengths}
    texts = {column.name for column in columns if isinstance(column.type, sa.String)}
    assert texts == set(MAX_CHARACTERS) | {"description"}


@pytest.mark.parametrize(
    ("column", "value"),
    [
        ("schedule", "2m"),
        ("timezone", "Europe/Berlin"),
        ("days_only", "mon"),
        ("days_skip", "sun"),
        ("dates_skip", "2026-12-25"),
        ("start_us", 5),
        ("end_us", 5),
    ],
)
def test_the_plan_key_changes_with_everything_that_moves_slots(column: str, value: object) -> None:
    assert job(**{column: value}).plan_key != job().plan_key


@pytest.mark.parametrize(
    ("column", "value"),
    [("args", "[1]"), ("fn", "app.b"), ("enabled", False), ("overlap", "allow"), ("rev", 8), ("catch_up", "all")],
)
def test_the_plan_key_does_not_change_with_what_moves_no_slot(column: str, value: object) -> None:
    assert job(**{column: value}).plan_key == job().plan_key


def test_the_floor_is_part_of_the_plan_of_an_interval_and_of_nothing_else() -> None:
    keys = set()
    for rules in (RowRules(), RowRules(min_interval_us=5_000_000)):
        found = read(rules, schedule_kind="interval", schedule="3").job
        assert found is not None
        keys.add(found.plan_key)
    assert len(keys) == 2
    other = read(RowRules(min_interval_us=5_000_000)).job
    assert other is not None
    assert other.plan_key == job().plan_key


def test_a_spec_is_json_and_its_fingerprint_the_plan_key() -> None:
    found = job(timezone="Europe/Berlin", start_us=3)
    assert json.loads(found.spec) == ["every", "1m", "Europe/Berlin", "", "", "", 3, None, 0]
    assert fingerprint(found.spec) == found.plan_key
    assert len(found.plan_key) <= 64


def test_a_task_id_is_a_pure_function_of_instance_job_and_slot() -> None:
    assert task_id(INSTANCE, "j", 5) == task_id(INSTANCE, "j", 5)
    assert uuid.UUID(task_id(INSTANCE, "j", 5)).version == 5
    ids = {task_id(INSTANCE, name, slot) for name in ("j", "k", "j@5") for slot in (5, 6)}
    assert len(ids) == 6
    assert task_id("0b9d9f4e-93c7-4f0e-8f3e-70f0f2b4a001", "j", 5) not in ids


def test_a_run_token_needs_the_instance() -> None:
    assert run_token(INSTANCE, "t") == run_token(INSTANCE, "t")
    assert run_token(INSTANCE, "t") != run_token(INSTANCE, "u")
    assert run_token("other", "t") != run_token(INSTANCE, "t")


def test_a_worker_s_lists_are_separated_by_commas_or_white_space() -> None:
    found = read_worker(
        {"name": "shop", "enabled": 1, "queue": None, "queues": "a, b\nc", "functions": "app.a app.shop.*"}
    )
    assert found == WorkerScope("shop", True, "", ("a", "b", "c"), ("app.a", "app.shop.*"))
    assert read_worker({"name": "", "enabled": 0}) == WorkerScope("", False)


def test_a_worker_that_is_no_text_stops_its_own_jobs() -> None:
    long = read_worker({"name": "shop", "enabled": 1, "functions": "x" * 65_536})
    assert "column functions is longer than 65,535 characters" in long.problem
    broken = read_worker({"name": "shop", "enabled": 1, "queue": b"\xff"})
    assert problem(worker="shop", workers={"shop": broken}) == (
        "worker: 'shop' cannot be used: its queue is b'\\xff', which is no text"
    )
    assert read_worker({"name": b"\xff", "enabled": 1}).problem
