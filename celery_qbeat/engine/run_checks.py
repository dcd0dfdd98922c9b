"""Finds the runs in flight that nobody has any more: those whose lease ended, and those that keep their job waiting.

Workers and queues are asked in rounds: a question in one tick, its answers in a later one. One mechanism serves both.

*Lease ended*: a worker that has the run extends the lease; otherwise the run is `lost`.

*The job waits* (or the broker came back empty): the run is `lost` before its lease ends only when all of this holds,
and each condition stands for a run that would be taken for lost without it:

* In two rounds or more, at least `Limits.silent_s` apart, every worker that may have the run answered that it has not,
  and its queue did not hold it. (A busy `solo` worker does not answer; a message or a worker may be on its way between
  two places; a worker that lost its connection needs up to 32 s to come back.)
* The worker that had the run is gone, or was started again since. Where that worker is not known: a worker of the
  queue was started, or disappeared, since the run was sent. (A run that was replaced by a chain goes on under other
  task ids, and nobody has its own.)
* No worker announced its shutdown since the run was sent, or `FINISHING_S` have passed. (During a warm shutdown a
  worker has no connection and finishes its runs.)
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from heapq import nsmallest
from itertools import islice

from celery_qbeat.core.in_flight import InFlightRun
from celery_qbeat.core.jobs import Job, Verdict
from celery_qbeat.core.worker_answers import Answers, WorkerSeen
from celery_qbeat.engine import log_events
from celery_qbeat.engine.blocking_causes import causes, skips_of
from celery_qbeat.engine.leader_state import Dependencies, LeaderState
from celery_qbeat.ports import Completions, RunOutcome, UnfinishedRun

LEASES_A_CHECK = 1_000

BACKLOG_S = 1.0
"""The pause after a check of leases that did not get to the end of them."""

UNASKED_US = 60_000_000
"""The respite when a lease ends while the broker is away: after its return, workers need a while to connect."""

AT_HAND_US = 3_000_000

MOST_BLOCKING = 500
"""The most runs of waiting jobs in one round."""

MOST_JOBS = 5_000
"""The most waiting jobs that are looked at for one round."""

MOST_RECHECKED = 1_000
"""The most runs in one round after the broker came back empty."""

MOST_ROUNDS = 200
"""In how many rounds a run is checked again after the broker came back empty."""

RECHECK_S = 3.0
"""The pause between rounds while such runs are left, in seconds."""

YOUNG_US = 5_000_000
"""Younger runs are not asked about: their messages are on their way."""

UPTIME_ERROR_US = 1_000_000
"""Workers round their uptime to seconds."""

FINISHING_S = 600.0
"""How long a worker that announced its shutdown may go on with its runs, in seconds."""

REMEMBERED_US = 600_000_000
"""How long a worker that no longer answers is remembered as a reader of its queues."""

LEASE_DETAIL = "its lease ended and nobody reported an end"
GONE_DETAIL = "no worker has it and no queue holds it: its worker is gone"
EMPTIED_DETAIL = "no worker has it and no queue holds it: the broker lost it"


@dataclass(slots=True)
class _Evidence:
    """What earlier rounds said of a run: since when nobody has it, in how many rounds, and who had it when."""

    silent_since_us: int = 0
    rounds: int = 0
    holder: str = ""
    held_us: int = 0
    asked_us: int = 0


@dataclass(frozen=True, slots=True)
class _Asked:
    """The runs of a round under way."""

    overdue: Sequence[InFlightRun]
    waited_for: Sequence[InFlightRun]


class RunChecks:
    """Ends runs that nobody has, and says why jobs wait. `conclude` writes ends and lets their jobs run again."""

    def __init__(
        self, parts: Dependencies, desk: LeaderState, conclude: Callable[[Sequence[RunOutcome], int], None]
    ) -> None:
        self._deps = parts
        self._leader = desk
        self._conclude = conclude
        self._asked: _Asked | None = None
        self._answered: tuple[Answers, int] | None = None
        self._next_lease_check = 0.0
        self._next_round = 0.0
        self._evidence: dict[str, _Evidence] = {}
        self._evidence_kept = MOST_BLOCKING
        self._readers: dict[str, tuple[frozenset[str], int]] = {}

    def step(self, now: int, heard_us: int) -> None:
        """Begin a round when one is due, or end it when its answers are there.

        Args:
            now: the time of the tick.
            heard_us: every end that had arrived by then was taken. An end that is still unread may be of a run whose
                lease is over, or that no worker has any more, so both are judged as of this moment.
        """
        completions = self._deps.completions
        if self._asked is None:
            self._begin(completions, now, heard_us)
        if self._asked is not None and completions is not None:
            if self._answered is None and (answers := completions.worker_answers()) is not None:
                self._answered = answers, now
            # Later than the answers: a run may have ended just before its worker was asked.
            if self._answered is not None and heard_us > self._answered[1]:
                asked, self._asked, self._leader.asking = self._asked, None, False
                (answers, at_us), self._answered = self._answered, None
                self._end(asked, answers, at_us, now)

    # ---------------------------------------------------------------- the question

    def _begin(self, completions: Completions | None, now: int, heard_us: int) -> None:
        overdue = self._overdue(now, heard_us)
        if completions is None:
            self._conclude([RunOutcome(run.task_id, Verdict.LOST, LEASE_DETAIL) for run in overdue], now)
        elif overdue:
            self._conclude(completions.query_results([_flight(run) for run in overdue]), now)
            overdue = [run for run in overdue if run.task_id in self._leader.in_flight]
        waited_for = self._waited_for(now)
        if completions is None or not (overdue or waited_for):
            self._warn(Answers(), waited_for, now)
            return
        if completions.ask_workers({run.task_id: self._job(run) for run in (*overdue, *waited_for)}):
            self._asked, self._leader.asking = _Asked(overdue, waited_for), bool(overdue)
            return
        for run in overdue:
            self._leader.in_flight.add(replace(run, lease_until_us=now + UNASKED_US))

    def _overdue(self, now: int, heard_us: int) -> list[InFlightRun]:
        at = self._deps.clock.monotonic()
        if at < self._next_lease_check:
            return []
        overdue = self._leader.in_flight.expired(heard_us, LEASES_A_CHECK)
        if not overdue:
            return []
        full = len(overdue) == LEASES_A_CHECK
        self._next_lease_check = at + (BACKLOG_S if full else self._deps.limits.lease_check_s)
        away = []
        for run in overdue:
            if self._at_hand(run.task_id):
                self._leader.in_flight.add(replace(run, lease_until_us=now + AT_HAND_US))
            else:
                away.append(run)
        return away

    def _waited_for(self, now: int) -> list[InFlightRun]:
        """The runs that keep their jobs waiting and those to check again; who was not asked for longest comes first."""
        desk, at = self._leader, self._deps.clock.monotonic()
        if at < self._next_round or not (desk.blocked or desk.recheck or desk.unverified):
            return []
        again = self._again()
        found = [*again.values(), *(run for run in self._blocking(now) if run.task_id not in again)]
        if found:
            pause = self._deps.limits.ask_again_s
            self._next_round = at + (min(pause, RECHECK_S) if desk.recheck or desk.unverified else pause)
        for run in found:
            self._evidence.setdefault(run.task_id, _Evidence()).asked_us = now
        return found

    def _blocking(self, now: int) -> list[InFlightRun]:
        """Runs that keep their jobs waiting; the jobs have their turns, however many of them wait."""
        desk, found = self._leader, list[InFlightRun]()
        for job_id in list(islice(desk.blocked, MOST_JOBS)):
            ready = [run for run in desk.in_flight.runs_of(job_id) if run.sent_us <= now - YOUNG_US]
            ready = [run for run in ready if not self._at_hand(run.task_id)]
            found += nsmallest(MOST_BLOCKING - len(found), ready, key=self._turn)
            desk.blocked.move_to_end(job_id)
            if len(found) == MOST_BLOCKING:
                break
        return found

    def _again(self) -> dict[str, InFlightRun]:
        """The next of the runs to check again. What nobody answers for is left to its lease after a while."""
        recheck, unverified, found = self._leader.recheck, self._leader.unverified, {}
        fresh = [unverified.popleft() for _ in range(min(len(unverified), MOST_RECHECKED))]
        for task_id in [*fresh, *islice(recheck, MOST_RECHECKED - len(fresh))]:
            rounds, run = recheck.pop(task_id, 0) + 1, self._leader.in_flight.get(task_id)
            if run is not None and not self._at_hand(task_id) and rounds <= MOST_ROUNDS:
                recheck[task_id] = rounds
                found[task_id] = run
        return found

    def _turn(self, run: InFlightRun) -> tuple[int, int]:
        evidence = self._evidence.get(run.task_id)
        return (evidence.asked_us if evidence is not None else 0, run.sent_us)

    def _at_hand(self, task_id: str) -> bool:
        """Whether no worker has it: chores are done here, what is sent again gets a new lease then, and a message
        without a confirm may not have arrived."""
        desk = self._leader
        return task_id in desk.resends or task_id in desk.unconfirmed or any(task_id == own for own, *_ in desk.chores)

    def _job(self, run: InFlightRun) -> Job | None:
        entry = self._leader.agenda.entries.get(run.job_id)
        return None if entry is None or run.task_id in self._leader.moved else entry.job

    # ---------------------------------------------------------------- the answers

    def _end(self, asked: _Asked, answers: Answers, at_us: int, now: int) -> None:
        """Judge the runs of a round by its answers, which came at `at_us`."""
        flights = self._leader.in_flight
        ends: list[RunOutcome] = []
        for run in asked.overdue:
            if run.task_id in answers.holders:
                self._extend(run, now)
            elif run.task_id in flights:
                ends.append(RunOutcome(run.task_id, Verdict.LOST, LEASE_DETAIL))
        overdue = {run.task_id for run in asked.overdue}
        for run in asked.waited_for:
            if run.task_id in flights and run.task_id not in overdue and self._is_lost(run, answers, at_us):
                detail = EMPTIED_DETAIL if run.task_id in self._leader.recheck else GONE_DETAIL
                ends.append(RunOutcome(run.task_id, Verdict.LOST, detail))
        self._remember(answers, at_us)
        self._conclude(ends, now)
        self._warn(answers, asked.waited_for, now)

    def _extend(self, run: InFlightRun, now: int) -> None:
        if run.task_id not in self._leader.in_flight:
            return
        entry = self._leader.agenda.entries.get(run.job_id)
        lease = entry.job.max_run_us if entry is not None and entry.job is not None else now - run.sent_us
        log_events.still_running(run.job_id, run.task_id)
        self._leader.in_flight.add(replace(run, lease_until_us=now + max(lease, 1_000_000)))

    def _is_lost(self, run: InFlightRun, answers: Answers, now: int) -> bool:
        evidence = self._evidence.setdefault(run.task_id, _Evidence())
        holder = answers.holders.get(run.task_id)
        queue = answers.queues.get(answers.queue_of.get(run.task_id, ""))
        if holder is not None:
            # When it was asked: it may have announced its shutdown before this round ended.
            evidence.holder, evidence.held_us, evidence.rounds = holder.worker, evidence.asked_us, 0
            self._leader.recheck.pop(run.task_id, None)
        elif queue is not None and queue.holds(run.task_id):
            evidence.holder, evidence.rounds = "", 0
            self._leader.recheck.pop(run.task_id, None)
        elif answers.nobody_has(run.task_id):
            evidence.silent_since_us = evidence.silent_since_us if evidence.rounds else now
            evidence.rounds += 1
        silent_us = now - evidence.silent_since_us
        if evidence.rounds < 2 or silent_us < self._deps.limits.silent_s * 1_000_000:
            return False
        emptied = run.task_id in self._leader.recheck
        return (emptied or self._worker_is_gone(run, evidence, answers, now)) and not finishing(
            run, evidence, answers, now, emptied=emptied
        )

    def _worker_is_gone(self, run: InFlightRun, evidence: _Evidence, answers: Answers, now: int) -> bool:
        if evidence.holder:
            worker = answers.workers.get(evidence.holder)
            return worker is None or _started_after(worker, evidence.held_us, now)
        queue = answers.queue_of[run.task_id]
        started = any(_started_after(answers.workers[name], run.sent_us, now) for name in answers.readers(queue))
        return started or any(
            queue in queues and name not in answers.workers and seen_us > run.sent_us - REMEMBERED_US
            for name, (queues, seen_us) in self._readers.items()
        )

    def _remember(self, answers: Answers, now: int) -> None:
        if len(self._evidence) > self._evidence_kept:
            flights = self._leader.in_flight
            self._evidence = {task_id: known for task_id, known in self._evidence.items() if task_id in flights}
            self._evidence_kept = 2 * len(self._evidence) + MOST_BLOCKING
        self._readers = {name: seen for name, seen in self._readers.items() if seen[1] > now - 6 * REMEMBERED_US}
        self._readers |= {name: (worker.queues, now) for name, worker in answers.workers.items()}

    def _warn(self, answers: Answers, asked: Sequence[InFlightRun], now: int) -> None:
        """From the second slot in a row that a job does not run, say why; then not again for a while."""
        at = self._deps.clock.monotonic()
        for job_id in {run.job_id for run in asked} & self._leader.blocked.keys():
            blocked, entry = self._leader.blocked[job_id], self._leader.agenda.entries.get(job_id)
            skips = skips_of(blocked, None if entry is None else entry.job, now)
            if skips < 2 or at < blocked.warn_again:
                continue
            blocked.warn_again = at + self._deps.limits.warn_again_s
            runs = sorted(self._leader.in_flight.runs_of(job_id), key=lambda run: run.sent_us)
            log_events.blocked(job_id, skips, causes(runs[0], answers, now))


def finishing(run: InFlightRun, evidence: _Evidence, answers: Answers, now: int, *, emptied: bool) -> bool:
    """Whether the run may go on in a worker that announced its shutdown.

    Announcements from before this beat listened are unknown, so any worker may have made one.
    """
    known_us = evidence.held_us if evidence.holder else run.sent_us
    if not emptied and answers.listening_s < FINISHING_S and known_us < now - answers.listening_s * 1_000_000:
        return True
    return any(
        left_s < FINISHING_S
        and name not in answers.workers
        and evidence.holder in ("", name)
        and known_us <= now - left_s * 1_000_000 + UPTIME_ERROR_US
        for name, left_s in answers.goodbyes.items()
    )


def _started_after(worker: WorkerSeen, moment_us: int, now: int) -> bool:
    return worker.up_s is not None and now - worker.up_s * 1_000_000 > moment_us + UPTIME_ERROR_US


def _flight(run: InFlightRun) -> UnfinishedRun:
    return UnfinishedRun(run.task_id, run.job_id, run.slot_us, run.lease_until_us, sent_us=run.sent_us)
