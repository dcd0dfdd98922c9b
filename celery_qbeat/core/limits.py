"""The limits on what one row may hold. `docs/security.md` has a table of them with the reasons."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

MAX_PAYLOAD = 64 * 1024
"""Bytes of UTF-8 that `args` and `kwargs` of a row may take together."""

MAX_DEPTH = 30
"""Levels of nesting of `args` and of `kwargs`. MariaDB stores 31; about 500 end a Celery worker that unpacks them."""

INTEGER_RANGE = (-(2**63), 2**63 - 1)
"""Smallest and largest integer in `args` and `kwargs`: what every database and every serializer carries."""

MAX_DATES = 1_000
"""Dates in `dates_skip`."""

MAX_DATES_TEXT = 16_384
"""Characters of `dates_skip`."""

MAX_LIST = 65_535
"""Characters of `queues` and of `functions` of a scope."""

MAX_NUMBER_TEXT = 255
"""Characters that SQLite may bring of a column that should hold a number."""

MAX_CHARACTERS: Mapping[str, int] = MappingProxyType(
    {
        "id": 191,
        "fn": 255,
        "schedule_kind": 16,
        "schedule": 255,
        "worker": 64,
        "args": MAX_PAYLOAD,
        "kwargs": MAX_PAYLOAD,
        "timezone": 64,
        "days_only": 32,
        "days_skip": 32,
        "dates_skip": MAX_DATES_TEXT,
        "overlap": 16,
        "catch_up": 16,
        "on_doubt": 16,
        "queue": 255,
    }
)
"""The length of each text of `qbeat_jobs` that the scheduler reads: the column's own, which SQLite does not enforce."""
