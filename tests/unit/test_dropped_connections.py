"""A connection to a broker is forgotten, whatever the broker says to its closing."""

from __future__ import annotations

from redis.exceptions import ResponseError

from celery_qbeat.dispatchers.celery.broker import drop


class Refusing:
    """A connection whose channels cannot be closed while the broker is full."""

    connection_errors = (ConnectionError,)
    channel_errors = (ResponseError,)

    def __init__(self, channels: int) -> None:
        self.channels = channels

    def collect(self, _timeout_s: float) -> None:
        if self.channels:
            self.channels -= 1
            raise ResponseError("OOM command not allowed when used memory > 'maxmemory'")


def test_a_connection_is_dropped_though_the_broker_refuses_to_close_it() -> None:
    connection = Refusing(channels=3)
    drop(connection)
    assert connection.channels == 0
