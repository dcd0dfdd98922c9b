"""A few hundred seeded histories; and, for each safeguard, that the simulation notices when it is broken."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.simulation.history import run
from tests.simulation.mutants import MUTANTS

HISTORIES = 400
A_GROUP = 50


@pytest.mark.parametrize("first", range(0, HISTORIES, A_GROUP))
def test_no_history_breaks_a_law(first: int) -> None:
    for seed in range(first, first + A_GROUP):
        outcome = run(seed)
        if outcome.violations:
            history = "\n".join(run(seed, tracing=True).trace)
            pytest.fail(f"{history}\n{outcome.violations}\nto replay: python -m tests.simulation --seed {seed}")


@pytest.mark.parametrize("name", MUTANTS)
def test_a_broken_safeguard_is_found(name: str) -> None:
    found = next((seed for seed in range(300) if run(seed, MUTANTS[name]).violations), None)
    assert found is not None, f"nothing in 300 histories shows that the engine works {name}"


def test_a_history_is_the_same_whenever_it_is_played() -> None:
    first, second = run(7, tracing=True), run(7, tracing=True)
    assert first.trace == second.trace
    assert len(first.trace) > 100


def test_a_history_is_the_same_in_every_process() -> None:
    def play(hashing: str) -> str:
        done = subprocess.run(
            [sys.executable, "-m", "tests.simulation", "--seed", "11", "--histories", "1", "--trace"],
            env={**os.environ, "PYTHONHASHSEED": hashing},
            cwd=Path(__file__).parents[2],
            capture_output=True,
            text=True,
            check=True,
        )
        return "\n".join(done.stdout.splitlines()[:-1])

    assert play("1") == play("2")
