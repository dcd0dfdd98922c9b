"""The databases' own command lines, as people use them."""

from __future__ import annotations

import shutil
import subprocess

import pytest
import sqlalchemy as sa


def type_in(url: str, statements: str) -> str:
    """What `sqlite3`, `psql` or `mariadb` prints for these statements."""
    parsed = sa.make_url(url)
    host, port, user = parsed.host or "", str(parsed.port), parsed.username or ""
    database = parsed.database or ""
    command = {
        "sqlite": ["sqlite3", "-cmd", ".timeout 5000", "-bail", database],
        "postgresql": [
            "psql",
            "-X",
            "-q",
            "-A",
            "-t",
            "-v",
            "ON_ERROR_STOP=1",
            "-h",
            host,
            "-p",
            port,
            "-U",
            user,
            database,
        ],
        "mysql": ["mariadb", "--no-defaults", "-N", "-h", host, "-P", port, "-u", user, database],
    }[parsed.get_backend_name()]
    if shutil.which(command[0]) is None:
        pytest.skip(f"no {command[0]} on this machine")
    done = subprocess.run(command, input=statements, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout
