"""Fixtures of the tests with several beats."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any

import pytest

from tests.celeryproc import Project
from tests.chaos.app_threads import THREADS
from tests.chaos.scene import Scene
from tests.servers import Redis


@pytest.fixture
def make_scene(
    make_project: Callable[..., Project], redis_server: Redis, redis_url: str
) -> Iterator[Callable[..., Scene]]:
    """`make_scene(database_url=None, broker=None, lock_ttl=2.0, poll=0.25, tasks=THREADS)`; on SQLite without a URL.

    `tasks`: more source for the app's module of tasks; unless given, the app starts threads of its own.
    """
    with ExitStack() as stack:

        def make(
            database_url: str | None = None,
            broker: Redis | None = None,
            *,
            lock_ttl: float = 2.0,
            poll: float = 0.25,
            tasks: str = THREADS,
        ) -> Scene:
            settings: dict[str, Any] = {} if database_url is None else {"qbeat_database_url": database_url}
            server = broker or redis_server
            scene = Scene(make_project(server.url, settings, tasks=tasks), server, lock_ttl=lock_ttl, poll=poll)
            stack.callback(scene.close)
            return scene

        yield make
