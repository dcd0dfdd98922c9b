"""A TCP proxy between a client and a server: it passes on, delays, hangs, forgets its connections, or cuts them."""

from __future__ import annotations

import socket
import threading
import time
from contextlib import suppress
from types import TracebackType
from typing import Self

CHUNK_BYTES = 1 << 20
"""Bytes that one read takes: all that arrived during one delay."""


class Line:
    """One connection: the socket of the client, the socket of the server, and whether the proxy has forgotten it."""

    def __init__(self, client: socket.socket, server: socket.socket) -> None:
        self.client = client
        self.server = server
        self.forgotten = False

    def cut(self) -> None:
        """End both sides."""
        for end in (self.client, self.server):
            with suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)


class Proxy:
    """Listens on a port of its own and leads to `port`. Its methods may be called from any thread.

    The TCP connections stay up in every state but the one after `lead_to`.
    """

    def __init__(self, port: int) -> None:
        self._target: int | None = port
        self._lines: set[Line] = set()
        self._hung: frozenset[str] = frozenset()
        self._delay_s = 0.0
        self._changed = threading.Condition()
        self._listener = socket.create_server(("127.0.0.1", 0))
        threading.Thread(target=self._accept, name="proxy", daemon=True).start()

    @property
    def port(self) -> int:
        """Where clients connect."""
        return int(self._listener.getsockname()[1])

    def lead_to(self, port: int | None) -> None:
        """Lead to that port from now on, or nowhere; connections that are open end."""
        with self._changed:
            self._target = port
            for line in self._lines:
                line.cut()
            self._changed.notify_all()

    def hang(self, *, requests: bool = True, answers: bool = True) -> None:
        """Accept connections and pass nothing on, in the directions that are named. `resume` passes on what waits."""
        with self._changed:
            self._hung = frozenset(name for name, is_hung in (("requests", requests), ("answers", answers)) if is_hung)

    def forget(self) -> None:
        """Pass nothing on for the connections that are open, for ever; new ones work. A NAT that restarts does this."""
        with self._changed:
            for line in self._lines:
                line.forgotten = True
            self._changed.notify_all()

    def slow_down(self, round_trip_s: float) -> None:
        """Delay each request by that many seconds: what one call asks for in one piece is delayed once."""
        with self._changed:
            self._delay_s = round_trip_s

    def resume(self) -> None:
        """Neither hang nor delay any more. A connection that was forgotten stays so."""
        with self._changed:
            self._hung, self._delay_s = frozenset(), 0.0
            self._changed.notify_all()

    def close(self) -> None:
        """End every connection and stop to listen."""
        self.resume()
        self.lead_to(None)
        # `close` alone would leave the thread in its accept.
        with suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            self._join(client)

    def _join(self, client: socket.socket) -> None:
        with self._changed:
            try:
                if self._target is None:
                    raise ConnectionRefusedError
                server = socket.create_connection(("127.0.0.1", self._target), timeout=2.0)
                server.settimeout(None)
            except OSError:
                client.close()
                return
            for end in (client, server):
                end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            line = Line(client, server)
            self._lines.add(line)
        for direction in ("requests", "answers"):
            threading.Thread(target=self._carry, args=(line, direction), name="proxy line", daemon=True).start()

    def _carry(self, line: Line, direction: str) -> None:
        source, sink = (line.client, line.server) if direction == "requests" else (line.server, line.client)
        with suppress(OSError):
            while True:
                # Wait and leave the bytes in the socket: what arrives during the delay goes with them.
                source.recv(1, socket.MSG_PEEK)
                self._delay(direction)
                data = source.recv(CHUNK_BYTES)
                self._wait_while_hung(line, direction)
                if not data:
                    break
                if not line.forgotten:
                    sink.sendall(data)
        with self._changed:
            self._lines.discard(line)
            line.cut()
        source.close()

    def _delay(self, direction: str) -> None:
        if direction == "requests" and self._delay_s:
            time.sleep(self._delay_s)

    def _wait_while_hung(self, line: Line, direction: str) -> None:
        with self._changed:
            while direction in self._hung and not line.forgotten and self._target is not None:
                self._changed.wait()
