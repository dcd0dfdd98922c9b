"""Rows into the agenda: the full load at a take-over, and what the change feed brings after it."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from itertools import islice

from celery_qbeat.core.jobs import Reading, State, read_row
from celery_qbeat.core.lost_slots import lost_slot
from celery_qbeat.core.planning import verdict_for_replaced_definition
from celery_qbeat.engine import log_events
from celery_qbeat.engine.leader_state import Dependencies, LeaderState, Loading, batched
from celery_qbeat.engine.leadership import LockLost
from celery_qbeat.engine.lease_changes import apply_new_rows
from celery_qbeat.engine.progress import Progress
from celery_qbeat.errors import Unavailable
from celery_qbeat.ports import Claim, Loaded, Plan, Row

PLANS_A_TRANSACTION = 1_000

ROWS_A_STEP = 200
"""Rows that are validated and planned together: so many are done again after an interruption."""


class RowSync:
    """Keeps the agenda equal to the table. `keep_lock` renews the leader lock by time, and raises LockLost."""

    def __init__(self, parts: Dependencies, desk: LeaderState, keep_lock: Callable[[], None]) -> None:
        self._deps = parts
        self._leader = desk
        self._keep_lock = keep_lock
        self._code = {job.id: job for job in parts.code_jobs}

    def load(self, now: int) -> None:
        """Read everything.

        When the lock is lost on the way, the next call goes on where this one stopped: what was read stays true as
        long as no other beat had an epoch, and the change feed begins before the first part. After any other error
        the next call begins anew.
        """
        desk = self._leader
        desk.loaded = False
        if desk.loading is None:
            desk.loading = Loading(self._deps.store.load(), set(self._code), self._deps.code_jobs)
            desk.changed.clear()
        try:
            self._load_parts(desk.loading, now)
        except LockLost:
            raise
        except Exception:
            desk.loading = None
            raise
        desk.loading = None
        desk.loaded = desk.asked = True

    def _load_parts(self, loading: Loading, now: int) -> None:
        progress = Progress(self._deps.clock, log_events.load_progress)
        while True:
            while loading.rows:
                plans = [self._take(row, state, now) for row, state in loading.rows[:ROWS_A_STEP]]
                # Before they are stored: then their states are no longer those that were read.
                loading.rows = loading.rows[ROWS_A_STEP:]
                loading.count += len(plans)
                self._store(plans, now)
                progress.note(loading.count)
            part = next(loading.parts, None)
            if part is None:
                break
            self._sort_part(part, loading)
            self._keep_lock()
        orphans, seen, desk = loading.orphans, loading.seen, self._leader
        plans = [self._put(Reading(job.id, job), orphans.get(job.id), now) for job in loading.code]
        loading.code = ()
        self._store(plans, now)
        for job_id in [known for known in desk.agenda.entries if known not in seen]:
            desk.agenda.remove(job_id)
        for job_id in [known for known in desk.reported if known not in seen]:
            del desk.reported[job_id]
        self._forget([state for job_id, state in orphans.items() if job_id not in seen], now)

    def _sort_part(self, part: Loaded, loading: Loading) -> None:
        if part.workers is not None:
            self._leader.workers = part.workers
        loading.rows = [(row, state) for row, state in part.rows if not self._is_shadow(row)]
        loading.seen.update(str(row["id"]) for row, _ in loading.rows)
        loading.orphans.update((state.job_id, state) for state in part.orphans)
        loading.orphans.update((state.job_id, state) for _, state in part.rows if state and state.job_id in self._code)

    def read_changes(self, now: int) -> bool:
        """Take in what changed since the last time; whether there is more of it."""
        changes = self._deps.store.read_changes()
        if changes.reload:
            log_events.reloading()
            # A restored database has other runs in flight than this beat remembers.
            self._leader.settled = False
            self.load(now)
            return True
        if changes.workers is not None:
            self._leader.workers = changes.workers
        self._leader.asked = self._leader.asked or changes.asked
        self._leader.changed.update(changes.rows)
        if self._leader.changed:
            self._absorb_rows(now)
        return changes.more

    def reread(self, job_ids: Collection[str], now: int) -> None:
        """The states of these jobs may differ from what is remembered: adopt what the database says."""
        wanted = [job_id for job_id in job_ids if job_id in self._leader.agenda.entries]
        self._leader.stale_job_ids.difference_update(set(job_ids).difference(wanted))
        if not wanted:
            return
        states = self._deps.store.read_states(wanted)
        plans = [self._put_again(job_id, states.get(job_id), now) for job_id in wanted]
        self._leader.stale_job_ids.difference_update(wanted)
        self._store(plans, now)

    def replan(self, now: int) -> None:
        """The clock stepped back: plan anew what lies further away than its schedule could ask for."""
        far = list(self._leader.agenda.beyond_schedule(now))
        log_events.stepped_back(len(far))
        self._store([self._put_again(entry.id, entry.state, now) for entry in far], now)

    def _absorb_rows(self, now: int) -> None:
        """Plan the changed rows, step by step. The feed brings a row once, so each stays until it is planned."""
        changed, count, gone = self._leader.changed, 0, 0
        while changed:
            step = dict(islice(changed.items(), ROWS_A_STEP))
            gone += self._absorb_step(step, now)
            count += len(step)
        log_events.changed(count - gone, gone)

    def _absorb_step(self, step: Mapping[str, tuple[Row, State | None] | None], now: int) -> int:
        """How many of these rows are gone."""
        desk = self._leader
        found = [there for there in step.values() if there is not None and not self._is_shadow(there[0])]
        before = {entry.id: entry.job for row, _ in found if (entry := desk.agenda.entries.get(str(row["id"])))}
        plans = [self._take(row, state, now) for row, state in found]
        gone = [job_id for job_id, there in step.items() if there is None and job_id not in self._code]
        states = [desk.agenda.remove(job_id) or State(job_id, now) for job_id in gone]
        for job_id in gone:
            desk.reported.pop(job_id, None)
        # From here on suspects and what is owed remember them, when one of the two calls fails.
        desk.stale_job_ids.update(plan.job_id for plan in plans if plan is not None)
        for job_id in step:
            del desk.changed[job_id]
        apply_new_rows(self._deps, desk, before)
        self._forget(states, now)
        self._store(plans, now)
        return len(gone)

    def _is_shadow(self, row: Row) -> bool:
        """A row with the id of an entry in code must not touch that entry."""
        if row["id"] not in self._code:
            return False
        log_events.shadow(str(row["id"]))
        return True

    def _take(self, row: Row, state: State | None, now: int) -> Plan | None:
        # A hostile row may take long to validate.
        self._keep_lock()
        reading = read_row(row, self._deps.rules, self._leader.workers)
        return self._put(reading, state, now)

    def _put_again(self, job_id: str, state: State | None, now: int) -> Plan | None:
        entry = self._leader.agenda.entries[job_id]
        return self._put(Reading(job_id, entry.job, entry.problem), state, now)

    def _put(self, reading: Reading, state: State | None, now: int) -> Plan | None:
        refusal = self._deps.privileges.refusal(reading.job) if reading.job is not None and not reading.problem else ""
        log_events.problem(self._leader.reported, reading.id, reading.problem or refusal)
        return self._leader.agenda.add_or_replace(reading, state, now, refusal)

    def _store(self, plans: Iterable[Plan | None], now: int) -> None:
        wanted = [plan for plan in plans if plan is not None]
        self._leader.stale_job_ids.update(plan.job_id for plan in wanted)
        for chunk in batched(wanted, PLANS_A_TRANSACTION):
            lost = [lost_slot(plan, self._leader.moment(now)) for plan in chunk]
            locked = self._miss([claim for claim in lost if claim is not None], now, self._leader.epoch)
            # They stay suspects: planned now, their due slots would go without a verdict.
            ready = [plan for plan in chunk if plan.job_id not in locked]
            self._deps.store.write_plans(self._leader.epoch, ready, now)
            self._leader.stale_job_ids.difference_update(plan.job_id for plan in ready)
            self._keep_lock()

    def _forget(self, states: Sequence[State], now: int) -> None:
        if not states:
            return
        moment = self._leader.moment(now)
        due = [
            verdict_for_replaced_definition(state.job_id, state.next_run_us, None, moment, deleted=True)
            for state in states
            if state.next_run_us is not None and state.next_run_us <= now
        ]
        job_ids = [state.job_id for state in states]

        def forget(epoch: int) -> None:
            locked = self._deps.store.read_states(sorted(self._miss(due, now, epoch, deleted=True)))
            if any((state.next_run_us or now + 1) <= now for state in locked.values()):
                raise Unavailable(f"somebody holds a lock on the state of {', '.join(map(repr, locked))}")
            self._deps.store.delete_states(epoch, job_ids, now)

        self._leader.pending_writes.append(forget)
        self._leader.flush_pending_writes()

    def _miss(self, claims: Sequence[Claim], now: int, epoch: int, *, deleted: bool = False) -> frozenset[str]:
        """Write the verdicts on slots that their definitions lost, by a change or because the job was deleted.

        The ids of those that got none: their state is not what it was, or locked by somebody.
        """
        if not claims:
            return frozenset()
        lost = self._deps.store.claim(epoch, self._leader.next_batch(), claims, now)
        for claim in claims:
            if claim.job_id not in lost:
                log_events.decided(claim, expected=deleted)
        return lost
