"""A TCP proxy with a switch: what is behind it can go away, or become another server."""

from __future__ import annotations

import socket
import threading
from contextlib import suppress
from types import TracebackType
from typing import Self


class Proxy:
    """Listens on a port of its own and leads to `port`; while it is cut, every connection ends at once."""

    def __init__(self, port: int) -> None:
        self._target: int | None = port
        self._pairs: set[socket.socket] = set()
        self._lock = threading.Lock()
        self._listener = socket.create_server(("127.0.0.1", 0))
        threading.Thread(target=self._accept, name="proxy", daemon=True).start()

    @property
    def port(self) -> int:
        """Where clients connect."""
        return int(self._listener.getsockname()[1])

    def lead_to(self, port: int | None) -> None:
        """From now on to that port, or nowhere; connections that are open end."""
        with self._lock:
            self._target = port
            for end in self._pairs:
                with suppress(OSError):
                    end.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
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
        with self._lock:
            try:
                if self._target is None:
                    raise ConnectionRefusedError
                server = socket.create_connection(("127.0.0.1", self._target), timeout=2.0)
                server.settimeout(None)
            except OSError:
                client.close()
                return
            self._pairs |= {client, server}
        for source, sink in ((client, server), (server, client)):
            threading.Thread(target=self._pass_on, args=(source, sink), daemon=True).start()

    def _pass_on(self, source: socket.socket, sink: socket.socket) -> None:
        with suppress(OSError):
            while data := source.recv(65536):
                sink.sendall(data)
        with self._lock:
            for end in (source, sink):
                self._pairs.discard(end)
                with suppress(OSError):
                    end.shutdown(socket.SHUT_RDWR)
        source.close()
