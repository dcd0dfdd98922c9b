"""Whether an edit would be noticed: made and rolled back before the beat relies on it.

Triggers get lost without a word: a rebuilt table of SQLite has none, PostgreSQL can disable them, a dropped account
takes MariaDB's along.
"""

from __future__ import annotations

import uuid

import sqlalchemy as sa
from sqlalchemy.exc import DBAPIError

from celery_qbeat.stores import tables
from celery_qbeat.stores.driver_errors import told

NAME = "__canary__"
NOTED_IN = {"I": "qbeat_jobs", "U": "qbeat_jobs", "D": "qbeat_jobs", "W": "qbeat_workers", "R": "qbeat_requests"}
_DENIED = {"42501", 1142, 1143, 1370}
_DEFINER_GONE = 1449

_ENABLED = sa.text("""
SELECT c.relname FROM pg_trigger t JOIN pg_class c ON c.oid = t.tgrelid
WHERE pg_table_is_visible(c.oid) AND NOT t.tgisinternal AND t.tgenabled IN ('O', 'A')
  AND t.tgname IN ('qbeat_jobs_ins', 'qbeat_jobs_upd', 'qbeat_jobs_del', 'qbeat_workers_upd', 'qbeat_requests_ins')
""")


def verify_triggers(connection: sa.Connection) -> str:
    """Edit every table of people inside the transaction at hand and look into the log; what is wrong, or empty.

    The caller rolls back. A role that may not edit these tables cannot do so: PostgreSQL tells it which triggers there
    are, elsewhere the answer is empty.
    """
    name = f"{NAME}{uuid.uuid4().hex[:12]}"
    try:
        _edit(connection, name)
    except DBAPIError as error:
        codes = {getattr(error.orig, "sqlstate", None), *(error.orig.args[:1] if error.orig else ())}
        if _DEFINER_GONE in codes:
            gone = "no row of qbeat_jobs can be written, because the account that made its triggers was dropped"
            return f"{gone} ({told(error)})"
        if not codes & _DENIED:
            raise
        return _look(connection)
    log = tables.changes.c
    found = set(connection.execute(sa.select(log.op).where(log.job_id == name)).scalars())
    return _unnoticed([table for op, table in NOTED_IN.items() if op not in found])


def _edit(connection: sa.Connection, name: str) -> None:
    jobs, workers, requests = tables.jobs, tables.workers, tables.requests
    row = {"id": name, "fn": NAME, "schedule_kind": "once", "schedule": "", "enabled": False}
    connection.execute(sa.insert(jobs), row)
    connection.execute(sa.update(jobs).where(jobs.c.id == name).values({"fn": ""}))
    connection.execute(sa.delete(jobs).where(jobs.c.id == name))
    connection.execute(sa.insert(workers), {"name": name, "enabled": False})
    connection.execute(sa.insert(requests), {"job_id": name, "asked_us": 0})


def _look(connection: sa.Connection) -> str:
    if connection.dialect.name != "postgresql":
        return ""
    connection.exec_driver_sql("ROLLBACK")
    connection.exec_driver_sql("BEGIN")
    found = connection.execute(_ENABLED).scalars().all()
    return _unnoticed([table for table in set(NOTED_IN.values()) if found.count(table) < (3 if "jobs" in table else 1)])


def _unnoticed(names: list[str]) -> str:
    if not names:
        return ""
    listed = ", ".join(sorted(set(names)))
    return f"edits of {listed} would not be noticed, because triggers are missing or disabled"
