"""PostgreSQL behind PgBouncer, transaction pooling: each transaction gets some session, which others get, too."""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import ExitStack

import psycopg
import pytest

from celery_qbeat.core.jobs import Verdict
from celery_qbeat.ports import ClaimRelease, Plan, RunOutcome
from celery_qbeat.stores import open_store
from tests.celeryproc import Project
from tests.contract.store_rigs import SECOND, T0, SqlRig, made
from tests.servers import PgBouncer, PostgreSQL, wait_for

SETTINGS = (
    "lock_timeout",
    "statement_timeout",
    "idle_in_transaction_session_timeout",
    "enable_nestloop",
    "jit",
    "plan_cache_mode",
)


def settings_of_all(pool: PgBouncer, database: str) -> set[tuple[str, ...]]:
    """What another client reads on every session of the pool."""
    query = "SELECT pg_backend_pid()::text, " + ", ".join(f"current_setting('{name}')" for name in SETTINGS)
    found: dict[str, tuple[str, ...]] = {}
    with ExitStack() as stack:
        # Open transactions, so that the pool has to take another session for each.
        for _ in range(pool.pool_size):
            client = stack.enter_context(pool.connect(database))
            client.execute("BEGIN")
            # The pool throws a session away whose client leaves in the middle of a transaction.
            stack.callback(client.execute, "ROLLBACK")
            row = client.execute(query).fetchone()
            assert row is not None
            found[row[0]] = row[1:]
    assert len(found) == pool.pool_size
    return set(found.values())


def defaults(server: PostgreSQL, database: str) -> set[tuple[str, ...]]:
    with server.connect(database) as connection:
        return {tuple(connection.execute(f"SHOW {name}").fetchone()[0] for name in SETTINGS)}  # type: ignore[index]


def all_sessions_there(pool: PgBouncer, database: str) -> None:
    """Round robin needs sessions to go round in: all of the pool, busy for a moment."""
    settings_of_all(pool, database)


def use(rig: SqlRig) -> None:
    """Every kind of call, often enough that each session gets each of them."""
    store, epoch = rig.store, rig.epoch
    for n in range(8):
        rig.planned(f"a{n}", f"b{n}")
        claim = rig.claim_of(f"a{n}")
        assert rig.claim(claim) == frozenset()
        run = claim.runs[0]
        store.mark_sent(epoch, rig.last_batch, [run.task_id], T0, closes=True)
        assert store.record_outcomes(epoch, [RunOutcome(run.task_id, Verdict.SUCCEEDED)], T0)
        back = rig.claim_of(f"b{n}")
        assert rig.claim(back) == frozenset()
        store.release_claims(epoch, rig.last_batch, [ClaimRelease(f"b{n}", (back.runs[0].task_id,), T0, back.next_us)])
        store.record_heartbeat(epoch, T0)
        assert len(store.read_changes().rows) <= 2
        assert [row for part in store.load() for row in part.rows]
        assert not store.has_drifted()
        assert list(store.unfinished_runs()) == []
    list(store.prune({Verdict.SUCCEEDED: T0 + 2 * SECOND}, T0 + 2 * SECOND))
    store.write_plans(epoch, [Plan("gone", T0, T0, "key")], T0)
    store.delete_states(epoch, ["gone"], T0)


def test_no_setting_of_ours_is_on_a_session_of_the_pool(
    postgres_server: PostgreSQL, own_pgbouncer: Callable[..., PgBouncer]
) -> None:
    pool = own_pgbouncer(postgres_server)
    name = postgres_server.create_database()
    normal = defaults(postgres_server, name)
    all_sessions_there(pool, name)
    with ExitStack() as stack:
        rig = SqlRig(made(pool.url_of(name)), stack)
        rig.start()
        use(rig)
        assert settings_of_all(pool, name) == normal
    assert settings_of_all(pool, name) == normal
    with postgres_server.connect(name) as connection:
        assert connection.execute("SELECT count(*) FROM qbeat_runs").fetchone() == (0,)
    pool.close()
    postgres_server.drop_database(name)


def test_settings_stay_off_the_pool_while_calls_overlap(
    postgres_server: PostgreSQL, own_pgbouncer: Callable[..., PgBouncer]
) -> None:
    pool = own_pgbouncer(postgres_server, pool_size=2)
    name = postgres_server.create_database()
    normal = defaults(postgres_server, name)
    store = open_store(made(pool.url_of(name)))
    store.open()
    epoch = store.take_epoch("here:1", T0)
    ended = threading.Event()
    seen: set[tuple[str, ...]] = set()

    def watch() -> None:
        query = "SELECT " + ", ".join(f"current_setting('{setting}')" for setting in SETTINGS)
        with pool.connect(name) as client:
            while not ended.is_set():
                row = client.execute(query).fetchone()
                assert row is not None
                seen.add(tuple(row))

    watcher = threading.Thread(target=watch)
    watcher.start()
    for n in range(60):
        store.write_plans(epoch, [Plan(f"code:{n}", T0, T0, "key")], T0)
        store.mark_sent(epoch, epoch << 20, ["nothing"], T0, closes=False)
        list(store.load())
    ended.set()
    watcher.join()
    store.close()
    pool.close()
    postgres_server.drop_database(name)
    assert seen == normal


@pytest.mark.slow
def test_a_beat_dispatches_through_a_pool_with_round_robin(
    postgres_server: PostgreSQL,
    own_pgbouncer: Callable[..., PgBouncer],
    redis_url: str,
    make_project: Callable[..., Project],
) -> None:
    pool = own_pgbouncer(postgres_server)
    name = postgres_server.create_database()
    normal = defaults(postgres_server, name)
    all_sessions_there(pool, name)
    url = made(pool.url_of(name))
    project = make_project(redis_url, {"qbeat_database_url": url, "qbeat_poll_interval": 0.2})
    with psycopg.connect(postgres_server.url_of(name).replace("+psycopg", ""), autocommit=True) as connection:
        connection.execute(
            "INSERT INTO qbeat_jobs (id, fn, schedule_kind, schedule, overlap) "
            "VALUES ('a', 'proj.tasks.record', 'interval', '1', 'allow')"
        )
        beat = project.beat()
        query = "SELECT count(*) FROM qbeat_runs WHERE sent_us IS NOT NULL"
        wait_for(lambda: connection.execute(query).fetchone()[0] >= 5, 60, what="five runs")  # type: ignore[index]
        assert settings_of_all(pool, name) == normal
        beat.terminate()
        assert beat.wait_exit() == 0
        assert connection.execute("SELECT count(*) FROM qbeat_runs WHERE verdict = 'in_doubt'").fetchone() == (0,)
    pool.close()
    postgres_server.drop_database(name)
