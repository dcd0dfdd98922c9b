"""Tables on a terminal of 80 columns: one line a row, ids whole, colours only where they are wanted."""

from __future__ import annotations

import fcntl
import os
import pty
import re
import struct
import subprocess
import sys
import termios
from pathlib import Path

import pytest

from celery_qbeat.cli import output
from celery_qbeat.stores import tables
from tests.unit.making_cli import Cli, migrated

ESCAPE = re.compile(r"\x1b\[[0-9;]*m")
REASON = "schedule: 'now and then' is no"
ROWS = (
    {"id": "shop.orders.cleanup.of_what_is_older_than_a_month", "schedule": "02:00,14:00", "timezone": "Europe/Berlin"},
    {"id": "shop.report", "schedule": "now and then"},
    {"id": "b.倉庫.日次レポート", "schedule": "02:00"},
)


@pytest.fixture
def url(sqlite_url: str) -> str:
    migrated(sqlite_url)
    Cli(sqlite_url).insert(
        tables.jobs, *({"fn": "app.a", "schedule_kind": "daily", "timezone": "UTC", **row} for row in ROWS)
    )
    return sqlite_url


def on_a_terminal(url: str, *options: str, **environment: str) -> list[str]:
    """The lines that `qbeat ... list` prints on a terminal of 80 columns."""
    master, slave = pty.openpty()
    fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 80, 0, 0))
    known = {name: value for name, value in os.environ.items() if name not in ("COLUMNS", "NO_COLOR")}
    done = subprocess.Popen(
        [sys.executable, "-c", "from celery_qbeat.cli import main; main()", *options, "--database-url", url, "list"],
        stdout=slave,
        env={**known, "TERM": "xterm", **environment},
        cwd=Path(__file__).parents[2],
    )
    os.close(slave)
    taken = b""
    while part := _read(master):
        taken += part
    os.close(master)
    assert done.wait(60) == 0
    return taken.decode().replace("\r\n", "\n").splitlines()


def _read(master: int) -> bytes:
    try:
        return os.read(master, 65_536)
    except OSError:
        # How Linux says that nobody has the other end any more.
        return b""


def test_on_80_columns_a_row_is_one_line_with_its_whole_id(url: str) -> None:
    lines = on_a_terminal(url)
    plain = [ESCAPE.sub("", line) for line in lines]
    assert len(plain) == 1 + len(ROWS)
    for row in ROWS:
        (line,) = (line for line in plain if line.startswith(str(row["id"])))
        assert output._width(line) <= 80
    assert any("…" in line for line in plain)
    assert any(ESCAPE.search(line) for line in lines)


@pytest.mark.parametrize(
    ("options", "environment"), [(["--no-color"], {}), ([], {"NO_COLOR": "yes"}), ([], {"TERM": "dumb"})]
)
def test_no_color_leaves_no_escape(url: str, options: list[str], environment: dict[str, str]) -> None:
    assert "\x1b" not in "".join(on_a_terminal(url, *options, **environment))


@pytest.mark.parametrize(
    ("widths", "room", "fitted"),
    [
        ([10, 5, 5], 80, [10, 5, 5]),
        ([70, 30, 30], 80, [70, 5, 5]),
        ([20, 30, 10, 40], 80, [20, 22, 10, 22]),
        ([20, 30, 10, 41], 81, [20, 22, 10, 23]),
        ([100], 80, [100]),
    ],
)
def test_the_widest_columns_are_cut_first(widths: list[int], room: int, fitted: list[int]) -> None:
    assert output._fitted(widths, room) == fitted


def test_a_cut_text_fills_its_columns() -> None:
    assert output._cut_text("日次レポート", 6) in ("日次…", "日次~")
    assert output._cut_text("report", 4) in ("rep…", "rep~")
