"""A lock in Redis decides which of many beats tries to dispatch."""

from __future__ import annotations

import math
import uuid
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from redis.exceptions import RedisError

from celery_qbeat.core.identity import database_id
from celery_qbeat.core.safe_text import one_line
from celery_qbeat.errors import NotBound, SettingsError, Unavailable
from celery_qbeat.gates.beat_registry import SEEN_FOR_S, BeatAnnouncement, BeatList, read_announced
from celery_qbeat.gates.foreign_lock import ENDLESS, ForeignLock, is_beats_value
from celery_qbeat.gates.redis_errors import explain
from celery_qbeat.gates.redis_server import RedisServer
from celery_qbeat.ports import Clock, LockLease
from celery_qbeat.process.safe_logging import get_logger

log = get_logger()

SHORTEST_TTL_S = 2.0
"""Asking the workers whether they still have a run takes a second, and the lock is not renewed meanwhile."""

POLLS_PER_TTL = 3

# One call renews or acquires (ARGV[3] is '1') or gives back what is left. The answer is the begin of the lock's value
# afterwards, empty for none, the milliseconds that it has left, and for another one's lock a mark that is the same for
# as long as the value is. ARGV[5] is the mark of a lock without TTL that may be replaced.
# The value is "<token of the beat>:<number of the call that acquired it>". So a key that was lost and made again has
# another value, and the caller sees a new term even if the answer to the call that made it never arrived.
# DEL comes before SET because of a full Redis (maxmemory, noeviction): it refuses SET there, but not after a command
# of the same script that writes and needs no memory. tests/contract/test_gate_troubles.py shows it.
# Sent as EVAL: a Redis that restarted or forgot its scripts needs no second attempt.
_HOLD = """
local held, mark = redis.pcall('GET', KEYS[1]), ''
if type(held) == 'table' then
  if not string.find(held.err, 'WRONGTYPE', 1, true) then return held end
  held = ''
end
local mine = held and string.sub(held, 1, #ARGV[1]) == ARGV[1]
if held and not mine then mark = #held .. ':' .. redis.sha1hex(string.sub(held, 1, 1000)) end
local abandoned = mark ~= '' and mark == ARGV[5] and redis.call('PTTL', KEYS[1]) == -1
if ARGV[3] == '1' then
  if mine then
    redis.call('PEXPIRE', KEYS[1], ARGV[4])
  elseif not held or abandoned then
    held, mark = ARGV[2], ''
    redis.call('DEL', KEYS[1])
    redis.call('SET', KEYS[1], held, 'PX', ARGV[4])
  end
elseif mine then
  redis.call('DEL', KEYS[1])
  held = false
end
return {string.sub(held or '', 1, 100), redis.call('PTTL', KEYS[1]), mark}
"""

_RELEASE = """
local held = redis.pcall('GET', KEYS[1])
if type(held) == 'string' and string.sub(held, 1, #ARGV[1]) == ARGV[1] then
  redis.call('DEL', KEYS[1])
end
return 1
"""

# The last item says what is wrong with the list, which may be of any type as the lock may.
_LOOK = """
local clock = redis.call('TIME')
local now = clock[1] * 1000 + math.floor(clock[2] / 1000)
local held, listed = redis.pcall('GET', KEYS[1]), redis.pcall('ZREVRANGE', KEYS[2], 0, 199, 'WITHSCORES')
if type(held) == 'table' then
  if not string.find(held.err, 'WRONGTYPE', 1, true) then return held end
  held = ''
end
local trouble = listed.err or ''
if listed.err then listed = {} end
return {string.sub(held or '', 1, 100), redis.call('PTTL', KEYS[1]), now, listed, trouble}
"""

GONE = -2
"""What PTTL says of a key that is not there."""


@dataclass(frozen=True, slots=True)
class AnnouncedBeat:
    """A beat that announced itself: `holder` as it names itself, `since_us` by its own clock, `seen_s` seconds ago."""

    holder: str
    since_us: int
    seen_s: float
    writer: bool


@dataclass(frozen=True, slots=True)
class LockHolder:
    """Who has the lock, `holder` empty when that beat is not listed; without a renewal it ends in `left_s` seconds.

    `left_s` None: never; no beat makes such a lock. `foreign`: no beat wrote its value. `key`: its key in Redis.
    """

    holder: str
    left_s: float | None
    foreign: bool = False
    key: str = ""


