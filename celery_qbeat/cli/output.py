"""Tables for people and JSON for programs."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from typing import Any

import click
from rich.console import Console
from rich.table import Table
from rich.text import Text

from celery_qbeat.conditions import Condition
from celery_qbeat.safe_text import one_line

Cell = str | Text
_STYLES = {
    Condition.READY: "green",
    Condition.RUNNING: "cyan",
    Condition.STOPPED: "bold yellow",
    Condition.BLOCKED: "yellow",
    Condition.LATE: "bold yellow",
    Condition.REFUSED: "bold red",
    Condition.BAD: "bold red",
}


def named(condition: Condition) -> Text:
    """A condition in its colour."""
    return Text(condition.value, style=_STYLES.get(condition, "dim"))


def verdict(text: str) -> Text:
    """A verdict in its colour."""
    styles = {"succeeded": "green", "sent": "cyan", "claimed": "cyan", "failed": "bold red", "lost": "bold red"}
    return Text(one_line(text), style=styles.get(text, "yellow"))


def table(columns: Sequence[str], lines: Iterable[Sequence[Cell]]) -> None:
    """Print a table that fits the terminal, 80 columns where there is none. Titles that end in > are of numbers."""
    made = Table(box=None, pad_edge=False, header_style="bold", show_edge=False)
    for title in columns:
        made.add_column(title.removesuffix(">"), justify="right" if title.endswith(">") else "left", overflow="fold")
    for line in lines:
        made.add_row(*(cell if isinstance(cell, Text) else Text(one_line(cell)) for cell in line))
    _print(made)


def facts(pairs: Iterable[tuple[str, Cell]]) -> None:
    """Print names and values, one pair a line."""
    made = Table(box=None, pad_edge=False, show_header=False, show_edge=False)
    made.add_column(style="bold", no_wrap=True)
    made.add_column(overflow="fold")
    for name, value in pairs:
        made.add_row(name, value if isinstance(value, Text) else Text(one_line(value)))
    _print(made)


def say(text: str) -> None:
    """One line."""
    click.echo(one_line(text))


def title(text: str) -> None:
    """A heading over a part of the output."""
    click.echo()
    _console().print(Text(text, style="bold"))


def dump(value: Any) -> None:
    """Print JSON: ASCII, so that no terminal and no pipe can spoil it.

    What SQLite holds in place of a text, bytes for example, is shown as in the tables.
    """
    click.echo(json.dumps(value, indent=2, default=repr))


def warn(text: str) -> None:
    """One line on standard error."""
    click.echo(f"Warning: {one_line(text)}", err=True)


def counts(conditions: dict[Condition, int]) -> str:
    """`12 jobs: 10 ready, 2 bad`."""
    total = sum(conditions.values())
    parts = [f"{conditions[each]} {each}" for each in Condition if conditions.get(each)]
    return f"{total} {'job' if total == 1 else 'jobs'}" + (f": {', '.join(parts)}" if parts else "")


def _print(made: Table) -> None:
    console = _console()
    if console.is_terminal:
        console.print(made)
        return
    with console.capture() as captured:
        console.print(made)
    # Tables are filled up with blanks, which nobody wants in a file.
    click.echo("\n".join(line.rstrip() for line in captured.get().splitlines()))


def _console() -> Console:
    obj = getattr(click.get_current_context(silent=True), "obj", None)
    return Console(no_color=True if getattr(obj, "no_color", False) else None, highlight=False, markup=False)
