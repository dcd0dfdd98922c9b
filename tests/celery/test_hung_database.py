"""A beat whose database keeps the connection and does not answer, or answers that it takes no writes."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack

import pytest
import sqlalchemy as sa

from tests.celeryproc import Project
from tests.contract.store_rigs import made
from tests.servers import MariaDB, PostgreSQL, SlowProxy, wait_for

JOB = (
    "INSERT INTO qbeat_jobs (id, fn, schedule_kind, schedule, overlap) "
    "VALUES ('a', 'proj.tasks.record', 'interval', '1', 'allow')"
)


class Scene:
    """A beat whose database is behind a proxy, and a person who looks into the database."""

    def __init__(self, server: PostgreSQL | MariaDB, project: Project, stack: ExitStack) -> None:
        self.name = server.create_database()
        stack.callback(server.drop_database, self.name)
        direct = made(server.url_of(self.name))
        self.proxy = stack.enter_context(SlowProxy(server.port))
        engine = sa.create_engine(direct, isolation_level="AUTOCOMMIT", poolclass=sa.NullPool)
        self.person = stack.enter_context(engine.connect())
        self.person.exec_driver_sql(JOB)
        url = direct.replace(f":{server.port}/", f":{self.proxy.port}/")
        project.configure(qbeat_database_url=url, qbeat_poll_interval=0.2)
        self.beat = project.beat()
        stack.callback(project.close)
        self.dispatches()

    def sent(self) -> int:
        query = "SELECT count(*) FROM qbeat_runs WHERE sent_us IS NOT NULL"
        return int(self.person.exec_driver_sql(query).scalar_one())

    def dispatches(self) -> None:
        """Two more runs are sent."""
        before = self.sent()
        wait_for(lambda: self.sent() >= before + 2, 60, every=0.1, what="two more runs")


@pytest.fixture
def scene(request: pytest.FixtureRequest, make_project: Callable[..., Project], redis_url: str) -> Iterator[Scene]:
    server = request.getfixturevalue(request.param)
    with ExitStack() as stack:
        yield Scene(server, make_project(redis_url), stack)


@pytest.mark.slow
@pytest.mark.parametrize("scene", ["postgres_server", "mariadb_server"], indirect=True)
def test_a_half_open_connection_is_given_up_and_dispatch_goes_on(scene: Scene) -> None:
    scene.proxy.hang()
    scene.beat.wait_output(r"no answer", deadline=30)
    scene.proxy.flow()
    scene.dispatches()
    assert "Traceback" not in scene.beat.output()


@pytest.mark.slow
@pytest.mark.parametrize("scene", ["postgres_server"], indirect=True)
def test_a_beat_leaves_a_read_only_session_when_it_may_write_again(scene: Scene, postgres_server: PostgreSQL) -> None:
    with postgres_server.connect() as admin:
        admin.execute(f"ALTER DATABASE {scene.name} SET default_transaction_read_only = on")
        admin.execute(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = %s AND application_name = %s",
            (scene.name, "celery_qbeat"),
        )
        scene.beat.wait_output(r"is read-only \(a standby\?\)", deadline=30)
        admin.execute(f"ALTER DATABASE {scene.name} RESET default_transaction_read_only")
    scene.dispatches()
    assert "Traceback" not in scene.beat.output()
