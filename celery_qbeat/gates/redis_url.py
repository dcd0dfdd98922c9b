"""A Redis URL, spelled as redis-py, Celery or kombu spell it, becomes a client that never waits long."""

from __future__ import annotations

from typing import Any, cast
from urllib.parse import parse_qsl, unquote, urlencode, urlsplit

from redis import Redis
from redis.backoff import NoBackoff
from redis.connection import Connection, ConnectionPool, parse_url
from redis.retry import Retry
from redis.sentinel import Sentinel

from celery_qbeat.core.safe_text import WRITE_IT_ENCODED, has_misplaced_at, hide_secrets
from celery_qbeat.errors import SettingsError

EXAMPLES = (
    "redis://:password@host:6379/0, rediss://host:6379/0?ssl_ca_certs=/etc/ca.pem, unix:///run/redis.sock?db=0 "
    "or sentinel://host1:26379;sentinel://host2:26379/0?master_name=mymaster"
)

SENTINEL_PORT = 26379


def connect(url: str, timeout_s: float) -> Redis:
    """A client for `url`; connecting and each answer take at most `timeout_s` seconds, and nothing is tried twice.

    Schemes: `redis`, `rediss`, `unix`, kombu's `redis+socket` (with `?virtual_host=1` for the database), and kombu's
    list of `sentinel://` URLs separated by `;`. There `?master_name=` is needed; user, password and database of the
    list are those of the Redis servers, `?sentinel_username=` and `?sentinel_password=` those of the sentinels.
    Nothing is connected yet. Raises SettingsError.
    """
    try:
        if any(map(has_misplaced_at, url.split(";"))):
            reason = f"an @ follows the host: {WRITE_IT_ENCODED}"
        else:
            return _client(url, timeout_s)
    except (ValueError, TypeError):
        # Not the library's words, which may quote a part of the password.
        reason = _reason(url, timeout_s)
    raise SettingsError(f"qbeat_redis_url: {hide_secrets(url)!r}: {reason}; write it like {EXAMPLES}")


def elsewhere(client: Redis, host: str, port: int) -> Redis:
    """A client with the same options for another server: a node of the same cluster."""
    pool = client.connection_pool
    kind, options = pool.connection_class, {**pool.connection_kwargs, "host": host, "port": port}
    if options.pop("path", None) is not None:
        kind = Connection
    return Redis(connection_pool=ConnectionPool(connection_class=kind, **options))


def _client(url: str, timeout_s: float) -> Redis:
    return _sentinel(url, timeout_s) if url.startswith("sentinel://") else _single(url, timeout_s)


def _reason(url: str, timeout_s: float) -> str:
    """What is wrong with a URL, in words about the same URL without its secrets."""
    try:
        _client(hide_secrets(url), timeout_s)
    except (ValueError, TypeError) as error:
        return str(error)
    return WRITE_IT_ENCODED


def _bounds(timeout_s: float) -> dict[str, Any]:
    return {
        "socket_timeout": timeout_s,
        "socket_connect_timeout": timeout_s,
        "retry": Retry(NoBackoff(), 0),
        "health_check_interval": 0,
    }


def _single(url: str, timeout_s: float) -> Redis:
    options: dict[str, Any] = cast(Any, parse_url)(_spelled_for_redis_py(url))
    kind = options.pop("connection_class", Connection)
    if "path" not in options and url.startswith(("unix:", "redis+socket:")):
        raise ValueError("has no path")
    pool = ConnectionPool(connection_class=kind, **{**_own_spelling(options), **_bounds(timeout_s)})
    # Connects to nothing, and raises TypeError for an option that no connection has.
    kind(**pool.connection_kwargs)
    return Redis(connection_pool=pool)


def _spelled_for_redis_py(url: str) -> str:
    if not url.startswith("redis+socket://"):
        return url
    place, _, query = url.removeprefix("redis+socket://").partition("?")
    pairs = [("db", value.strip("/")) if key == "virtual_host" else (key, value) for key, value in parse_qsl(query)]
    return f"unix://{place}?{urlencode(pairs)}"


def _own_spelling(options: dict[str, Any]) -> dict[str, Any]:
    """Celery's URLs say `ssl_cert_reqs=CERT_REQUIRED` where redis-py says `required`."""
    wanted = options.get("ssl_cert_reqs")
    if isinstance(wanted, str):
        options["ssl_cert_reqs"] = wanted.lower().removeprefix("cert_")
    return options


def _sentinel(url: str, timeout_s: float) -> Redis:
    parts = [urlsplit(piece) for piece in url.split(";") if piece]
    if any(part.scheme != "sentinel" or not part.hostname for part in parts):
        raise ValueError("every part of a Sentinel list starts with sentinel:// and names a host")
    query = {key: value for part in parts for key, value in parse_qsl(part.query)}
    master = query.pop("master_name", "")
    if not master:
        raise ValueError("has no ?master_name=, the name that the sentinels know the master by")
    options: dict[str, Any] = {}
    for part in parts:
        if part.password is not None:
            options["password"] = unquote(part.password)
        if part.username:
            options["username"] = unquote(part.username)
        if part.path.strip("/"):
            options["db"] = int(part.path.strip("/"))
    own = {name: query.pop(f"sentinel_{name}") for name in ("username", "password") if f"sentinel_{name}" in query}
    if query:
        raise ValueError(f"?{min(query)}= is not known for sentinel://")
    # Dead sentinels are asked one after the other: together they may take no longer than one server.
    sentinels = [(part.hostname, part.port or SENTINEL_PORT) for part in parts]
    ask = {**own, **_bounds(timeout_s / len(sentinels))}
    manager = cast(Any, Sentinel)(sentinels, sentinel_kwargs=ask, **_bounds(timeout_s))
    return cast(Redis, manager.master_for(master, **options))
