"""The heartbeat file of real beats."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

from celery_qbeat.process.heartbeat import trouble
from tests.celeryproc import Project
from tests.servers.waiting import wait_for


def touched_again(path: Path) -> None:
    before = path.stat().st_mtime_ns
    wait_for(lambda: path.stat().st_mtime_ns > before, 30, what=f"{path} is touched")


def test_writer_and_standby_touch_their_files(make_project: Callable[..., Project], redis_url: str) -> None:
    project = make_project(redis_url, {"qbeat_redis_url": redis_url, "qbeat_lock_ttl": 5.0})
    beats = []
    for name, words in (("writer", "beat: writer"), ("standby", "follower: jobs paused")):
        path = project.folder / name
        project.environment["QBEAT_HEARTBEAT_FILE"] = str(path)
        beats.append((project.beat(), path))
        beats[-1][0].wait_output(words)
    for beat, path in beats:
        assert json.loads(path.read_text())["pid"] == beat.pid
        touched_again(path)
        assert trouble(str(path), path.stat().st_mtime) == ""
    for beat, path in reversed(beats):
        beat.terminate()
        assert beat.wait_exit() == 0
        assert not path.exists()


def test_a_killed_beat_leaves_a_file_that_grows_old(make_project: Callable[..., Project]) -> None:
    project = make_project()
    path = project.folder / "beat"
    project.configure(qbeat_heartbeat_file=str(path))
    beat = project.beat()
    beat.wait_output("beat: writer")
    probe = project.qbeat("check", "--liveness")
    assert (probe.returncode, probe.stdout) == (0, "a beat lives\n")
    beat.kill()
    assert "no beat lives" in trouble(str(path), path.stat().st_mtime + 60)


def test_a_file_that_cannot_be_written_is_told_once_and_stops_no_beat(make_project: Callable[..., Project]) -> None:
    project = make_project()
    project.configure(qbeat_heartbeat_file=str(project.folder / "nowhere" / "beat"))
    project.qbeat("add", "x", "proj.tasks.record", "--interval", "1", "--overlap", "allow")
    beat = project.beat()
    beat.wait_output(r"sent: job='x'[\s\S]*sent: job='x'")
    assert beat.output().count("probes take this beat for dead") == 1
