"""Bare virtual environments for the tests: the wheel of this package with some extras, and what these bring."""

from __future__ import annotations

import os
import subprocess
import sys
import venv
from pathlib import Path

_ROOT = Path(__file__).parents[1]


class Environments:
    """Virtual environments in a folder, one for each set of extras. The wheel is built once."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._wheel: Path | None = None

    def python(self, extras: str = "") -> Path:
        """The Python of an environment that has `celery_qbeat[extras]` and nothing else."""
        place = self._folder / (f"venv-{extras.replace(',', '-')}" if extras else "venv")
        python = place / "bin" / "python"
        if not place.exists():
            # A pip of its own, and bytecode of modules that are never imported, would double the time.
            venv.create(place, with_pip=False, symlinks=True)
            target = f"{self.wheel()}[{extras}]" if extras else str(self.wheel())
            _pip("--python", str(python), "install", "--no-compile", target)
        return python

    def wheel(self) -> Path:
        """The wheel of this package."""
        if self._wheel is None:
            place = self._folder / "wheel"
            _pip("wheel", "--no-deps", "--wheel-dir", str(place), str(_ROOT))
            (self._wheel,) = place.glob("celery_qbeat-*.whl")
        return self._wheel


def _pip(*arguments: str) -> None:
    command = [sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check", *arguments]
    kept = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    done = subprocess.run(command, env=kept, capture_output=True, text=True, timeout=200, check=False)
    assert done.returncode == 0, f"{' '.join(command)}:\n{done.stdout}{done.stderr}"
