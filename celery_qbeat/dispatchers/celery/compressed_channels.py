"""Channels of kombu on which bodies stay as they are: kombu decompresses each as soon as it arrives, whatever its size.

kombu makes messages with the attribute `Message` of a channel; `tests/contract/test_completions_floods.py` shows it.
"""

from __future__ import annotations

from typing import Any

HEADER = "compression"


def leave_compressed(channel: Any) -> None:
    """Let messages on this channel keep their bodies as they came, with their attribute `compression`."""
    if not issubclass(channel.Message, _LeftCompressed):
        kind = _Virtual if hasattr(channel, "decode_body") else _Amqp
        channel.Message = type("Message", (kind, channel.Message), {})


class _LeftCompressed:
    compression: Any = None


class _Virtual(_LeftCompressed):
    """In front of the messages of virtual transports, whose payload is a mapping."""

    def __init__(self, payload: Any, channel: Any = None, **options: Any) -> None:
        headers = {**(payload.get("headers") or {})}
        self.compression = headers.pop(HEADER, None)
        super().__init__({**payload, "headers": headers}, channel=channel, **options)  # type: ignore[call-arg]

    def serializable(self) -> dict[str, Any]:
        """For the return into the queue."""
        data: dict[str, Any] = super().serializable()  # type: ignore[misc]
        return {**data, "headers": {**data["headers"], HEADER: self.compression}} if self.compression else data


class _Amqp(_LeftCompressed):
    """In front of the messages of py-amqp."""

    def __init__(self, message: Any, channel: Any = None, **options: Any) -> None:
        headers = message.properties.get("application_headers")
        if headers:
            self.compression = headers.pop(HEADER, None)
        super().__init__(message, channel=channel, **options)  # type: ignore[call-arg]
