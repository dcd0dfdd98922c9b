"""A few beats, a tap, and one thing that happens to them; at the end the auditor looks at it."""

from __future__ import annotations

import itertools
import os
import time
from collections.abc import Callable, Sequence
from typing import Any

import redis
import sqlalchemy as sa

from celery_qbeat.stores import open_store, tables
from celery_qbeat.wiring import FAIL_POINT
from tests.celeryproc import Code, Process, Project
from tests.chaos.auditor import audit
from tests.chaos.evidence import Entry, Evidence, Message, Traits, read_database
from tests.chaos.tap import Tap
from tests.chaos.world import lock_in
from tests.servers import Redis, wait_for

GATE = "QBEAT_TEST_GATE"
SECOND = 1_000_000
PATIENCE_S = 60.0


class Scene:
    """Rows on a database, beats that share it, and every message that they send. Use `make_scene`.

    `lock_ttl` and `poll` in seconds. Beats get their Redis one by one, see `beat`.
    """

    def __init__(self, project: Project, broker: Redis, *, lock_ttl: float, poll: float) -> None:
        project.configure(
            qbeat_redis_url=Code(f"__import__('os').environ.get({GATE!r})"),
            qbeat_lock_ttl=lock_ttl,
            qbeat_poll_interval=poll,
        )
        self.project = project
        self.traits: dict[str, Traits] = {}
        self.beats: list[Process] = []
        self.ended: set[Process] = set()
        self._numbers = itertools.count(1)
        self._tap = Tap(broker, lambda _job, _place: False)
        store = open_store(project.database_url, create_tables=True)
        store.open()
        store.close()
        self._tap.start()

    # What there is.

    def insert(self, count: int, kind: str, schedule: str, instants: Sequence[int] = (), **columns: Any) -> list[str]:
        """`count` equal rows; their ids."""
        names = [f"{kind}-{next(self._numbers)}" for _ in range(count)]
        columns = {"overlap": "allow", "on_doubt": "drop", "catch_up": "once", **columns}
        for name in names:
            policies = {key: str(columns[key]) for key in ("overlap", "on_doubt", "catch_up")}
            self.traits[name] = Traits(kind, instants=tuple(instants), **policies)
        rows = [
            {"id": name, "fn": "proj.tasks.record", "schedule_kind": kind, "schedule": schedule, **columns}
            for name in names
        ]
        with self._connect() as connection:
            connection.execute(sa.insert(tables.jobs), rows)
        return names

    def seconds(self, count: int, **columns: Any) -> list[str]:
        """A `daily` row with a slot each second from soon on."""
        start = int(time.time()) + 1
        instants = [(start + number) * SECOND for number in range(count)]
        text = ",".join(str(instant // SECOND % 86_400) for instant in instants)
        return self.insert(1, "daily", text, instants, **columns)

    def beat(self, gate: str | None, *, armed: str = "") -> Process:
        """A beat with this Redis URL, or none; `armed`: its fail point."""
        environment = self.project.environment
        environment.pop(GATE, None)
        if gate is not None:
            environment[GATE] = gate
        if armed:
            environment[FAIL_POINT] = armed
        process = self.project.beat()
        environment.pop(FAIL_POINT, None)
        self.beats.append(process)
        return process

    def writer(self, gate: str | None, **options: Any) -> Process:
        """A beat, when it has become the writer."""
        process = self.beat(gate, **options)
        process.wait_output(r"beat: writer", PATIENCE_S)
        return process

    def standby(self, gate: str | None) -> Process:
        """A beat, when it stands by."""
        process = self.beat(gate)
        process.wait_output(r"follower: jobs paused", PATIENCE_S)
        return process

    # What it did.

    @property
    def messages(self) -> list[Message]:
        return list(self._tap.messages)

    def arrived(self) -> int:
        """How many messages there are, when none is left at the broker."""
        self.wait(self._tap.drained, "all messages are seen")
        return len(self._tap.messages)

    def ledger(self) -> list[Entry]:
        """All lines of the rows that were inserted here, in the order in which they were written."""
        return [line for line in read_database(self.project.database_url)["ledger"] if line.job in self.traits]

    def by_epoch(self, epoch: int) -> list[Message]:
        """The messages of slots that were claimed under this epoch."""
        ids = {entry.task_id for entry in self.ledger() if entry.epoch == epoch}
        return [message for message in self.messages if message.task_id in ids]

    def wait(self, condition: Callable[[], Any], what: str, deadline: float = PATIENCE_S) -> Any:
        return wait_for(condition, deadline, every=0.05, what=what)

    def wait_more(self, count: int = 10) -> None:
        """Until that many more messages have arrived."""
        before = len(self._tap.messages)
        self.wait(lambda: len(self._tap.messages) >= before + count, f"{count} more messages")

    def wait_epoch(self, epoch: int) -> None:
        """Until slots were claimed under this epoch, or a newer one, and arrived."""
        self.wait(
            lambda: any(e.epoch is not None and e.epoch >= epoch and e.sent_us is not None for e in self.ledger()),
            f"messages under epoch {epoch}",
        )

    def finish(self) -> Evidence:
        """No row runs any more; all that is left is settled; the auditor finds nothing. Beats not `ended` are alive."""
        for beat in self.beats:
            assert beat in self.ended or beat.running, f"{beat.name} ended by itself:\n{beat.output()}"
        with self._connect() as connection:
            connection.execute(sa.update(tables.jobs).values(enabled=False))
        for left in ("qbeat_state WHERE next_run_us IS NOT NULL", "qbeat_runs WHERE verdict = 'claimed'"):
            self.wait(lambda left=left: self._count(left) == 0, f"nothing is left of {left}")
        for beat in self.beats:
            beat.kill()
        self.wait(self._tap.drained, "all messages are seen")
        evidence = Evidence(self.traits, self.messages, **read_database(self.project.database_url))
        breaches = audit(evidence, liveness=False)
        assert not breaches, "\n".join(map(str, breaches))
        return evidence

    def close(self) -> None:
        self._tap.close()

    def _connect(self) -> Any:
        return sa.create_engine(self.project.database_url, poolclass=sa.NullPool).begin()

    def _count(self, what: str) -> int:
        with self._connect() as connection:
            return int(connection.execute(sa.text(f"SELECT count(*) FROM {what}")).scalar_one())


def holder(gate: Redis) -> bytes | None:
    """The value of the lock, which is another one with every acquisition; None when it is free."""
    with gate.client() as client:
        key = lock_in(client)
        value: bytes | None = client.get(key) if key else None  # type: ignore[assignment]
        return value


def times_seen(beat: Process, words: str) -> int:
    """How many lines of its output have these words."""
    return sum(words in line for line in beat.output().splitlines())


def outage_s(default: float) -> float:
    """How long servers stay away: QBEAT_TEST_OUTAGE_S, to see longer ones by hand."""
    return float(os.environ.get("QBEAT_TEST_OUTAGE_S", default))


def refused(gate: str) -> bool:
    """Whether nothing answers there."""
    try:
        with redis.Redis.from_url(gate, socket_timeout=1, socket_connect_timeout=1) as client:
            client.ping()
    except redis.exceptions.ConnectionError:
        return True
    return False
