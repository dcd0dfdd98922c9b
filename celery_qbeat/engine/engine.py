"""The tick: the order of effects and nothing else.

    gate        not the writer -> stand by
    take over   a new term: a new epoch, rows are read, what the last writer left open is resolved
    read        what changed in the rows
    outcomes    runs that ended
    dispatch    decide, claim, publish, mark sent
    built-in    go on with built-in tasks, where the slots leave room

`leader_state.py` what the writer has in memory, `leadership.py` the lock, `row_sync.py` rows, `dispatch.py` due slots,
`manual.py` requests, `broker_watch.py`, `publish_results.py`, `resend.py` and `queue_refusals.py` what the broker
answers, `completions.py` and `run_checks.py` ends of runs, `builtin_tasks.py` tasks that run inside the beat,
`recovery.py` what an earlier writer left, `outage.py` failed ticks, `shutdown.py` the end of the beat,
`clock_check.py` the clock of the database, `log_events.py` the words of the log.
"""

from __future__ import annotations

from dataclasses import replace

from celery_qbeat.core.jobs import Job
from celery_qbeat.core.planning import SERVING_GAP_US
from celery_qbeat.engine import log_events
from celery_qbeat.engine.builtin_tasks import BuiltinTasks
from celery_qbeat.engine.clock_check import ClockCheck, ClocksDisagree
from celery_qbeat.engine.completions import CompletionHandler
from celery_qbeat.engine.dispatch import SlotDispatch
from celery_qbeat.engine.leader_state import Chore, Dependencies, LeaderState, Limits
from celery_qbeat.engine.leadership import Leadership, LockLost
from celery_qbeat.engine.outage import Outage
from celery_qbeat.engine.recovery import Recovery
from celery_qbeat.engine.row_sync import RowSync
from celery_qbeat.engine.shutdown import Shutdown
from celery_qbeat.errors import Doubt, Fenced, QbeatError, Unavailable
from celery_qbeat.ports import LockLease

__all__ = ["Chore", "Dependencies", "Engine", "LeaderState", "Limits"]

BUSY_RETRY_S = 0.05
"""The pause when a slot is due but could not be decided, so that a lost race does not spin."""

STEP_BACK_US = 1_000_000


