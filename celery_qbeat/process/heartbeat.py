"""The heartbeat file: a beat touches it while it works, and a probe looks at it without the app, Celery or a server.

`python -m celery_qbeat check --liveness` ends in `main` here, as does `python -m celery_qbeat.process.heartbeat`. This
module imports the standard library only.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

VARIABLE = "QBEAT_HEARTBEAT_FILE"
"""The environment variable with the path, for a beat without the setting and for a probe without an argument."""

LEAST_SILENCE_S = 60.0
"""Seconds without a touch below which a beat is taken for alive: a call to a server that hangs ends before."""

TOUCH_AGAIN_S = 1.0
"""Seconds between two touches, at least."""


class HeartbeatFile:
    """The file of one process: `{"pid": ..., "silence_s": ...}`, and its time of change is the last sign of life.

    Args:
        path: where it is; its folder must exist.
        every_s: how often the process works. It may be silent for three times as long, and for a minute at least.
    """

    def __init__(self, path: str, every_s: float) -> None:
        self.path = Path(path)
        self._text = json.dumps({"pid": os.getpid(), "silence_s": max(LEAST_SILENCE_S, 3 * every_s)}) + "\n"
        self._touch_at = float("-inf")

    def touch(self) -> bool:
        """Say that the process lives; False within a second of the last time: nothing is done. Raises OSError."""
        now = time.monotonic()
        if now < self._touch_at:
            return False
        self._touch_at = now + TOUCH_AGAIN_S
        if self._is_ours():
            os.utime(self.path)
            return True
        # A probe that reads meanwhile sees the old file or the new one.
        new = self.path.with_name(f"{self.path.name}.{os.getpid()}")
        new.unlink(missing_ok=True)
        with new.open("x") as file:
            file.write(self._text)
        new.replace(self.path)
        return True

    def remove(self) -> None:
        """The process ends; the file of another one stays. Never raises."""
        with suppress(OSError):
            if self._is_ours():
                self.path.unlink()

    def _is_ours(self) -> bool:
        try:
            return self.path.read_text() == self._text
        except (OSError, ValueError):
            return False


def trouble(path: str, now_s: float) -> str:
    """Why the beat of this file is taken for dead; empty when it lives. `now_s`: seconds since the epoch."""
    try:
        seen_s = now_s - Path(path).stat().st_mtime
        found: Any = json.loads(Path(path).read_text())
        silence_s = float(found["silence_s"])
    except OSError as error:
        return f"no beat lives: the heartbeat file {path!r} cannot be read: {error.strerror}"
    except (ValueError, TypeError, KeyError):
        return f"{path!r} is no heartbeat file of celery_qbeat"
    if seen_s >= silence_s:
        return (
            f"no beat lives: {path!r} was touched {seen_s:.0f} s ago, and the beat touches it within {silence_s:.0f} s"
        )
    return ""


def main(arguments: Sequence[str] | None = None) -> None:
    """End with 0 when the beat of a heartbeat file lives, with 1 and the reason when it does not."""
    parser = argparse.ArgumentParser("check --liveness", description="Whether the beat of a heartbeat file lives.")
    parser.add_argument(
        "--heartbeat-file", metavar="FILE", default=os.environ.get(VARIABLE), help=f"default: ${VARIABLE}"
    )
    parser.add_argument("--json", action="store_true", help="Print JSON.")
    given = parser.parse_args(arguments)
    path = given.heartbeat_file
    if not path:
        parser.error(f"name the file of qbeat_heartbeat_file with --heartbeat-file FILE, or in {VARIABLE}")
    why = trouble(path, time.time())
    answer = {"ok": not why, "heartbeat_file": path, "trouble": why}
    print(json.dumps(answer) if given.json else why or "a beat lives")  # noqa: T201 - the probe's answer
    sys.exit(1 if why else 0)


if __name__ == "__main__":
    main()
