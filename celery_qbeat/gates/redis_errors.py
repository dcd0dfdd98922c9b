"""What went wrong with the lock's Redis, in one true sentence."""

from __future__ import annotations

import re

from redis.exceptions import (
    AskError,
    AuthenticationError,
    AuthenticationWrongNumberOfArgsError,
    BusyLoadingError,
    ClusterDownError,
    MasterDownError,
    NoPermissionError,
    ReadOnlyError,
    ResponseError,
    TryAgainError,
)

AWAY = "Redis is away"

_BY_CODE = {
    "LOADING": "Redis is loading its data",
    "READONLY": "Redis is a read-only replica, the lock needs the master",
    "MASTERDOWN": "Redis is a replica that has lost its master",
    "NOAUTH": "Redis refuses the password of qbeat_redis_url",
    "NOPERM": "Redis does not permit this user to run the lock's commands on the keys qbeat:*",
    "CLUSTERDOWN": "the Redis Cluster does not serve the lock's slot",
    "ASK": "the Redis Cluster is moving the lock's slot",
    "MOVED": "the Redis Cluster is moving the lock's slot",
    "TRYAGAIN": "the Redis Cluster is moving the lock's slot",
    "WRONGTYPE": "the lock's key in Redis is no lock, delete it",
    "OOM": "Redis is full",
    "MISCONF": "Redis cannot save its data and takes no writes",
    "NOREPLICAS": "Redis has too few replicas and takes no writes",
}

_BY_CLASS: tuple[tuple[type[Exception], str], ...] = (
    (BusyLoadingError, "LOADING"),
    (ReadOnlyError, "READONLY"),
    (AuthenticationError, "NOAUTH"),
    (AuthenticationWrongNumberOfArgsError, "NOAUTH"),
    (NoPermissionError, "NOPERM"),
    (MasterDownError, "MASTERDOWN"),
    (ClusterDownError, "CLUSTERDOWN"),
    (AskError, "TRYAGAIN"),
    (TryAgainError, "TRYAGAIN"),
)
"""The answers whose code redis-py cuts off, as a class instead."""

_CODE = re.compile(rf"(?:^|[\s-])({'|'.join(_BY_CODE)})\s")
"""Inside a script's error the code stands in the middle: `Error running script (...): -READONLY You can't ...`."""


def explain(error: Exception) -> str:
    """What is wrong, without a full stop: "Redis is away" only when no answer came."""
    for kind, code in _BY_CLASS:
        if isinstance(error, kind):
            return _BY_CODE[code]
    text = str(error)
    if "max number of clients reached" in text:
        return "Redis takes no more connections"
    if not isinstance(error, ResponseError):
        return AWAY
    if found := _CODE.search(text):
        return _BY_CODE[found[1]]
    if "can't run this command" in text or "can't access at least one of the keys" in text:
        return _BY_CODE["NOPERM"]
    return "Redis refuses the lock"
