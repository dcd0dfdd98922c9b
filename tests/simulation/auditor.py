"""The laws that hold when a history is over: ledger, messages, rows and the writer's memory, side by side."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import replace

from celery_qbeat.core.audit import FAULTS, Line, Record, Subject, Window, audit, definitions
from celery_qbeat.core.jobs import IN_FLIGHT, State, Verdict
from celery_qbeat.core.planning import OVERTAKEN_DETAIL
from celery_qbeat.core.privileges import BUILTIN_PRUNE
from celery_qbeat.testing.database import Database, Entry
from tests.simulation.observer import Observer
from tests.simulation.stand_ins import Broker, Message
from tests.simulation.world import Beat, World

UNSENT = frozenset({Verdict.MISSED, Verdict.SKIPPED, Verdict.REFUSED})
STARTED = frozenset({Verdict.SENT, Verdict.SUCCEEDED, Verdict.REVOKED, Verdict.EXPIRED, Verdict.UNKNOWN_TASK})


LONGEST_FREEZE_S = 30.0


class Auditor:
    """`findings` yields every law that is broken, in words."""

    def __init__(self, world: World, database: Database, broker: Broker, observer: Observer) -> None:
        self.world = world
        self.database = database
        self.broker = broker
        self.observer = observer
        self.requested: dict[str, str] = {}
        self.edited: set[str] = set()
        self.deleted: set[str] = set()
        self.exact = True
        self.replaced = False
        self.remembered: dict[str, str] = {}

    def findings(self) -> Iterator[str]:
        yield from self._doubles()
        yield from self._messages()
        yield from self._ledger()
        yield from self._requests()
        writer = self._writer()
        if writer is None:
            yield "nobody writes, though nothing stands in the way any more"
            return
        yield from self._memory(writer)
        yield from self._due(writer)
        if self.exact:
            yield from self._own_audit(writer)

    def _writer(self) -> Beat | None:
        for beat in self.world.alive:
            if beat.engine.writing and beat.engine.leader.epoch == self.database.epoch:
                return beat
        return None

    def _doubles(self) -> Iterator[str]:
        copies: dict[tuple[str, int], list[Message]] = defaultdict(list)
        for message in self.broker.messages:
            copies[message.job_id, message.slot_us].append(message)
        for (job_id, slot), messages in copies.items():
            if len({message.task_id for message in messages}) > 1:
                yield f"{job_id}@{slot} was sent under several task ids"
            messages = self._without_forgotten(messages)
            if any(message.on_doubt == "drop" for message in messages[1:]):
                senders = ", ".join(f"{message.by} at {message.at:.3f}" for message in messages)
                yield f"{job_id}@{slot} was sent {len(messages)} times under on_doubt=drop: {senders}"

    def _without_forgotten(self, messages: list[Message]) -> list[Message]:
        """Leave out what was sent before the database was restored, unless the one that sent again had to know it.

        It had to when it had sent the first one itself as the writer, and nobody else has sent since the restore.
        """
        restored_at = self.observer.restored_at
        if restored_at is None:
            return messages
        before = [message for message in messages if message.at < restored_at]
        after = messages[len(before) :]
        if len({m.by for m in after}) > 1 and after[-1].at < restored_at + LONGEST_FREEZE_S:
            # One of them froze with a claim of the database that was replaced.
            after = after[:1]
        if self.observer.stepped_back:
            # A clock that was behind ran slots that the copy does not know, and plans them again.
            return after
        if before and after and self.remembered.get(before[0].task_id) == after[0].by:
            between = (m for m in self.broker.messages if restored_at <= m.at <= after[0].at)
            if all(message.by == after[0].by for message in between):
                return messages
        return after

    def _older_than_restore(self, message: Message) -> bool:
        restored_at = self.observer.restored_at
        # A beat that froze may send what it claimed in the database that was replaced.
        return restored_at is not None and message.at < restored_at + LONGEST_FREEZE_S

    def _messages(self) -> Iterator[str]:
        for message in self.broker.messages:
            entry = self.database.by_task.get(message.task_id)
            if self._older_than_restore(message):
                # The copy may be older than the message: it has another verdict for it, or none.
                pass
            elif entry is None:
                yield f"{message.job_id}@{message.slot_us} was sent and is not in the ledger"
            elif entry.verdict in UNSENT or entry.detail.startswith("could not be published"):
                yield f"{message.job_id}@{message.slot_us} was sent and the ledger says: {entry.verdict}"
            if message.fn not in ("app.a", "app.b") and not message.job_id.startswith("code:"):
                yield f"{message.job_id}@{message.slot_us} was sent, though {message.fn} is not allowed"

    def _ledger(self) -> Iterator[str]:
        sent = {message.task_id for message in self.broker.messages}
        for entry in self.database.ledger:
            name = f"{entry.job_id}@{entry.slot_us}"
            if entry.verdict is Verdict.CLAIMED:
                yield f"{name} was claimed and never came to an end"
            elif entry.task_id not in sent and entry.job_id != BUILTIN_PRUNE and not _explained(entry):
                yield f"{name} is {entry.verdict} and was never sent"
            if entry.verdict is Verdict.IN_DOUBT and self._wanted_resent(entry):
                yield f"{name} is in doubt, though its row always wanted it resent"
        for number, batch in self.database.batches.items():
            if batch.sent_us is None:
                yield f"batch {number} was left open"
        if len(self.database.by_task) != len(self.database.ledger):
            yield "a slot has two lines in the ledger"

    def _wanted_resent(self, entry: Entry) -> bool:
        row = self.database.jobs.get(entry.job_id)
        wanted = row is not None and row["on_doubt"] == "resend" and row["grace_seconds"] is None
        return wanted and entry.job_id not in self.edited and "could not be sent again" not in entry.detail

    def _requests(self) -> Iterator[str]:
        for task_id, job_id in self.requested.items():
            if job_id in self.database.jobs and job_id not in self.edited:
                lines = [entry for entry in self.database.ledger if entry.task_id == task_id]
                if len(lines) != 1:
                    yield f"the run of {job_id} that somebody asked for has {len(lines)} lines in the ledger"
        if self.database.requests:
            yield f"requests were not answered: {list(self.database.requests.values())}"

    def _memory(self, writer: Beat) -> Iterator[str]:
        """The writer knows the rows as they are, and the database knows what the writer plans."""
        rows, entries = self.database.jobs, writer.engine.leader.agenda.entries
        ids = set(rows) | set(self.observer.code)
        if set(entries) != ids:
            yield f"the writer knows {sorted(entries)}, the table has {sorted(ids)}"
        if set(self.database.state) != ids:
            yield f"there are states of {sorted(self.database.state)}, but the table has {sorted(ids)}"
        for job_id, entry in entries.items():
            state = self.database.state.get(job_id)
            if state is not None and state.next_run_us != entry.next_us:
                yield f"{job_id} is next at {entry.next_us} for the writer and at {state.next_run_us} in the database"
            if state is not None and (entry.state.last_slot_us or 0) >= (state.last_slot_us or 0):
                # The writer remembers what an older copy or a new row of the same id does not know.
                state = replace(state, last_slot_us=entry.state.last_slot_us, last_run_us=entry.state.last_run_us)
            if state is not None and _planned(state) != _planned(entry.state):
                yield f"the writer remembers {entry.state}, the database {state}"
            if state is not None and state.problem != (entry.problem or entry.refusal):
                yield f"{job_id}: the problem in the database is {state.problem!r}, not {entry.problem!r}"
            spec = entry.job.spec if entry.job is not None and entry.runnable else None
            if self.observer.courses[job_id].spec != spec:
                yield f"{job_id}: the history of definitions ends with {self.observer.courses[job_id].spec}, not {spec}"
            if entry.job is not None and job_id in rows and entry.job.rev != rows[job_id]["rev"]:
                yield f"{job_id}: the writer has an old version of the row"
        flying = {entry.task_id for entry in self.database.ledger if entry.verdict in IN_FLIGHT}
        known = {task for task in self.database.by_task if task in writer.engine.leader.in_flight}
        # After a restore the writer remembers runs that the copy does not have.
        if flying != known and not (self.replaced and flying < known):
            yield f"in flight are {sorted(flying)}, but the writer knows of {sorted(known)}"
        if writer.engine.leader.pending_writes or writer.engine.leader.stale_job_ids:
            yield "the writer still owes something"

    def _due(self, writer: Beat) -> Iterator[str]:
        """What is due has been decided, unless it waits for its own run."""
        horizon = writer.engine._last_now
        for job_id, state in self.database.state.items():
            if state.next_run_us is None or state.next_run_us > horizon:
                continue
            flying = any(entry.job_id == job_id and entry.verdict in IN_FLIGHT for entry in self.database.ledger)
            if not flying:
                yield f"{job_id}@{state.next_run_us} has been due for {(horizon - state.next_run_us) / 1e6:.1f} s"

    def _own_audit(self, writer: Beat) -> Iterator[str]:
        """`celery qbeat audit` finds nothing either."""
        records: dict[str, list[Record]] = defaultdict(list)
        for job_id, since_us, spec in self.database.history:
            records[job_id].append(Record(since_us, spec))
        code = {job.spec: job.schedule for job in self.observer.code.values()}
        # An id that came back may have slots that are older than its first life, which the audit cannot tell apart.
        for job_id, known in ((job_id, known) for job_id, known in records.items() if job_id not in self.deleted):
            state = self.database.state.get(job_id)
            numbered = [(n, entry) for n, entry in enumerate(self.database.ledger) if entry.job_id == job_id]
            numbered.sort(key=lambda pair: pair[1].slot_us)
            entries = [entry for _, entry in numbered]
            found, _ = definitions(job_id, known, state.first_seen_us if state is not None else None, code)
            subject = Subject(
                job_id,
                found,
                [_line(number, entry) for number, entry in numbered if not entry.by_hand],
                next_run_us=None if state is None else state.next_run_us,
                busy=any(entry.verdict in IN_FLIGHT for entry in entries),
                by_hand=frozenset(entry.slot_us for entry in entries if entry.by_hand),
            )
            now = writer.engine._last_now
            for finding in audit(subject, Window(known[0].since_us, now, now)).findings:
                if finding.kind in FAULTS:
                    yield f"the audit of {job_id}: {finding}"


def _planned(state: State) -> State:
    """Without what ends of runs leave: the writer keeps that for its own use, and not exactly."""
    return replace(state, last_succeeded_us=None, late_after_us=None)


def _line(number: int, entry: Entry) -> Line:
    overtaken = entry.detail.endswith(OVERTAKEN_DETAIL)
    return Line(entry.slot_us, entry.claimed_us, entry.collapsed, overtaken, number)


def _explained(entry: Entry) -> bool:
    return (
        entry.verdict in UNSENT
        or entry.verdict is Verdict.IN_DOUBT
        or (entry.verdict is Verdict.FAILED and entry.detail.startswith("could not be published"))
    )
