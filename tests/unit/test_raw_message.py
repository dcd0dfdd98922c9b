"""Messages that a stranger made to cost as much as possible: their size is limited before and after each step."""

from __future__ import annotations

import base64
import bz2
import json
import lzma
import tracemalloc
import zlib
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from celery_qbeat.dispatchers.celery.raw_message import (
    MOST_BODY_BYTES,
    MOST_ENVELOPE_BYTES,
    ForeignMessage,
    RawMessage,
    from_payload,
    from_redis,
    json_of,
)

COMPRESSORS: dict[str, Callable[[bytes], bytes]] = {
    "application/x-gzip": zlib.compress,
    "application/x-bz2": bz2.compress,
    "application/x-lzma": lzma.compress,
}
PAYLOAD = [[], {"run": "x"}, {}]


def message(body: bytes, **headers: Any) -> RawMessage:
    return RawMessage(body, "application/json", "utf-8", headers)


def envelope(**changes: Any) -> dict[str, Any]:
    body = base64.b64encode(json.dumps(PAYLOAD).encode()).decode()
    kinds = {"content-type": "application/json", "content-encoding": "utf-8"}
    return {"body": body, "headers": {}, "properties": {"body_encoding": "base64"}, **kinds, **changes}


@pytest.mark.parametrize("compression", list(COMPRESSORS))
def test_what_a_worker_compressed_is_read(compression: str) -> None:
    body = COMPRESSORS[compression](json.dumps(PAYLOAD).encode())
    assert json_of(message(body, compression=compression)) == PAYLOAD


@pytest.mark.parametrize("compression", list(COMPRESSORS))
def test_a_bomb_is_not_unpacked(compression: str) -> None:
    bomb = COMPRESSORS[compression](b" " * 10_000_000)
    assert len(bomb) <= MOST_BODY_BYTES
    tracemalloc.start()
    with pytest.raises(ForeignMessage, match="too large"):
        json_of(message(bomb, compression=compression))
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 10_000_000


@pytest.mark.parametrize("compression", ["application/zstd", "application/x-brotli", "x", 7, ["gzip"], b"gzip"])
def test_other_compressions_are_not_read(compression: Any) -> None:
    with pytest.raises(ForeignMessage, match="compressed"):
        json_of(message(b"{}", compression=compression))


@given(st.binary(max_size=300), st.sampled_from(list(COMPRESSORS)))
def test_broken_compression_is_no_message(body: bytes, compression: str) -> None:
    with pytest.raises(ForeignMessage):
        json_of(message(body, compression=compression))


def test_an_lzma_body_cannot_ask_for_gigabytes() -> None:
    hungry = lzma.LZMACompressor(format=lzma.FORMAT_XZ, filters=[{"id": lzma.FILTER_LZMA2, "dict_size": 1 << 27}])
    body = hungry.compress(b"{}") + hungry.flush()
    with pytest.raises(ForeignMessage, match="broken compression"):
        json_of(message(body, compression="application/x-lzma"))


@pytest.mark.parametrize("encoding", ["punycode", "idna", "zlib", "unicode_escape", "utf-7", "latin-1", "", None])
def test_only_utf_8_is_decoded(encoding: Any) -> None:
    with pytest.raises(ForeignMessage, match="UTF-8"):
        json_of(RawMessage(b"{}", "application/json", encoding))


def test_a_body_over_the_limit_is_not_decoded() -> None:
    json_of(message(b" " * (MOST_BODY_BYTES - 2) + b"{}"))
    with pytest.raises(ForeignMessage, match="too large"):
        json_of(message(b" " * (MOST_BODY_BYTES - 1) + b"{}"))


def test_a_plain_envelope_is_read() -> None:
    assert json_of(from_redis(json.dumps(envelope()).encode())) == PAYLOAD
    plain = envelope(body=json.dumps(PAYLOAD), properties={})
    assert json_of(from_payload(plain)) == PAYLOAD


@pytest.mark.parametrize(
    "changes",
    [
        {"body": None},
        {"body": 7},
        {"body": ["x"]},
        {"body": "*" * 7},
        {"body": "ü"},
        {"headers": "x"},
        {"headers": [1]},
        {"properties": None},
        {"properties": []},
    ],
)
def test_an_envelope_of_another_form_is_no_message(changes: dict[str, Any]) -> None:
    with pytest.raises(ForeignMessage):
        json_of(from_payload(envelope(**changes)))


@given(st.binary(max_size=300) | st.just(b"[" * 10_000) | st.just(b"1" * 10_000))
def test_any_bytes_in_the_list_are_no_message(raw: bytes) -> None:
    with pytest.raises(ForeignMessage, match="no message"):
        from_redis(raw)


def test_an_envelope_over_the_limit_is_not_decoded() -> None:
    with pytest.raises(ForeignMessage, match="too large"):
        from_redis(b"{" * (MOST_ENVELOPE_BYTES + 1))
