"""People's rows, read and edited as people do it, for commands and forms. Every function is a part of a transaction.

Nothing here writes what the machine writes. A driver's errors pass through: `Link` gives them our names.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import sqlalchemy as sa
from sqlalchemy.dialects.postgresql import JSONB

from celery_qbeat.core.health import InFlight, LastRun, last_run
from celery_qbeat.core.jobs import State
from celery_qbeat.stores import job_runs, tables
from celery_qbeat.stores.bounded import job_columns
from celery_qbeat.stores.claiming import chunks
from celery_qbeat.stores.reading import key

COLUMNS = tuple(column.name for column in tables.jobs.columns)
JSON_COLUMNS = frozenset({"args", "kwargs"})
ROWS_A_PART = 2_000

_STATE = tuple(column.name for column in tables.state.columns)
_STATE_FIELDS = tuple(name for name in _STATE if name in State.__dataclass_fields__)


@dataclass(frozen=True, slots=True)
class Found:
    """A job as the tables have it: its row (JSON as text; empty for an entry in code) and its state (None: unseen).

    `last_run`, `run`: its newest run and its oldest one in flight; read by `with_runs` only.
    """

    id: str
    row: Mapping[str, Any]
    state: Mapping[str, Any] | None
    last_run: LastRun | None = None
    run: InFlight | None = None

    @property
    def memory(self) -> State | None:
        """The state as the scheduler reads it."""
        if self.state is None:
            return None
        return State(**{name: self.state[name] for name in _STATE_FIELDS})


def part(
    connection: sa.Connection, after: Any = None, *, pattern: str | None = None, worker: str | None = None
) -> list[Found]:
    """The next rows after the id `after` (None: the first ones), at most ROWS_A_PART, in the order of their ids."""
    jobs = tables.jobs.c
    query = _rows().order_by(jobs.id).limit(ROWS_A_PART)
    if after is not None:
        query = query.where(jobs.id > after)
    if pattern is not None:
        query = query.where(_like(jobs.id, pattern))
    if worker is not None:
        query = query.where(jobs.worker == worker)
    return _found(connection, query)


def get(connection: sa.Connection, job_ids: Sequence[str]) -> dict[str, Found]:
    """The rows with these ids, as far as there are any."""
    found: dict[str, Found] = {}
    for ids in chunks(job_ids):
        for row in _found(connection, _rows().where(tables.jobs.c.id.in_(ids))):
            found[row.id] = row
    return found


def with_runs(connection: sa.Connection, found: Sequence[Found]) -> list[Found]:
    """The same jobs with their runs."""
    ids = [job.id for job in found]
    last, flying = job_runs.last(connection, ids), job_runs.oldest_in_flight(connection, ids)
    return [replace(job, last_run=last_run(job.state, last.get(job.id)), run=flying.get(job.id)) for job in found]


def code_states(connection: sa.Connection, prefix: str) -> dict[str, Found]:
    """The states of entries in code, whose ids begin with `prefix`."""
    query = sa.select(tables.state).where(_like(tables.state.c.job_id, prefix + "*"))
    states = [dict(row) for row in connection.execute(query).mappings()]
    return {str(state["job_id"]): Found(str(state["job_id"]), {}, state) for state in states}


def ids(connection: sa.Connection, pattern: str = "*") -> Iterator[str]:
    """The ids of rows that match a pattern (see `matches`), in their order."""
    jobs = tables.jobs.c
    query = sa.select(jobs.id).where(_like(jobs.id, pattern)).order_by(jobs.id)
    for row_id in connection.execute(query).scalars():
        if matches(key(row_id), pattern):
            yield key(row_id)


def matches(row_id: str, pattern: str) -> bool:
    """Whether an id matches a pattern in which `*` stands for any characters and `?` for one."""
    parts = (".*" if sign == "*" else "." if sign == "?" else re.escape(sign) for sign in pattern)
    return re.fullmatch("".join(parts), row_id, re.DOTALL) is not None


def is_pattern(text: str) -> bool:
    return "*" in text or "?" in text


def insert(connection: sa.Connection, row: Mapping[str, Any]) -> None:
    """A new row; columns that `row` does not have get their defaults from the server."""
    connection.execute(sa.insert(tables.jobs).values(_values(connection, row)))


def update(connection: sa.Connection, job_id: str, changes: Mapping[str, Any]) -> bool:
    """Change these columns of one row and no other; whether the row was there."""
    jobs = tables.jobs
    statement = sa.update(jobs).where(jobs.c.id == job_id).values(_values(connection, changes))
    return connection.execute(statement).rowcount > 0


def enable(connection: sa.Connection, job_ids: Sequence[str], enabled: bool) -> int:
    """Switch rows on or off; how many were not so before."""
    jobs = tables.jobs
    changed = 0
    for some in chunks(sorted(job_ids)):
        other = sa.and_(jobs.c.id.in_(some), jobs.c.enabled.is_(sa.false() if enabled else sa.true()))
        changed += connection.execute(sa.update(jobs).where(other).values(enabled=enabled)).rowcount
    return changed


def delete(connection: sa.Connection, job_ids: Sequence[str]) -> int:
    """Delete rows; how many there were. Their ledger stays."""
    jobs = tables.jobs
    return sum(
        connection.execute(sa.delete(jobs).where(jobs.c.id.in_(some))).rowcount for some in chunks(sorted(job_ids))
    )


def ask(connection: sa.Connection, job_id: str, asked_us: int, asked_by: str) -> int:
    """Ask the writer for a run by hand; the id of the request, see `identity.request_task_id`."""
    asked = {"job_id": job_id, "asked_us": asked_us, "asked_by": asked_by[:255]}
    key = connection.execute(sa.insert(tables.requests).values(asked)).inserted_primary_key
    if key is None:
        raise AssertionError("an insert of one row has a key")
    return int(key[0])


def ask_release(connection: sa.Connection, job_id: str, task_id: str, asked_us: int, asked_by: str) -> None:
    """Ask the writer to end a run, or every run of the job that is in flight when `task_id` is empty."""
    asked = {"job_id": job_id, "task_id": task_id, "asked_us": asked_us, "asked_by": asked_by[:255]}
    connection.execute(sa.insert(tables.requests).values(action="release", **asked))


def _rows() -> sa.Select[Any]:
    return sa.select(*job_columns(COLUMNS))


def _found(connection: sa.Connection, query: sa.Select[Any]) -> list[Found]:
    rows = [dict(zip(COLUMNS, row, strict=True)) for row in connection.execute(query)]
    states: dict[Any, dict[str, Any]] = {}
    for some in chunks([row["id"] for row in rows]):
        query = sa.select(tables.state).where(tables.state.c.job_id.in_(some))
        states.update((row["job_id"], dict(row)) for row in connection.execute(query).mappings())
    return [Found(key(row["id"]), row, states.get(row["id"])) for row in rows]


def _values(connection: sa.Connection, row: Mapping[str, Any]) -> dict[str, Any]:
    return {name: _json(connection, value) if name in JSON_COLUMNS else value for name, value in row.items()}


def _json(connection: sa.Connection, text: str) -> sa.ColumnElement[Any]:
    # The text itself: the types of the columns would encode it once more, as a JSON string.
    value = sa.literal(text, sa.Text())
    return sa.cast(value, JSONB) if connection.dialect.name == "postgresql" else value


def _like(column: sa.ColumnElement[Any], pattern: str) -> sa.ColumnElement[bool]:
    """No narrower than `matches`: SQLite folds the case of letters here."""
    escaped = re.sub(r"([!%_])", r"!\1", pattern)
    return column.like(escaped.replace("*", "%").replace("?", "_"), escape="!")
