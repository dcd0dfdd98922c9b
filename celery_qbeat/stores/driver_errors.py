"""What drivers raise, in words of ours: the kinds of trouble, and which of them cost the connection."""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum

from sqlalchemy.exc import DBAPIError

from celery_qbeat.errors import QbeatError, SchemaError, Unavailable


class Trouble(Enum):
    """What a driver's error means for the statement that met it."""

    LOST = "the connection is gone"
    BUSY = "not now: locked, full, shutting down"
    DEADLOCK = "rolled back for another transaction's sake"
    READ_ONLY = "this session may not write"
    SCHEMA = "a table is missing, or the right to use it"
    DATA = "the statement cannot work with these values"
    UNKNOWN = "nobody knows: it may be this session's fault"


class BadData(QbeatError):
    """The database refused a value."""


class Lost(Exception):
    """The connection broke; whether that leaves doubt is for the caller to say."""


class Deadlock(Exception):
    """Nothing was done, and the same may be tried at once."""


RAISED: dict[Trouble, type[Exception]] = {
    Trouble.LOST: Lost,
    Trouble.DEADLOCK: Deadlock,
    Trouble.BUSY: Unavailable,
    Trouble.READ_ONLY: Unavailable,
    Trouble.UNKNOWN: Unavailable,
    Trouble.SCHEMA: SchemaError,
    Trouble.DATA: BadData,
}
OF_DRIVERS = UnicodeError | OverflowError | OSError
"""What drivers raise beside their own errors: for values that they cannot send, for a broken socket."""
DROPS = {Trouble.LOST, Trouble.READ_ONLY, Trouble.UNKNOWN}
# Another session may not have these: another server behind a proxy, another file in the place of this one.
MAY_STICK = {Trouble.BUSY, Trouble.SCHEMA}


def told(error: BaseException) -> str:
    """The database's own words, on one line."""
    cause = error.orig if isinstance(error, DBAPIError) and error.orig is not None else error
    words = cause.args[1] if len(cause.args) > 1 and isinstance(cause.args[0], int) else cause
    if cause.args and isinstance(cause.args[0], Mapping):
        words = cause.args[0].get("M", cause)
    return str(words).strip().split("\n")[0] or type(cause).__name__
