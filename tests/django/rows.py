"""Rows for the tests of the admin: people's through the models, the machine's in SQL, since no model writes them."""

from __future__ import annotations

import itertools
from typing import Any

from django.db import connection

from celery_qbeat.django.models import Job
from tests.clock import now_us

_numbers = itertools.count(1)


def make_job(name: str = "shop.cleanup.hourly", **columns: Any) -> Any:
    """A job that may run."""
    fields = {"fn": "shop.cleanup", "schedule_kind": "every", "schedule": "1h", **columns}
    return Job.objects.create(id=name, **fields)


def make_state(name: str, **columns: Any) -> None:
    """A row of qbeat_state."""
    insert("qbeat_state", job_id=name, **columns)


def make_run(name: str, slot_us: int, verdict: str = "succeeded", **columns: Any) -> str:
    """A row of qbeat_runs; its task id."""
    task_id = f"task-{next(_numbers)}"
    insert("qbeat_runs", task_id=task_id, job_id=name, slot_us=slot_us, verdict=verdict, **columns)
    return task_id


def insert(table: str, **columns: Any) -> None:
    """One row."""
    names, marks = ", ".join(columns), ", ".join(["%s"] * len(columns))
    with connection.cursor() as cursor:
        cursor.execute(f"INSERT INTO {table} ({names}) VALUES ({marks})", list(columns.values()))


def us_now() -> int:
    """The wall clock in microseconds."""
    return now_us()


def text(client: Any, address: str) -> str:
    """The page at an address, which must be there."""
    answer = client.get(address)
    assert answer.status_code == 200, address
    page: str = answer.content.decode()
    return page


def beat_lives(ago_us: int = 0, **more: Any) -> None:
    """A beat wrote last so long ago."""
    at = us_now() - ago_us
    values = {"epoch": 4, "holder": "host:1", "taken_us": at, "seen_us": at, **more}
    with connection.cursor() as cursor:
        cursor.execute(f"UPDATE qbeat_leader SET {', '.join(f'{name} = %s' for name in values)}", list(values.values()))
