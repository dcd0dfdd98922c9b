"""Messages as the broker has them: their size is known before anything in them is decoded or decompressed.

Anybody who can write to the broker can send anything, and kombu decompresses a body as soon as it sees the message.
"""

from __future__ import annotations

import base64
import bz2
import json
import lzma
import zlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

MOST_ENVELOPE_BYTES = 64 * 1024
"""The largest message that is looked at, headers included, in bytes. A message about an end has about 1,500."""

MOST_BODY_BYTES = 16 * 1024
"""The largest body that is decoded, in bytes, before and after its decompression."""

MOST_LZMA_MEMORY = 64 * 1024 * 1024
"""The memory that decompressing may take, in bytes: an lzma body of a few bytes can ask for gigabytes."""


class ForeignMessage(Exception):
    """The message does not come from a run of ours. Its text says why in a word or two, and quotes nothing."""


@dataclass(frozen=True, slots=True)
class RawMessage:
    """A message whose body is as its sender encoded it."""

    body: bytes
    content_type: str = ""
    content_encoding: str = ""
    headers: Mapping[str, Any] = field(default_factory=dict)


def from_redis(raw: bytes) -> RawMessage:
    """The message in an item of kombu's list. Raises NotOurs for anything else."""
    if len(raw) > MOST_ENVELOPE_BYTES:
        raise ForeignMessage("too large")
    try:
        return from_payload(json.loads(raw.decode()))
    except (ValueError, RecursionError):
        raise ForeignMessage("no message") from None


def from_payload(payload: Any) -> RawMessage:
    """The message in a payload of kombu's virtual transports. Raises NotOurs for anything else."""
    properties = payload.get("properties") if isinstance(payload, dict) else None
    headers = payload.get("headers") or {} if isinstance(payload, dict) else None
    body = payload.get("body") if isinstance(payload, dict) else None
    if not (isinstance(properties, dict) and isinstance(headers, dict) and isinstance(body, str)):
        raise ForeignMessage("no message")
    try:
        encoded = base64.b64decode(body) if properties.get("body_encoding") == "base64" else body.encode()
    except ValueError:
        raise ForeignMessage("no message") from None
    return RawMessage(encoded, str(payload.get("content-type")), str(payload.get("content-encoding")), headers)


def from_amqp(message: Any) -> RawMessage:
    """The message in what py-amqp delivers, whose channel must not decode bodies (`auto_decode`)."""
    kinds = message.properties
    return RawMessage(
        bytes(message.body),
        kinds.get("content_type") or "",
        kinds.get("content_encoding") or "",
        kinds.get("application_headers") or {},
    )


def json_of(message: Any) -> Any:
    """The JSON in a message; it has the attributes of `RawMessage`. Raises NotOurs when that is not what is in it."""
    body: bytes = message.body.encode() if isinstance(message.body, str) else message.body
    if len(body) > MOST_BODY_BYTES:
        raise ForeignMessage("too large")
    if message.content_type != "application/json" or str(message.content_encoding).lower() != "utf-8":
        raise ForeignMessage("not JSON in UTF-8")
    if compression := message.headers.get("compression"):
        body = _decompressed(body, compression)
    try:
        return json.loads(body.decode())
    except (ValueError, RecursionError):
        raise ForeignMessage("not JSON in UTF-8") from None


def _decompressed(body: bytes, compression: Any) -> bytes:
    """With the app's `task_compression`, workers compress what they report. Never gives more than the limit."""
    decoder = _DECODERS.get(compression) if isinstance(compression, str) else None
    if decoder is None:
        raise ForeignMessage("compressed in a way that is not read")
    try:
        plain = decoder(body, MOST_BODY_BYTES + 1)
    except (zlib.error, lzma.LZMAError, OSError, ValueError, EOFError):
        raise ForeignMessage("broken compression") from None
    if len(plain) > MOST_BODY_BYTES:
        raise ForeignMessage("too large")
    return plain


def _unzip(body: bytes, most: int) -> bytes:
    return zlib.decompressobj().decompress(body, most)


def _unbzip2(body: bytes, most: int) -> bytes:
    return bz2.BZ2Decompressor().decompress(body, most)


def _unxz(body: bytes, most: int) -> bytes:
    return lzma.LZMADecompressor(memlimit=MOST_LZMA_MEMORY).decompress(body, most)


_DECODERS: dict[str, Callable[[bytes, int], bytes]] = {
    "application/x-gzip": _unzip,
    "application/x-bz2": _unbzip2,
    "application/x-lzma": _unxz,
}
"""By the name that kombu writes into the header. It knows two more, of libraries that may not be there."""
