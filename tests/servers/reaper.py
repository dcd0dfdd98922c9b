"""Kills what a crashed test session left behind. Run as a script: it imports nothing of the project.

Standard input carries one order a line: ``watch PID``, ``release PID``, ``folder PATH``, ``forget PATH``. When it ends,
because the session closed it or died in whatever way, every watched process dies with its whole tree and process
group, and every folder is removed. A parent-death signal would not do: it is tied to the *thread* that started the
process, and a change of user clears it.
"""

from __future__ import annotations

import os
import shutil
import signal
import sys
from contextlib import suppress

import psutil


def end(process: psutil.Process) -> None:
    """SIGKILL a process, its descendants and its process group, unless its pid now belongs to another one."""
    if process.is_running():
        with suppress(psutil.NoSuchProcess):
            for child in process.children(recursive=True):
                with suppress(psutil.NoSuchProcess):
                    child.kill()
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)


def main() -> None:
    processes: dict[int, psutil.Process] = {}
    folders: set[str] = set()
    for line in sys.stdin:
        order, _, rest = line.rstrip("\n").partition(" ")
        if order == "watch":
            with suppress(psutil.NoSuchProcess):
                processes[int(rest)] = psutil.Process(int(rest))
        elif order == "release":
            processes.pop(int(rest), None)
        elif order == "folder":
            folders.add(rest)
        elif order == "forget":
            folders.discard(rest)
    for process in processes.values():
        end(process)
    for folder in folders:
        shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    main()
