"""PgBouncer before a PostgreSQL of the tests: the machine's own; there is no wheel of it."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import closing, contextmanager
from typing import Any

import psycopg

from tests.servers.base import Server, ServerMissing
from tests.servers.postgresql import PostgreSQL
from tests.servers.users import User, not_root


class PgBouncer(Server):
    """Transaction pooling with round robin: each transaction gets another one of `pool_size` sessions."""

    name = "pgbouncer"

    def __init__(self, server: PostgreSQL, *lines: str, pool_size: int = 3) -> None:
        """``lines``: settings such as ``server_idle_timeout = 5``."""
        found = shutil.which("pgbouncer") or shutil.which("pgbouncer", path="/usr/sbin:/usr/local/sbin")
        if found is None:
            raise ServerMissing("no pgbouncer on this machine (Debian: apt-get install pgbouncer)")
        super().__init__()
        self._binary = found
        self._server = server
        self._lines = lines
        self.pool_size = pool_size

    @property
    def url(self) -> str:
        """SQLAlchemy's URL of the database `postgres`."""
        return self.url_of("postgres")

    def url_of(self, database: str) -> str:
        """SQLAlchemy's URL of a database."""
        return f"postgresql+psycopg://postgres@127.0.0.1:{self.port}/{database}"

    @contextmanager
    def connect(self, database: str = "postgres", timeout: float = 10.0) -> Iterator[psycopg.Connection[Any]]:
        """A new autocommit connection through the pool, without prepared statements; or to the database `pgbouncer`."""
        with closing(
            psycopg.connect(
                host="127.0.0.1",
                port=self.port,
                user="postgres",
                dbname=database,
                autocommit=True,
                prepare_threshold=None,
                connect_timeout=max(1, int(timeout)),
            )
        ) as connection:
            yield connection

    def alive(self) -> bool:
        try:
            with self.connect(timeout=1) as connection:
                return connection.execute("SELECT 1").fetchone() == (1,)
        except psycopg.OperationalError:
            return False

    def _user(self) -> User:
        return not_root("postgres")

    def _prepare(self) -> None:
        (self.folder / "users.txt").write_text('"postgres" ""\n')
        super()._prepare()

    def _command(self) -> list[str]:
        config = self.folder / "pgbouncer.ini"
        settings = [
            "[databases]",
            f"* = host=127.0.0.1 port={self._server.port}",
            "[pgbouncer]",
            "listen_addr = 127.0.0.1",
            f"listen_port = {self.port}",
            "unix_socket_dir =",
            "auth_type = trust",
            f"auth_file = {self.folder / 'users.txt'}",
            "admin_users = postgres",
            "pool_mode = transaction",
            "server_round_robin = 1",
            f"default_pool_size = {self.pool_size}",
            *self._lines,
        ]
        config.write_text("\n".join(settings) + "\n")
        self._user().own(config)
        return [self._binary, str(config)]
