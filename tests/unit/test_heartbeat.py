"""The heartbeat file, and the probe that looks at it without importing what costs time."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from celery_qbeat.process.heartbeat import VARIABLE, HeartbeatFile, trouble

HEAVY = (
    "celery",
    "kombu",
    "sqlalchemy",
    "alembic",
    "pydantic",
    "click",
    "rich",
    "redis",
    "django",
    "logging",
    "asyncio",
)


def age(path: Path, seconds: float) -> float:
    """The clock, so many seconds after the last touch."""
    return path.stat().st_mtime + seconds


def test_a_file_that_was_touched_lately_is_that_of_a_live_beat(tmp_path: Path) -> None:
    path = tmp_path / "beat"
    HeartbeatFile(str(path), 1.0).touch()
    assert trouble(str(path), age(path, 59)) == ""
    assert "touched 60 s ago, and the beat touches it within 60 s" in trouble(str(path), age(path, 60))
    assert [name.name for name in tmp_path.iterdir()] == ["beat"]


def test_a_beat_with_long_polls_may_be_silent_for_longer(tmp_path: Path) -> None:
    path = tmp_path / "beat"
    HeartbeatFile(str(path), 60.0).touch()
    assert trouble(str(path), age(path, 179)) == ""
    assert trouble(str(path), age(path, 180)) != ""


def test_a_file_that_was_deleted_comes_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("celery_qbeat.process.heartbeat.TOUCH_AGAIN_S", 0)
    path = tmp_path / "beat"
    file = HeartbeatFile(str(path), 1.0)
    file.touch()
    path.unlink()
    file.touch()
    assert json.loads(path.read_text())["pid"] == os.getpid()


def test_a_touch_moves_the_time_of_the_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("celery_qbeat.process.heartbeat.TOUCH_AGAIN_S", 0)
    path = tmp_path / "beat"
    file = HeartbeatFile(str(path), 1.0)
    file.touch()
    os.utime(path, (1, 1))
    file.touch()
    assert path.stat().st_mtime > 1


def test_a_process_removes_its_own_file_only(tmp_path: Path) -> None:
    path = tmp_path / "beat"
    old, new = HeartbeatFile(str(path), 1.0), HeartbeatFile(str(path), 30.0)
    old.touch()
    new.touch()
    old.remove()
    assert path.exists()
    new.remove()
    new.remove()
    assert not path.exists()


@pytest.mark.parametrize("text", ["", "junk", "[]", "{}", '{"silence_s": null}', '{"silence_s": {}}'])
def test_a_file_of_something_else_is_told(tmp_path: Path, text: str) -> None:
    path = tmp_path / "beat"
    path.write_text(text)
    assert "is no heartbeat file" in trouble(str(path), age(path, 0))


def run(*command: str, **environment: str) -> subprocess.CompletedProcess[str]:
    known = {name: value for name, value in os.environ.items() if name != VARIABLE}
    return subprocess.run(
        [sys.executable, *command], capture_output=True, text=True, check=False, env={**known, **environment}
    )


@pytest.mark.parametrize(
    "module", [("celery_qbeat", "check", "--liveness"), ("celery_qbeat.process.heartbeat",)], ids=["program", "module"]
)
def test_the_probe_ends_with_0_or_1(tmp_path: Path, module: tuple[str, ...]) -> None:
    path = tmp_path / "beat"
    dead = run("-m", *module, "--heartbeat-file", str(path))
    assert (dead.returncode, dead.stderr) == (1, "")
    assert "no beat lives" in dead.stdout
    HeartbeatFile(str(path), 1.0).touch()
    assert run("-m", *module, "--heartbeat-file", str(path)).returncode == 0
    assert run("-m", *module, **{VARIABLE: str(path)}).stdout == "a beat lives\n"
    told = run("-m", *module, "--json", "--heartbeat-file", str(path)).stdout
    assert json.loads(told) == {"ok": True, "heartbeat_file": str(path), "trouble": ""}
    nameless = run("-m", *module)
    assert nameless.returncode == 2
    assert "qbeat_heartbeat_file" in nameless.stderr


@pytest.mark.parametrize(
    "code",
    [
        "import celery_qbeat",
        "import celery_qbeat.__main__ as m; sys.argv[1:] = ['check', '--liveness', '--heartbeat-file', 'no']; m.main()",
    ],
    ids=["package", "probe"],
)
def test_neither_package_nor_probe_imports_what_is_large(code: str) -> None:
    # What the environment itself loads at each start of Python is not ours.
    report = (
        "import atexit, sys\nbefore = set(sys.modules)\natexit.register(lambda: print(*set(sys.modules) - before))\n"
    )
    loaded = run("-c", report + code).stdout.split()
    assert "celery_qbeat" in loaded
    assert {name.partition(".")[0] for name in loaded} & set(HEAVY) == set()
    assert {name for name in loaded if name.startswith("celery_qbeat.")} <= {
        "celery_qbeat.__main__",
        "celery_qbeat.process",
        "celery_qbeat.process.heartbeat",
    }
