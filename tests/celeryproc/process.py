"""One process of a test: its output in a file, its end certain."""

from __future__ import annotations

import os
import re
import signal
import subprocess
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from tests.servers import guard
from tests.servers.tree import signal_tree
from tests.servers.waiting import wait_for


class Process:
    """A running command in a process group of its own. Signals but those of `terminate` go to all that it started."""

    def __init__(
        self, name: str, command: Sequence[str], folder: Path, environment: Mapping[str, str], output: Path
    ) -> None:
        self.name = name
        self.output_file = output
        with output.open("ab") as sink:
            self._popen = subprocess.Popen(
                command,
                cwd=folder,
                env=dict(environment),
                stdin=subprocess.DEVNULL,
                stdout=sink,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        guard.watch(self._popen.pid)

    @property
    def pid(self) -> int:
        """The process id."""
        return self._popen.pid

    @property
    def running(self) -> bool:
        """Whether it has not ended yet."""
        return self._popen.poll() is None

    def output(self) -> str:
        """All that it has printed so far, standard output and standard error together."""
        return self.output_file.read_text(errors="replace")

    def wait_output(self, pattern: str, deadline: float = 60.0) -> re.Match[str]:
        """Wait until the output matches the regular expression (`^` and `$` match at lines) and return the match.

        Raises AssertionError with the whole output when the process ends or the deadline passes before that.
        """
        expression = re.compile(pattern, re.MULTILINE)

        def found_or_ended() -> tuple[re.Match[str] | None, bool] | None:
            ended = not self.running
            match = expression.search(self.output())
            return (match, ended) if match or ended else None

        try:
            match, _ = wait_for(found_or_ended, deadline, what=f"{self.name} prints {pattern!r}") or (
                None,
                True,
            )
        except AssertionError as late:
            raise AssertionError(f"{late}; its output:\n{self.output()}") from None
        assert match is not None, f"{self.name} ended and had not printed {pattern!r}; its output:\n{self.output()}"
        return match

    def send_signal(self, number: signal.Signals) -> None:
        """Send a signal to the process alone, as a service manager does."""
        self._popen.send_signal(number)

    def terminate(self) -> None:
        """SIGTERM to the process alone. Returns at once: see `wait_exit`."""
        self.send_signal(signal.SIGTERM)

    def interrupt(self) -> None:
        """SIGINT to the whole tree, as Ctrl-C in a terminal does. Returns at once: see `wait_exit`."""
        signal_tree(self.pid, signal.SIGINT)

    def freeze(self) -> None:
        """SIGSTOP to the whole tree."""
        signal_tree(self.pid, signal.SIGSTOP)

    def thaw(self) -> None:
        """SIGCONT to the whole tree."""
        signal_tree(self.pid, signal.SIGCONT)

    def kill(self) -> None:
        """SIGKILL to the whole tree, frozen or not; returns when all have ended."""
        signal_tree(self.pid, signal.SIGKILL)
        with suppress(ProcessLookupError):
            # Children whose parent had ended before are no descendants any more, but still of the group.
            os.killpg(self.pid, signal.SIGKILL)
        self.wait_exit()

    def wait_exit(self, timeout: float = 60.0) -> int:
        """The exit code, negative after a signal. AssertionError when it runs on for ``timeout`` seconds."""
        try:
            code = self._popen.wait(timeout)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"{self.name} has not ended in {timeout:g} s; its output:\n{self.output()}") from None
        return code

    def close(self) -> None:
        """`kill`, and forget it."""
        self.kill()
        guard.release(self.pid)
