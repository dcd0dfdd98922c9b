"""A TCP proxy that counts round trips, and that can keep connections open without forwarding anything."""

from __future__ import annotations

import socket
import threading
import time
from contextlib import suppress
from types import TracebackType
from typing import Self


class SlowProxy:
    """Listens on a port of its own and leads to `port`.

    `round_trips`: how often a client wrote after the server had. `delay_s`: what each of them takes longer.
    """

    def __init__(self, port: int) -> None:
        self.round_trips = 0
        self.delay_s = 0.0
        self._target = port
        self._flows = threading.Event()
        self._flows.set()
        self._sockets: set[socket.socket] = set()
        self._listener = socket.create_server(("127.0.0.1", 0))
        threading.Thread(target=self._accept, daemon=True).start()

    @property
    def port(self) -> int:
        """Where clients connect."""
        return int(self._listener.getsockname()[1])

    def lead_to(self, port: int) -> None:
        """New connections lead there."""
        self._target = port

    def hang(self) -> None:
        """From now on nothing is forwarded; connections stay open, and new ones are accepted."""
        self._flows.clear()

    def flow(self) -> None:
        """The end of `hang`: what waited is forwarded."""
        self._flows.set()

    def close(self) -> None:
        self._flows.set()
        for each in [self._listener, *self._sockets]:
            with suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)
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
            threading.Thread(target=self._join, args=(client,), daemon=True).start()

    def _join(self, client: socket.socket) -> None:
        self._flows.wait()
        try:
            server = socket.create_connection(("127.0.0.1", self._target), timeout=5)
        except OSError:
            client.close()
            return
        server.settimeout(None)
        self._sockets |= {client, server}
        answered = threading.Event()
        answered.set()
        for source, sink, asks in ((client, server, True), (server, client, False)):
            threading.Thread(target=self._pass_on, args=(source, sink, asks, answered), daemon=True).start()

    def _pass_on(self, source: socket.socket, sink: socket.socket, asks: bool, answered: threading.Event) -> None:
        with suppress(OSError):
            while data := source.recv(65536):
                if asks and answered.is_set():
                    answered.clear()
                    self.round_trips += 1
                    time.sleep(self.delay_s)
                elif not asks:
                    answered.set()
                self._flows.wait()
                sink.sendall(data)
        for each in (source, sink):
            with suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)
            self._sockets.discard(each)
        source.close()
