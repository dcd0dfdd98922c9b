"""The beats that announce themselves in Redis: for `status`, and to find out who else uses a namespace.

Nothing of this decides who dispatches, so each call is a best effort.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from redis.exceptions import RedisError

from celery_qbeat.core.safe_text import one_line
from celery_qbeat.gates.redis_server import RedisServer
from celery_qbeat.process.safe_logging import get_logger

log = get_logger()

ANNOUNCE_S = 5.0
"""Seconds between two announcements of a beat."""

SEEN_FOR_S = 60.0
"""Seconds for which a beat is listed after its last announcement."""

YEAR_9999_US = 253_370_764_800_000_000

MOST_LETTERS = 255

MOST_TOLD = 20
"""Other databases that are named in the log; more are junk, or known to be many by then."""

_ANNOUNCE = """
local clock = redis.call('TIME')
local now = clock[1] * 1000 + math.floor(clock[2] / 1000)
redis.call('ZREMRANGEBYSCORE', KEYS[1], '-inf', now - ARGV[2])
redis.call('ZADD', KEYS[1], now, ARGV[1])
redis.call('PEXPIRE', KEYS[1], ARGV[2])
return redis.call('ZREVRANGE', KEYS[1], 0, 199)
"""

_WITHDRAW = "return redis.call('ZREM', KEYS[1], ARGV[1])"

# The lock and the list of versions that named them after the namespace alone.
_LOOK_FOR_OLD = """
local held = redis.pcall('GET', KEYS[1])
local listed = redis.pcall('ZREVRANGE', KEYS[2], 0, 199)
if type(held) ~= 'string' then held = '' end
if listed.err then listed = {} end
return {held, listed}
"""


@dataclass(frozen=True, slots=True)
class BeatAnnouncement:
    """What a beat says of itself in the list of its database."""

    token: str
    holder: str
    since_us: int


class BeatList:
    """Announces one beat, in the list of its database and in the list of databases of its namespace.

    Says once for each of them when another database uses the namespace, when a beat of an older version holds the
    namespace's old lock, and when announcing does not work.
    """

    def __init__(self, server: RedisServer, namespace: str, me: BeatAnnouncement, kept_s: float) -> None:
        self._server = server
        self._namespace = namespace
        self._me = me
        self._kept_ms = round(kept_s * 1000)
        self._databases = f"qbeat:{{{namespace}}}:databases"
        self._old = (f"qbeat:{{{namespace}}}:lock", f"qbeat:{{{namespace}}}:beats")
        self.key = self._database = ""
        self._again = float("-inf")
        self._told: set[str] = set()
        self._announced = self._failing = False

    def bind(self, key: str, database: str) -> None:
        """Announce in this list, as a beat of this database, from the next call on."""
        self.key, self._database = key, database
        self._again = float("-inf")

    def announce(self, now: float) -> None:
        """Say "here I am" when that is due, and tell who else is there. Never raises."""
        if now < self._again:
            return
        self._again = now + ANNOUNCE_S
        self._announced = True
        try:
            self._server.eval(_ANNOUNCE, [self.key], [self._member, self._kept_ms])
            others = self._server.eval(_ANNOUNCE, [self._databases], [self._database_member, self._kept_ms])
            old = self._server.eval(_LOOK_FOR_OLD, self._old, [])
        except (RedisError, OSError) as error:
            if not self._failing:
                log.warning(
                    "gate: this beat is not listed for `status`, but the lock works without that (%s: %s)",
                    self._server.where,
                    error,
                )
            self._failing = True
            return
        self._failing = False
        self._tell_databases(others)
        self._tell_old(*old)

    def withdraw(self) -> None:
        """Stop being listed. Raises RedisError and OSError."""
        if self._announced:
            self._announced = False
            self._server.eval(_WITHDRAW, [self.key], [self._member])
            self._server.eval(_WITHDRAW, [self._databases], [self._database_member])

    @property
    def _member(self) -> str:
        return json.dumps([self._me.token, self._me.holder, self._me.since_us])

    @property
    def _database_member(self) -> str:
        return json.dumps([self._database, self._me.holder])

    def _tell_databases(self, members: Iterable[bytes]) -> None:
        for member in members:
            database, holder = _database(member)
            if database and database not in {self._database, *self._told} and len(self._told) < MOST_TOLD:
                self._told.add(database)
                log.warning(
                    "gate: namespace %r on this Redis is also used by database %s (beat %s); this beat's is %s, and "
                    "each dispatches its own rows. If they should be one, give all beats the same qbeat_database_url",
                    self._namespace,
                    database,
                    holder,
                    self._database,
                )

    def _tell_old(self, held: bytes, listed: Sequence[bytes]) -> None:
        token = held.partition(b":")[0].decode("ascii", "replace")
        if token and token not in self._told:
            self._told.add(token)
            found = [entry.holder for entry in map(read_announced, listed) if entry and entry.token == token]
            log.warning(
                "gate: a beat of an older version (%s) holds the lock %s. It does not stop this beat: if it works on "
                "the same database, end it, or the two take turns",
                found[0] if found else "it is not listed",
                self._old[0],
            )


def read_announced(member: bytes) -> BeatAnnouncement | None:
    """An entry of a database's list; None for what no beat wrote."""
    found = _listed(member)
    if len(found) != 3:
        return None
    token, holder, since_us = found
    if not (isinstance(token, str) and isinstance(holder, str) and isinstance(since_us, int)):
        return None
    return BeatAnnouncement(token, _printable(holder), since_us) if 0 <= since_us < YEAR_9999_US else None


def _database(member: bytes) -> tuple[str, str]:
    """The database and the beat of an entry in the list of databases; empty texts for what no beat wrote."""
    found = _listed(member)
    if len(found) != 2 or not all(isinstance(item, str) for item in found):
        return "", ""
    return _printable(found[0]), _printable(found[1])


def _listed(member: bytes) -> Sequence[Any]:
    try:
        found = json.loads(member)
    except (ValueError, RecursionError):
        return ()
    return found if isinstance(found, list) else ()


def _printable(text: str) -> str:
    """Anybody who can write to this Redis can write to the list."""
    return one_line(text[:MOST_LETTERS])
