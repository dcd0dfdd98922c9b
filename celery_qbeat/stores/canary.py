"""Whether an edit would be noticed: made and rolled back before the beat relies on it.

Triggers get lost without a word: a rebuilt table of SQLite has none, PostgreSQL can disable them, a dropped account
takes MariaDB's along.
"""

from __future__ import annotations

import uuid

import sqlalchemy as sa
from sqlalchemy.exc import DBAPIError

from celery_qbeat.stores import tables
from celery_qbeat.stores.connection import told

NAME = "__canary__"
_DENIED = {"42501", 1142, 1143, 1370}
_DEFINER_GONE = 1449


def sing(connection: sa.Connection) -> str:
    """Edit every table of people inside the transaction at hand and look into the log; what is wrong, or empty.

    The caller rolls back. A role that may not edit these tables cannot look: then the answer is empty, too.
    """
    name = f"{NAME}{uuid.uuid4().hex[:12]}"
    log = tables.changes.c
    try:
        _edit(connection, name)
    except DBAPIError as error:
        code = getattr(error.orig, "sqlstate", None) or (error.orig.args[0] if error.orig and error.orig.args else None)
        if code == _DEFINER_GONE:
            return (
                "no row of qbeat_jobs can be written, because the account that made its triggers was dropped "
                f"({told(error)})"
            )
        if code in _DENIED:
            return ""
        raise
    query = sa.select(log.op).where(log.job_id == name)
    found = set(connection.execute(query).scalars())
    missing = [op for op in ("I", "U", "D", "W", "R") if op not in found]
    if not missing:
        return ""
    which = {"W": "qbeat_workers", "R": "qbeat_requests"}
    names = ", ".join(dict.fromkeys(which.get(op, "qbeat_jobs") for op in missing))
    return f"edits of {names} would not be noticed, because triggers are missing or disabled"


def _edit(connection: sa.Connection, name: str) -> None:
    jobs, workers, requests = tables.jobs, tables.workers, tables.requests
    row = {"id": name, "fn": NAME, "schedule_kind": "once", "schedule": "", "enabled": False}
    connection.execute(sa.insert(jobs), row)
    connection.execute(sa.update(jobs).where(jobs.c.id == name).values({"fn": ""}))
    connection.execute(sa.delete(jobs).where(jobs.c.id == name))
    connection.execute(sa.insert(workers), {"name": name, "enabled": False})
    connection.execute(sa.insert(requests), {"job_id": name, "asked_us": 0})
