"""The built-in tasks that run inside the beat, in short steps between slots."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from celery_qbeat.core.jobs import Verdict
from celery_qbeat.engine import log_events
from celery_qbeat.engine.leader_state import Dependencies, LeaderState
from celery_qbeat.ports import FOREVER, RunOutcome

STEP_S = 0.025
"""The seconds that a step is to take: the rows of the next step follow from the time of the last one."""

FIRST_ROWS, FEWEST_ROWS, MOST_ROWS = 200, 20, 5_000
"""The rows of the first step that is told a number, and the bounds of the later ones."""

PATIENCE = 10
"""When slots leave no room for a step, one is done after a pause that is this many times as long."""


class BuiltinTasks:
    """Goes on with the built-in tasks that are under way, the oldest first.

    No step begins when a slot is due before it would end, unless slots have left no room for one for long. At most
    half of the time is spent on steps.
    """

    def __init__(
        self, parts: Dependencies, desk: LeaderState, conclude: Callable[[Sequence[RunOutcome], int], None]
    ) -> None:
        self._deps = parts
        self._leader = desk
        self._conclude = conclude
        self._rows: dict[str, int] = {}
        """The rows of the next step by task id, for tasks that have begun."""
        self._step_s = STEP_S
        self._rest_until = self._force_at = float("-inf")

    def step(self, now: int) -> None:
        """Do steps for at most `Limits.chore_s` seconds and the rest of the last step."""
        clock, desk = self._deps.clock, self._leader
        started = at = clock.monotonic()
        if at < self._rest_until:
            return
        until = started + self._deps.limits.chore_s
        while desk.chores and not self._deps.stopping() and (self._has_room() or at >= self._force_at):
            self._do_step(now)
            ended = clock.monotonic()
            self._step_s = ended - at
            self._rest_until, self._force_at = ended + (ended - started), ended + PATIENCE * (ended - at)
            at = ended
            if at >= until:
                return

    def pause_s(self) -> float:
        """Seconds until the next step may begin, at the slots that are known now."""
        at = self._deps.clock.monotonic()
        rest = max(0.0, self._rest_until - at)
        return rest if self._slot_s() - rest >= self._step_s else max(0.0, self._force_at - at)

    def _has_room(self) -> bool:
        return self._slot_s() >= self._step_s

    def _slot_s(self) -> float:
        """Seconds until the next slot that can be dispatched."""
        slot = self._leader.agenda.next_us()
        if slot is None or self._leader.broker_away:
            return FOREVER
        return (slot - self._deps.clock.now_us()) / 1_000_000

    def _do_step(self, now: int) -> None:
        desk, clock = self._leader, self._deps.clock
        item = desk.chores[0]
        task_id, job_id, steps = item
        at = clock.monotonic()
        try:
            count = steps.send(self._rows.get(task_id))
        except StopIteration:
            self._end(RunOutcome(task_id, Verdict.SUCCEEDED), now)
        except Exception as error:
            log_events.chore_failed(job_id, error)
            self._end(RunOutcome(task_id, Verdict.FAILED, _first_line(error)), now)
        else:
            self._rows[task_id] = _next_rows(self._rows.get(task_id, FIRST_ROWS), count, clock.monotonic() - at)

    def _end(self, end: RunOutcome, now: int) -> None:
        del self._leader.chores[0]
        self._rows.pop(end.task_id, None)
        self._conclude([end], now)


def _next_rows(rows: int, count: int, took_s: float) -> int:
    """The rows of the next step, after a step of at most `rows` rows did `count` in this time."""
    change = STEP_S / min(max(took_s, STEP_S / 2), STEP_S * 2)
    if change > 1 and 2 * count < rows:
        # It was fast because there was little to do.
        return rows
    return min(MOST_ROWS, max(FEWEST_ROWS, round(rows * change)))


def _first_line(error: Exception) -> str:
    return f"{type(error).__name__}: {error}".splitlines()[0].removesuffix(": ")
