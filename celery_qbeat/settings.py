"""The `qbeat_*` keys of the Celery configuration, checked: one clear sentence for the first thing that is wrong."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping
from typing import Annotated, Any

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError

from celery_qbeat.errors import SettingsError

PREFIX = "qbeat_"

_ABSENT = object()

DEFAULT_DATABASE_URL = "sqlite:///celery-qbeat.sqlite3"


def _names(value: Any) -> Any:
    if isinstance(value, str):
        raise ValueError(f"must be a list of names; write it like [{value!r}]")
    if isinstance(value, Iterable) and not isinstance(value, Mapping | bytes):
        return tuple(value)
    return value


Names = Annotated[tuple[Annotated[str, Field(min_length=1)], ...], BeforeValidator(_names)]


def _by_pattern(value: Any) -> Any:
    if not isinstance(value, Mapping):
        raise ValueError("must map patterns of task names to worker scopes; write it like {'billing.*': ['billing']}")
    return {pattern: (scopes,) if isinstance(scopes, str) else _names(scopes) for pattern, scopes in value.items()}


ScopesByPattern = Annotated[
    dict[Annotated[str, Field(min_length=1)], Annotated[tuple[str, ...], Field(min_length=1)]],
    BeforeValidator(_by_pattern),
]
Seconds = Annotated[float, Field(gt=0, allow_inf_nan=False)]
Days = Annotated[float, Field(ge=0, allow_inf_nan=False)]


class Retention(BaseModel):
    """How long the ledger keeps runs, in days by verdict; `other` is every verdict not named."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    succeeded: Days = 7
    failed: Days = 30
    other: Days = 7


class Settings(BaseModel):
    """The settings, without their prefix. The field's description is the documentation."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    database_url: Annotated[
        str | None,
        Field(min_length=1, description="SQLAlchemy URL of the tables; None: an SQLite file, or Django's database"),
    ] = None
    django_database: Annotated[
        str, Field(min_length=1, description="the alias in Django's DATABASES, when the Django app is installed")
    ] = "default"
    redis_url: Annotated[
        str | None, Field(min_length=1, description="where the writer's lock lives; None: standalone, one beat")
    ] = None
    namespace: Annotated[
        str,
        Field(
            pattern=r"^[A-Za-z0-9_.-]{1,64}$",
            description="groups beats in the names of keys and queues; each database has its own within it",
        ),
    ] = "default"
    lock_ttl: Annotated[Seconds, Field(description="seconds until the lock of a dead writer is free")] = 10.0
    poll_interval: Annotated[
        float, Field(ge=0.05, le=60, description="seconds between two looks at the database, at most")
    ] = 1.0
    min_interval: Annotated[
        float, Field(ge=0.001, le=86_400, description="the floor of `interval` rows, in seconds")
    ] = 1.0
    cron: Annotated[
        bool, Field(strict=True, description="whether `cron` rows run; False: stored, shown, never due")
    ] = False
    functions: Annotated[
        Names,
        Field(description="exact names that rows may run though the beat cannot import them, or though privileged"),
    ] = ()
    privileged: Annotated[Names, Field(description="more namespaces that no row may run, such as 'ops.'")] = ()
    denied: Annotated[Names, Field(description="exact names that no row may run, whatever else says so")] = ()
    queues: Annotated[Names, Field(description="queues that rows may name, beside the default")] = ()
    run_code_entries: Annotated[
        bool,
        Field(strict=True, description="whether `run-now` and rows of `qbeat_requests` may run entries in code, too"),
    ] = False
    allow: Annotated[
        Names | None,
        Field(
            description="patterns ('shop.tasks.*') of the tasks that rows may run whose scope has no functions; "
            "None: every registered one"
        ),
    ] = None
    reserved: Annotated[
        ScopesByPattern,
        Field(description="patterns of tasks that only rows of these scopes may run: {pattern: [scope]}"),
    ] = {}
    scope_required: Annotated[bool, Field(strict=True, description="whether a row must name a worker scope to run")] = (
        False
    )
    retention: Annotated[Retention, Field(description="days that the ledger keeps runs, by verdict")] = Retention()
    heartbeat_file: Annotated[
        str | None,
        Field(min_length=1, description="a file that the beat touches while it works, for probes; None: no file"),
    ] = None
    create_tables: Annotated[
        bool | None, Field(description="whether beat may create missing tables; None: only in SQLite")
    ] = None


def read_settings(conf: Mapping[str, Any]) -> Settings:
    """The settings in `app.conf`. Raises SettingsError naming the key, the value and what would work."""
    # By `get`: a Celery configuration that is still pending says of every key that it is not in it.
    found = {name: conf.get(PREFIX + name, _ABSENT) for name in Settings.model_fields}
    given = {name: value for name, value in found.items() if value is not _ABSENT}
    _refuse_unknown(conf)
    try:
        settings = Settings.model_validate(given)
    except ValidationError as error:
        raise SettingsError(_sentence(error)) from None
    _check_namespaces(settings.privileged)
    _check_patterns("allow", settings.allow or ())
    _check_patterns("reserved", settings.reserved)
    return settings


def _refuse_unknown(conf: Mapping[str, Any]) -> None:
    known = {PREFIX + name for name in Settings.model_fields}
    for key in conf:
        lower = str(key).lower()
        stray = lower.removeprefix("celery_")
        if not stray.startswith(PREFIX) or key in known:
            continue
        if stray in known and conf.get(stray) is not None:
            continue
        if stray in known:
            raise SettingsError(
                f"{key} is not read: write it as {stray} (or with namespace='CELERY' as CELERY_{stray.upper()})"
            )
        near = difflib.get_close_matches(stray, known, n=1)
        hint = f"did you mean {near[0]}? " if near else ""
        raise SettingsError(f"unknown setting {key}; {hint}Known: {', '.join(sorted(known))}")


def _check_namespaces(names: tuple[str, ...]) -> None:
    for name in names:
        if not name.endswith("."):
            raise SettingsError(
                f"{PREFIX}privileged: {name!r} is not a namespace; write {name + '.'!r}, or put it into {PREFIX}denied"
            )


def _check_patterns(setting: str, patterns: Iterable[str]) -> None:
    for pattern in patterns:
        if "*" in pattern.removesuffix(".*") or pattern == ".*":
            raise SettingsError(
                f"{PREFIX}{setting}: {pattern!r} is not a pattern; write an exact name, or one like 'shop.tasks.*'"
            )


def _sentence(error: ValidationError) -> str:
    first = error.errors(include_url=False)[0]
    path = ".".join(str(part) for part in first["loc"])
    message = str(first["msg"]).removeprefix("Value error, ")
    message = message[:1].lower() + message[1:]
    value = "(hidden)" if "url" in path else repr(first["input"])
    return f"{PREFIX}{path} = {value}: {message}"
