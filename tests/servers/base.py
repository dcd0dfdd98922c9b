"""What all test servers have in common: the life of one process tree with a port and a data folder."""

from __future__ import annotations

import os
import signal
import subprocess
from abc import ABC, abstractmethod
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Any, ClassVar, Self

from tests.servers import guard
from tests.servers.ports import free_port
from tests.servers.tree import signal_tree
from tests.servers.users import User, whoever_runs_the_tests
from tests.servers.waiting import wait_for


class ServerMissing(Exception):
    """The server's program is not on this machine."""


class ServerBroken(AssertionError):
    """The server's program is there but did not start."""


class Server(ABC):
    """One server on 127.0.0.1. `start`, `stop` and the rest return when it is so; `close` ends it and removes its data.

    ``port`` and ``folder`` stay the same from start to start, so `kill` + `start` is a crash and a recovery.
    """

    name: ClassVar[str]
    patience: ClassVar[float] = 60.0

    def __init__(self) -> None:
        self.folder = guard.new_folder(self.name)
        self.port = free_port()
        self._process: subprocess.Popen[bytes] | None = None
        self._prepared = False

    # What a kind of server says about itself.

    @property
    @abstractmethod
    def url(self) -> str:
        """Where clients find it."""

    @abstractmethod
    def alive(self) -> bool:
        """Whether the server answers a question within about a second."""

    def _user(self) -> User:
        return whoever_runs_the_tests()

    def _prepare(self) -> None:
        """Fill the folder, and give it to the server's user; called once, before the first start."""
        self._user().own(self.folder)

    @abstractmethod
    def _command(self) -> list[str]:
        """The command line that runs it in the foreground."""

    def _environment(self) -> dict[str, str]:
        return {}

    _polite_signal: ClassVar[signal.Signals] = signal.SIGTERM

    # Its life.

    @property
    def pid(self) -> int:
        """The process id of the running server."""
        assert self._process is not None, f"{self.name} is not running"
        return self._process.pid

    @property
    def running(self) -> bool:
        """Whether the process exists, answering or not."""
        return self._process is not None and self._process.poll() is None

    def start(self) -> Self:
        """Start on the same port and data as before and wait until it answers."""
        assert not self.running, f"{self.name} is running already"
        attempts = 1 if self._prepared else 3
        if not self._prepared:
            self._prepare()
            self._prepared = True
        for attempt in range(attempts):
            self._spawn()
            try:
                wait_for(self._answers_or_died, self.patience, every=0.05, what=f"{self.name} answers")
            except BaseException as error:
                self.kill()
                if isinstance(error, AssertionError):
                    raise ServerBroken(f"{error}\n{self.log_tail()}") from error
                raise
            if self.running:
                return self
            self._reap()
            if attempt + 1 < attempts:
                self.port = free_port()
        raise ServerBroken(f"{self.name} ended while it started\n{self.log_tail()}")

    def stop(self, timeout: float = 30.0) -> None:
        """Ask it to end, wait, and kill it when it has not ended after ``timeout`` seconds."""
        if self._process is None:
            return
        with suppress(ProcessLookupError):
            self._process.send_signal(self._polite_signal)
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(timeout)
        self.kill()

    def kill(self) -> None:
        """SIGKILL the whole process tree, frozen or not: what a power cut does."""
        if self._process is None:
            return
        signal_tree(self.pid, signal.SIGKILL)
        self._reap()

    def freeze(self) -> None:
        """SIGSTOP the whole tree: connections stay open and nothing answers."""
        signal_tree(self.pid, signal.SIGSTOP)

    def thaw(self) -> None:
        """SIGCONT after `freeze`."""
        signal_tree(self.pid, signal.SIGCONT)

    def restart(self) -> None:
        """`stop` and `start`."""
        self.stop()
        self.start()

    def close(self) -> None:
        """`kill`, and remove the data folder."""
        self.kill()
        guard.remove_folder(self.folder)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    # The log.

    @property
    def log(self) -> Path:
        """The file with all that the server printed, over all starts."""
        return self.folder / "server.log"

    def log_tail(self, lines: int = 40) -> str:
        """The last lines of the log."""
        if not self.log.exists():
            return ""
        return "\n".join(self.log.read_text(errors="replace").splitlines()[-lines:])

    # How.

    def run_as_user(self, command: list[str], **environment: str) -> None:
        """Run a command of the server's tool set as the server's user and wait for its end."""
        done = subprocess.run(
            command,
            cwd=self.folder,
            env={**os.environ, **environment},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            timeout=self.patience,
            check=False,
            **self._user().popen(),  # type: ignore[call-overload]
        )
        if done.returncode != 0:
            raise ServerBroken(f"{command[0]} ended with {done.returncode}\n{done.stdout.decode(errors='replace')}")

    def _spawn(self) -> None:
        options: dict[str, Any] = {**self._user().popen()}
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(
                self._command(),
                cwd=self.folder,
                env={**os.environ, **self._environment()},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                **options,
            )
        guard.watch(self._process.pid)

    def _answers_or_died(self) -> bool:
        return not self.running or self.alive()

    def _reap(self) -> None:
        if self._process is not None:
            self._process.wait(timeout=30)
            guard.release(self._process.pid)
            self._process = None
