"""Runs the demo; see the package's docstring."""

from __future__ import annotations

import argparse
import contextlib
import os
import signal
import sqlite3
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import FrameType
from typing import IO

from celery_qbeat.demo import DATABASE, FOLDER_VARIABLE
from celery_qbeat.demo.progress import Progress

INSERT = "INSERT OR IGNORE INTO qbeat_jobs (id, fn, schedule_kind, schedule, kwargs) VALUES (?, ?, ?, ?, ?)"


def rows(now: datetime) -> list[tuple[str, ...]]:
    """One row of every kind, one with bad input and one that names a privileged task."""
    soon = (now + timedelta(minutes=1)).replace(second=0)
    once = now + timedelta(seconds=12)
    return [
        ("demo.interval", "demo.greet", "interval", "5", '{"name": "interval"}'),
        ("demo.every", "demo.greet", "every", "1m", '{"name": "every"}'),
        ("demo.daily", "demo.report", "daily", soon.strftime("%H:%M"), "{}"),
        ("demo.cron", "demo.report", "cron", "*/5 * * * *", "{}"),
        ("demo.once", "demo.greet", "once", once.strftime("%Y-%m-%dT%H:%M:%S"), '{"name": "once"}'),
        ("demo.bad", "demo.greet", "daily", "25:00", "{}"),
        ("demo.privileged", "celery.map", "interval", "5", "{}"),
    ]


def seed(folder: Path) -> None:
    """Make the tables and put the demo's rows in; rows that an earlier demo left stay as they were edited."""
    # Here, since it takes some seconds when a new installation is imported for the first time.
    from celery_qbeat.settings import Settings
    from celery_qbeat.wiring import build_store

    store = build_store(Settings(database_url=f"sqlite:///{folder / DATABASE}"))
    store.open()
    store.close()
    with contextlib.closing(sqlite3.connect(folder / DATABASE)) as connection, connection:
        connection.executemany(INSERT, rows(datetime.now(UTC)))


COMMANDS = {
    "worker": ("worker", "--pool", "solo", "--loglevel", "WARNING", "--without-mingle", "--without-gossip"),
    "beat": ("beat", "--scheduler", "celery_qbeat.Scheduler", "--loglevel", "INFO"),
}


class Demo:
    """The two processes, and their words on one terminal."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._children: dict[str, subprocess.Popen[str]] = {}
        self._printing = threading.Lock()
        self.progress = Progress(lambda text: self.say(f"  demo | {text}"))

    def say(self, text: str = "") -> None:
        with self._printing:
            sys.stdout.write(text + "\n")
            sys.stdout.flush()

    def start(self) -> None:
        self._run("worker")
        self._run("beat")

    def _run(self, name: str) -> None:
        child = subprocess.Popen(
            [sys.executable, "-m", "celery", "-A", "celery_qbeat.demo.app", "--quiet", *COMMANDS[name]],
            cwd=self.folder,
            env={
                **os.environ,
                FOLDER_VARIABLE: str(self.folder),
                "PYTHONPATH": os.pathsep.join(sys.path),
                "PYTHONWARNINGS": "ignore:You're running the worker with superuser privileges",
            },
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )
        self._children[name] = child
        threading.Thread(target=self._echo, args=(name, child.stdout), daemon=True).start()

    def _echo(self, name: str, lines: IO[str] | None) -> None:
        for line in lines or ():
            if line.strip():
                self.say(f"{name:>6} | {line.rstrip()}")
            if name == "worker" and "ran: " in line:
                self.progress.end()

    def wait(self, seconds: float | None) -> int:
        """Until the time is over or the beat ended by itself; the exit code."""
        until = None if seconds is None else time.monotonic() + seconds
        while until is None or time.monotonic() < until:
            if self._children["beat"].poll() is not None:
                self.say("  demo | the beat ended by itself")
                return 1
            if self._children["worker"].poll() is not None:
                # A folder is no real broker: a message that is read while it is written ends the worker.
                self.say("  demo | the worker ended by itself: starting it again")
                self._run("worker")
            time.sleep(0.1)
        return 0

    def stop(self) -> None:
        self.progress.end()
        for child in self._children.values():
            if child.poll() is None:
                child.terminate()
        for child in self._children.values():
            try:
                child.wait(10)
            except subprocess.TimeoutExpired:
                os.killpg(child.pid, signal.SIGKILL)
                child.wait()


WELCOME = """\
celery_qbeat demo: a Celery worker, a beat with celery_qbeat.Scheduler, and a table of jobs in
{database}

  demo.interval    every 5 seconds              demo.once        once, in 12 seconds
  demo.every       at every full minute         demo.bad         25:00 is no time of day
  demo.daily       once a day, at the next      demo.privileged  names celery.map, which could
                   full minute                                   run any task
  demo.cron        stored, reserved until qbeat_cron = True

See a hot reload: paste this into a second terminal.

  sqlite3 -cmd '.timeout 5000' {database} \
      "UPDATE qbeat_jobs SET schedule = '2' WHERE id = 'demo.interval'"

And look at the jobs:

  sqlite3 -box {database} "SELECT id, state, last_verdict, problem FROM qbeat_status"

{ending}
"""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the demo; 0 when it ended as asked."""
    parser = argparse.ArgumentParser(prog="python -m celery_qbeat.demo", description=__doc__)
    parser.add_argument("--seconds", type=float, help="end by itself after so long")
    parser.add_argument("--folder", type=Path, help="where the demo lives (default: a new temporary folder)")
    options = parser.parse_args(arguments)
    signal.signal(signal.SIGTERM, _interrupt)
    if options.folder is not None:
        return _in(options.folder.resolve(), options.seconds)
    with tempfile.TemporaryDirectory(prefix="qbeat-demo-") as folder:
        return _in(Path(folder), options.seconds)


def _in(folder: Path, seconds: float | None) -> int:
    demo = Demo(folder)
    ending = "Ctrl-C ends it." if seconds is None else f"It ends by itself after {seconds:g} seconds, or with Ctrl-C."
    try:
        demo.progress.begin("loading Celery and making the tables")
        folder.mkdir(parents=True, exist_ok=True)
        seed(folder)
        demo.say(WELCOME.format(database=folder / DATABASE, ending=ending))
        demo.progress.begin("starting the worker and the beat; the first job runs when both are ready")
        demo.start()
        return demo.wait(seconds)
    except KeyboardInterrupt:
        return 0
    finally:
        demo.stop()
        demo.say("  demo | ended")


def _interrupt(_signal: int, _frame: FrameType | None) -> None:
    raise KeyboardInterrupt


if __name__ == "__main__":
    sys.exit(main())
