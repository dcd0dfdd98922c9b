"""The columns of a row as options and as `column=value`, and their texts as values."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, TypeVar

import click

from celery_qbeat.cli.times import read_instant
from celery_qbeat.core.schedules import KINDS
from celery_qbeat.errors import QbeatError
from celery_qbeat.stores import rows

F = TypeVar("F", bound=Callable[..., Any])

NUMBERS = frozenset({"grace_seconds", "max_run_seconds", "priority", "expires_seconds"})
INSTANTS = frozenset({"start_us", "end_us"})
NULLABLE = frozenset({"start_us", "end_us", "grace_seconds", "queue", "priority", "expires_seconds"})
EDITABLE = tuple(name for name in rows.COLUMNS if name not in ("id", "rev"))
SWITCH = {"true": True, "1": True, "yes": True, "on": True, "false": False, "0": False, "no": False, "off": False}

_OPTIONS: tuple[tuple[str, str, str, str], ...] = (
    ("--worker", "worker", "NAME", "App scope, a row of qbeat_workers."),
    ("--args", "args", "JSON", "Positional arguments, a JSON list."),
    ("--kwargs", "kwargs", "JSON", "Keyword arguments, a JSON object."),
    ("--timezone", "timezone", "ZONE", "IANA name, e.g. Europe/Berlin."),
    ("--days-only", "days_only", "DAYS", "Weekdays, 0=Sunday: 1,2,3 or mon-fri."),
    ("--days-skip", "days_skip", "DAYS", "Weekdays to leave out."),
    ("--dates-skip", "dates_skip", "DATES", "Dates to leave out: 2026-12-25,2026-12-26."),
    ("--start", "start_us", "TIME", "Not before; local to the row's zone."),
    ("--end", "end_us", "TIME", "Not after."),
    ("--overlap", "overlap", "skip|allow", "May a run start while one is in flight?"),
    ("--catch-up", "catch_up", "once|skip|all", "What becomes of slots that were missed."),
    ("--grace-seconds", "grace_seconds", "N", "A slot older than this is missed."),
    ("--on-doubt", "on_doubt", "drop|resend", "A slot of which nobody knows whether it was sent."),
    ("--max-run-seconds", "max_run_seconds", "N", "The lease of a run."),
    ("--queue", "queue", "NAME", "Where to send it."),
    ("--priority", "priority", "N", "The message's priority."),
    ("--expires-seconds", "expires_seconds", "N", "The message is worthless after this."),
    ("--description", "description", "TEXT", "For people."),
)


def schedule_options(function: F) -> F:
    """`--interval` and so on, each naming kind and text at once; or `--kind` and `--schedule`."""
    for kind in reversed(tuple(KINDS)):
        text = f"Kind {kind}, e.g. {KINDS[kind].example!r}."
        function = click.option(f"--{kind}", f"kind_{kind}", metavar="TEXT", help=text)(function)
    function = click.option("--schedule", metavar="TEXT", help="The text of that kind.")(function)
    return click.option("--kind", "schedule_kind", metavar="KIND", help=f"One of {', '.join(KINDS)}.")(function)


def column_options(function: F) -> F:
    """An option for every other column, without defaults: what is not given is not touched."""
    for flag, name, metavar, text in reversed(_OPTIONS):
        function = click.option(flag, name, metavar=metavar, help=text)(function)
    return click.option("--enabled/--disabled", "enabled", default=None, help="Switched on or off.")(function)


def filter_options(function: F) -> F:
    """The options that change which slots a schedule has."""
    for flag, name, metavar, text in reversed(_OPTIONS):
        if name in ("timezone", "days_only", "days_skip", "dates_skip"):
            function = click.option(flag, name, metavar=metavar, help=text)(function)
    return function


def schedule_given(options: dict[str, Any]) -> dict[str, str]:
    """Kind and text out of the options, which are taken away. Raises UsageError when they are given twice."""
    short = {kind: text for kind in KINDS if (text := options.pop(f"kind_{kind}")) is not None}
    given = {name: text for name in ("schedule_kind", "schedule") if (text := options.pop(name)) is not None}
    if len(short) > 1 or (short and given):
        raise click.UsageError(
            "name the schedule once: " + ", ".join(f"--{kind}" for kind in KINDS) + " or --kind and --schedule"
        )
    for kind, text in short.items():
        return {"schedule_kind": kind, "schedule": text}
    return given


def changes(options: Mapping[str, Any], pairs: tuple[str, ...], zone: str, now_us: int) -> dict[str, Any]:
    """The values of columns, from options and from `column=value`. Raises QbeatError naming the column."""
    texts = {name: value for name, value in options.items() if value is not None}
    for pair in pairs:
        name, equals, text = pair.partition("=")
        if not equals:
            raise click.UsageError(f"{pair!r} is no column=value; write e.g. schedule=3600")
        if name not in EDITABLE:
            raise click.UsageError(_no_column(name))
        if name in texts:
            raise click.UsageError(f"{name} is given twice")
        texts[name] = text
    zone = str(texts.get("timezone", zone))
    return {name: value(name, text, zone, now_us) for name, text in texts.items()}


def value(column: str, text: Any, zone: str, now_us: int) -> Any:
    """The value of a column as a person writes it; nothing at all is NULL where the column has that."""
    if not isinstance(text, str):
        return text
    if column in NULLABLE and text in ("", "null"):
        return None
    if column in INSTANTS:
        return read_instant(text, zone, now_us, column)
    if column in NUMBERS:
        return _number(column, text)
    if column == "enabled":
        if text.lower() not in SWITCH:
            raise QbeatError(f"enabled: {text!r} is neither true nor false")
        return SWITCH[text.lower()]
    return text


def _number(column: str, text: str) -> int:
    try:
        number = int(text)
    except ValueError:
        raise QbeatError(f"{column}: {text!r} is no whole number; write e.g. 60") from None
    if not -(1 << 31) <= number < 1 << 31:
        raise QbeatError(f"{column}: {text} is too large for the column; write at most {(1 << 31) - 1}")
    return number


def _no_column(name: str) -> str:
    if name == "id":
        return "id: a row with another id is another job; add that one and delete this one"
    if name == "rev":
        return "rev: the database writes it"
    return f"qbeat_jobs has no column {name!r}; it has {', '.join(EDITABLE)}"
