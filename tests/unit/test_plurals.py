"""A number and its noun agree in everything that people read."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import pytest

from celery_qbeat.core.plurals import quantity

PACKAGE = Path(__file__).parents[2] / "celery_qbeat"
NOUNS = "runs|jobs|slots|rows|times|messages|workers|writes|nodes|entries|requests|batches|releases|beats|tasks"
PLURAL = re.compile(rf"^ (older |new |open |enabled )?({NOUNS})\b")
# As `time(s)`; `grace (s)` names a unit.
EITHER = re.compile(r"[a-z]\(s\)")
IN_TEMPLATE = re.compile(rf"}}}} (older |new |open |enabled )?({NOUNS})\b")


def _texts(path: Path) -> Iterator[tuple[int, str]]:
    """Texts of a module in which the number may be one, with their lines."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and EITHER.search(node.value):
            yield node.lineno, node.value
        if isinstance(node, ast.JoinedStr):
            for value, after in pairwise(node.values):
                # A name in capitals is a constant larger than one.
                varies = isinstance(value, ast.FormattedValue) and not ast.unparse(value.value).isupper()
                if varies and isinstance(after, ast.Constant) and PLURAL.search(str(after.value)):
                    yield node.lineno, str(after.value)


@pytest.mark.parametrize(
    ("said", "expected"),
    [
        (quantity(1, "run"), "1 run"),
        (quantity(0, "run"), "0 runs"),
        (quantity(1_200, "run"), "1,200 runs"),
        (quantity(2, "entry", "entries"), "2 entries"),
    ],
)
def test_a_number_is_said_with_its_noun(said: str, expected: str) -> None:
    assert said == expected


def test_no_module_says_one_runs() -> None:
    found = [f"{path.name}:{line}: {text}" for path in PACKAGE.rglob("*.py") for line, text in _texts(path)]
    # The one text of this kind that follows a number of at least two.
    assert [line for line in found if " times, first " not in line] == []


def test_no_template_says_one_runs() -> None:
    found = [
        f"{path.name}: {match[0]}"
        for path in PACKAGE.rglob("*.html")
        for match in IN_TEMPLATE.finditer(path.read_text())
    ]
    assert found == []
