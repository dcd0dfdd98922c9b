"""Servers that go away, people who hold locks, values that no table takes: what the caller is told is true."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import sqlalchemy as sa

from celery_qbeat.core.jobs import Verdict
from celery_qbeat.errors import Doubt, QbeatError, Unavailable
from celery_qbeat.ports import Claim, Plan, RunOutcome
from celery_qbeat.stores import SqlStore, open_store
from celery_qbeat.stores.claiming import Batch
from celery_qbeat.stores.postgresql import PostgreSQL as PostgreSQLDatabase
from celery_qbeat.stores.postgresql_statements import CLAIM, claim_arguments
from tests.contract.store_rigs import SECOND, T0, SqlRig, made
from tests.servers import MariaDB, PostgreSQL

SERVERS = pytest.mark.parametrize("sql_rig", ["postgresql", "mariadb"], indirect=True)


def dialect(rig: SqlRig) -> str:
    return rig.connection.dialect.name


@contextmanager
def busy_person(rig: SqlRig, *statements: str) -> Iterator[sa.Connection]:
    """Somebody else's open transaction."""
    with rig.store.link.engine.connect() as connection:
        connection.exec_driver_sql("BEGIN IMMEDIATE" if dialect(rig) == "sqlite" else "BEGIN")
        for statement in statements:
            connection.exec_driver_sql(statement)
        yield connection
        connection.exec_driver_sql("ROLLBACK")


def cut(rig: SqlRig, store: SqlStore) -> None:
    """End the store's connection on the server, as an administrator or an idle timeout does."""
    if dialect(rig) == "postgresql":
        pid = store.link.read(lambda connection: connection.exec_driver_sql("SELECT pg_backend_pid()").scalar_one())
        rig.sql("SELECT pg_terminate_backend(:pid)", pid=pid)
        alive = "SELECT count(*) FROM pg_stat_activity WHERE pid = :pid"
    else:
        pid = store.link.read(lambda connection: connection.exec_driver_sql("SELECT CONNECTION_ID()").scalar_one())
        rig.connection.exec_driver_sql(f"KILL CONNECTION {pid}")
        alive = "SELECT count(*) FROM information_schema.processlist WHERE id = :pid"
    deadline = time.monotonic() + 5
    while rig.sql(alive, pid=pid).scalar_one():
        assert time.monotonic() < deadline
        time.sleep(0.01)


# ---------------------------------------------------------------- connections


@SERVERS
def test_a_connection_that_was_cut_while_idle_is_not_noticed_by_anybody(sql_rig: SqlRig) -> None:
    sql_rig.planned("a")
    store, epoch = sql_rig.store, sql_rig.epoch
    claim = sql_rig.claim_of("a")
    calls: list[Callable[[], object]] = [
        lambda: store.read_changes(),
        lambda: store.record_heartbeat(epoch, T0),
        lambda: store.write_plans(epoch, [Plan("b", T0, T0, "key")], T0),
        lambda: sql_rig.claim(claim),
        lambda: store.mark_sent(epoch, sql_rig.last_batch, [claim.runs[0].task_id], T0, closes=True),
        lambda: store.record_outcomes(epoch, [RunOutcome(claim.runs[0].task_id, Verdict.SUCCEEDED)], T0),
        lambda: list(store.unfinished_runs()),
        lambda: list(store.load()),
        lambda: store.take_epoch("here:1", T0),
    ]
    for call in calls:
        cut(sql_rig, store)
        call()
    assert [entry["verdict"] for entry in sql_rig.runs()] == ["succeeded"]
    assert sql_rig.state("a")["runs"] == 1


