"""Sessions that cannot write, that are not the ones they were, or that keep failing: the next call gets a new one."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from celery_qbeat.errors import Unavailable
from celery_qbeat.ports import Plan
from celery_qbeat.stores import SqlStore, open_store
from tests.contract.store_rigs import T0, SqlRig, made
from tests.servers import MariaDB, PostgreSQL, wait_for

IDENTITY = {"postgresql": "SELECT pg_backend_pid()", "mysql": "SELECT CONNECTION_ID()"}


def session_of(store: SqlStore) -> int:
    query = IDENTITY[store.link.engine.dialect.name]
    return int(store.link.read(lambda connection: connection.exec_driver_sql(query).scalar_one()))


def refused(call: Callable[[], object], calls: int = 4) -> None:
    """Every call is refused with a sentence that people understand."""
    for _ in range(calls):
        with pytest.raises(Unavailable, match=r"^the database .* is read-only \(a standby\?\): "):
            call()


def works_soon(call: Callable[[], object]) -> None:
    """Within a couple of calls."""
    try:
        call()
    except Unavailable:
        call()


def test_a_session_that_became_read_only_is_replaced(postgres_server: PostgreSQL, postgres_url: str) -> None:
    store = open_store(made(postgres_url))
    store.open()
    epoch = store.take_epoch("here:1", T0)
    name = store.link.engine.url.database
    with postgres_server.connect() as admin:
        admin.execute(f"ALTER DATABASE {name} SET default_transaction_read_only = on")
        admin.execute("SELECT pg_terminate_backend(pid, 60000) FROM pg_stat_activity WHERE datname = %s", (name,))
        refused(lambda: store.record_heartbeat(epoch, T0))
        # A session that may not write is not used for reading either: it may be an old copy.
        refused(store.workers)
        admin.execute(f"ALTER DATABASE {name} RESET default_transaction_read_only")
    works_soon(lambda: store.record_heartbeat(epoch, T0))
    store.close()


def test_a_claim_on_a_read_only_session_was_surely_not_done(postgres_server: PostgreSQL, postgres_url: str) -> None:
    store = open_store(made(postgres_url))
    store.open()
    epoch = store.take_epoch("here:1", T0)
    store.link.read(lambda connection: connection.exec_driver_sql("SET default_transaction_read_only = on").close())
    with pytest.raises(Unavailable, match="is read-only"):
        store.mark_sent(epoch, epoch << 20, ["a"], T0, closes=False)
    store.mark_sent(epoch, epoch << 20, ["a"], T0, closes=False)
    store.close()


def test_a_database_that_was_read_only_can_be_migrated(postgres_server: PostgreSQL, postgres_url: str) -> None:
    store = open_store(postgres_url, create_tables=True)
    name = store.link.engine.url.database
    with postgres_server.connect() as admin:
        admin.execute(f"ALTER DATABASE {name} SET default_transaction_read_only = on")
        with pytest.raises(Unavailable, match="is read-only"):
            store.open()
        admin.execute(f"ALTER DATABASE {name} RESET default_transaction_read_only")
    store.open()
    assert store.take_epoch("here:1", T0) == 1
    store.close()


@pytest.mark.slow
@pytest.mark.parametrize("option", ["--read-only=0", "--innodb-read-only=1"])
def test_a_read_only_mariadb_is_left_until_it_takes_writes(own_mariadb: Callable[..., MariaDB], option: str) -> None:
    server = own_mariadb()
    made(server.url)
    store = open_store(server.url_of("test", user="qbeat"))
    store.open()
    epoch = store.take_epoch("here:1", T0)
    root = open_store(server.url)
    root.open()
    if option == "--read-only=0":
        with server.connect() as admin, admin.cursor() as cursor:
            cursor.execute("SET GLOBAL read_only = 1")
            refused(lambda: store.record_heartbeat(epoch, T0))
            # Who may write all the same is not kept from it.
            root.record_heartbeat(epoch, T0)
            cursor.execute("SET GLOBAL read_only = 0")
    else:
        server.stop()
        server._options = (option,)
        server.start()
        refused(lambda: root.record_heartbeat(epoch, T0))
        server.stop()
        server._options = ()
        server.start()
    works_soon(lambda: store.record_heartbeat(epoch, T0))
    store.close()
    root.close()


@pytest.mark.parametrize("sql_rig", ["mariadb"], indirect=True)
def test_a_session_whose_transactions_are_read_only_is_replaced(sql_rig: SqlRig) -> None:
    store = sql_rig.store
    setting = "SET SESSION TRANSACTION READ ONLY"
    store.link.read(lambda connection: connection.exec_driver_sql(setting).close())
    with pytest.raises(Unavailable, match="is read-only"):
        store.record_heartbeat(sql_rig.epoch, T0)
    store.record_heartbeat(sql_rig.epoch, T0)


@pytest.mark.parametrize("sql_rig", ["postgresql"], indirect=True)
def test_a_lost_prepared_statement_costs_one_call(sql_rig: SqlRig) -> None:
    store = open_store(f"{sql_rig.url}?prepare_threshold=0")
    store.workers()
    before = session_of(store)
    # In a block: the driver itself would notice the bare statement.
    lose = "DO $$ BEGIN EXECUTE 'DEALLOCATE ALL'; END $$"
    store.link.read(lambda connection: connection.exec_driver_sql(lose).close())
    with pytest.raises(Unavailable, match="prepared statement"):
        store.workers()
    store.workers()
    assert session_of(store) != before
    store.close()


@pytest.mark.parametrize("sql_rig", ["postgresql"], indirect=True)
def test_nothing_is_prepared_unless_the_url_says_so(sql_rig: SqlRig) -> None:
    store = sql_rig.store
    for _ in range(8):
        store.workers()
        store.write_plans(sql_rig.epoch, [Plan("code:a", T0, T0, "key")], T0)
    query = "SELECT count(*) FROM pg_prepared_statements"
    assert store.link.read(lambda connection: connection.exec_driver_sql(query).scalar_one()) == 0


@pytest.mark.parametrize("sql_rig", ["postgresql", "mariadb"], indirect=True)
def test_the_same_error_twice_in_a_row_gets_a_new_session(sql_rig: SqlRig) -> None:
    store = sql_rig.store
    first = session_of(store)
    with store.link.engine.connect() as person:
        person.exec_driver_sql("BEGIN")
        person.exec_driver_sql("UPDATE qbeat_leader SET holder = 'me'")
        with pytest.raises(Unavailable):
            store.record_heartbeat(sql_rig.epoch, T0)
        assert session_of(store) == first
        for _ in range(2):
            with pytest.raises(Unavailable):
                store.record_heartbeat(sql_rig.epoch, T0)
        assert session_of(store) != first
        person.exec_driver_sql("ROLLBACK")
    store.record_heartbeat(sql_rig.epoch, T0)


@pytest.mark.slow
def test_a_url_of_two_hosts_follows_the_one_that_takes_writes(own_postgres: Callable[..., PostgreSQL]) -> None:
    servers = [own_postgres(), own_postgres()]
    for server in servers:
        made(server.url)
    ports = ",".join(str(server.port) for server in servers)
    store = open_store(
        f"postgresql://postgres@/postgres?host=127.0.0.1,127.0.0.1&port={ports}&target_session_attrs=read-write"
    )

    def port_in_use() -> int:
        return int(store.link.read(lambda connection: connection.exec_driver_sql("SHOW port").scalar_one()))

    store.open()
    assert port_in_use() == servers[0].port
    with servers[0].connect() as admin:
        admin.execute("ALTER DATABASE postgres SET default_transaction_read_only = on")
    servers[0].restart()
    store.take_epoch("here:1", T0)
    assert port_in_use() == servers[1].port
    servers[1].kill()
    with servers[0].connect() as admin:
        admin.execute("SET default_transaction_read_only = off")
        admin.execute("ALTER DATABASE postgres RESET default_transaction_read_only")
    wait_for(lambda: _tried(lambda: store.take_epoch("here:1", T0)), what="a writer")
    assert port_in_use() == servers[0].port
    store.close()


def _tried(call: Callable[[], object]) -> bool:
    try:
        call()
    except Unavailable:
        return False
    return True
