"""The proxies of one beat: its own way to the database, the gate and the broker, so that a fault hits beats only."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from tests.chaos.proxy import Proxy

ENVIRONMENT = "QBEAT_TEST_LINK_{}"
"""Name of the environment variable with the URL of a server, by the name of the link in capitals."""


class Links:
    """A proxy for each server, by the name of the link: `database`, `gate`, `broker`. SQLite has no `database`.

    `servers`: the URL and the port of each.
    """

    def __init__(self, servers: Mapping[str, tuple[str, int]]) -> None:
        self.proxies: Mapping[str, Proxy] = MappingProxyType({name: Proxy(port) for name, (_, port) in servers.items()})
        self._servers = servers

    @property
    def environment(self) -> dict[str, str]:
        """What a beat has to have in its environment to take these ways."""
        return {
            ENVIRONMENT.format(name.upper()): url.replace(f":{port}/", f":{self.proxies[name].port}/")
            for name, (url, port) in self._servers.items()
        }

    def close(self) -> None:
        for proxy in self.proxies.values():
            proxy.close()


def from_environment(name: str) -> str:
    """Python source of a setting that reads the URL of a link."""
    return f"__import__('os').environ[{ENVIRONMENT.format(name.upper())!r}]"
