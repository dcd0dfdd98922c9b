"""The tick: the order of effects and nothing else.

    gate        not the writer -> stand by
    take over   a new term: a new epoch, what the last writer left open is settled, rows are read
    read        what changed in the rows
    land        runs that ended
    send        decide, claim, publish, mark

`desk.py` what a writer has in hand, `reader.py` rows, `sender.py` slots to messages, `lander.py` ends of runs,
`settler.py` what a dead writer left, `report.py` the words of the log.
"""

from __future__ import annotations

from celery_qbeat.engine import report
from celery_qbeat.engine.desk import SERVING_GAP_US, Chore, Desk, Limits, Parts
from celery_qbeat.engine.lander import Lander
from celery_qbeat.engine.reader import Reader
from celery_qbeat.engine.sender import Sender
from celery_qbeat.engine.settler import settle
from celery_qbeat.errors import Doubt, Fenced, Unavailable
from celery_qbeat.ports import Lease

__all__ = ["Chore", "Desk", "Engine", "Limits", "Parts"]

BUSY_RETRY_S = 0.05
"""The pause when a slot is due but could not be decided, so that a lost race does not spin."""

STEP_BACK_US = 1_000_000


class TrustLost(Exception):
    """The lock went away in the middle of a load."""


class Engine:
    """One beat. `tick` never raises for a server that is away, a lost lock or a fence; after any other error it reads
    everything again."""

    def __init__(self, parts: Parts) -> None:
        self._parts = parts
        self.desk = Desk()
        self._lease: Lease | None = None
        self._standing_by = False
        self._away_since: float | None = None
        self._let_go = False
        self._last_now = 0
        self._next_heartbeat = 0.0
        self._next_drift = 0.0
        self._assemble()

    def tick(self) -> float:
        """One pass. Returns the seconds to the next one, at most the poll interval."""
        parts = self._parts
        if not self._may_hold():
            return parts.limits.poll_s
        self._lease = parts.gate.hold()
        if self._lease is None:
            if self._let_go:
                self._back()
            self._stand_by()
            return parts.limits.poll_s
        now = parts.clock.now_us()
        try:
            more = self._write(self._lease, now)
        except Fenced:
            self._step_down()
            return parts.limits.poll_s
        except (Unavailable, Doubt) as error:
            if self._away_since is None:
                self._away_since = parts.clock.monotonic()
                report.database_away(error)
            self._let_go = False
            return parts.limits.poll_s
        except TrustLost:
            self._stand_by()
            return parts.limits.poll_s
        except Exception:
            # Nobody knows what of it is in the database: read everything again.
            self._forget()
            raise
        return 0.0 if more else self._pause()

    def open(self) -> None:
        """Connect to the database and check it, before the first tick. Raises SchemaError and Unavailable."""
        self._parts.store.open()

    def close(self) -> None:
        """Give the lock back and the connections. Never raises."""
        self._parts.gate.release()
        self._parts.dispatcher.close()
        if self._parts.completions is not None:
            self._parts.completions.close()
        self._parts.store.close()

    @property
    def writing(self) -> bool:
        """Whether the last tick was a writer's."""
        return self._lease is not None and self.desk.loaded and not self._standing_by

    def suspect_all(self) -> None:
        """The broker may have lost messages: check soon that somebody still has each run in flight."""
        self.desk.recheck.update(dict.fromkeys(self.desk.flights.task_ids()))

    def _may_hold(self) -> bool:
        """False: the database has been away for long. Perhaps only for this beat, so another one may try."""
        parts, since = self._parts, self._away_since
        if since is None or parts.clock.monotonic() - since < parts.limits.let_go_s:
            return True
        if not self._let_go:
            if parts.gate.let_go():
                report.let_go()
            self._lease, self._let_go = None, True
        try:
            if self.desk.instance:
                # By writing: a database that can only be read is of no use.
                parts.store.beat(self.desk.epoch, parts.clock.now_us())
            else:
                parts.store.open()
        except Fenced:
            return True
        except (Unavailable, Doubt):
            return False
        return True

    def _write(self, lease: Lease, now: int) -> bool:
        parts = self._parts
        now = self._take_over(lease, now)
        desk = self.desk
        desk.pay()
        self._back()
        self._mind_the_clock(now)
        self._reader.absorb(now, self._keep_trust)
        self._heartbeat(now)
        waiting = self._lander.land(now)
        with parts.undisturbed():
            reached = self._sender.resend(now, self._trusted) and self._sender.run_by_hand(now, self._trusted)
            more = reached and self._sender.dispatch(now, self._trusted)
        if desk.suspects:
            parts.fail_point("rereading")
            self._reader.reread(set(desk.suspects), now)
        return more or waiting

    def _take_over(self, lease: Lease, now: int) -> int:
        """On a new term, or when the database was away: a new epoch, so that nothing of the old one still commits.

        Returns the time to go on with.
        """
        desk, parts = self.desk, self._parts
        if lease.term == desk.term and desk.loaded and self._away_since is None:
            self._resume()
            return now
        if not desk.instance:
            parts.store.open()
        epoch = parts.store.take_epoch(parts.holder, now)
        # Others may have gone on while this beat waited or was frozen, and at an older time their plans look as if the
        # clock had been set back. What they do from here on takes a newer epoch, and the fence keeps this one out.
        now = parts.clock.now_us()
        unbroken = desk.loaded and epoch == desk.epoch + 1
        if not unbroken:
            self.desk = desk = Desk(reported=desk.reported)
            self._assemble()
        desk.epoch, desk.term, desk.instance, desk.batches = epoch, lease.term, parts.store.instance, 0
        if not unbroken or now - self._last_now > SERVING_GAP_US:
            desk.serving_since_us = now - SERVING_GAP_US
        if unbroken:
            desk.pay()
        else:
            self._reader.load(now, self._keep_trust)
        settle(parts, desk, now)
        self._reader.reread(set(desk.suspects), now)
        if not unbroken:
            self._standing_by = False
            report.writing(parts.store.describe(), parts.gate.describe(), epoch, self.counts())
        self._resume()
        return now

    def counts(self) -> dict[str, int]:
        """How many rows there are, and how many of them run, are disabled, refused or bad."""
        entries = self.desk.agenda.entries.values()
        rows = [entry for entry in entries if entry.job is None or not entry.job.from_code]
        bad = sum(1 for entry in rows if entry.problem)
        refused = sum(1 for entry in rows if entry.refusal)
        disabled = sum(1 for entry in rows if entry.job is not None and entry.job.paused and not entry.problem)
        running = sum(1 for entry in rows if entry.runnable and not entry.refusal)
        return {
            "rows": len(rows),
            "running": running,
            "disabled": disabled,
            "refused": refused,
            "bad": bad,
            "code": len(entries) - len(rows),
        }

    def _assemble(self) -> None:
        self._reader = Reader(self._parts, self.desk)
        self._sender = Sender(self._parts, self.desk, self._renew)
        self._lander = Lander(self._parts, self.desk)

    def _trusted(self) -> bool:
        lease, parts = self._lease, self._parts
        return lease is not None and parts.clock.monotonic() < lease.trusted_until and not parts.stopping()

    def _renew(self) -> None:
        """Between parts of long work: ask for the lock again; nothing is trusted any more when it is another's now."""
        lease = self._parts.gate.hold()
        same = lease is not None and self._lease is not None and lease.term == self._lease.term
        self._lease = lease if same else None

    def _keep_trust(self) -> None:
        """Renew, and stop when that failed."""
        self._renew()
        if self._lease is None:
            raise TrustLost

    def _mind_the_clock(self, now: int) -> None:
        if now < self._last_now - STEP_BACK_US:
            self._reader.replan(now)
        if now - self._last_now > SERVING_GAP_US and self.desk.serving_since_us < self._last_now:
            self.desk.serving_since_us = now - SERVING_GAP_US
        self._last_now = now

    def _heartbeat(self, now: int) -> None:
        at, parts = self._parts.clock.monotonic(), self._parts
        if at >= self._next_heartbeat:
            parts.store.beat(self.desk.epoch, now)
            self._next_heartbeat = at + parts.limits.heartbeat_s
        if self._next_drift == 0.0:
            self._next_drift = at + parts.limits.drift_s
        elif at >= self._next_drift:
            self._next_drift = at + parts.limits.drift_s
            if parts.store.drift():
                report.reloading()
                self._reader.load(now, self._keep_trust)

    def _back(self) -> None:
        if self._away_since is not None:
            report.database_back(self._parts.clock.monotonic() - self._away_since)
            self._away_since, self._let_go = None, False

    def _stand_by(self) -> None:
        if not self._standing_by:
            report.standing_by(self._parts.gate.describe())
            self._standing_by = True

    def _resume(self) -> None:
        if self._standing_by:
            report.writing_again(self.desk.epoch)
            self._standing_by = False

    def _step_down(self) -> None:
        report.fenced(self._parts.gate.describe())
        self._parts.gate.yield_()
        self._standing_by = True
        self._away_since, self._let_go = None, False
        # Its memory is out of date, and what it owes has been settled by the newer beat.
        self._forget()

    def _forget(self) -> None:
        self.desk = Desk(reported=self.desk.reported)
        self._assemble()

    def _pause(self) -> float:
        poll = self._parts.limits.poll_s
        slot = self.desk.agenda.next_us()
        if slot is None or self.desk.broker_away:
            return poll
        wait = (slot - self._parts.clock.now_us()) / 1_000_000
        return min(poll, wait) if wait > 0 else min(poll, BUSY_RETRY_S)
