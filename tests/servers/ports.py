"""Free ports on the loopback address."""

from __future__ import annotations

import random
import socket
from contextlib import closing

# Below the range from which Linux takes the ports of outgoing connections, so that a stopped server finds its port
# free again, and away from the default ports of every server here (RabbitMQ's distribution port is 25672).
_PORTS = range(26_000, 32_000)


def free_port() -> int:
    """A port of 127.0.0.1 on which nobody listens at this moment."""
    for _ in range(200):
        port = random.choice(_PORTS)
        with closing(socket.socket(socket.AF_INET, socket.SOCK_STREAM)) as probe:
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
            return port
    raise AssertionError("no free port on 127.0.0.1 in 200 tries")
