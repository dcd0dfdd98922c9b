"""MariaDB: the machine's own; there is no wheel of it."""

from __future__ import annotations

import itertools
import os
import shutil
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from functools import cache
from pathlib import Path
from typing import Any

import pymysql

from tests.servers.base import Server, ServerMissing
from tests.servers.users import User, not_root

DRIVER = os.environ.get("QBEAT_TEST_MYSQL_DRIVER", "pymysql")
"""`mysqldb` runs the same tests through mysqlclient, where that is installed."""

_names = itertools.count(1)
_PATH_OF_ROOT = "/usr/sbin:/usr/local/sbin"


def _program(*names: str) -> str:
    for name in names:
        found = shutil.which(name) or shutil.which(name, path=_PATH_OF_ROOT)
        if found:
            return found
    raise ServerMissing(f"no {names[0]} on this machine (Debian: apt-get install mariadb-server)")


@cache
def _user() -> User:
    return not_root("mysql")


class MariaDB(Server):
    """A MariaDB with row-based binary log. `root` and `qbeat` (all rights but SUPER) need no password."""

    name = "mariadb"

    def __init__(self, *options: str) -> None:
        """``options``: arguments such as ``--max-connections=300``."""
        self._server = _program("mariadbd", "mysqld")
        self._install = _program("mariadb-install-db", "mysql_install_db")
        super().__init__()
        self._options = options

    @property
    def url(self) -> str:
        """SQLAlchemy's URL of the database `test`, as root."""
        return self.url_of("test")

    def url_of(self, database: str, user: str = "root") -> str:
        """SQLAlchemy's URL of a database."""
        return f"mysql+{DRIVER}://{user}@127.0.0.1:{self.port}/{database}?charset=utf8mb4"

    @property
    def data(self) -> Path:
        return self.folder / "data"

    @contextmanager
    def connect(
        self, database: str | None = None, user: str = "root", timeout: float = 10.0
    ) -> Iterator[pymysql.connections.Connection[Any]]:
        """A new autocommit connection."""
        with closing(
            pymysql.connect(
                host="127.0.0.1",
                port=self.port,
                user=user,
                database=database,
                autocommit=True,
                connect_timeout=max(1, int(timeout)),
                read_timeout=timeout,
                write_timeout=timeout,
            )
        ) as connection:
            yield connection

    def create_database(self) -> str:
        """A new database (utf8mb4); its name."""
        name = f"q{next(_names)}"
        with self.connect() as connection, connection.cursor() as cursor:
            cursor.execute(f"CREATE DATABASE {name} CHARACTER SET utf8mb4")
        return name

    def drop_database(self, name: str) -> None:
        """End the connections that use a database, then drop it: one left in a transaction would block the drop."""
        with self.connect(timeout=30.0) as connection, connection.cursor() as cursor:
            cursor.execute("SELECT id FROM information_schema.processlist WHERE db = %s", (name,))
            for (thread,) in cursor.fetchall():
                with suppress(pymysql.OperationalError, pymysql.InternalError):  # it may have gone by itself
                    cursor.execute(f"KILL CONNECTION {thread}")
            cursor.execute(f"DROP DATABASE IF EXISTS {name}")

    def alive(self) -> bool:
        """SELECT 1."""
        try:
            with self.connect(timeout=1.0) as connection, connection.cursor() as cursor:
                cursor.execute("SELECT 1")
                return bool(cursor.fetchone() == (1,))
        except pymysql.OperationalError:  # not pymysql.err's: Django, with PyMySQL as MySQLdb, replaces that module
            return False

    def _user(self) -> User:
        return _user()

    def _prepare(self) -> None:
        (self.folder / "init.sql").write_text(_INIT_SQL)
        super()._prepare()
        self.run_as_user(
            [
                self._install,
                *("--no-defaults", f"--datadir={self.data}", "--auth-root-authentication-method=normal"),
                *("--skip-name-resolve", f"--innodb-log-file-size={_LOG_FILE_SIZE}"),
            ]
        )

    def _command(self) -> list[str]:
        return [
            self._server,
            "--no-defaults",
            f"--datadir={self.data}",
            f"--tmpdir={self.folder}",
            "--bind-address=127.0.0.1",
            f"--port={self.port}",
            f"--socket={self.folder / 's'}",
            f"--pid-file={self.folder / 'pid'}",
            f"--init-file={self.folder / 'init.sql'}",
            "--skip-name-resolve",
            "--character-set-server=utf8mb4",
            f"--log-bin={self.data / 'binlog'}",
            "--binlog-format=ROW",
            "--sync-binlog=0",
            # Every commit reaches the operating system, so that it survives `kill`, but not the disk.
            "--innodb-flush-log-at-trx-commit=2",
            "--innodb-buffer-pool-size=64M",
            f"--innodb-log-file-size={_LOG_FILE_SIZE}",
            "--performance-schema=OFF",
            *self._options,
        ]


_LOG_FILE_SIZE = "16M"
# One statement a line: the server reads the file so. `qbeat` has what a careful administrator gives to an application.
_INIT_SQL = """\
CREATE DATABASE IF NOT EXISTS test CHARACTER SET utf8mb4;
CREATE USER IF NOT EXISTS 'root'@'127.0.0.1' IDENTIFIED BY '';
GRANT ALL PRIVILEGES ON *.* TO 'root'@'127.0.0.1' WITH GRANT OPTION;
CREATE USER IF NOT EXISTS 'qbeat'@'127.0.0.1' IDENTIFIED BY '';
GRANT SELECT, INSERT, UPDATE, DELETE, LOCK TABLES ON *.* TO 'qbeat'@'127.0.0.1';
GRANT CREATE, DROP, ALTER, INDEX, REFERENCES, CREATE VIEW, SHOW VIEW, TRIGGER ON *.* TO 'qbeat'@'127.0.0.1';
"""
