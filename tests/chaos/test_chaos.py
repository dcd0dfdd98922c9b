"""A short run on each database; `make chaos ROUNDS=500 SEED=7` does a long one."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.chaos.auditor import audit
from tests.chaos.driver import Order, run
from tests.chaos.plan import KINDS, make_plan
from tests.chaos.takeovers import figures
from tests.servers import ServerMissing


@pytest.mark.slow
@pytest.mark.chaos
@pytest.mark.timeout(420)
@pytest.mark.parametrize(("database", "seed"), [("postgresql", 41), ("mariadb", 42), ("sqlite", 43)])
def test_whatever_is_frozen_or_killed_every_slot_has_one_verdict_and_none_is_sent_twice(
    database: str, seed: int, tmp_path: Path
) -> None:
    lines: list[str] = []
    try:
        evidence = run(Order(database, seed, rounds=12, jobs=60), tmp_path, lines.append)
    except ServerMissing as missing:
        if os.environ.get("QBEAT_TEST_REQUIRE_SERVERS") == "1":
            raise
        pytest.skip(str(missing))
    breaches = audit(evidence)
    assert not breaches, "\n".join([*map(str, breaches), *lines])
    found = figures(evidence)
    assert found["faults"] >= 12, lines
    assert found["messages"] > 200
    assert found["epochs"] > 1


def test_the_same_seed_gives_the_same_faults() -> None:
    for database, kinds in KINDS.items():
        plan = make_plan(5, 400, database, 3, (1.0, 2.0))
        assert plan == make_plan(5, 400, database, 3, (1.0, 2.0))
        assert plan != make_plan(6, 400, database, 3, (1.0, 2.0))
        assert {fault.kind for fault in plan} == {kind.name for kind in kinds}


def test_two_faults_on_one_server_never_overlap() -> None:
    free_at: dict[str, float] = {}
    for fault in make_plan(7, 500, "postgresql", 3, (0.5, 1.0)):
        if fault.target != "beat":
            assert fault.at_s >= free_at.get(fault.target, 0.0)
            free_at[fault.target] = fault.at_s + fault.lasts_s
