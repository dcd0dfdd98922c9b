"""The beat that wrote last, and whether it lives."""

from __future__ import annotations

import os
import socket
from dataclasses import dataclass
from typing import Any

from celery_qbeat.cli import times
from celery_qbeat.cli.project import Project
from celery_qbeat.core.liveness import LEAST_SILENCE_US, TICK_PREFIX, is_alive, is_tick
from celery_qbeat.stores import reports
from celery_qbeat.stores.reports import Leader


@dataclass(frozen=True, slots=True)
class LastBeat:
    """What `qbeat_leader` says, at `now_us`."""

    leader: Leader
    now_us: int

    @property
    def alive(self) -> bool:
        """Whether a beat lives, as far as can be known from here: one of this host can be looked for.

        A tick that has ended lives until the next one is late.
        """
        if not is_alive(self.leader.seen_us, self.now_us, self.leader.silence_us):
            return False
        return is_tick(self.leader.holder) or not self._is_gone()

    @property
    def at_work(self) -> bool:
        """Whether the process that wrote last is perhaps still writing: unlike `alive`, not after a tick that ended."""
        limit = LEAST_SILENCE_US if is_tick(self.leader.holder) else self.leader.silence_us
        return is_alive(self.leader.seen_us, self.now_us, limit) and not self._is_gone()

    def _is_gone(self) -> bool:
        """Whether the holder was a process of this host, and is none any more."""
        host, _, pid = self.leader.holder.removeprefix(TICK_PREFIX).rpartition(":")
        if host != socket.gethostname() or not pid.isdigit():
            return False
        try:
            os.kill(int(pid), 0)
        except ProcessLookupError:
            return True
        except PermissionError:
            return False
        return False

    @property
    def sentence(self) -> str:
        """Whether a beat is at work, in words."""
        leader = self.leader
        if not leader.seen_us:
            return "none has ever run on these tables"
        seen = times.relative(leader.seen_us, self.now_us)
        who = f"{leader.holder}, epoch {leader.epoch}, writer since {times.clock(leader.taken_us, 'UTC')}, seen {seen}"
        return who if self.alive else f"none is at work: the last one was {who}"

    @property
    def data(self) -> dict[str, Any]:
        """Whether a beat is at work, for JSON."""
        leader = self.leader
        stamps = times.stamp("taken", leader.taken_us) | times.stamp("seen", leader.seen_us)
        return {"alive": self.alive, "holder": leader.holder, "epoch": leader.epoch, **stamps}


def read_last_beat(project: Project) -> LastBeat:
    """The last beat as the database has it now. Raises Unavailable and SchemaError."""
    leader = project.read(reports.leader)
    return LastBeat(leader, project.clock.now_us())
