"""A store without a server."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace

from celery_qbeat.core.jobs import (
    DEFAULT_MAX_RUN_US,
    FAILURES,
    IN_FLIGHT,
    Run,
    State,
    Verdict,
    WorkerScope,
    may_end,
    read_worker,
)
from celery_qbeat.core.liveness import LEAST_SILENCE_US
from celery_qbeat.errors import Fenced
from celery_qbeat.ports import (
    REQUESTS_A_READ,
    Changes,
    Claim,
    ClaimRelease,
    Loaded,
    Plan,
    Request,
    Row,
    RunOutcome,
    Steps,
    UnfinishedRun,
)
from celery_qbeat.testing.database import INSTANCE, Batch, Database, Edits, Entry, Extra
from celery_qbeat.testing.faults import Faults, call

CHUNK = 2_000


class MemoryStore(Edits, Faults):
    """A `Store` in memory, with the means to edit it as people edit tables, to look at it, and to make it fail.

    `session()` gives another store over the same database, as a second beat would have it.
    """

    def __init__(self, database: Database | None = None, *, instance: str = INSTANCE) -> None:
        super().__init__(database or Database(instance=instance))
        Faults.__init__(self)
        self.longest_wait_s: float | None = None
        self._cursor: int | None = None
        self._known: dict[str, int] = {}

    def session(self) -> MemoryStore:
        return MemoryStore(self.database)

    # ------------------------------------------------------------ the port

    @call
    def open(self) -> None:
        pass

    def close(self) -> None:
        self._cursor = None

    def between_round_trips(self, call: Callable[[], None]) -> None:
        """Each call is one round trip here."""

    def limit_waits(self, seconds: float) -> None:
        """Nothing waits here; `longest_wait_s` shows that it was called."""
        self.longest_wait_s = seconds

    def describe(self) -> str:
        return "memory"

    @property
    def instance(self) -> str:
        return self.database.instance

    @call
    def clock_us(self) -> int | None:
        return None if self.database.clock is None else self.database.clock()

    @call
    def take_epoch(
        self, holder: str, now_us: int, known: int = 0, above: int = 0, silence_us: int = LEAST_SILENCE_US
    ) -> int:
        base = self.database
        last = max(base.epoch, max((b.epoch for b in base.batches.values()), default=0))
        if last < known:
            raise Fenced(f"the epoch is {last}, and was {known} before", epoch=last)
        base.epoch = max(last, above) + 1
        base.holder, base.seen_us, base.silence_us = holder, now_us, silence_us
        return base.epoch

    @call
    def record_heartbeat(self, epoch: int, now_us: int) -> None:
        self._fence(epoch)
        self.database.seen_us = now_us

    def _fence(self, epoch: int) -> None:
        if epoch != self.database.epoch:
            raise Fenced(f"epoch {self.database.epoch} was taken by {self.database.holder}", epoch=self.database.epoch)

    @call
    def workers(self) -> Mapping[str, WorkerScope]:
        return {name: read_worker({**row, "name": name}) for name, row in self.database.workers.items()}

    @call
    def load(self) -> Iterator[Loaded]:
        base = self.database
        # Without a cursor until the end: a load that was given up must be begun again.
        cursor, self._cursor, self._known = len(base.log), None, {}
        yield Loaded(workers=self.workers())
        ids = sorted(base.jobs)
        for start in range(0, len(ids), CHUNK):
            with base.lock:
                rows = [self._row(job_id) for job_id in ids[start : start + CHUNK] if job_id in base.jobs]
            yield Loaded(rows=rows)
        with base.lock:
            orphans = [state for job_id, state in sorted(base.state.items()) if job_id not in base.jobs]
        self._cursor = cursor
        if orphans:
            yield Loaded(orphans=orphans)

    def _row(self, job_id: str) -> tuple[Row, State | None]:
        row = self.database.jobs[job_id]
        self._known[job_id] = row["rev"]
        return dict(row), self.database.state.get(job_id)

    @call
    def read_changes(self) -> Changes:
        base = self.database
        if self._cursor is None:
            return Changes(reload=True)
        entries, self._cursor = base.log[self._cursor :], len(base.log)
        if any(op == "T" for op, _ in entries):
            return Changes(reload=True)
        scopes = {name for op, name in entries if op == "W"}
        touched = {job_id: None for op, job_id in entries if op in "IUD" and job_id is not None}
        touched |= {job_id: None for job_id, row in base.jobs.items() if row["worker"] in scopes}
        for job_id in touched:
            self._known.pop(job_id, None)
        return Changes(
            rows={job_id: self._row(job_id) if job_id in base.jobs else None for job_id in touched},
            workers=self.workers() if scopes else None,
            asked=any(op == "R" for op, _ in entries),
        )

    @call
    def read_states(self, job_ids: Sequence[str]) -> Mapping[str, State]:
        return {job_id: self.database.state[job_id] for job_id in job_ids if job_id in self.database.state}

    @call
    def write_plans(self, epoch: int, plans: Sequence[Plan], now_us: int) -> None:
        self._fence(epoch)
        base = self.database
        for plan in plans:
            old = base.state.get(plan.job_id) or State(plan.job_id, plan.first_seen_us)
            base.state[plan.job_id] = replace(
                old,
                next_run_us=plan.next_run_us,
                plan_key=plan.plan_key,
                problem=plan.problem,
                late_after_us=plan.late_after_us,
            )
            base.extra.setdefault(plan.job_id, Extra())
            if plan.record:
                base.history.append((plan.job_id, now_us, plan.spec))

    @call
    def delete_states(self, epoch: int, job_ids: Sequence[str], now_us: int) -> None:
        self._fence(epoch)
        for job_id in job_ids:
            if self.database.state.pop(job_id, None) is not None:
                self.database.extra.pop(job_id)
                self.database.history.append((job_id, now_us, None))

    @call
    def claim(self, epoch: int, batch_id: int, claims: Sequence[Claim], now_us: int) -> frozenset[str]:
        self._fence(epoch)
        lost: set[str] = set()
        sendable = 0
        for claim in claims:
            if not self._may(claim):
                lost.add(claim.job_id)
                continue
            wanted = [run.task_id for run in claim.runs if run.verdict is Verdict.CLAIMED]
            new = [run for run in claim.runs if not self._is_known(run)]
            won = [run for run in new if run.verdict is Verdict.CLAIMED]
            lost |= set(wanted) - {run.task_id for run in won}
            if wanted and not won:
                lost.add(claim.job_id)
            for run in new:
                self._enter(run, epoch, batch_id, now_us, by_hand=claim.expected_us is None)
            self._moved(claim, new, len(won), epoch, now_us)
            sendable += len(won)
        if sendable:
            self.database.batches[batch_id] = Batch(epoch, now_us, sendable)
        return frozenset(lost)

    def _is_known(self, run: Run) -> bool:
        return (run.slot_us, run.job_id) in self.database.by_slot or run.task_id in self.database.by_task

    def _may(self, claim: Claim) -> bool:
        base = self.database
        row, state = base.jobs.get(claim.job_id), base.state.get(claim.job_id)
        if state is None or (claim.rev is not None and (row is None or row["rev"] != claim.rev)):
            return False
        if claim.expected_us is None:
            return True
        return state.next_run_us == claim.expected_us and (row is None or claim.rev is None or bool(row["enabled"]))

    def _enter(self, run: Run, epoch: int, batch_id: int, now_us: int, *, by_hand: bool) -> None:
        open_ = run.verdict in IN_FLIGHT
        lease = run.lease_until_us if run.lease_until_us is not None else now_us + DEFAULT_MAX_RUN_US
        entry = Entry(
            job_id=run.job_id,
            slot_us=run.slot_us,
            task_id=run.task_id,
            verdict=run.verdict,
            claimed_us=now_us,
            batch_id=batch_id if open_ else None,
            epoch=epoch if open_ else 0,
            late_us=run.late_us,
            collapsed=run.collapsed,
            detail=run.detail,
            by_hand=by_hand,
            resend=run.resend,
            finished_us=None if open_ else now_us,
            lease_until_us=lease if open_ else None,
        )
        self.database.ledger.append(entry)
        self.database.by_task[run.task_id] = entry
        self.database.by_slot[run.slot_us, run.job_id] = entry

    def _moved(self, claim: Claim, new: Sequence[Run], won: int, epoch: int, now_us: int) -> None:
        state, extra = self.database.state[claim.job_id], self.database.extra[claim.job_id]
        extra.runs += won
        extra.last_verdict = new[-1].verdict if new else extra.last_verdict
        if claim.expected_us is None:
            return
        extra.claim_epoch = epoch
        slot_before = () if state.last_slot_us is None else (state.last_slot_us,)
        self.database.state[claim.job_id] = replace(
            state,
            next_run_us=claim.next_us,
            last_run_us=now_us if won else state.last_run_us,
            last_slot_us=max((*(run.slot_us for run in claim.runs), *slot_before), default=None),
        )

    @call
    def mark_sent(self, epoch: int, batch_id: int, task_ids: Sequence[str], now_us: int, *, closes: bool) -> None:
        self._fence(epoch)
        for task_id in task_ids:
            entry = self.database.by_task.get(task_id)
            if entry is None or entry.batch_id != batch_id:
                continue
            entry.sent_us = now_us
            if entry.verdict is Verdict.CLAIMED:
                entry.verdict = Verdict.SENT
                extra = self.database.extra.get(entry.job_id)
                if extra is not None and extra.last_verdict == Verdict.CLAIMED:
                    extra.last_verdict = Verdict.SENT
        batch = self.database.batches.get(batch_id)
        if closes and batch is not None and batch.sent_us is None:
            batch.sent_us = now_us

    @call
    def release_claims(self, epoch: int, batch_id: int, releases: Sequence[ClaimRelease]) -> None:
        self._fence(epoch)
        for release in releases:
            state = self.database.state.get(release.job_id)
            by_hand = release.back_to_us is None
            if not by_hand and (state is None or state.next_run_us != release.from_next_us):
                continue
            gone = [
                entry
                for task_id in release.task_ids
                if (entry := self.database.by_task.get(task_id)) is not None
                and entry.batch_id == batch_id
                and entry.verdict is Verdict.CLAIMED
            ]
            self._remove(gone)
            if state is not None and gone:
                self._back(state, release, len(gone))
        if batch_id in self.database.batches:
            left = sum(entry.batch_id == batch_id for entry in self.database.ledger)
            if left:
                self.database.batches[batch_id].n = left
            else:
                del self.database.batches[batch_id]

    def _remove(self, entries: Sequence[Entry]) -> None:
        for entry in entries:
            del self.database.by_task[entry.task_id]
            del self.database.by_slot[entry.slot_us, entry.job_id]
        dead = {entry.task_id for entry in entries}
        self.database.ledger[:] = [entry for entry in self.database.ledger if entry.task_id not in dead]

    def _back(self, state: State, release: ClaimRelease, n: int) -> None:
        left = [entry for entry in self.database.ledger if entry.job_id == state.job_id]
        left.sort(key=lambda entry: entry.slot_us)
        extra = self.database.extra[state.job_id]
        extra.runs -= n
        extra.last_verdict = left[-1].verdict if left else ""
        if release.back_to_us is not None:
            slot = max((entry.slot_us for entry in left if not entry.by_hand), default=None)
            self.database.state[state.job_id] = replace(
                state, next_run_us=release.back_to_us, last_run_us=release.last_run_us, last_slot_us=slot
            )

    @call
    def shorten_leases(self, epoch: int, leases: Mapping[str, int]) -> None:
        self._fence(epoch)
        for task_id, until_us in leases.items():
            entry = self.database.by_task.get(task_id)
            if entry is not None and entry.lease_until_us is not None and entry.lease_until_us > until_us:
                entry.lease_until_us = until_us

    @call
    def record_outcomes(self, epoch: int, ends: Sequence[RunOutcome], now_us: int) -> Mapping[str, str]:
        self._fence(epoch)
        changed: dict[str, str] = {}
        for end in ends:
            entry = self.database.by_task.get(end.task_id)
            if entry is None or not may_end(entry.verdict, end.verdict):
                continue
            before, kept = entry.verdict, entry.detail if entry.verdict in IN_FLIGHT else ""
            entry.verdict, entry.detail = end.verdict, end.detail or kept
            entry.finished_us, entry.lease_until_us = now_us, None
            if end.took_us is not None:
                entry.started_us, entry.took_us = end.started_us, end.took_us
            changed[end.task_id] = entry.job_id
            self._ended(entry, end, before, now_us)
        return changed

    def _ended(self, entry: Entry, end: RunOutcome, before: Verdict, now_us: int) -> None:
        state = self.database.state.get(entry.job_id)
        if state is None:
            return
        extra = self.database.extra[entry.job_id]
        extra.last_verdict = end.verdict
        extra.last_finished_us = now_us
        if end.verdict is Verdict.SUCCEEDED:
            extra.failures_in_a_row, extra.last_error = 0, ""
            state = replace(state, last_succeeded_us=now_us, late_after_us=end.late_after_us)
        elif end.verdict in FAILURES:
            extra.failures_in_a_row += before not in FAILURES
            extra.last_error = end.detail or end.verdict.value
        elif before in FAILURES:
            extra.failures_in_a_row = max(0, extra.failures_in_a_row - 1)
            extra.last_error = extra.last_error if extra.failures_in_a_row else ""
        self.database.state[entry.job_id] = state

    @call
    def unfinished_runs(self) -> Iterator[Sequence[UnfinishedRun]]:
        with self.database.lock:
            found = [_flight(entry) for entry in self.database.ledger if entry.verdict in IN_FLIGHT]
        for start in range(0, len(found), CHUNK):
            yield found[start : start + CHUNK]

    @call
    def close_batches(self, epoch: int, now_us: int) -> None:
        self._fence(epoch)
        for batch in self.database.batches.values():
            if batch.sent_us is None and batch.epoch < epoch:
                batch.sent_us = now_us

    @call
    def pending_requests(self, after_id: int = 0) -> Sequence[Request]:
        waiting = self.database.requests
        return [waiting[number] for number in sorted(waiting) if number > after_id][:REQUESTS_A_READ]

    @call
    def delete_requests(self, epoch: int, request_ids: Sequence[int]) -> None:
        self._fence(epoch)
        for request_id in request_ids:
            self.database.requests.pop(request_id, None)

    @call
    def has_drifted(self) -> bool:
        if self._cursor != len(self.database.log):
            return False
        return self._known != {job_id: row["rev"] for job_id, row in self.database.jobs.items()}

    @call
    def prune(self, before_us: Mapping[Verdict, int], now_us: int) -> Steps:
        with self.database.lock:
            old = [
                entry
                for entry in self.database.ledger
                if entry.finished_us is not None and entry.finished_us < before_us.get(entry.verdict, entry.finished_us)
            ]
            self._remove(old)
        yield len(old)
        with self.database.lock:
            gone = self._prune_history(min(before_us.values(), default=now_us))
        yield gone

    def _prune_history(self, before_us: int) -> int:
        """Closed batches without a flight, and definitions that were replaced before then."""
        base = self.database
        flying = {entry.batch_id for entry in base.ledger if entry.verdict in IN_FLIGHT}
        kept = {n: b for n, b in base.batches.items() if b.sent_us is None or b.claimed_us >= before_us or n in flying}
        newest = {job_id: n for n, (job_id, since_us, _) in enumerate(base.history) if since_us <= before_us}
        history = [
            line
            for n, line in enumerate(base.history)
            if line[1] >= before_us or (newest[line[0]] == n and line[2] is not None)
        ]
        gone = len(base.batches) - len(kept) + len(base.history) - len(history)
        base.batches, base.history = kept, history
        return gone


def _flight(entry: Entry) -> UnfinishedRun:
    return UnfinishedRun(
        task_id=entry.task_id,
        job_id=entry.job_id,
        slot_us=entry.slot_us,
        lease_until_us=entry.lease_until_us or 0,
        batch_id=entry.batch_id,
        epoch=entry.epoch,
        claimed_us=entry.claimed_us,
        sent_us=entry.sent_us,
        by_hand=entry.by_hand,
        resend=entry.resend,
    )