@pytest.mark.parametrize("sql_rig", ["mariadb"], indirect=True)
def test_the_servers_idle_timeout_is_not_noticed_either(sql_rig: SqlRig) -> None:
    store = sql_rig.store
    ask = "SELECT @@wait_timeout, CONNECTION_ID()"
    before = store.link.read(lambda connection: connection.exec_driver_sql(ask).one())
    assert before[0] == 10
    store.link.read(lambda connection: connection.exec_driver_sql("SET SESSION wait_timeout = 1").close())
    alive = "SELECT count(*) FROM information_schema.processlist WHERE id = :pid"
    deadline = time.monotonic() + 10
    while sql_rig.sql(alive, pid=before[1]).scalar_one():
        assert time.monotonic() < deadline
        time.sleep(0.05)
    store.record_heartbeat(sql_rig.epoch, T0)
    after = store.link.read(lambda connection: connection.exec_driver_sql(ask).one())
    assert after[0] == 10
    assert after[1] != before[1]


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["postgresql", "mariadb"])
def test_a_server_that_is_away_is_unavailable_and_comes_back_by_itself(
    kind: str, request: pytest.FixtureRequest
) -> None:
    server: PostgreSQL | MariaDB = request.getfixturevalue(
        {"postgresql": "own_postgres", "mariadb": "own_mariadb"}[kind]
    )()
    url = made(server.url)
    store = open_store(url)
    store.open()
    epoch = store.take_epoch("here:1", T0)
    store.write_plans(epoch, [Plan("code:a", T0, T0, "key")], T0)
    list(store.load())
    server.stop()
    calls: list[Callable[[], Any]] = [
        store.read_changes,
        store.workers,
        store.has_drifted,
        lambda: store.record_heartbeat(epoch, T0),
        lambda: store.write_plans(epoch, [Plan("b", T0, T0, "key")], T0),
        lambda: store.claim(epoch, epoch << 20, [Claim("code:a", None, T0, T0 + 1)], T0),
        lambda: list(store.unfinished_runs()),
        lambda: next(iter(store.load())),
        store.open,
    ]
    for call in calls:
        with pytest.raises(Unavailable):
            call()
    server.start()
    store.record_heartbeat(epoch, T0)
    assert set(store.read_states(["code:a", "b"])) == {"code:a"}
    assert store.read_states(["code:a"])["code:a"].next_run_us == T0
    store.close()


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["postgresql", "mariadb"])
def test_a_server_killed_in_the_middle_of_claims_leaves_no_lie(kind: str, request: pytest.FixtureRequest) -> None:
    server: PostgreSQL | MariaDB = request.getfixturevalue(
        {"postgresql": "own_postgres", "mariadb": "own_mariadb"}[kind]
    )()
    store = open_store(made(server.url))
    store.open()
    seen: set[str] = set()
    for round_ in range(3):
        epoch = store.take_epoch("here:1", T0)
        rig = _Bare(store, epoch)
        ids = [f"code:{round_}-{n}" for n in range(3_000)]
        store.write_plans(epoch, [Plan(job_id, T0, T0, "key") for job_id in ids], T0)
        killer = threading.Timer(0.02 + 0.05 * round_, server.kill)
        killer.start()
        told: dict[str, str] = {}
        for start in range(0, len(ids), 100):
            part = ids[start : start + 100]
            told |= dict.fromkeys(part, rig.attempt(part))
            if told[part[0]] != "done":
                break
        killer.join()
        seen.update(told.values())
        server.start()
        truth = {flight.job_id for part in store.unfinished_runs() for flight in part}
        moved = {job_id for job_id, state in store.read_states(ids).items() if state.next_run_us == T0 + SECOND}
        assert {job_id for job_id in truth if job_id in set(ids)} == moved
        for job_id, said in told.items():
            assert said == "doubt" or (job_id in moved) is (said == "done"), (job_id, said)
    assert seen - {"done"}
    store.close()


class _Bare:
    def __init__(self, store: SqlStore, epoch: int) -> None:
        self.store, self.epoch, self.n = store, epoch, 0

    def attempt(self, ids: list[str]) -> str:
        self.n += 1
        runs = SqlRig.run
        claims = [
            Claim(job_id, None, T0, T0 + SECOND, (runs(self, job_id),))  # type: ignore[arg-type]
            for job_id in ids
        ]
        try:
            assert self.store.claim(self.epoch, (self.epoch << 20) + self.n, claims, T0) == frozenset()
        except Doubt:
            return "doubt"
        except Unavailable:
            return "not done"
        return "done"


def in_background(call: Callable[[], object]) -> tuple[threading.Thread, list[QbeatError]]:
    raised: list[QbeatError] = []

    def run() -> None:
        try:
            call()
        except QbeatError as error:
            raised.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    return thread, raised


def waits_for_a_lock(rig: SqlRig, words: str) -> int:
    """The connection that hangs in a statement with these words."""
    query = {
        "postgresql": "SELECT pid FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND query LIKE :words",
        "mysql": "SELECT id FROM information_schema.processlist WHERE state LIKE 'Waiting%' AND info LIKE :words",
    }[dialect(rig)]
    deadline = time.monotonic() + 5
    while True:
        found = rig.sql(query, words=f"%{words}%").first()
        if found is not None:
            return int(found[0])
        assert time.monotonic() < deadline, "nobody waits"
        time.sleep(0.005)


@pytest.mark.parametrize("sql_rig", ["postgresql"], indirect=True)
def test_a_claim_whose_connection_breaks_under_it_is_in_doubt(sql_rig: SqlRig) -> None:
    sql_rig.planned("a")
    claim = sql_rig.claim_of("a")
    with busy_person(sql_rig, "LOCK TABLE qbeat_batches IN ACCESS EXCLUSIVE MODE"):
        thread, raised = in_background(lambda: sql_rig.claim(claim))
        pid = waits_for_a_lock(sql_rig, "WITH lead AS")
        sql_rig.sql("SELECT pg_terminate_backend(:pid)", pid=pid)
        thread.join(10)
    assert [type(error) for error in raised] == [Doubt]
    assert sql_rig.runs() == []
    assert sql_rig.claim(claim) == frozenset()


