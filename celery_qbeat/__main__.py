"""`python -m celery_qbeat`: the program `qbeat`, without the import of Celery where a probe needs none."""

from __future__ import annotations

import sys


def main() -> None:
    """Run the program; `check --liveness` looks at a file only, so that a probe may run it every few seconds."""
    if sys.argv[1:3] == ["check", "--liveness"]:
        from celery_qbeat.process.heartbeat import main as probe

        probe(sys.argv[3:])
    else:
        from celery_qbeat.cli import main as program

        program(prog_name="qbeat")


if __name__ == "__main__":
    main()
