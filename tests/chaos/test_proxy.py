"""The proxy passes bytes on, and does what it is told to do to them."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Iterator
from contextlib import closing, suppress

import pytest

from tests.chaos.proxy import Proxy

SHORT_S = 0.3
LONG_S = 20.0


@pytest.fixture
def echo() -> Iterator[int]:
    """A server that answers what it is told; its port."""
    with closing(socket.create_server(("127.0.0.1", 0))) as listener:

        def answer(client: socket.socket) -> None:
            with suppress(OSError), closing(client):
                while data := client.recv(1000):
                    client.sendall(data)

        def serve() -> None:
            with suppress(OSError):
                while True:
                    threading.Thread(target=answer, args=(listener.accept()[0],), daemon=True).start()

        threading.Thread(target=serve, daemon=True).start()
        yield int(listener.getsockname()[1])
        listener.shutdown(socket.SHUT_RDWR)


@pytest.fixture
def proxy(echo: int) -> Iterator[Proxy]:
    with Proxy(echo) as proxy:
        yield proxy


def connect(proxy: Proxy) -> socket.socket:
    return socket.create_connection(("127.0.0.1", proxy.port), timeout=LONG_S)


def ask(client: socket.socket, data: bytes = b"hello") -> bytes:
    client.sendall(data)
    return client.recv(1000)


def silent(client: socket.socket) -> bool:
    client.settimeout(SHORT_S)
    try:
        return not client.recv(1000)
    except TimeoutError:
        return True
    finally:
        client.settimeout(LONG_S)


def test_it_passes_bytes_on(proxy: Proxy) -> None:
    with connect(proxy) as client:
        assert ask(client) == b"hello"


@pytest.mark.parametrize("directions", [{}, {"answers": False}, {"requests": False}])
def test_it_hangs_in_either_direction_and_resumes(proxy: Proxy, directions: dict[str, bool]) -> None:
    with connect(proxy) as old:
        assert ask(old) == b"hello"
        proxy.hang(**directions)
        old.sendall(b"late")
        assert silent(old)
        with connect(proxy) as new:
            new.sendall(b"new")
            assert silent(new)
            proxy.resume()
            assert (old.recv(1000), new.recv(1000)) == (b"late", b"new")
            assert ask(old) == b"hello"


def test_it_forgets_open_connections_for_ever(proxy: Proxy) -> None:
    with connect(proxy) as old:
        assert ask(old) == b"hello"
        proxy.forget()
        old.sendall(b"nobody hears this")
        assert silent(old)
        with connect(proxy) as new:
            assert ask(new) == b"hello"
        proxy.resume()
        assert silent(old)


def test_it_delays_each_round_trip_once(proxy: Proxy) -> None:
    with connect(proxy) as client:
        proxy.slow_down(SHORT_S)
        began = time.monotonic()
        assert ask(client) == b"hello"
        assert ask(client) == b"hello"
        assert time.monotonic() - began >= 2 * SHORT_S
        proxy.resume()
        assert ask(client) == b"hello"


def test_a_cut_ends_connections_even_while_it_hangs(proxy: Proxy, echo: int) -> None:
    with connect(proxy) as client:
        assert ask(client) == b"hello"
        proxy.hang()
        proxy.lead_to(None)
        assert client.recv(1000) == b""
        proxy.resume()
        proxy.lead_to(echo)
        with connect(proxy) as again:
            assert ask(again) == b"hello"
