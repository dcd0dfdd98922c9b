"""The beat that wrote last, and whether it lives."""

from __future__ import annotations

import os
import socket
from dataclasses import dataclass
from typing import Any

from celery_qbeat.cli import times
from celery_qbeat.cli.project import Project
from celery_qbeat.liveness import is_alive
from celery_qbeat.stores import reports
from celery_qbeat.stores.reports import Leader


@dataclass(frozen=True, slots=True)
class LastBeat:
    """What `qbeat_leader` says, at `now_us`; `poll_s` is the poll interval of the settings."""

    leader: Leader
    now_us: int
    poll_s: float

    @property
    def alive(self) -> bool:
        """Whether the writer lives, as far as can be known from here: one of this host can be looked for."""
        if not is_alive(self.leader.seen_us, self.now_us, self.poll_s):
            return False
        host, _, pid = self.leader.holder.rpartition(":")
        if host != socket.gethostname() or not pid.isdigit():
            return True
        try:
            os.kill(int(pid), 0)
        except ProcessLookupError:
            return False
        except PermissionError:
            return True
        return True

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
    return LastBeat(leader, project.clock.now_us(), project.settings.poll_interval)
