"""A dispatcher with a broker of its own, and mishaps in the middle of its work."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

from celery import Celery

from celery_qbeat.dispatchers import CeleryDispatcher
from celery_qbeat.dispatchers.celery.publishers.redis_pipeline import RedisPipelinePublisher
from celery_qbeat.ports import PublishResult
from tests.contract.making_runs import INSTANCE, make_app, take_all, yes
from tests.servers import RabbitMQ, Redis

Broker = Redis | RabbitMQ


class Bench:
    def __init__(self, server: Broker, folder: Path, url: str = "", **settings: Any) -> None:
        self.server = server
        self.app: Celery = make_app(url or server.url, folder, **settings)
        self.dispatcher = CeleryDispatcher(self.app, namespace="test", instance=lambda: INSTANCE)

    def send(self, shipments: Any, trusted: Callable[[], bool] = yes) -> list[PublishResult]:
        return list(self.dispatcher.send(shipments, trusted))

    def arrived(self, queue: str = "celery") -> list[str]:
        return [message.headers["id"] for message in take_all(self.app, queue)]


class Bomb:
    """Trusted for ever, but with the `at`-th question something happens."""

    def __init__(self, at: int, blast: Callable[[], None]) -> None:
        self.left = at
        self.blast = blast

    def __call__(self) -> bool:
        self.left -= 1
        if self.left == 0:
            self.blast()
        return True


class Scissors:
    """A TCP proxy to Redis that lets all through until it sees messages, and cuts their answers after `answers`.

    The connection ends then; with `half_open` it stays, and nothing more comes through it.
    """

    def __init__(self, port: int, answers: int, *, half_open: bool = False) -> None:
        self._port = port
        self._half_open = half_open
        self._answers = answers
        self._listener = socket.create_server(("127.0.0.1", 0))
        threading.Thread(target=self._accept, daemon=True).start()

    @property
    def url(self) -> str:
        return f"redis://127.0.0.1:{self._listener.getsockname()[1]}/0"

    def close(self) -> None:
        with suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                threading.Thread(target=self._join, args=(client,), daemon=True).start()

    def _join(self, client: socket.socket) -> None:
        with client, socket.create_connection(("127.0.0.1", self._port)) as server, suppress(OSError):
            while request := client.recv(65_536):
                pushing = b"LPUSH" in request
                while pushing and (
                    request.count(b"LPUSH") < RedisPipelinePublisher.window or not request.endswith(b"\r\n")
                ):
                    request += client.recv(65_536)
                server.sendall(request)
                answer = server.recv(65_536)
                if not pushing:
                    client.sendall(answer)
                    continue
                while answer.count(b"\r\n") < RedisPipelinePublisher.window:
                    answer += server.recv(65_536)
                client.sendall(b"".join(answer.splitlines(keepends=True)[: self._answers]))
                while self._half_open and client.recv(65_536):
                    pass
                return
