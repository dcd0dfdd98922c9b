"""`python -m tests.chaos --database postgresql --rounds 500 --seed 7`: one run, its figures, and every breach."""

from __future__ import annotations

import argparse
import random
import sys
import tempfile
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from tests.chaos.auditor import audit
from tests.chaos.driver import Order, run
from tests.chaos.evidence import Evidence
from tests.chaos.plan import KINDS
from tests.chaos.recovery import recovery_table
from tests.chaos.takeovers import figures

OF_ONE_LAW = 10
"""So many breaches of one law are told in full: one cause often breaks it for many slots."""

DATABASES = ("postgresql", "mariadb", "sqlite")


def main(arguments: Sequence[str] | None = None) -> int:
    """The exit code: 0 when every promise was kept."""
    options = _parser().parse_args(arguments)
    seed = options.seed if options.seed is not None else random.randrange(1_000_000)
    if options.kinds:
        for database, kinds in KINDS.items():
            _say(f"{database}: {', '.join(kind.name for kind in kinds)}")
        return 0
    if options.audit:
        runs = [Evidence.load(Path(file)) for file in options.audit]
        broken = [_judge(evidence) for evidence in runs]
        _say_all(["all of them:", *recovery_table(*runs)] if len(runs) > 1 else [])
        return int(any(broken))
    failed = False
    for database in options.database or DATABASES:
        order = Order(
            database,
            seed,
            options.rounds,
            options.jobs,
            pause_s=(options.pause / 2, options.pause * 3 / 2),
            only=tuple(options.only or ()),
            in_flight=options.in_flight,
            threads=not options.no_threads,
        )
        with tempfile.TemporaryDirectory(prefix="qbeat-chaos-") as place:
            folder = Path(options.keep) / f"{database}-{seed}" if options.keep else Path(place)
            folder.mkdir(parents=True, exist_ok=True)
            failed |= _one(order, folder)
    return int(failed)


def _one(order: Order, folder: Path) -> bool:
    _say(f"{order.database}: seed {order.seed}, {order.rounds} faults, {order.jobs} jobs, {order.beats} beats")
    evidence = run(order, folder, _say)
    evidence.save(folder / "evidence.json")
    failed = _judge(evidence)
    again = [f"--database {order.database} --rounds {order.rounds} --seed {order.seed} --jobs {order.jobs}"]
    again += [f"--only '{kind}'" for kind in order.only]
    again += [f"--in-flight {order.in_flight}"] * bool(order.in_flight)
    again += ["--no-threads"] * (not order.threads)
    _say(f"once more: python -m tests.chaos {' '.join(again)}")
    return failed


def _judge(evidence: Evidence) -> bool:
    for name, value in figures(evidence).items():
        _say(f"  {name}: {value}")
    _say_all(recovery_table(evidence))
    breaches = audit(evidence)
    told: Counter[str] = Counter()
    for breach in breaches:
        told[breach.law] += 1
        if told[breach.law] <= OF_ONE_LAW:
            _say(f"  BREACH {breach}")
    for law, count in told.items():
        _say(f"  {law}: {count} breaches")
    _say(f"{len(breaches)} breaches")
    return bool(breaches)


def _say_all(lines: Sequence[str]) -> None:
    for line in lines:
        _say(line)


def _say(text: str) -> None:
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m tests.chaos", description=__doc__)
    parser.add_argument("--database", choices=DATABASES, action="append", help="may be repeated; default: all three")
    parser.add_argument("--rounds", type=int, default=20, help="faults on each database (20)")
    parser.add_argument("--seed", type=int, help="the same seed gives the same faults and edits")
    parser.add_argument("--jobs", type=int, default=200, help="intervals of one or two seconds (200)")
    parser.add_argument("--pause", type=float, default=1.7, help="mean seconds from one fault to the next (1.7)")
    parser.add_argument(
        "--only", metavar="KIND", action="append", help="a kind of fault; may be repeated; default: all"
    )
    parser.add_argument("--in-flight", type=int, default=0, help="runs that are in flight at the start (0)")
    parser.add_argument("--no-threads", action="store_true", help="the beats' app starts no threads of its own")
    parser.add_argument("--kinds", action="store_true", help="list the kinds of faults on each database, and end")
    parser.add_argument("--audit", metavar="FILE", nargs="+", help="judge the evidence.json of earlier runs again")
    parser.add_argument("--keep", help="a folder for logs and evidence")
    return parser


if __name__ == "__main__":
    sys.exit(main())
