"""The nouns: a job, its state, its runs; and how a row becomes a job or a reason why not."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from functools import lru_cache
from hashlib import blake2b
from sys import intern
from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError

from celery_qbeat.core.limits import MAX_CHARACTERS, MAX_LIST
from celery_qbeat.core.payload import NO_ARGS, NO_KWARGS, check_payload, shortened, shown
from celery_qbeat.core.schedules import Schedule, parse
from celery_qbeat.errors import JobError, ScheduleError

CODE_PREFIX = "code:"
"""Ids of entries of `app.conf.beat_schedule` start with this; rows may not."""

ENTRY_NAME = "__name__"
"""Where the name of an entry in code stands in `Job.options`."""

DEFAULT_MAX_RUN_US = 3_600_000_000


class Verdict(StrEnum):
    """What became of a slot. `CLAIMED` is the only one that is never the end of a story."""

    CLAIMED = "claimed"
    SENT = "sent"
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    REVOKED = "revoked"
    EXPIRED = "expired"
    UNKNOWN_TASK = "unknown task"
    IGNORED = "ignored"
    LOST = "lost"
    SKIPPED = "skipped"
    MISSED = "missed"
    REFUSED = "refused"
    IN_DOUBT = "in doubt"


IN_FLIGHT = frozenset({Verdict.CLAIMED, Verdict.SENT})
GUESSES = frozenset({Verdict.LOST, Verdict.IN_DOUBT})
"""Ends that a report from a worker corrects."""

FAILURES = frozenset({Verdict.FAILED, Verdict.REVOKED, Verdict.EXPIRED, Verdict.UNKNOWN_TASK, Verdict.LOST})
"""Ends that count as failures in a row."""


def may_end(old: Verdict, new: Verdict) -> bool:
    """Whether `new` replaces `old`: the first end stands, a failure corrects a success, knowledge corrects a guess."""
    if new in IN_FLIGHT:
        return False
    known = new not in GUESSES
    return old in IN_FLIGHT or (old is Verdict.SUCCEEDED and new is Verdict.FAILED) or (old in GUESSES and known)


@dataclass(frozen=True, slots=True)
class WorkerScope:
    """An app scope, a row of `qbeat_workers`. Empty tuples mean: not narrowed. `problem`: why none of its jobs runs."""

    name: str = ""
    enabled: bool = True
    queue: str = ""
    queues: tuple[str, ...] = ()
    functions: tuple[str, ...] = ()
    problem: str = ""


DEFAULT_SCOPE = WorkerScope()


@dataclass(frozen=True, slots=True)
class Job:
    """A usable definition. `args` and `kwargs` stay JSON text until a run is dispatched."""

    id: str
    fn: str
    schedule: Schedule
    plan_key: str
    spec: str = ""
    scope: WorkerScope = DEFAULT_SCOPE
    args: str = "[]"
    kwargs: str = "{}"
    enabled: bool = True
    start_us: int | None = None
    end_us: int | None = None
    overlap: str = "skip"
    catch_up: str = "once"
    grace_us: int | None = None
    on_doubt: str = "drop"
    max_run_us: int = DEFAULT_MAX_RUN_US
    queue: str | None = None
    priority: int | None = None
    expires_s: int | None = None
    rev: int | None = None
    options: Mapping[str, Any] | None = None

    @property
    def name(self) -> str:
        """What people call it: the id of its row, or the name of its entry in code."""
        given = (self.options or {}).get(ENTRY_NAME)
        return str(given) if given is not None else self.id

    @property
    def from_code(self) -> bool:
        """An entry of `app.conf.beat_schedule`: trusted, and without a row or a rev."""
        return self.rev is None

    @property
    def paused(self) -> bool:
        return not (self.enabled and self.scope.enabled)


@dataclass(frozen=True, slots=True)
class State:
    """What the machine remembers of a job: its row of `qbeat_state`."""

    job_id: str
    first_seen_us: int
    next_run_us: int | None = None
    last_run_us: int | None = None
    last_slot_us: int | None = None
    last_succeeded_us: int | None = None
    late_after_us: int | None = None
    plan_key: str = ""
    problem: str = ""


@dataclass(frozen=True, slots=True)
class Run:
    """One slot of one job with its verdict. `collapsed` counts the older due slots it stands for."""

    job_id: str
    slot_us: int
    task_id: str
    verdict: Verdict
    late_us: int = 0
    collapsed: int = 0
    detail: str = ""
    lease_until_us: int | None = None
    resend: bool = False
    """Whether its row wants it sent again when nobody knows whether it was sent."""


@dataclass(frozen=True, slots=True)
class RowRules:
    """What the settings say about rows."""

    min_interval_us: int = 1_000_000
    cron: bool = False


@dataclass(frozen=True, slots=True)
class Reading:
    """A row as understood: a job, or a problem, or both (a reserved job is stored and shown, but never due)."""

    id: str
    job: Job | None
    problem: str = ""


RESERVED_PREFIX = "cron is reserved"
"""How the problem of a reserved row begins, also in the words of other versions; `stores.status_view` has it, too."""

CRON_RESERVED = (
    f"{RESERVED_PREFIX}: set qbeat_cron = True in the Celery configuration to run cron rows "
    "(schedulers read a cron line differently: docs/schedules.md)"
)


def _blank_is_none(value: Any) -> Any:
    return None if value == "" else value


def _text(value: Any) -> Any:
    if isinstance(value, bytes):
        raise ValueError("must be text, not bytes")
    return value


def _choice(value: Any) -> Any:
    # Older pydantic finds no subclass of `str` among the choices.
    return str(value) if isinstance(value, str) else value


def _yes(value: Any) -> Any:
    if isinstance(value, int) and value in (0, 1):
        return bool(value)
    raise ValueError("must be true or false (1 or 0)")


def _most(column: str) -> Any:
    return Field(max_length=MAX_CHARACTERS[column])


IS_TEXT = BeforeValidator(_text)
Text = Annotated[str, IS_TEXT]
Whole = Annotated[int, Field(strict=True)]
Instant = Annotated[Whole, Field(ge=-62_135_596_800_000_000, le=253_402_300_799_999_999)]


class _Row(BaseModel):
    model_config = ConfigDict(extra="ignore", frozen=True)

    id: Annotated[str, Field(min_length=1), _most("id"), IS_TEXT]
    fn: Annotated[str, Field(min_length=1), _most("fn"), IS_TEXT]
    schedule_kind: Annotated[str, _most("schedule_kind"), IS_TEXT]
    schedule: Annotated[str, _most("schedule"), IS_TEXT]
    worker: Annotated[str, _most("worker"), IS_TEXT] = ""
    args: Text = "[]"
    kwargs: Text = "{}"
    enabled: Annotated[bool, BeforeValidator(_yes)] = True
    timezone: Annotated[str, _most("timezone"), IS_TEXT] = "UTC"
    days_only: Annotated[str, _most("days_only"), IS_TEXT] = ""
    days_skip: Annotated[str, _most("days_skip"), IS_TEXT] = ""
    dates_skip: Annotated[str, _most("dates_skip"), IS_TEXT] = ""
    start_us: Instant | None = None
    end_us: Instant | None = None
    overlap: Annotated[Literal["skip", "allow"], BeforeValidator(_choice)] = "skip"
    catch_up: Annotated[Literal["once", "skip", "all"], BeforeValidator(_choice)] = "once"
    grace_seconds: Annotated[Whole, Field(ge=0, le=10**10)] | None = None
    on_doubt: Annotated[Literal["drop", "resend"], BeforeValidator(_choice)] = "drop"
    max_run_seconds: Annotated[Whole, Field(ge=1, le=10**10)] = 3600
    queue: Annotated[Annotated[str, _most("queue"), IS_TEXT] | None, BeforeValidator(_blank_is_none)] = None
    priority: Annotated[Whole, Field(ge=0, le=255)] | None = None
    expires_seconds: Annotated[Whole, Field(ge=1, le=10**10)] | None = None
    rev: Whole = 0


def read_row(row: Mapping[str, Any], rules: RowRules, workers: Mapping[str, WorkerScope]) -> Reading:
    """The job that a row of `qbeat_jobs` defines, or the reason why it cannot run; never raises for bad content.

    `row` maps the columns to what the database holds; JSON columns as text.
    """
    row_id = row.get("id")
    name = row_id if isinstance(row_id, str) else shown(row_id)
    try:
        model = _Row.model_validate(row)
        return _reading(model, rules, workers)
    except ValidationError as error:
        return Reading(name, None, _first_error(error))
    except (JobError, ScheduleError) as error:
        return Reading(name, None, str(error))


def _reading(row: _Row, rules: RowRules, workers: Mapping[str, WorkerScope]) -> Reading:
    _check_id(row.id)
    check_payload(row.args, row.kwargs)
    if row.worker not in workers and row.worker != "":
        raise JobError(f"worker: {row.worker!r} is not a row of qbeat_workers", field="worker")
    scope = workers.get(row.worker, DEFAULT_SCOPE)
    if scope.problem:
        raise JobError(f"worker: {row.worker!r} cannot be used: {scope.problem}", field="worker")
    if row.start_us is not None and row.end_us is not None and row.end_us < row.start_us:
        raise JobError("end_us: lies before start_us", field="end_us")
    schedule = parse(
        row.schedule_kind,
        row.schedule,
        timezone=row.timezone,
        days_only=row.days_only,
        days_skip=row.days_skip,
        dates_skip=row.dates_skip,
        min_interval_us=rules.min_interval_us,
    )
    spec, plan_key = _identity(row, rules)
    # A driver makes a new text for every row: those that many rows share are kept once.
    job = Job(
        id=row.id,
        fn=intern(row.fn),
        schedule=schedule,
        plan_key=plan_key,
        spec=spec,
        scope=scope,
        args=NO_ARGS if row.args == NO_ARGS else row.args,
        kwargs=NO_KWARGS if row.kwargs == NO_KWARGS else row.kwargs,
        enabled=row.enabled,
        start_us=row.start_us,
        end_us=row.end_us,
        overlap=row.overlap,
        catch_up=row.catch_up,
        grace_us=None if row.grace_seconds is None else row.grace_seconds * 1_000_000,
        on_doubt=row.on_doubt,
        max_run_us=row.max_run_seconds * 1_000_000,
        queue=row.queue and intern(row.queue),
        priority=row.priority,
        expires_s=row.expires_seconds,
        rev=row.rev,
    )
    reserved = row.schedule_kind == "cron" and not rules.cron
    return Reading(row.id, job, CRON_RESERVED if reserved else "")


def _check_id(job_id: str) -> None:
    if job_id.startswith(CODE_PREFIX):
        raise JobError(
            f"id: {job_id!r} starts with {CODE_PREFIX!r}, which is kept for entries of beat_schedule", field="id"
        )
    if job_id.endswith(" "):
        # Its state would be that of the other id there, and each look at the two would differ.
        raise JobError(
            f"id: {job_id!r} ends with a blank, which MariaDB and MySQL do not tell from the id without it", field="id"
        )
    if not job_id.isprintable():
        raise JobError(
            f"id: {job_id!r} has a character that cannot be printed; choose one like 'shop.cleanup.hourly'", field="id"
        )


def _identity(row: _Row, rules: RowRules) -> tuple[str, str]:
    """What the schedule of a row is made of, as JSON, and its fingerprint."""
    floor = rules.min_interval_us if row.schedule_kind == "interval" else 0
    when = (row.schedule_kind, row.schedule, row.timezone, row.days_only, row.days_skip, row.dates_skip)
    read = _identity_of if len(row.dates_skip) <= _KEPT else _identity_of.__wrapped__
    return read(*when, row.start_us, row.end_us, floor)


# Many rows share a schedule. Longer lists of dates are not kept: a table of them could fill the memory.
_KEPT = 500


@lru_cache(maxsize=16_384)
def _identity_of(*parts: str | int | None) -> tuple[str, str]:
    spec = json.dumps(parts, separators=(",", ":"))
    return spec, intern(fingerprint(spec))


def fingerprint(spec: str) -> str:
    """Equal for equal schedules: by it a later beat knows whether a slot was planned from this definition."""
    return blake2b(spec.encode(errors="surrogatepass"), digest_size=12).hexdigest()


def _first_error(error: ValidationError) -> str:
    first = error.errors(include_url=False)[0]
    field = str(first["loc"][0])
    message = first["msg"].removeprefix("Value error, ")
    message = message[:1].lower() + message[1:]
    given = first["input"]
    return f"{field}: {shortened(given if isinstance(given, str) else shown(given))}: {message}"


def read_worker(row: Mapping[str, Any]) -> WorkerScope:
    """A row of `qbeat_workers`; lists are separated by commas or white space."""
    texts = {name: row.get(name) or "" for name in ("name", "queue", "queues", "functions")}
    bad = [name for name, text in texts.items() if not isinstance(text, str)]
    if bad:
        return WorkerScope(name=str(row["name"]), problem=f"its {bad[0]} is {shown(texts[bad[0]])}, which is no text")
    for name, most in {"queue": MAX_CHARACTERS["queue"], "queues": MAX_LIST, "functions": MAX_LIST}.items():
        if len(texts[name]) > most:
            return WorkerScope(name=texts["name"], problem=f"its column {name} is longer than {most:,} characters")
    return WorkerScope(
        name=texts["name"],
        enabled=bool(row["enabled"]),
        queue=texts["queue"],
        queues=tuple(texts["queues"].replace(",", " ").split()),
        functions=tuple(texts["functions"].replace(",", " ").split()),
    )
