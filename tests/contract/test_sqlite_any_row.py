"""Whatever a row of a SQLite file has in any column: it becomes a job or a reason, and no other job changes."""

from __future__ import annotations

import shutil
import sqlite3
import tempfile
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from hypothesis import assume, example, given, settings
from hypothesis import strategies as st

from celery_qbeat.core.limits import MAX_CHARACTERS
from celery_qbeat.core.privileges import Privileges
from celery_qbeat.engine import Dependencies, Engine
from celery_qbeat.stores import open_store, tables
from celery_qbeat.stores.reading import key
from celery_qbeat.testing import FakeClock, FakeDispatcher, OpenGate
from tests.contract.store_rigs import T0

GOOD = (
    ("good.daily", "daily", "02:00", "2026-12-25"),
    ("good.every", "every", "1m", ""),
    ("good.interval", "interval", "60", ""),
)
COLUMNS = [column.name for column in tables.jobs.columns]
TEXTS = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
NESTED = st.integers(1, 40).map(lambda levels: "[" * levels + "]" * levels)
SPECIAL = st.sampled_from(
    [
        *("", " ", "[]", "{}", "1m", "60", "UTC", "skip", "all", "0 0 29 2 *", "good.every ", "code:x", "[1e999]"),
        *('{"__type__": 1}', "[" + "9" * 5_000 + "]", "2026-12-25," * 2_000, "x" * (MAX_CHARACTERS["args"] * 4 + 1)),
    ]
)
VALUES = st.one_of(
    SPECIAL,
    TEXTS,
    NESTED,
    st.none(),
    st.integers(-(2**63), 2**63 - 1),
    st.floats(),
    st.binary(max_size=9),
    st.booleans(),
)
VALID = {"id": "hostile", "fn": "app.a", "schedule_kind": "every", "schedule": "1m"}


class Beat:
    """An engine on a file, with stand-ins for the lock and the broker."""

    def __init__(self, file: Path) -> None:
        self.store = open_store(f"sqlite:///{file}")
        self.store.open()
        clock = FakeClock(T0)
        self.outbox = FakeDispatcher()
        known = Privileges(registered=frozenset({"app.a"}))
        parts: Any = {"dispatcher": self.outbox, "completions": None, "gate": OpenGate(clock), "clock": clock}
        self.engine = Engine(Dependencies(store=self.store, privileges=known, **parts))
        self.engine.tick()

    def good(self) -> list[Any]:
        """The good jobs as this beat has them, and the slots that it sent."""
        entries = self.engine.leader.agenda.entries
        found = [(entries[name].job, entries[name].problem, entries[name].next_us) for name, *_ in GOOD]
        return [*found, [slot for slot in self.outbox.slots if slot[0].startswith("good.")]]

    def assert_read(self, job_id: str) -> None:
        """The row is known, as a job or with a reason."""
        entry = self.engine.leader.agenda.entries[job_id]
        assert entry.job is not None or entry.problem


def insert(file: Path, *rows: dict[str, Any]) -> None:
    with closing(sqlite3.connect(file)) as connection, connection:
        for row in rows:
            names, marks = ", ".join(row), ", ".join("?" * len(row))
            connection.execute(f"INSERT INTO qbeat_jobs ({names}) VALUES ({marks})", list(row.values()))


@pytest.mark.slow
@settings(max_examples=40, deadline=None)
@given(st.dictionaries(st.sampled_from(COLUMNS), VALUES, max_size=4))
@example({"id": ""})
@example({"id": b"\xff"})
@example({"id": 5, "rev": "x"})
@example({"start_us": b"\xff", "priority": float("inf"), "enabled": 0})
@example({"dates_skip": "2026-12-25," * 9_000})
def test_any_row_is_a_job_or_a_reason_and_no_other_job_changes(sqlite_home: str, columns: dict[str, Any]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "any.sqlite3"
        shutil.copy(sqlite_home, file)
        insert(
            file,
            *(
                {**VALID, "id": name, "schedule_kind": kind, "schedule": text, "dates_skip": skip}
                for name, kind, text, skip in GOOD
            ),
        )
        reading = Beat(file)
        before = reading.good()
        try:
            insert(file, VALID | columns)
        except sqlite3.IntegrityError:
            assume(False)
        with closing(sqlite3.connect(file)) as connection:
            connection.text_factory = bytes
            query = "SELECT id, typeof(id) FROM qbeat_jobs WHERE id NOT LIKE 'good.%' OR id LIKE '% '"
            (raw, kind) = connection.execute(query).fetchone()
        try:
            job_id = raw.decode() if kind == b"text" else key(raw)
        except UnicodeDecodeError:
            job_id = key(raw)
        reading.engine.tick()
        assert reading.good() == before
        reading.assert_read(job_id)
        reading.store.close()
        loading = Beat(file)
        loading.assert_read(job_id)
        assert [found[:2] for found in loading.good()[:-1]] == [found[:2] for found in before[:-1]]
        loading.store.close()
