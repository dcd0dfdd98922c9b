"""The rows of a run: seeded, of every kind that has many slots, and edited while the beats run."""

from __future__ import annotations

import itertools
from dataclasses import dataclass, field
from datetime import UTC, datetime
from random import Random
from typing import Any

from tests.chaos.evidence import Traits

SECOND = 1_000_000
CATCH_UP = ("once", "once", "skip", "all")
ON_DOUBT = ("drop", "drop", "resend")
INSTANTS = 36
"""As many times of day as a schedule's 255 characters hold."""

Row = dict[str, Any]


@dataclass
class Population:
    """Makes rows and remembers what they were: the auditor must know what nobody could edit."""

    rng: Random
    traits: dict[str, Traits] = field(default_factory=dict)
    editable: list[str] = field(default_factory=list)
    paused: list[str] = field(default_factory=list)
    _numbers: itertools.count[int] = field(default_factory=lambda: itertools.count(1))

    def first(self, size: int) -> list[Row]:
        """The rows at the start: mostly intervals of one or two seconds."""
        return [self.interval() for _ in range(size)] + [
            self._row(kind, text, self.rng.choice(ON_DOUBT), overlap, catch_up)
            for kind, text in (("every", "1m"), ("cron", "* * * * *"))
            for overlap, catch_up in (("allow", "once"), ("allow", "skip"), ("allow", "all"), ("skip", "all"))
        ]

    def interval(self) -> Row:
        overlap = "skip" if self.rng.random() < 0.15 else "allow"
        row = self._row(
            "interval", str(self.rng.choice((1, 1, 2))), self.rng.choice(ON_DOUBT), overlap, self.rng.choice(CATCH_UP)
        )
        self.editable.append(row["id"])
        return row

    def daily(self, start_s: int) -> list[Row]:
        """Rows with a list of instants, one or two seconds apart, from `start_s` (seconds since the epoch) on."""
        rows = []
        for catch_up, overlap in (
            ("once", "allow"),
            ("skip", "allow"),
            ("all", "allow"),
            ("once", "skip"),
            ("all", "skip"),
        ):
            step = self.rng.choice((1, 2))
            instants = [start_s + number * step for number in range(INSTANTS)]
            text = ",".join(str(instant % 86_400) for instant in instants)
            on_doubt = self.rng.choice(ON_DOUBT)
            rows.append(self._row("daily", text, on_doubt, overlap, catch_up, tuple(t * SECOND for t in instants)))
        return rows

    def burst(self, due_s: int, size: int) -> list[Row]:
        """Rows that are all due at one instant (seconds since the epoch), once."""
        text = datetime.fromtimestamp(due_s, UTC).strftime("%Y-%m-%dT%H:%M:%S")
        instants = (due_s * SECOND,)
        return [self._row("once", text, "drop", "allow", "once", instants) for _ in range(size)]

    def _row(
        self, kind: str, text: str, on_doubt: str, overlap: str, catch_up: str, instants: tuple[int, ...] = ()
    ) -> Row:
        job_id = f"{kind}-{on_doubt}-{overlap}-{catch_up}-{next(self._numbers)}"
        self.traits[job_id] = Traits(kind, on_doubt, overlap, catch_up, instants)
        return {
            "id": job_id,
            "fn": "proj.tasks.record",
            "schedule_kind": kind,
            "schedule": text,
            "overlap": overlap,
            "catch_up": catch_up,
            "on_doubt": on_doubt,
            "grace_seconds": self.rng.choice((None, None, 4)),
            "max_run_seconds": 3 if overlap == "skip" else 20,
        }
