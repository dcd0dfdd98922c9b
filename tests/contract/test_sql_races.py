"""Many at once: claims against claims and editors, and a feed that misses nothing under load."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field

import pytest
import sqlalchemy as sa
from sqlalchemy.exc import DBAPIError

from celery_qbeat.errors import Fenced, Unavailable
from celery_qbeat.ports import Claim, Plan, Store
from celery_qbeat.stores import SqlStore
from tests.contract.store_rigs import SECOND, T0, Rig, SqlRig

SERVERS = pytest.mark.parametrize("sql_rig", ["postgresql", "mariadb"], indirect=True)


def together(*calls: Callable[[], None]) -> None:
    """Run these at the same time; the first error of any is raised."""
    errors: list[BaseException] = []

    def guarded(call: Callable[[], None]) -> None:
        try:
            call()
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=guarded, args=(call,)) for call in calls]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if errors:
        raise errors[0]


def test_two_who_claim_the_same_in_opposite_order_win_each_slot_once(rig: Rig) -> None:
    ids = [f"code:{n:03}" for n in range(200)]
    other = rig.other()
    won: dict[str, list[str]] = {"one": [], "two": []}
    for round_ in range(6):
        slot = T0 + round_ * SECOND
        rig.store.write_plans(rig.epoch, [Plan(job_id, T0, slot, "key") for job_id in ids], T0)
        claims = [Claim(job_id, None, slot, slot + SECOND, (rig.run(job_id, slot),)) for job_id in ids]

        def take(name: str, store: Store, wanted: list[Claim], batch: int) -> None:
            for start in range(0, len(wanted), 50):
                part = wanted[start : start + 50]
                lost = store.claim(rig.epoch, batch + start, part, T0)
                won[name] += [claim.runs[0].task_id for claim in part if claim.job_id not in lost]

        batch = (rig.epoch << 20) + round_ * 1_000
        reverse = claims[::-1]
        together(
            lambda claims=claims, batch=batch: take("one", rig.store, claims, batch),  # type: ignore[misc]
            lambda reverse=reverse, batch=batch: take("two", other, reverse, batch + 500),  # type: ignore[misc]
        )
    winners = won["one"] + won["two"]
    ledger = [entry["task_id"] for entry in rig.runs()]
    assert sorted(winners) == sorted(ledger)
    assert len(set(winners)) == len(winners)
    assert sum(rig.state(job_id)["runs"] for job_id in ids) == len(winners)
    assert sum(n for _, n, _ in rig.batches().values()) == len(winners)


@SERVERS
def test_editors_and_a_claimer_do_not_wait_for_each_other_in_circles(sql_rig: SqlRig) -> None:
    ids = [f"job-{n:02}" for n in range(40)]
    sql_rig.planned(*ids)
    end = time.monotonic() + 3
    engine = sql_rig.store.link.engine

    def edit(seed: int, statement: str) -> None:
        dice = random.Random(seed)
        with engine.connect() as connection:
            while time.monotonic() < end:
                connection.exec_driver_sql("BEGIN")
                try:
                    # Each editor in one order, so that they do not lock each other out; the claimer knows no order.
                    for job_id in sorted(dice.sample(ids, 8), reverse=bool(seed % 2)):
                        connection.execute(sa.text(statement), {"job": job_id})
                except DBAPIError:
                    connection.exec_driver_sql("ROLLBACK")
                else:
                    connection.exec_driver_sql("COMMIT")

    won = 0

    def claim() -> None:
        nonlocal won
        store, slot, batch = sql_rig.store, T0, sql_rig.epoch << 20
        while time.monotonic() < end:
            batch += 1
            states = store.read_states(ids)
            claims = [
                Claim(job_id, None, states[job_id].next_run_us, slot, (sql_rig.run(job_id, slot + batch),))
                for job_id in reversed(ids)
            ]
            slot += SECOND
            lost = store.claim(sql_rig.epoch, batch, claims, T0)
            won += sum(claim.job_id not in lost for claim in claims)

    state = "UPDATE qbeat_state SET problem = 'x' WHERE job_id = :job"
    jobs = "UPDATE qbeat_jobs SET description = 'x' WHERE id = :job"
    together(claim, *(lambda n=n: edit(n, jobs if n < 2 else state) for n in range(4)))  # type: ignore[misc]
    assert won == len(sql_rig.runs()) > 0


def test_several_who_take_epochs_get_each_its_own(sql_rig: SqlRig) -> None:
    taken: list[int] = []
    stores = [sql_rig.other() for _ in range(3)]

    def take(store: SqlStore) -> None:
        for _ in range(5):
            while True:
                try:
                    taken.append(store.take_epoch("somebody", T0))
                    break
                except Unavailable:
                    time.sleep(0.01)

    together(*(lambda store=store: take(store) for store in stores))  # type: ignore[misc]
    assert sorted(taken) == list(range(sql_rig.epoch + 1, sql_rig.epoch + 16))
    with pytest.raises(Fenced):
        sql_rig.store.record_heartbeat(sql_rig.epoch, T0)


# ---------------------------------------------------------------- the feed under load


@dataclass
class Model:
    """The table as a reader of the feed sees it."""

    store: SqlStore
    revs: dict[str, int] = field(default_factory=dict)
    reloads: int = 0

    def load(self) -> None:
        self.revs = {row["id"]: row["rev"] for part in self.store.load() for row, _ in part.rows}

    def poll(self) -> int:
        changes = self.store.read_changes()
        if changes.reload:
            self.reloads += 1
            self.load()
        for job_id, found in changes.rows.items():
            if found is None:
                self.revs.pop(job_id, None)
            else:
                self.revs[job_id] = found[0]["rev"]
        return len(changes.rows)


@dataclass
class Writer:
    """Edits in transactions: some long, some rolled back, some over many rows."""

    engine: sa.Engine
    seed: int
    end: float
    commits: int = 0
    longest_s: float = 1.0

    def run(self) -> None:
        dice = random.Random(self.seed)
        with self.engine.connect() as connection:
            sqlite = connection.dialect.name == "sqlite"
            while time.monotonic() < self.end:
                try:
                    connection.exec_driver_sql("BEGIN IMMEDIATE" if sqlite else "BEGIN")
                    for _ in range(dice.randint(1, 4)):
                        self._edit(connection, dice)
                        if dice.random() < 0.1:
                            time.sleep(dice.uniform(0, self.longest_s))
                    connection.exec_driver_sql("ROLLBACK" if dice.random() < 0.25 else "COMMIT")
                    self.commits += 1
                except DBAPIError:
                    # After a BEGIN that was refused there is nothing to roll back.
                    with suppress(DBAPIError):
                        connection.exec_driver_sql("ROLLBACK")
                if sqlite:
                    time.sleep(0.005)

    def _edit(self, connection: sa.Connection, dice: random.Random) -> None:
        job, kind = f"job-{dice.randint(0, 299):03}", dice.random()
        if kind < 0.25:
            insert = "INSERT INTO qbeat_jobs (id, fn, schedule_kind, schedule) SELECT :new, 'f', 'every', '1m'"
            free = "WHERE NOT EXISTS (SELECT 1 FROM qbeat_jobs WHERE id = :new)"
            new = f"new-{self.seed}-{dice.randint(0, 99):02}"
            connection.execute(sa.text(f"{insert} {free}"), {"new": new})
        elif kind < 0.4:
            connection.execute(
                sa.text("DELETE FROM qbeat_jobs WHERE id = :job"), {"job": f"new-{self.seed}-{job[-2:]}"}
            )
        elif kind < 0.5:
            like = f"job-{dice.randint(0, 29):02}%"
            connection.execute(sa.text("UPDATE qbeat_jobs SET fn = :fn WHERE id LIKE :like"), {"fn": job, "like": like})
        else:
            connection.execute(sa.text("UPDATE qbeat_jobs SET fn = :fn WHERE id = :job"), {"fn": job, "job": job})


@pytest.mark.slow
def test_the_feed_misses_nothing_under_many_writers(sql_rig: SqlRig) -> None:
    sqlite = sql_rig.connection.dialect.name == "sqlite"
    for n in range(300):
        sql_rig.insert(f"job-{n:03}")
    end = time.monotonic() + (4 if sqlite else 8)
    models = [Model(sql_rig.store), Model(sql_rig.other())]
    for model in models:
        model.load()
    writers = [
        Writer(sql_rig.store.link.engine, seed, end, longest_s=0.1 if sqlite else 1.0)
        for seed in range(3 if sqlite else 8)
    ]

    def follow(model: Model) -> None:
        while time.monotonic() < end:
            model.poll()
            time.sleep(0.02)

    together(*[writer.run for writer in writers], *(lambda model=model: follow(model) for model in models))  # type: ignore[misc]
    truth = {row[0]: row[1] for row in sql_rig.sql("SELECT id, rev FROM qbeat_jobs")}
    for model in models:
        while model.poll():
            pass
        assert model.revs == truth
        assert model.reloads == 0
        assert not model.store.has_drifted()
    assert sum(writer.commits for writer in writers) > 50
