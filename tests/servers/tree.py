"""Signals to a process and to all that it started."""

from __future__ import annotations

import signal
from contextlib import suppress

import psutil

from tests.servers.waiting import wait_for


def has_ended(process: psutil.Process) -> bool:
    """Whether it runs no more, be it that nobody has yet asked for its exit code (an orphan's is init's to ask for)."""
    try:
        return not process.is_running() or process.status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


def signal_tree(pid: int, number: signal.Signals) -> None:
    """Send a signal to ``pid`` and its descendants; after SIGKILL, wait until all the descendants have ended.

    The parent comes first, so that a stopped or dead parent can start no new child while the children follow. A
    process that has ended already is no error.
    """
    with suppress(psutil.NoSuchProcess):
        parent = psutil.Process(pid)
        children = set(parent.children(recursive=True))
        parent.send_signal(number)
        with suppress(psutil.NoSuchProcess):
            children |= set(parent.children(recursive=True))
        for child in children:
            with suppress(psutil.NoSuchProcess):
                child.send_signal(number)
        if number is signal.SIGKILL:
            wait_for(lambda: all(map(has_ended, children)), every=0.005, what=f"the processes under {pid} end")