def lock_key(namespace: str, instance: str) -> str:
    """The key of a database's lock. The list of its beats has the same hash tag: a cluster keeps both in one slot."""
    return f"qbeat:{{{namespace}:{database_id(instance)}}}:lock"


class RedisGate:
    """Holds while its token is in Redis, under `lock_key(namespace, instance)`: each database has its own lock.

    `ttl_s`: how long the lock outlives its holder. `poll_s`: the longest time between two calls of `hold`. `holder`:
    how this beat calls itself, e.g. `host:pid`. `margin_s`: how much less than Redis this side trusts the lock, so that
    clocks of different speed do no harm; a tenth of the TTL and at least half a second unless given.
    Raises SettingsError for a URL that cannot be understood and for a TTL that the polls cannot keep. Connects on
    first use.
    """

    def __init__(
        self,
        url: str,
        namespace: str,
        ttl_s: float,
        poll_s: float,
        holder: str,
        *,
        clock: Clock,
        margin_s: float | None = None,
    ) -> None:
        _check_ttl(ttl_s, poll_s)
        self._margin_s = max(0.5, ttl_s / 10) if margin_s is None else margin_s
        timeout_s = min(1.0, ttl_s / 4)
        self._server = RedisServer(url, timeout_s)
        self._namespace = namespace
        self._instance = ""
        self._keys: tuple[str, str] | None = None
        self._ttl_s = ttl_s
        self._pause_s = min(poll_s, timeout_s)
        self._clock = clock
        self._token = uuid.uuid4().hex
        me = BeatAnnouncement(self._token, holder, clock.now_us())
        self._list = BeatList(self._server, namespace, me, max(SEEN_FOR_S, 3 * ttl_s))
        self._calls = 0
        self._lease: LockLease | None = None
        self._trouble = ""
        self._odd = ForeignLock(3 * ttl_s, self._server.where)
        self._ask_again = float("-inf")
        self._yielded_until: float | None = None

    def bind(self, instance: str) -> None:
        """See `ports.Gate`. The list of beats follows with the next `hold`."""
        if instance == self._instance:
            return
        if self._keys is not None:
            self.release()
        key = lock_key(self._namespace, instance)
        self._instance, self._keys = instance, (key, key.removesuffix("lock") + "beats")
        self._list.bind(self._keys[1], database_id(instance))
        self._ask_again, self._yielded_until = float("-inf"), None
        self._odd.forget()

    def acquire_or_renew(self) -> LockLease | None:
        """Acquire or renew. None: another beat has the lock, or Redis is away and its last answer no longer trusted.

        Waits for about `min(1 s, TTL / 4)` at most, twice that when Redis falls silent between the lock and the list
        of beats, and after a failure asks again no sooner than that (or a poll) later.
        """
        if self._keys is None:
            raise NotBound
        started = self._clock.monotonic()
        if started < self._ask_again:
            return self._still_trusted(started)
        try:
            value, left_ms, mark = self._call(take=not self._yielded(started))
        except (RedisError, OSError) as error:
            now = self._clock.monotonic()
            self._ask_again = now + self._pause_s
            lease = self._still_trusted(now)
            if lease is None:
                self._say_trouble(error)
            return lease
        self._say_back()
        self._list.announce(started)
        if value.startswith(self._token.encode()):
            if self._odd.abandoned(started):
                self._odd.taken_over(self._keys[0])
            self._lease = LockLease(value.decode(), started + self._ttl_s - self._margin_s)
            return self._lease
        self._lease = None
        if mark:
            self._yielded_until = None
            self._odd.see(self._keys[0], value, mark, left_ms, started)
        else:
            self._odd.forget()
        return None

    def reason(self) -> str:
        return self._trouble or self._odd.reason

    def resign_until_replaced(self) -> None:
        """Give the lock back and leave it to the others until one had it, or for one TTL if there is none."""
        self._yielded_until = self._clock.monotonic() + self._ttl_s
        self.step_aside()

    def step_aside(self) -> bool:
        """Give the lock back, True if it was held; the next `hold` asks for it as any other beat does."""
        held, self._lease = self._lease is not None, None
        self._give_back()
        return held

    def release(self) -> None:
        """Give the lock back at once and stop being listed. If Redis is away, the lock ends by itself after its TTL."""
        self._lease = None
        if self._give_back():
            try:
                self._list.withdraw()
            except (RedisError, OSError) as error:
                log.debug("gate: this beat stays listed for a while: %s", error)
        self._server.close()

    def describe(self) -> str:
        return f"lock in Redis at {self._server.where}"

    def beats(self) -> tuple[AnnouncedBeat, ...]:
        """Beats that announced themselves within the last minute, the writer first. Raises Unavailable."""
        value, _, now_ms, announced, trouble = self._look()
        if trouble:
            raise Unavailable(f"gate: the list of beats cannot be read: {trouble} (redis-cli DEL '{self._list.key}')")
        token = _token(value)
        found = []
        for member, seen_ms in zip(announced[::2], announced[1::2], strict=True):
            seen_s = max(0.0, (now_ms - float(seen_ms)) / 1000)
            if (beat := read_announced(member)) and math.isfinite(seen_s):
                found.append(AnnouncedBeat(beat.holder, beat.since_us, seen_s, writer=beat.token == token))
        return tuple(sorted(found, key=lambda beat: (not beat.writer, beat.since_us)))

    def lock_holder(self) -> LockHolder | None:
        """Who has the lock now, and how long it would last; None when nobody has it. Raises Unavailable."""
        value, left_ms, _, announced, _ = self._look()
        if left_ms == GONE:
            return None
        known = {beat.token: beat.holder for beat in map(read_announced, announced[::2]) if beat}
        left_s = None if left_ms == ENDLESS else max(0, left_ms) / 1000
        key = self._keys[0] if self._keys else ""
        return LockHolder(known.get(_token(value), ""), left_s, not is_beats_value(value), key)

    # ------------------------------------------------------------------

    def _call(self, *, take: bool) -> tuple[bytes, int, str]:
        self._calls += 1
        new = f"{self._token}:{self._calls}"
        abandoned = self._odd.abandoned(self._clock.monotonic())
        value, left_ms, mark = self._eval(_HOLD, [self._token, new, int(take), _ms(self._ttl_s), abandoned])
        return value, left_ms, mark.decode()

    def _look(self) -> tuple[bytes, int, int, Sequence[bytes], str]:
        try:
            value, left_ms, now_ms, announced, trouble = self._eval(_LOOK, [])
        except (RedisError, OSError) as error:
            raise Unavailable(f"gate: {explain(error)} ({self._server.where}: {error})") from error
        return value, left_ms, now_ms, announced, one_line(trouble.decode(errors="replace"))

    def _eval(self, script: str, arguments: Sequence[str | int]) -> Any:
        if self._keys is None:
            raise NotBound
        return self._server.eval(script, self._keys, arguments)

    def _give_back(self) -> bool:
        """Whether it was given back, as far as anybody can tell."""
        if self._keys is None:
            return False
        try:
            self._server.eval(_RELEASE, self._keys, [self._token])
        except (RedisError, OSError) as error:
            log.debug("gate: the lock could not be given back, it ends by itself: %s", error)
            return False
        return True

    def _yielded(self, now: float) -> bool:
        if self._yielded_until is not None and now >= self._yielded_until:
            self._yielded_until = None
        return self._yielded_until is not None

    def _still_trusted(self, now: float) -> LockLease | None:
        if self._lease is not None and now >= self._lease.trusted_until:
            self._lease = None
        return self._lease

    def _say_trouble(self, error: Exception) -> None:
        fact = explain(error)
        if fact != self._trouble:
            self._trouble = fact
            log.warning("gate: %s: jobs paused (%s: %s)", fact, self._server.where, error)

    def _say_back(self) -> None:
        if self._trouble:
            self._trouble = ""
            log.warning("gate: Redis is back (%s)", self._server.where)


def _token(value: bytes) -> str:
    return value.partition(b":")[0].decode("ascii", "replace")


def _ms(seconds: float) -> int:
    return round(seconds * 1000)


def _check_ttl(ttl_s: float, poll_s: float) -> None:
    least = max(SHORTEST_TTL_S, POLLS_PER_TTL * poll_s)
    if ttl_s < least:
        ways = [f"a lock of {least:g} s or longer"]
        if ttl_s >= SHORTEST_TTL_S:
            ways.append(f"polls of {ttl_s / POLLS_PER_TTL:g} s or shorter")
        raise SettingsError(
            f"qbeat_lock_ttl: {ttl_s:g} s is too short for polls of {poll_s:g} s (qbeat_poll_interval): "
            f"it takes {' or '.join(ways)}"
        )
