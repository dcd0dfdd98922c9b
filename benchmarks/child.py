"""A measurement in a fresh process: no memory, no cache and no garbage of the one before.

`python -m benchmarks.child benchmarks.rows:ours '{"rows": 100}'` prints the function's answer as JSON.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from importlib import import_module
from typing import Any

MARK = "answer: "


class ChildFailed(Exception):
    """The measurement ended with an error; its output is the message."""


def fresh(function: Callable[..., dict[str, Any]], **arguments: Any) -> dict[str, Any]:
    """`function(**arguments)` in a process of its own; arguments and answer go through JSON."""
    name = f"{function.__module__}:{function.__name__}"
    command = [sys.executable, "-m", "benchmarks.child", name, json.dumps(arguments)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    answers = [line for line in done.stdout.splitlines() if line.startswith(MARK)]
    if done.returncode != 0 or not answers:
        raise ChildFailed(f"{name}({arguments})\n{done.stdout}{done.stderr}")
    answer: dict[str, Any] = json.loads(answers[-1].removeprefix(MARK))
    return answer


def main() -> None:
    module, _, name = sys.argv[1].partition(":")
    answer = getattr(import_module(module), name)(**json.loads(sys.argv[2]))
    print(MARK + json.dumps(answer))


if __name__ == "__main__":
    main()
