"""The Python that the documents show: it compiles, what it imports is there, and names that it uses are explained."""

from __future__ import annotations

import ast
import builtins
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
BLOCKS = [
    pytest.param(block, id=f"{page.name}-{number}")
    for page in PAGES
    for number, block in enumerate(re.findall(r"^```python\n(.*?)^```", page.read_text(), re.MULTILINE | re.DOTALL), 1)
]
# What a reader has: the Celery app of the project, and the list in Django's settings.
GIVEN = {"app", "INSTALLED_APPS"}


@pytest.mark.parametrize("block", BLOCKS)
def test_every_name_is_imported_or_defined(block: str) -> None:
    tree = ast.parse(block)
    names = [node for node in ast.walk(tree) if isinstance(node, ast.Name)]
    stored = {name.id for name in names if isinstance(name.ctx, ast.Store)}
    arguments = {node.arg for node in ast.walk(tree) if isinstance(node, ast.arg)}
    functions = {node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.ClassDef)}
    imported = {
        (alias.asname or alias.name).partition(".")[0]
        for node in ast.walk(tree)
        if isinstance(node, ast.Import | ast.ImportFrom)
        for alias in node.names
    }
    used = {name.id for name in names if isinstance(name.ctx, ast.Load)}
    assert used - stored - arguments - functions - imported - GIVEN - set(dir(builtins)) == set()


def test_every_import_works(tmp_path: Path) -> None:
    imports = [
        ast.unparse(node)
        for parameters in BLOCKS
        for node in ast.parse(str(parameters.values[0])).body
        if isinstance(node, ast.Import | ast.ImportFrom)
    ]
    settings = "INSTALLED_APPS = ['django.contrib.contenttypes', 'django.contrib.auth', 'celery_qbeat.django']\n"
    (tmp_path / "docs_settings.py").write_text(settings + "USE_TZ = True\n")
    program = "\n".join(["import django", "django.setup()", *imports, "assert celery_qbeat.worker.slot"])
    path = os.pathsep.join([str(tmp_path), str(ROOT)])
    done = subprocess.run(
        [sys.executable, "-c", program],
        env={**os.environ, "PYTHONPATH": path, "DJANGO_SETTINGS_MODULE": "docs_settings"},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr
