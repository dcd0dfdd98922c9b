"""The wall clock is read only where a test can say what it shows."""

from __future__ import annotations

import ast
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.clock import INSTANT, START, instant, now_us

ROOT = Path(__file__).parents[2]
TIME = {"time", "time_ns", "localtime", "gmtime", "ctime"}
READS = {f"time.{name}" for name in TIME} | {
    *("datetime.now", "datetime.utcnow", "datetime.today", "date.today", "timezone.now"),
}
READERS = {
    "process/clock.py",
    "django/times.py",
    "beat_schedule.py",
    "demo/__main__.py",
    "process/heartbeat.py",
    "worker.py",
}
"""The modules of the package that may read the wall clock; all others are given the time."""


def reads(tree: ast.AST) -> Iterator[int]:
    """The lines on which the wall clock is read."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Call):
            name = ".".join(ast.unparse(node.func).split(".")[-2:])
            # With an argument, time.gmtime and the like convert; datetime.now takes a zone.
            if name in READS and not (node.args and name.startswith("time.")):
                yield node.lineno
        elif isinstance(node, ast.ImportFrom) and node.module == "time" and TIME & {name.name for name in node.names}:
            yield node.lineno


class AtImport(ast.NodeTransformer):
    """Leaves what runs when a module is imported: of a function the decorators and defaults, not the body."""

    def visit_FunctionDef(self, node: ast.FunctionDef) -> ast.AST:
        node.body = [ast.Pass()]
        return node

    def visit_Lambda(self, _node: ast.Lambda) -> ast.AST:
        return ast.Constant(None)


@pytest.mark.parametrize(
    ("line", "found"),
    [
        ("time.time()", 1),
        ("from time import time_ns", 1),
        ("datetime.datetime.now(UTC)", 1),
        ("time.gmtime(5)", 0),
        ("time.monotonic()", 0),
        ("self._clock.now_us()", 0),
    ],
)
def test_a_read_of_the_clock_is_recognised(line: str, found: int) -> None:
    assert len(list(reads(ast.parse(line)))) == found


def test_only_these_modules_read_the_wall_clock() -> None:
    package = ROOT / "celery_qbeat"
    found = [
        f"celery_qbeat/{path.relative_to(package)}:{line}"
        for path in package.rglob("*.py")
        if str(path.relative_to(package)) not in READERS
        for line in reads(ast.parse(path.read_text()))
    ]
    assert not found, f"{found}: take the time from the caller, from ports.Clock, or in pages from django.times"


def test_no_test_module_reads_the_clock_when_imported() -> None:
    """It would get the machine's time, and its tests that of `tests.clock`."""
    found = [
        f"{path.relative_to(ROOT)}:{line}"
        for path in (ROOT / "tests").rglob("*.py")
        if path.parent.name != "site"
        for line in reads(AtImport().visit(ast.parse(path.read_text())))
    ]
    assert not found, f"{found}: call tests.clock.now_us() in the test or in a fixture"


def test_a_test_begins_at_a_fixed_instant() -> None:
    begun = instant(os.environ.get(INSTANT, START)).timestamp()
    assert 0 <= now_us() / 1e6 - begun < 60


@pytest.mark.clock_at("2000-02-29T23:59:59.5Z")
def test_a_test_about_an_instant_has_it_for_its_whole_time() -> None:
    assert [now_us(), now_us()] == [951_868_799_500_000] * 2
