"""Sentinels that watch one Redis."""

from __future__ import annotations

from tests.servers import Redis


class SentinelServer(Redis):
    """A sentinel that watches one master and may fail over alone."""

    name = "sentinel"

    def __init__(self, master: Redis) -> None:
        super().__init__()
        self._master = master

    def _command(self) -> list[str]:
        (self.folder / "sentinel.conf").write_text(
            f"bind 127.0.0.1\nport {self.port}\ndir {self.folder}\n"
            f"sentinel monitor qmaster 127.0.0.1 {self._master.port} 1\n"
            "sentinel down-after-milliseconds qmaster 500\nsentinel failover-timeout qmaster 2000\n"
        )
        return [self._binary, str(self.folder / "sentinel.conf"), "--sentinel"]
