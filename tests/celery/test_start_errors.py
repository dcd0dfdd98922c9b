"""A start that cannot go on, and one that is ended in the middle, say so in the log and print nothing else."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.celeryproc import Project

# Sends this process SIGTERM when it comes to import that module.
SIGNAL_AT_IMPORT = """
import os, signal, sys

class SignalAtImport:
    def find_spec(self, name, path=None, target=None):
        if name == {module!r} and "beat" in sys.argv:
            sys.meta_path.remove(self)
            os.kill(os.getpid(), signal.SIGTERM)
        return None

sys.meta_path.insert(0, SignalAtImport())
"""


def test_a_fatal_start_error_is_critical(project: Project, postgres_url: str) -> None:
    project.configure(qbeat_database_url=postgres_url)
    beat = project.beat()
    assert beat.wait_exit() == 1
    beat.wait_output(r"CRITICAL.*celery_qbeat: .*celery -A proj qbeat migrate")
    assert beat.output().count("qbeat migrate") == 1


@pytest.mark.parametrize(
    ("module", "options"), [("celery_qbeat.gates.redis", []), ("celery_qbeat.engine.dispatch", ["--quiet"])]
)
def test_sigterm_during_an_import_ends_the_start_quietly(
    make_project: Callable[..., Project], module: str, options: list[str]
) -> None:
    project = make_project()
    package = project.folder / "proj" / "__init__.py"
    package.write_text(package.read_text() + SIGNAL_AT_IMPORT.format(module=module))
    beat = project.start(
        "beat", *options, "beat", "--scheduler=celery_qbeat.Scheduler", "--pidfile=", "--schedule=none"
    )
    assert beat.wait_exit() == 0
    assert "Traceback" not in beat.output()
    assert "circular import" not in beat.output()
