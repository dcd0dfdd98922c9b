"""The Redis that keeps the lock: one server, the master that sentinels name, or a node of a cluster."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any, cast

from redis import Redis
from redis.exceptions import MovedError, RedisError, ResponseError

from celery_qbeat.core.plurals import quantity
from celery_qbeat.core.safe_text import hide_secrets
from celery_qbeat.gates.redis_url import connect, elsewhere
from celery_qbeat.process.safe_logging import get_logger

log = get_logger()

Address = tuple[str, int]

_MOVED = re.compile(r"MOVED \d+ (.*):(\d+)$")


class RedisServer:
    """Runs scripts at the Redis behind a URL. A call takes about `timeout_s` seconds at most and tries nothing twice.

    In a cluster the URL names any node. Redirections are followed, and when a node does not answer, the next call asks
    another one. redis-py's own client for clusters asks as many nodes as it knows, with pauses, and a tick would wait
    for it.

    Raises SettingsError for a URL that cannot be understood. Connects on first use.
    """

    def __init__(self, url: str, timeout_s: float) -> None:
        self.where = hide_secrets(url)
        self._first = connect(url, timeout_s)
        self._nodes: dict[Address, Redis] = {}
        self._owners: dict[str, Redis] = {}
        self._asked = 0

    def eval(self, script: str, keys: Sequence[str], arguments: Sequence[str | int]) -> Any:
        """The answer of a script whose keys have one hash tag. Raises RedisError and OSError.

        After an error the connections are given up: they may lead to a server that is no master any more, or carry a
        password that was changed.
        """
        client = self._owners.get(keys[0]) or self._anybody()
        try:
            try:
                return client.eval(script, len(keys), *keys, *arguments)
            except ResponseError as error:
                owner = _moved_to(error)
                if owner is None:
                    raise
                asked, client = client, self._node(client, *owner)
                self._meet_the_others(asked)
                self._owners[keys[0]] = client
                return client.eval(script, len(keys), *keys, *arguments)
        except (RedisError, OSError):
            if self._nodes:
                self._owners.pop(keys[0], None)
                self._asked += 1
            client.connection_pool.disconnect()
            raise

    def close(self) -> None:
        """Give the connections back."""
        for client in (self._first, *self._nodes.values()):
            client.close()

    def _anybody(self) -> Redis:
        known = (self._first, *self._nodes.values())
        return known[self._asked % len(known)]

    def _node(self, asked: Redis, host: str, port: int) -> Redis:
        """The client for a node; one that names no host means the host that was asked."""
        address = (host or str(asked.connection_pool.connection_kwargs.get("host", "localhost")), port)
        if address not in self._nodes:
            self._nodes[address] = elsewhere(self._first, *address)
        return self._nodes[address]

    def _meet_the_others(self, asked: Redis) -> None:
        """Learn all nodes of the cluster, for the day when the one in the URL is gone."""
        first = len(self._nodes) == 1
        try:
            nodes: dict[str, Any] = cast(Any, asked).execute_command("CLUSTER NODES")
        except (RedisError, OSError) as error:
            log.debug("gate: the nodes of the cluster are not known: %s", error)
            return
        for name in nodes:
            host, _, port = name.rpartition(":")
            if host and port.isdigit():
                self._node(asked, host, int(port))
        if first:
            log.info("gate: Redis at %s is a cluster of %s", self.where, quantity(len(nodes), "node"))


def _moved_to(error: ResponseError) -> Address | None:
    """Where a redirection leads to; None for any other error."""
    if isinstance(error, MovedError):
        return error.host, error.port
    # Older versions of redis-py know the class only in their client for clusters.
    found = _MOVED.match(str(error))
    return (found[1], int(found[2])) if found else None
