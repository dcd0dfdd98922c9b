"""What went wrong with the lock's Redis, in one true sentence."""

from __future__ import annotations

from redis.exceptions import (
    AskError,
    AuthenticationError,
    AuthenticationWrongNumberOfArgsError,
    BusyLoadingError,
    ClusterDownError,
    NoPermissionError,
    ReadOnlyError,
    ResponseError,
    TryAgainError,
)

_BY_CLASS: tuple[tuple[type[Exception] | tuple[type[Exception], ...], str], ...] = (
    (BusyLoadingError, "Redis is loading its data"),
    (ReadOnlyError, "Redis is a read-only replica, the lock needs the master"),
    ((AuthenticationError, AuthenticationWrongNumberOfArgsError), "Redis refuses the password of qbeat_redis_url"),
    (NoPermissionError, "Redis does not permit this user to run the lock's commands on the keys qbeat:*"),
    (ClusterDownError, "the Redis Cluster does not serve the lock's slot"),
    ((AskError, TryAgainError), "the Redis Cluster is moving the lock's slot"),
)

_BY_CODE = {
    "WRONGTYPE": "the lock's key in Redis is no lock, delete it",
    "OOM": "Redis is full",
    "MISCONF": "Redis cannot save its data and takes no writes",
    "NOREPLICAS": "Redis has too few replicas and takes no writes",
    "NOAUTH": "Redis refuses the password of qbeat_redis_url",
}
"""Answers for which some versions of redis-py have no class."""

AWAY = "Redis is away"


def explain(error: Exception) -> str:
    """What is wrong, without a full stop: "Redis is away" only when no answer came."""
    for kinds, fact in _BY_CLASS:
        if isinstance(error, kinds):
            return fact
    text = str(error)
    if "max number of clients reached" in text:
        return "Redis takes no more connections"
    if not isinstance(error, ResponseError):
        return AWAY
    for code, fact in _BY_CODE.items():
        # A script's error may begin with words of Redis itself; the code is the first word in capitals.
        if text.startswith(code) or f" {code} " in text:
            return fact
    return "Redis refuses the lock"
