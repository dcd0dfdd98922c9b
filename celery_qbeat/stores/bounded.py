"""Columns that people write, fetched only as far as their limits: a longer value stays in the database."""

from __future__ import annotations

from typing import Any

import sqlalchemy as sa
from sqlalchemy.ext.compiler import compiles
from sqlalchemy.sql.functions import FunctionElement

from celery_qbeat.core.limits import MAX_CHARACTERS, MAX_LIST, MAX_NUMBER_TEXT
from celery_qbeat.ports import REQUESTS_A_READ
from celery_qbeat.stores import tables

_NOT_BOUNDED = frozenset({"id", "enabled", "name"})
"""Keys have to come whole, because the next part begins after them; a flag is checked by the database."""


class Bounded(FunctionElement[Any]):
    """A column, or too much of it for `read_row`: enough to see that it is too long, never more.

    Only what the database itself does not limit is measured: texts without a length, and every column of SQLite.
    """

    name = "bounded"
    inherit_cache = True

    def __init__(self, column: sa.ColumnElement[Any], most: int) -> None:
        super().__init__(column, sa.literal_column(str(most)))


def job_columns(names: tuple[str, ...]) -> list[sa.ColumnElement[Any]]:
    """These columns of `qbeat_jobs`, JSON as text."""
    return [_bounded(tables.jobs.c[name], MAX_CHARACTERS.get(name)) for name in names]


def worker_columns(names: tuple[str, ...]) -> list[sa.ColumnElement[Any]]:
    """These columns of `qbeat_workers`."""
    return [_bounded(tables.workers.c[name]) for name in names]


def _bounded(column: sa.Column[Any], most: int | None = None) -> sa.ColumnElement[Any]:
    if column.name in _NOT_BOUNDED:
        return column
    length = getattr(column.type, "length", None)
    default = MAX_LIST if isinstance(column.type, sa.Text) else MAX_NUMBER_TEXT
    return Bounded(column, most or length or default)


@compiles(Bounded)
def _compiled(element: Bounded, compiler: Any, **options: Any) -> str:
    column, most = element.clauses
    if not isinstance(column.type, sa.Text):
        return str(compiler.process(column, **options))
    found = sa.func.left(sa.cast(column, sa.Text), most + sa.literal_column("1"))
    return str(compiler.process(found, **options))


@compiles(Bounded, "sqlite")
def _compiled_for_sqlite(element: Bounded, compiler: Any, **options: Any) -> str:
    # In bytes, because length() of a text ends at a NUL, as substr() does. A character has at most four bytes.
    column, most = (compiler.process(clause, **options) for clause in element.clauses)
    too_long = f"substr({column}, 1, {most}) || printf('%.*c', {most} + 1, '.')"
    return f"CASE WHEN length(CAST({column} AS BLOB)) > 4 * {most} THEN {too_long} ELSE {column} END"


_ASKED = tables.requests.c
REQUESTS = (
    sa.select(*(_bounded(_ASKED[name]) for name in ("id", "job_id", "asked_us", "asked_by", "action", "task_id")))
    .where(_ASKED.id > sa.bindparam("after"))
    .order_by(_ASKED.id)
    .limit(REQUESTS_A_READ)
)
"""The next requests behind the id `after`, built once. A `job_id` that was cut names no job."""
