"""`python -m benchmarks [name ...]`: run benchmarks and show what they found."""

from __future__ import annotations

import argparse
import json
import os
import platform
import time
from dataclasses import replace
from importlib.metadata import version
from pathlib import Path
from typing import Any

from rich.console import Console

from benchmarks import burst, claims, prune, rows, schedules, steady
from benchmarks.places import Options, Places
from benchmarks.tables import Table, show

BENCHMARKS = {
    "rows": rows.run,
    "burst": burst.run,
    "claims": claims.run,
    "schedules": schedules.run,
    "steady": steady.run,
    "prune": prune.run,
}


def main() -> None:
    """The command line."""
    arguments = _parser().parse_args()
    options = Options()
    if arguments.rows:
        sizes = tuple(sorted(set(arguments.rows)))
        options = replace(options, sizes=sizes, stock_sizes=tuple(size for size in sizes if size <= 100_000))
    if arguments.million:
        options = replace(options, sizes=(*options.sizes, 1_000_000))
    if arguments.seconds:
        options = replace(options, seconds=arguments.seconds)
    console = Console(stderr=arguments.json == "-")
    if not console.is_terminal:
        console = Console(stderr=arguments.json == "-", width=140)
    found: list[Table] = []
    start = time.monotonic()
    with Places() as where:
        for name in arguments.names or BENCHMARKS:
            with console.status(f"{name} ..."):
                tables = list(BENCHMARKS[name](where, options))
            for table in tables:
                show(console, table)
            found.extend(tables)
    console.print(f"{time.monotonic() - start:.0f} s on {_machine()['cpus']} CPUs, load {os.getloadavg()[0]:.1f}")
    if arguments.json:
        text = json.dumps({"machine": _machine(), "tables": [table.as_json() for table in found]}, indent=1)
        if arguments.json == "-":
            print(text)
        else:
            Path(arguments.json).write_text(text + "\n")


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks",
        description="How fast celery_qbeat is beside Celery's own beat. Needs PostgreSQL and Redis, as the tests do.",
    )
    parser.add_argument("names", nargs="*", metavar="name", help=f"some of: {', '.join(BENCHMARKS)} (default: all)")
    parser.add_argument("--json", metavar="FILE", help="write all figures as JSON, too; - is standard output")
    parser.add_argument("--rows", type=int, action="append", metavar="N", help="sizes of the table (100 and up)")
    parser.add_argument("--million", action="store_true", help="a table of 1,000,000 rows, too (some minutes more)")
    parser.add_argument("--seconds", type=float, metavar="S", help="of the steady stream (30)")
    return parser


def _machine() -> dict[str, Any]:
    packages = ("celery", "kombu", "redis", "SQLAlchemy", "psycopg")
    return {
        "python": platform.python_version(),
        "system": platform.platform(),
        "cpus": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count(),
        "load": os.getloadavg()[0],
        **{name: version(name) for name in packages},
    }


if __name__ == "__main__":
    main()