@pytest.mark.parametrize("sql_rig", ["mariadb"], indirect=True)
def test_a_commit_whose_connection_breaks_under_it_is_in_doubt(sql_rig: SqlRig) -> None:
    sql_rig.planned("a")
    claim = sql_rig.claim_of("a")
    with sql_rig.store.link.engine.connect() as person:
        # Nothing can commit while the tables are read-locked, but everything before the commit is done.
        ready = threading.Event()
        thread, raised = in_background(lambda: (ready.wait(5), sql_rig.claim(claim)))
        person.exec_driver_sql("BACKUP STAGE START")
        person.exec_driver_sql("BACKUP STAGE BLOCK_COMMIT")
        ready.set()
        pid = waits_for_a_lock(sql_rig, "COMMIT")
        sql_rig.connection.exec_driver_sql(f"KILL CONNECTION {pid}")
        thread.join(10)
        person.exec_driver_sql("BACKUP STAGE END")
    assert [type(error) for error in raised] == [Doubt]
    moved = sql_rig.state("a")["next_run_us"] != T0
    assert moved == bool(sql_rig.runs())


# ---------------------------------------------------------------- locks


@SERVERS
def test_a_persons_open_edit_of_rows_does_not_hold_up_their_jobs(sql_rig: SqlRig) -> None:
    sql_rig.planned("a", "b")
    claims = [sql_rig.claim_of("a"), sql_rig.claim_of("b")]
    with busy_person(sql_rig, "UPDATE qbeat_jobs SET fn = 'other'"):
        assert sql_rig.claim(*claims) == frozenset()


@SERVERS
def test_a_locked_state_costs_its_own_job_alone(sql_rig: SqlRig) -> None:
    sql_rig.planned("a", "b")
    claims = [sql_rig.claim_of("a"), sql_rig.claim_of("b")]
    with busy_person(sql_rig, "UPDATE qbeat_state SET problem = 'x' WHERE job_id = 'a'"):
        assert sql_rig.claim(*claims) == {"a"}
    assert sql_rig.claim(claims[0]) == frozenset()


def test_a_locked_leader_or_table_is_unavailable_for_the_time_being(sql_rig: SqlRig) -> None:
    store, epoch = sql_rig.store, sql_rig.epoch
    if dialect(sql_rig) == "sqlite":
        store = open_store(f"{sql_rig.url}?timeout=0.2")
        store.open()
        epoch = store.take_epoch("here:1", T0)
    store.write_plans(epoch, [Plan("code:a", T0, T0, "key")], T0)
    claim = Claim("code:a", None, T0, T0 + 1, (sql_rig.run("code:a"),))
    locks = ["UPDATE qbeat_leader SET holder = 'me'"]
    if dialect(sql_rig) == "postgresql":
        locks.append("LOCK TABLE qbeat_state")
    if dialect(sql_rig) == "mysql":
        locks.append("LOCK TABLES qbeat_state WRITE")
    for lock in locks:
        with busy_person(sql_rig, lock) as person:
            with pytest.raises(Unavailable):
                store.claim(epoch, epoch << 20, [claim], T0)
            if lock.startswith("LOCK TABLES"):
                person.exec_driver_sql("UNLOCK TABLES")
    assert store.claim(epoch, epoch << 20, [claim], T0) == frozenset()
    store.close()


def test_a_reader_is_never_held_up(sql_rig: SqlRig) -> None:
    sql_rig.planned("a")
    with busy_person(sql_rig, "UPDATE qbeat_jobs SET fn = 'other'", "UPDATE qbeat_state SET problem = 'x'"):
        sql_rig.store.read_changes()
        assert set(sql_rig.store.read_states(["a"])) == {"a"}
        assert len([row for part in sql_rig.store.load() for row in part.rows]) == 1
        assert not sql_rig.store.has_drifted()


# ---------------------------------------------------------------- plans of queries


@pytest.mark.parametrize("sql_rig", ["postgresql"], indirect=True)
def test_a_claim_does_not_depend_on_what_the_planner_believes(sql_rig: SqlRig) -> None:
    """Statistics taken from an emptied table say 'one row': a join by nested loops would then compare all with all."""
    ids = [f"code:{n}" for n in range(3_000)]
    tables = ("qbeat_state", "qbeat_runs", "qbeat_batches", "qbeat_jobs")
    sql_rig.store.write_plans(sql_rig.epoch, [Plan(job_id, T0, T0, "key") for job_id in ids], T0)
    for table in tables:
        sql_rig.sql(f"DELETE FROM {table}")
        sql_rig.sql(f"ANALYZE {table}")
    sql_rig.store.write_plans(sql_rig.epoch, [Plan(job_id, T0, T0, "key") for job_id in ids], T0)
    claims = [Claim(job_id, None, T0, T0 + 1, (sql_rig.run(job_id),)) for job_id in ids]

    def explain(connection: sa.Connection) -> list[str]:
        arguments = claim_arguments(Batch(sql_rig.epoch, sql_rig.batch_id(), claims, T0))
        with PostgreSQLDatabase().whole_tables(connection):
            return list(connection.execute(sa.text("EXPLAIN " + CLAIM.text), arguments).scalars())

    assert not [line for line in sql_rig.store.link.read(explain) if "Nested Loop" in line]
    assert sql_rig.claim(*claims) == frozenset()
    setting = "SHOW enable_nestloop"
    assert sql_rig.store.link.read(lambda connection: connection.exec_driver_sql(setting).scalar_one()) == "on"
