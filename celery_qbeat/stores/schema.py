"""Making the tables, and checking them: version, owner, rights, triggers.

One tool owns a database's schema: Alembic here, or Django; `qbeat_meta.owner` says which, and the other one refuses.

The rights that a beat needs when its role may not create anything (triggers write the log with their owner's rights):

    SELECT on qbeat_jobs, qbeat_workers
    SELECT, INSERT, UPDATE, DELETE on qbeat_state, qbeat_runs, qbeat_batches, qbeat_history, qbeat_changes
    SELECT, DELETE on qbeat_requests
    SELECT, INSERT, UPDATE on qbeat_leader
    SELECT, UPDATE on qbeat_meta

docs/databases.md has the rights of roles that edit rows, and those of readers.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import NoReturn

import sqlalchemy as sa
from sqlalchemy.exc import DBAPIError

from celery_qbeat.errors import QbeatError, SchemaError
from celery_qbeat.stores import postgresql_rights, tables, trigger_selftest
from celery_qbeat.stores.connection import Link

log = logging.getLogger("celery_qbeat.store")

SCHEMA_VERSION = 3
MIGRATE = {"alembic": "celery -A proj qbeat migrate", "django": "manage.py migrate"}


@dataclass(frozen=True, slots=True)
class Identity:
    """The row of `qbeat_meta`."""

    instance: str
    version: int
    owner: str


class _Undo(QbeatError):
    """Carries the canary's answer, and the rights, out of a transaction that is rolled back."""

    def __init__(self, rights: postgresql_rights.Rights, answer: str) -> None:
        super().__init__(answer)
        self.rights, self.answer = rights, answer


def migrate(link: Link) -> None:
    """Bring the tables to SCHEMA_VERSION, and make triggers and view anew. May be repeated.

    Raises SchemaError when Django owns the tables, when they are newer, or when the role may not create them.
    """
    found = link.read(identity)
    if found is not None:
        if found.owner != "alembic":
            raise SchemaError(f"the tables of this database belong to {found.owner}: run {_remedy(found)}")
        _refuse_newer(found)
    # Alembic is large, so it is read only where there is something to migrate; its import alone fills a log.
    logging.getLogger("alembic").setLevel(logging.WARNING)
    from celery_qbeat.stores.upgrade import upgrade

    link.migrate(upgrade)


def check(link: Link, *, trouble: str = "") -> Identity:
    """The identity of tables that can be worked with. Raises SchemaError with what to do.

    `trouble`: what is wrong with the server itself.
    """
    if trouble:
        raise SchemaError(trouble)
    found = link.read(identity)
    if found is None:
        raise SchemaError(f"the tables of celery_qbeat are missing in this database: run {MIGRATE['alembic']}")
    _refuse_newer(found)
    if found.version < SCHEMA_VERSION:
        raise SchemaError(
            f"the tables have schema version {found.version}, this celery_qbeat needs {SCHEMA_VERSION}: "
            f"run {_remedy(found)}"
        )
    _probe(link, found)
    rights, wrong = _sing(link)
    if rights.hidden:
        raise SchemaError(rights.hidden)
    if wrong := rights.trouble or wrong:
        raise SchemaError(f"{wrong}: run {_remedy(found)}, which makes them anew")
    if rights.warning:
        log.warning("%s", rights.warning)
    return found


def identity(connection: sa.Connection) -> Identity | None:
    """Whose tables these are; None when there are none. Not for use in a transaction."""
    meta = tables.meta.c
    query = sa.select(meta.instance, meta.schema_version, meta.owner).where(meta.id == 1)
    try:
        row = connection.execute(query).first()
    except DBAPIError:
        if sa.inspect(connection).has_table(tables.meta.name):
            raise
        return None
    if row is None:
        raise SchemaError("qbeat_meta has lost its row with id 1: restore it from a backup, or drop the qbeat_* tables")
    return Identity(*row)


def is_current(connection: sa.Connection) -> bool:
    """Whether there is nothing to migrate."""
    found = identity(connection)
    return found is not None and found.version >= SCHEMA_VERSION


def _remedy(found: Identity) -> str:
    return MIGRATE.get(found.owner, f"the migrations of {found.owner}")


def _refuse_newer(found: Identity) -> None:
    if found.version > SCHEMA_VERSION:
        raise SchemaError(
            f"the tables have schema version {found.version}, this celery_qbeat knows {SCHEMA_VERSION}: "
            "install the newer celery_qbeat that made them"
        )


def _probe(link: Link, found: Identity) -> None:
    """Read all columns of all tables, without a row, at once. Raises SchemaError, which names the table."""
    everything = tables.metadata.sorted_tables
    try:
        link.read(partial(_look_at, tables_=everything))
    except SchemaError:
        for table in everything:
            try:
                link.read(partial(_look_at, tables_=[table]))
            except SchemaError as error:
                raise SchemaError(
                    f"{table.name} cannot be read ({error}): run {_remedy(found)}, or grant this role its rights"
                ) from error


def _look_at(connection: sa.Connection, tables_: Sequence[sa.Table]) -> None:
    counts = [
        sa.select(sa.func.count()).select_from(sa.select(table).where(sa.false()).subquery()).scalar_subquery()
        for table in tables_
    ]
    connection.execute(sa.select(*counts)).close()


def _sing(link: Link) -> tuple[postgresql_rights.Rights, str]:
    def song(connection: sa.Connection) -> NoReturn:
        raise _Undo(postgresql_rights.inspect(connection), trigger_selftest.verify_triggers(connection))

    try:
        link.write(song)
    except _Undo as undo:
        return undo.rights, undo.answer
