"""`args` and `kwargs` of a row: JSON within the limits that every database, serializer and worker carries."""

from __future__ import annotations

import json
import re
from typing import Any

from celery_qbeat.core.limits import INTEGER_RANGE, MAX_DEPTH, MAX_PAYLOAD
from celery_qbeat.errors import JobError

NO_ARGS, NO_KWARGS = "[]", "{}"


class BeyondLimits(ValueError):
    """JSON that breaks a limit. The message is a predicate that says what would have worked."""


def check_payload(args: str, kwargs: str) -> None:
    """Raise JobError unless `args` is a JSON list, `kwargs` a JSON object, and both together small enough."""
    if args == NO_ARGS and kwargs == NO_KWARGS:
        return
    # Characters first: a text takes at least as many bytes, and a long one is not worth encoding.
    size = len(args) + len(kwargs)
    if size <= MAX_PAYLOAD:
        size = len(args.encode(errors="surrogatepass")) + len(kwargs.encode(errors="surrogatepass"))
    if size > MAX_PAYLOAD:
        raise JobError(
            f"args: args and kwargs take more than {MAX_PAYLOAD:,} bytes together; "
            "store the data and pass its key instead",
            field="args",
        )
    _check_json("args", args, list, '[1, "two"]')
    _check_json("kwargs", kwargs, dict, '{"name": "value"}')


def _check_json(field: str, text: str, wanted: type, example: str) -> None:
    try:
        value = read_json(text)
    except BeyondLimits as error:
        raise JobError(f"{field}: {shortened(text)} {error}", field=field) from None
    except ValueError as error:
        raise JobError(
            f"{field}: {shortened(text)} is not JSON ({error}); write it like {example}", field=field
        ) from None
    if not isinstance(value, wanted):
        kind = "list" if wanted is list else "object"
        raise JobError(f"{field}: {shortened(text)} is not a JSON {kind}; write it like {example}", field=field)


def read_json(text: str) -> Any:
    """The value of a JSON text.

    Raises:
        BeyondLimits: it breaks a limit on depth, numbers or keys.
        json.JSONDecodeError: it is no JSON.
    """
    check_depth(text)
    return _DECODER.decode(text)


def check_depth(text: str) -> None:
    """Raise BeyondLimits for JSON nested too deeply, in one pass and without recursion: before the decoder recurses."""
    if text.count("[") + text.count("{") <= MAX_DEPTH:
        return
    depth = 0
    for match in _TOKEN.finditer(text):
        token = match[0]
        if token in "[{":
            depth += 1
            if depth > MAX_DEPTH:
                raise BeyondLimits(
                    f"is nested too deeply, in more than {MAX_DEPTH} levels; write it flatter, or store the data "
                    "and pass its key"
                )
        elif token in "]}":
            depth -= 1


# A string without its end reaches to the end of the text, so that each character is looked at once.
_TOKEN = re.compile(r'"(?:[^"\\]++|\\.)*+"?|[\[\]{}]', re.DOTALL)


def _integer(digits: str) -> int:
    # Python refuses to convert thousands of digits, with a reason about itself.
    value = int(digits) if len(digits) <= 20 else INTEGER_RANGE[1] + 1
    if not INTEGER_RANGE[0] <= value <= INTEGER_RANGE[1]:
        shown = digits if len(digits) <= 40 else f"{digits[:20]}... of {len(digits):,} digits"
        raise BeyondLimits(
            f"holds the integer {shown}, outside of 64 bits ({INTEGER_RANGE[0]} to {INTEGER_RANGE[1]}); "
            "write it as a string"
        )
    return value


_INFINITE = (float("inf"), float("-inf"))


def _float(digits: str) -> float:
    value = float(digits)
    if value in _INFINITE:
        raise BeyondLimits(f"holds the number {shortened(digits, 40)}, which is too large; write it as a string")
    return value


def _constant(name: str) -> None:
    raise BeyondLimits(f"holds {name}, which is a number of Python, not of JSON; write null or a string")


def _object(pairs: dict[str, Any]) -> dict[str, Any]:
    if "__type__" in pairs:
        raise BeyondLimits(
            "holds an object with the key '__type__', of which Celery makes another type in the worker; use another key"
        )
    return pairs


_DECODER = json.JSONDecoder(object_hook=_object, parse_int=_integer, parse_float=_float, parse_constant=_constant)


def shortened(text: str, most: int = 60) -> str:
    """A text as errors quote it: on one line, cut after `most` characters."""
    return repr(text if len(text) <= most else text[:most] + "...")


def shown(value: object) -> str:
    """A value as errors quote it when it is no text."""
    try:
        return repr(value)
    except ValueError:  # Python writes out no whole number of thousands of digits.
        return f"a {type(value).__name__} too long to be shown"
