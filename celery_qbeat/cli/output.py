"""Tables for people and JSON for programs.

A row of a table is one line. On a terminal the cells are cut to its width, but never the first one, which is an id or a
time. In a pipe or a file nothing is cut, and there are no colours.
"""

from __future__ import annotations

import json
import os
import shutil
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any
from unicodedata import combining, east_asian_width

import click

from celery_qbeat.core.health import Condition
from celery_qbeat.core.plurals import quantity
from celery_qbeat.core.safe_text import one_line

GAP = "  "
NARROWEST = 5
"""Columns of the terminal that a cut cell keeps at least."""

LINES_A_WRITE = 1_000

_STYLES = {
    Condition.READY: "green",
    Condition.RUNNING: "cyan",
    Condition.STOPPED: "bold yellow",
    Condition.BLOCKED: "yellow",
    Condition.LATE: "bold yellow",
    Condition.REFUSED: "bold red",
    Condition.BAD: "bold red",
}


@dataclass(frozen=True, slots=True)
class Styled:
    """A text in a style, such as `bold red`, and what follows it without one."""

    text: str
    style: str
    rest: str = ""


Cell = str | Styled


def named(condition: Condition, reason: str = "") -> Styled:
    """A condition in its colour, and its reason."""
    return Styled(condition.value, _STYLES.get(condition, "dim"), f": {reason}" if reason else "")


def verdict(text: str) -> Styled:
    """A verdict in its colour."""
    styles = {"succeeded": "green", "sent": "cyan", "claimed": "cyan", "failed": "bold red", "lost": "bold red"}
    return Styled(text, styles.get(text, "yellow"))


def table(columns: Sequence[str], lines: Iterable[Sequence[Cell]]) -> None:
    """Print a table. Titles that end in > are of numbers."""
    titles = [title.removesuffix(">") for title in columns]
    right = [title.endswith(">") for title in columns]
    rows: list[list[Cell]] = [[_on_one_line(cell) for cell in line] for line in lines]
    widths = [_width(title) for title in titles]
    for row in rows:
        widths = [max(width, _width(_plain(cell))) for width, cell in zip(widths, row, strict=True)]
    if sys.stdout.isatty():
        widths = _fitted(widths, shutil.get_terminal_size().columns)
    colors = _has_colors()
    _print([_line([Styled(title, "bold") for title in titles], widths, right, colors)])
    for start in range(0, len(rows), LINES_A_WRITE):
        _print([_line(row, widths, right, colors) for row in rows[start : start + LINES_A_WRITE]])


def facts(pairs: Iterable[tuple[str, Cell]]) -> None:
    """Print names and values, one pair a line."""
    found = [(name, _on_one_line(value)) for name, value in pairs]
    width = max((_width(name) for name, _ in found), default=0)
    colors = _has_colors()
    _print([_line([Styled(name, "bold"), value], [width, 0], [False, False], colors) for name, value in found])


def say(text: str) -> None:
    """One line."""
    click.echo(one_line(text))


def title(text: str) -> None:
    """A heading over a part of the output."""
    click.echo()
    click.echo(_colored(Styled(text, "bold")) if _has_colors() else text)


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
    parts = [f"{conditions[each]} {each}" for each in Condition if conditions.get(each)]
    return quantity(sum(conditions.values()), "job") + (f": {', '.join(parts)}" if parts else "")


def _on_one_line(cell: Cell) -> Cell:
    if isinstance(cell, Styled):
        return Styled(one_line(cell.text), cell.style, one_line(cell.rest))
    return one_line(cell)


def _plain(cell: Cell) -> str:
    return cell.text + cell.rest if isinstance(cell, Styled) else cell


def _width(text: str) -> int:
    """The columns of the terminal that a text takes."""
    if text.isascii():
        return len(text)
    return sum(0 if combining(sign) else 2 if east_asian_width(sign) in "WF" else 1 for sign in text)


def _fitted(widths: Sequence[int], room: int) -> list[int]:
    """The widths of columns that share a terminal: the widest are cut first, the first column is not."""
    first, *rest = widths
    room -= first + len(GAP) * len(rest)
    limit = max(rest, default=0)
    while limit > NARROWEST and sum(min(width, limit) for width in rest) > room:
        limit -= 1
    # What cutting to whole columns leaves over is the last one's: reasons are there.
    fitted = [min(width, limit) for width in rest]
    if fitted:
        fitted[-1] = min(rest[-1], max(fitted[-1], room - sum(fitted[:-1])))
    return [first, *fitted]


def _line(row: Sequence[Cell], widths: Sequence[int], right: Sequence[bool], colors: bool) -> str:
    """A row with its columns filled up, the last one not: blanks at the end are of no use in a file."""
    parts = []
    for number, (cell, width, flush) in enumerate(zip(row, widths, right, strict=True), 1):
        shown = _cut(cell, width) if width else cell
        plain = _plain(shown)
        blanks = " " * (width - _width(plain))
        text = _colored(shown) if colors and isinstance(shown, Styled) else plain
        parts.append(blanks + text if flush else text if number == len(row) else text + blanks)
    return GAP.join(parts).rstrip()


def _cut(cell: Cell, width: int) -> Cell:
    if _width(_plain(cell)) <= width:
        return cell
    if isinstance(cell, str):
        return _cut_text(cell, width)
    shown = _cut_text(cell.text + cell.rest, width)
    return Styled(shown[: len(cell.text)], cell.style, shown[len(cell.text) :])


def _cut_text(text: str, width: int) -> str:
    mark = "…" if (sys.stdout.encoding or "").lower().startswith("utf") else "~"
    taken, room = 0, width - 1
    for sign in text:
        room -= _width(sign)
        if room < 0:
            break
        taken += 1
    return text[:taken] + mark


def _colored(cell: Styled) -> str:
    words = cell.style.split()
    color = next((word for word in words if word not in ("bold", "dim")), None)
    styled: str = click.style(cell.text, fg=color, bold="bold" in words or None, dim="dim" in words or None)
    return styled + cell.rest


def _print(lines: Sequence[str]) -> None:
    if lines:
        click.echo("\n".join(lines))


def _has_colors() -> bool:
    """Whether to colour: on a terminal, unless it, NO_COLOR (https://no-color.org) or --no-color says no."""
    if not sys.stdout.isatty() or os.environ.get("NO_COLOR") or os.environ.get("TERM") == "dumb":
        return False
    return not getattr(getattr(click.get_current_context(silent=True), "obj", None), "no_color", False)
