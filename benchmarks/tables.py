"""What a benchmark found, and how it is shown."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from rich import box
from rich.console import Console
from rich.table import Table as Grid

Row = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Table:
    """Rows of values under column names. A format ending in `x` shows a ratio; None is shown as a dash."""

    name: str
    title: str
    columns: Mapping[str, str]
    rows: Sequence[Row]
    notes: Sequence[str] = field(default_factory=tuple)

    def as_json(self) -> dict[str, Any]:
        """The same, with full precision."""
        return {"name": self.name, "title": self.title, "notes": list(self.notes), "rows": [dict(r) for r in self.rows]}


def show(console: Console, table: Table) -> None:
    """Print it."""
    grid = Grid(title=table.title, title_justify="left", title_style="bold", box=box.SIMPLE_HEAD)
    for number, name in enumerate(table.columns):
        grid.add_column(name, justify="left" if number == 0 else "right")
    for row in table.rows:
        grid.add_row(*(_cell(row.get(name), form) for name, form in table.columns.items()))
    console.print(grid)
    for note in table.notes:
        console.print(f"  {note}", style="dim", highlight=False)


def _cell(value: Any, form: str) -> str:
    if value is None:
        return "-"
    if isinstance(value, str) or not form:
        return str(value)
    text = format(value, form.rstrip("x"))
    return f"[bold]{text} x[/bold]" if form.endswith("x") else text