class Engine:
    """One beat. `tick` raises for no server, lock or fence; after an error that nobody foresaw it reads all again."""

    def __init__(self, parts: Dependencies) -> None:
        self._deps = parts
        self.leader = LeaderState()
        self._leadership = Leadership(parts.gate, parts.clock)
        parts.store.between_round_trips(self._renew)
        self._outage = Outage(parts.clock, parts.limits.let_go_s)
        self._clock_check = ClockCheck(parts.clock, parts.store)
        self._ending = Shutdown(parts)
        self._opened = False
        self._standing_by = False
        self._last_now = 0
        self._highest_epoch = 0
        self._alive_at = 0.0
        self._next_heartbeat = 0.0
        self._next_drift = 0.0
        self._assemble()

    def tick(self) -> float:
        """One pass. Returns the seconds to the next one, at most the poll interval."""
        parts = self._deps
        if not self._may_lead():
            return parts.limits.poll_s
        self._bind()
        lease = self._leadership.acquire()
        if lease is None:
            if self._outage.given_back:
                self._recover()
            self._stand_by()
            return parts.limits.poll_s
        try:
            more = self._write(lease, parts.clock.now_us())
        except Fenced as fence:
            self._step_down(fence)
        except LockLost:
            self._recover()
            if not parts.stopping():
                self._stand_by()
        except Exception as error:
            known = self._failed(error)
            if self._outage.is_long:
                self._give_back()
            if not known:
                raise
        else:
            self._recover()
            return 0.0 if more else self._pause()
        return parts.limits.poll_s

    def open(self) -> None:
        """Connect to the database and check it, before the first tick. Raises SchemaError and Unavailable."""
        self._deps.store.open()
        self._opened = True

    def limit_waits(self, seconds: float) -> None:
        """See `Ending.limit_waits`."""
        self._ending.limit_waits(seconds)

    def close(self) -> None:
        """Give back what was claimed and not sent, the lock and the connections. Never raises for a server."""
        try:
            self._ending.write_last(self.leader)
        finally:
            # After a second signal, too, whose handler raises in the middle of it.
            self._deps.gate.release()
        self._ending.close()

    def use_code_jobs(self, jobs: list[Job]) -> bool:
        """Replace the entries in code and read all again; False while something is half done: then try later."""
        if idle := self.leader.idle:
            self._deps = replace(self._deps, code_jobs=jobs)
            self._forget()
        return idle

    @property
    def writing(self) -> bool:
        """Whether the last tick was a writer's."""
        return self._leadership.lease is not None and self.leader.loaded and not self._standing_by

    def _may_lead(self) -> bool:
        """Whether to ask for the lock: the database is known, and ticks have not failed for long."""
        if self._outage.is_long:
            self._give_back()
            return self._works_again()
        if self._opened:
            return True
        try:
            self.open()
        except QbeatError as error:
            self._failed(error)
            return False
        return True

    def _failed(self, error: Exception) -> bool:
        """Note a failed tick; whether its error is of a known kind."""
        outage = self._outage
        if isinstance(error, (Unavailable, Doubt)):
            if outage.begin("database"):
                log_events.database_away(error)
            return True
        if isinstance(error, ClocksDisagree):
            if outage.begin("clock"):
                log_events.clocks_disagree(error)
            return True
        # Nobody knows what of it is in the database: read everything again.
        self._opened = False
        self._forget()
        if not isinstance(error, QbeatError):
            outage.begin("unknown")
            return False
        if outage.begin("database"):
            log_events.database_unusable(error)
        return True

    def _give_back(self) -> None:
        """Perhaps only this beat fails, so another one may try."""
        if not self._outage.given_back:
            if self._deps.gate.step_aside():
                log_events.let_go()
            self._leadership.drop()
            self._outage.given_back = True

    def _works_again(self) -> bool:
        """Whether to try again after the lock went back: what failed is tested, or another beat had its time to try."""
        parts, testable = self._deps, self._outage.cause != "unknown" and self.leader.epoch > 0
        if not testable and self._outage.is_fresh:
            return False
        try:
            if not self._opened:
                self.open()
            if self.leader.epoch:
                # By writing: a database that can only be read is of no use.
                parts.store.record_heartbeat(self.leader.epoch, parts.clock.now_us())
            self._clock_check.compare()
        except Fenced:
            return True
        except QbeatError:
            return False
        return True

    def _bind(self) -> None:
        """Tell the gate which database it guards. Nothing is remembered of another one."""
        instance = self._deps.store.instance
        if self.leader.instance not in ("", instance):
            self.leader, self._highest_epoch = LeaderState(), 0
            self._assemble()
        self._deps.gate.bind(instance)

    def _write(self, lease: LockLease, now: int) -> bool:
        parts, leadership = self._deps, self._leadership
        now = self._take_over(lease, now)
        desk = self.leader
        desk.flush_pending_writes()
        self._mind_the_clock(now)
        waiting = self._reader.read_changes(now)
        if not desk.ready:
            # Everything was read again: what is in flight is settled before anything is dispatched.
            return True
        self._heartbeat(now)
        if parts.stopping():
            return False
        leadership.renew()
        waiting = self._lander.process_completions(now) or waiting
        leadership.renew()
        if parts.stopping():
            return False
        more = self._sender.dispatch_due(now, self._trusted)
        if desk.stale_job_ids:
            parts.fail_point("rereading")
            self._reader.reread(set(desk.stale_job_ids), now)
        if self._trusted():
            self._builtin_tasks.step(now)
        return more or waiting

    def _take_over(self, lease: LockLease, now: int) -> int:
        """On a new term, or after failed ticks: a new epoch, so that nothing of the old one still commits.

        What this beat has read stays true as long as no other beat had an epoch in between: then it goes on where
        it stopped. Returns the time to go on with.
        """
        desk, parts = self.leader, self._deps
        if lease.term == desk.term and desk.ready and not self._outage:
            self._resume()
            return now
        known = {"known": desk.epoch, "above": self._highest_epoch}
        epoch = parts.store.take_epoch(parts.holder, now, **known, silence_us=parts.limits.silence_us)
        self._highest_epoch = epoch
        # Others may have gone on while this beat waited or was frozen, and at an older time their plans look as if the
        # clock had been set back. What they do from here on takes a newer epoch, and the fence keeps this one out.
        now = parts.clock.now_us()
        if desk.epoch and epoch != desk.epoch + 1:
            self._forget()
            desk = self.leader
        first = not desk.ready
        desk.epoch, desk.term, desk.instance, desk.batches = epoch, lease.term, parts.store.instance, 0
        if first or now - self._last_now > SERVING_GAP_US:
            desk.serving_since_us = now - SERVING_GAP_US
        desk.flush_pending_writes()
        self._clock_check.compare()
        if not desk.loaded:
            self._reader.load(now)
        self._settler.resolve_unfinished_runs(now)
        self._reader.reread(set(desk.stale_job_ids), now)
        if first:
            self._standing_by = False
            log_events.writing(parts.store.describe(), parts.gate.describe(), epoch, desk.counts())
        self._resume()
        return now

    def _assemble(self) -> None:
        self._reader = RowSync(self._deps, self.leader, self._keep_lock)
        self._settler = Recovery(self._deps, self.leader, self._keep_lock)
        self._sender = SlotDispatch(self._deps, self.leader, self._renew)
        self._lander = CompletionHandler(self._deps, self.leader)
        self._builtin_tasks = BuiltinTasks(self._deps, self.leader, self._lander.record_outcomes)

    def _trusted(self) -> bool:
        return self._leadership.trusted() and not self._deps.stopping()

    def _renew(self) -> None:
        self._deps.note_alive()
        self._leadership.renew()

    def _keep_lock(self) -> None:
        """Renew the lock when that is due. Raises LockLost, also when this beat is to end."""
        self._deps.note_alive()
        if self._deps.stopping():
            raise LockLost
        self._leadership.require()
        if self.leader.epoch and self._deps.clock.monotonic() - self._alive_at >= self._deps.limits.heartbeat_s:
            # A takeover only reads for long: without this, sessions that cannot write would be noticed at its end.
            self._note_alive()

    def _mind_the_clock(self, now: int) -> None:
        if now < self._last_now - STEP_BACK_US:
            self._reader.replan(now)
        if now - self._last_now > SERVING_GAP_US and self.leader.serving_since_us < self._last_now:
            self.leader.serving_since_us = now - SERVING_GAP_US
        self._last_now = now

    def _note_alive(self) -> None:
        parts = self._deps
        parts.store.record_heartbeat(self.leader.epoch, parts.clock.now_us())
        self._alive_at = parts.clock.monotonic()

    def _heartbeat(self, now: int) -> None:
        at, parts = self._deps.clock.monotonic(), self._deps
        if at >= self._next_heartbeat:
            self._note_alive()
            self._clock_check.compare()
            self._sender.notice_empty_broker()
            self._next_heartbeat = at + parts.limits.heartbeat_s
        if self._next_drift == 0.0:
            self._next_drift = at + parts.limits.drift_s
        elif at >= self._next_drift:
            self._next_drift = at + parts.limits.drift_s
            if parts.store.has_drifted():
                log_events.reloading()
                self._reader.load(now)

    def _recover(self) -> None:
        """Ticks work again, or another beat is at work."""
        if self._outage:
            log_events.working_again(self._outage.cause, self._outage.end())

    def _stand_by(self) -> None:
        self._leadership.drop()
        if not self._standing_by:
            log_events.standing_by(self._deps.gate.reason(), self._deps.gate.describe())
            self._standing_by = True

    def _resume(self) -> None:
        if self._standing_by:
            log_events.writing_again(self.leader.epoch)
            self._standing_by = False

    def _step_down(self, fence: Fenced) -> None:
        """Another beat has a newer epoch; or the database has an older one, because a backup was restored."""
        self._outage.end()
        flights, chores = self.leader.in_flight, self.leader.chores
        # Its memory is out of date, and what it owes has been settled by the newer beat.
        self._forget()
        if fence.epoch is not None and fence.epoch < self._highest_epoch:
            log_events.restored(fence.epoch, self._highest_epoch)
            # A built-in task goes on: nobody else would end its run.
            self.leader.in_flight, self.leader.chores = flights, chores
            return
        log_events.fenced(self._deps.gate.describe())
        self._deps.gate.resign_until_replaced()
        self._leadership.drop()
        self._standing_by = True

    def _forget(self) -> None:
        """Begin anew; what was reported and which slots were decided stays true, whatever the database says."""
        old = self.leader
        self.leader = LeaderState(
            reported=old.reported,
            answered=old.answered,
            broker_memory=old.broker_memory,
            agenda=old.agenda.successor(),
        )
        self._assemble()

    def _pause(self) -> float:
        poll = self._deps.limits.poll_s
        if self.leader.chores:
            poll = min(poll, self._builtin_tasks.pause_s())
        slot = self.leader.agenda.next_us()
        if slot is None or self.leader.broker_away:
            return poll
        wait = (slot - self._deps.clock.now_us()) / 1_000_000
        return min(poll, wait) if wait > 0 else min(poll, BUSY_RETRY_S)
