"""A lock in Redis decides which of many beats tries to dispatch."""

from __future__ import annotations

import json
import logging
import uuid
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, cast

from redis.exceptions import RedisError

from celery_qbeat.errors import SettingsError, Unavailable
from celery_qbeat.gates.redis_url import connect, hide_password
from celery_qbeat.ports import Clock, Lease

log = logging.getLogger("celery_qbeat")

SHORTEST_TTL_S = 2.0
"""Asking the workers whether they still have a run takes a second, and the lock is not renewed meanwhile."""

POLLS_PER_TTL = 3
SEEN_FOR_S = 60.0

# One call renews or acquires (ARGV[3] is '1') or gives back what is left, and says "here I am". The answer is the
# lock's value afterwards, empty for none.
# The value is "<token of the beat>:<number of the call that acquired it>". So a key that was lost and made again has
# another value, and the caller sees a new term even if the answer to the call that made it never arrived.
# Sent as EVAL: a Redis that restarted or forgot its scripts needs no second attempt.
_HOLD = """
local held = redis.call('GET', KEYS[1])
local mine = held and string.sub(held, 1, #ARGV[1]) == ARGV[1]
if ARGV[3] == '1' then
  if mine then
    redis.call('PEXPIRE', KEYS[1], ARGV[4])
  elseif not held then
    held = ARGV[2]
    redis.call('SET', KEYS[1], held, 'PX', ARGV[4])
  end
elseif mine then
  redis.call('DEL', KEYS[1])
  held = false
end
local clock = redis.call('TIME')
local now = clock[1] * 1000 + math.floor(clock[2] / 1000)
redis.call('ZREMRANGEBYSCORE', KEYS[2], '-inf', now - ARGV[6])
redis.call('ZADD', KEYS[2], now, ARGV[5])
redis.call('PEXPIRE', KEYS[2], ARGV[6])
return held or ''
"""

_RELEASE = """
local held = redis.call('GET', KEYS[1])
if held and string.sub(held, 1, #ARGV[1]) == ARGV[1] then
  redis.call('DEL', KEYS[1])
end
if ARGV[2] ~= '' then
  redis.call('ZREM', KEYS[2], ARGV[2])
end
return 1
"""

_LOOK = """
local clock = redis.call('TIME')
local now = clock[1] * 1000 + math.floor(clock[2] / 1000)
return {redis.call('GET', KEYS[1]) or '', redis.call('PTTL', KEYS[1]), now,
        redis.call('ZRANGE', KEYS[2], 0, -1, 'WITHSCORES')}
"""


@dataclass(frozen=True, slots=True)
class Beat:
    """A beat that announced itself: `holder` as it names itself, `since_us` by its own clock, `seen_s` seconds ago."""

    holder: str
    since_us: int
    seen_s: float
    writer: bool


@dataclass(frozen=True, slots=True)
class Holding:
    """Who has the lock, `holder` empty when that beat is not listed; without a renewal it ends in `left_s` seconds."""

    holder: str
    left_s: float


