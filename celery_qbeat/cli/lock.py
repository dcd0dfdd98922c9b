"""The lock in Redis, and the beats that are listed beside it, as `status` and `check` tell of them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from celery_qbeat.cli import output, times
from celery_qbeat.cli.project import Project
from celery_qbeat.core.liveness import Role, role_of
from celery_qbeat.errors import Unavailable
from celery_qbeat.gates import AnnouncedBeat, LockHolder, RedisGate
from celery_qbeat.wiring import build_gate

STANDALONE = "standalone: no qbeat_redis_url is set, so only one beat may run"


@dataclass(frozen=True, slots=True)
class Lock:
    """The lock. `redis`: whether there is one. `last_holder`: who wrote last. `away`: why Redis does not answer."""

    redis: bool
    last_holder: str = ""
    away: str = ""
    holding: LockHolder | None = None
    beats: tuple[AnnouncedBeat, ...] = ()

    @property
    def trouble(self) -> str:
        """Why no beat can become the writer; empty when nothing is in the way."""
        if self.away or self.holding is None:
            return self.away
        if self.holding.foreign:
            return f"a value that no beat wrote holds it{self._how_long}: delete the key {self.holding.key}"
        if self.holding.left_s is None:
            return f"{self._who} holds it, without an end: no beat made this lock, delete the key {self.holding.key}"
        return ""

    @property
    def sentence(self) -> str:
        """Who has the lock, in words."""
        if not self.redis:
            return STANDALONE
        if self.trouble or self.holding is None:
            return self.trouble or "nobody holds it"
        return f"{self._who} holds it{self._how_long} unless it renews"

    @property
    def data(self) -> dict[str, Any]:
        """The lock, for JSON."""
        held = self.holding
        lock = None if held is None else {"holder": held.holder, "left_s": held.left_s, "foreign": held.foreign}
        return {
            "gate": "redis" if self.redis else "standalone",
            "redis_away": self.away,
            "lock": lock,
            "lock_trouble": self.trouble,
        }

    def role(self, beat: AnnouncedBeat) -> Role:
        """What this beat is, as far as can be told from here."""
        return role_of(beat.writer, beat.seen_s, was_writer=self.holding is None and beat.holder == self.last_holder)

    def facts(self) -> list[tuple[str, output.Cell]]:
        """The lock and the other beats, for people."""
        facts: list[tuple[str, output.Cell]] = [("lock", self.sentence)]
        if not self.redis or self.away:
            return facts
        roles = [(self.role(beat), beat) for beat in self.beats]
        for role, beat in roles:
            if role is not Role.WRITER:
                gone = ": it was killed, or is cut off" if role is Role.SILENT else ""
                facts.append((role.value, f"{beat.holder}, seen {beat.seen_s:.0f} s ago{gone}"))
        if not any(role is Role.STANDBY for role, _ in roles):
            facts.append(("standby", "none seen within the last 15 s"))
        return facts

    def beats_data(self) -> list[dict[str, Any]]:
        """The beats, for JSON."""
        return [
            {
                "holder": beat.holder,
                "role": self.role(beat).value,
                "writer": beat.writer,
                "seen_s": beat.seen_s,
                **times.stamp("since", beat.since_us),
            }
            for beat in self.beats
        ]

    @property
    def _who(self) -> str:
        return (self.holding.holder if self.holding else "") or "a beat that is not listed"

    @property
    def _how_long(self) -> str:
        left_s = self.holding.left_s if self.holding else None
        return ", without an end" if left_s is None else f", for {left_s:.1f} s more"


def read_lock(project: Project, last_holder: str) -> Lock:
    """What Redis says of the lock. Raises Unavailable and SchemaError for the tables only."""
    gate = build_gate(project.settings, project.settings.poll_interval, "status", project.clock)
    if not isinstance(gate, RedisGate):
        return Lock(redis=False)
    gate.bind(project.instance())
    try:
        return Lock(True, last_holder, holding=gate.lock_holder(), beats=gate.beats())
    except Unavailable as error:
        return Lock(True, last_holder, away=str(error))
    finally:
        gate.release()
