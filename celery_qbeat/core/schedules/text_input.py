"""Reading what a person typed: quoting it back, splitting it, refusing what cannot be meant."""

from __future__ import annotations

import re
from typing import NoReturn

from celery_qbeat.errors import ScheduleError

LONGEST = 1_000

_CONTROL = re.compile(r"[\x00-\x08\x0a-\x1f\x7f]")


def quote(text: str) -> str:
    """The input as it stands in an error: one line, nothing invisible, never long."""
    return repr(text if len(text) <= 60 else text[:57] + "...")


def refuse(field: str, text: str, reason: str) -> NoReturn:
    """Raise the ScheduleError of a field: one sentence of its name, the input, and the reason, a predicate that says
    what would have worked."""
    raise ScheduleError(f"{field} {quote(text)} {reason}", field=field)


def check(text: object, field: str, longest: int = LONGEST) -> str:
    """The text itself if it is text of a usable size without control characters, else a ScheduleError."""
    if not isinstance(text, str):
        raise ScheduleError(f"{field} must be text, not {quote(repr(text))}", field=field)
    if len(text) > longest:
        refuse(field, text, f"is {len(text)} characters long; at most {longest} are read")
    if _CONTROL.search(text):
        refuse(field, text, "has a control character (a line break, a NUL) in it; write it in one plain line")
    return text


def strip(text: str) -> str:
    """Without the blanks around it; only spaces and tabs are blanks."""
    return text.strip(" \t")


def items(text: str, field: str, example: str) -> list[str]:
    """The items of a comma-separated list; an empty item is refused, an empty text is an empty list."""
    if not strip(text):
        return []
    found = [strip(item) for item in text.split(",")]
    if "" in found:
        refuse(field, text, f"has a comma with nothing beside it; write e.g. {example!r}")
    return found