class RedisGate:
    """Holds while its token is in Redis, under `qbeat:{<namespace>}:lock`.

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
        self._timeout_s = min(1.0, ttl_s / 4)
        self._client = connect(url, self._timeout_s)
        self._where = hide_password(url)
        self._keys = (f"qbeat:{{{namespace}}}:lock", f"qbeat:{{{namespace}}}:beats")
        self._ttl_s = ttl_s
        self._pause_s = min(poll_s, self._timeout_s)
        self._clock = clock
        self._token = uuid.uuid4().hex
        self._me = json.dumps([self._token, holder, clock.now_us()])
        self._calls = 0
        self._lease: Lease | None = None
        self._away = False
        self._ask_again = float("-inf")
        self._yielded_until: float | None = None

    def hold(self) -> Lease | None:
        """Acquire or renew. None: another beat has the lock, or Redis is away and its last answer no longer trusted.

        Waits for about `min(1 s, TTL / 4)` at most, and after a failure asks again no sooner than that (or a poll)
        later.
        """
        started = self._clock.monotonic()
        if started < self._ask_again:
            return self._still_trusted(started)
        try:
            value = self._call(take=not self._yielded(started))
        except (RedisError, OSError) as error:
            now = self._clock.monotonic()
            self._ask_again = now + self._pause_s
            lease = self._still_trusted(now)
            if lease is None:
                self._say_away(error)
            return lease
        self._say_back()
        if value.startswith(self._token):
            self._lease = Lease(value, started + self._ttl_s - self._margin_s)
            return self._lease
        self._lease = None
        if value:
            self._yielded_until = None
        return None

    def yield_(self) -> None:
        """Give the lock back and leave it to the others until one had it, or for one TTL if there is none."""
        self._yielded_until = self._clock.monotonic() + self._ttl_s
        self.let_go()

    def let_go(self) -> bool:
        """Give the lock back, True if it was held; the next `hold` asks for it as any other beat does."""
        held, self._lease = self._lease is not None, None
        self._give_back("")
        return held

    def release(self) -> None:
        """Give the lock back at once and stop being listed. If Redis is away, the lock ends by itself after its TTL."""
        self._lease = None
        self._give_back(self._me)
        self._client.close()

    def describe(self) -> str:
        return f"lock in Redis at {self._where}"

    def beats(self) -> tuple[Beat, ...]:
        """Beats that announced themselves within the last minute, the writer first. Raises Unavailable."""
        value, _, now_ms, announced = self._look()
        token = value.partition(":")[0]
        found = []
        for member, seen_ms in zip(announced[::2], announced[1::2], strict=True):
            its_token, holder, since_us = json.loads(member)
            seen_s = max(0.0, (now_ms - float(seen_ms)) / 1000)
            found.append(Beat(holder, since_us, seen_s, writer=its_token == token))
        return tuple(sorted(found, key=lambda beat: (not beat.writer, beat.since_us)))

    def holding(self) -> Holding | None:
        """Who has the lock now, and how long it would last; None when nobody has it. Raises Unavailable."""
        value, left_ms, _, announced = self._look()
        if not value:
            return None
        known = {its_token: holder for its_token, holder, _ in map(json.loads, announced[::2])}
        return Holding(known.get(value.partition(":")[0], ""), max(0, left_ms) / 1000)

    # ------------------------------------------------------------------

    def _call(self, *, take: bool) -> str:
        self._calls += 1
        new = f"{self._token}:{self._calls}"
        seen_ms = _ms(max(SEEN_FOR_S, 3 * self._ttl_s))
        arguments: list[str | int] = [self._token, new, int(take), _ms(self._ttl_s), self._me, seen_ms]
        return cast(bytes, self._eval(_HOLD, arguments)).decode()

    def _look(self) -> tuple[str, int, int, Sequence[bytes]]:
        try:
            value, left_ms, now_ms, announced = cast(Any, self._eval(_LOOK, []))
        except (RedisError, OSError) as error:
            raise Unavailable(f"gate: Redis at {self._where} is away: {error}") from error
        return value.decode(), left_ms, now_ms, announced

    def _eval(self, script: str, arguments: Sequence[str | int]) -> object:
        return self._client.eval(script, len(self._keys), *self._keys, *arguments)

    def _give_back(self, announced: str) -> None:
        try:
            self._eval(_RELEASE, [self._token, announced])
        except (RedisError, OSError) as error:
            log.debug("gate: the lock could not be given back, it ends by itself: %s", error)

    def _yielded(self, now: float) -> bool:
        if self._yielded_until is not None and now >= self._yielded_until:
            self._yielded_until = None
        return self._yielded_until is not None

    def _still_trusted(self, now: float) -> Lease | None:
        if self._lease is not None and now >= self._lease.trusted_until:
            self._lease = None
        return self._lease

    def _say_away(self, error: Exception) -> None:
        if not self._away:
            self._away = True
            log.warning("gate: Redis is away: jobs paused (%s: %s)", self._where, error)

    def _say_back(self) -> None:
        if self._away:
            self._away = False
            log.warning("gate: Redis is back (%s)", self._where)


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
