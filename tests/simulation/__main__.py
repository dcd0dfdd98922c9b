"""`python -m tests.simulation --seed S --histories N`: play histories, print the first that breaks a law."""

from __future__ import annotations

import argparse
import sys
import time

from tests.simulation.history import run


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.simulation", description=__doc__)
    parser.add_argument("--seed", type=int, default=0, help="the first seed")
    parser.add_argument("--histories", type=int, default=1000, help="how many seeds to play")
    parser.add_argument("--trace", action="store_true", help="print the history even if no law is broken")
    parser.add_argument("--keep-going", action="store_true", help="do not stop at the first broken law")
    options = parser.parse_args()
    began, slots, messages, failed = time.monotonic(), 0, 0, 0
    for seed in range(options.seed, options.seed + options.histories):
        outcome = run(seed)
        slots, messages = slots + outcome.slots, messages + outcome.messages
        if outcome.violations and options.keep_going:
            failed += 1
            sys.stdout.write(f"seed {seed}: {outcome.violations[0]}\n")
        elif outcome.violations or options.trace:
            replay = run(seed, tracing=True)
            sys.stdout.write("\n".join(replay.trace) + "\n")
            for violation in replay.violations:
                sys.stdout.write(f"seed {seed}: {violation}\n")
            if outcome.violations:
                return 1
    took = time.monotonic() - began
    sys.stdout.write(
        f"{options.histories} histories, {slots} slots, {messages} messages, {failed} failed; "
        f"{options.histories / took * 60:.0f} histories a minute\n"
    )
    return 1 if failed else 0


if __name__ == "__main__":
    raise SystemExit(main())
