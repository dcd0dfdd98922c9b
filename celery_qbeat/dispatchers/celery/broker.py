"""Connections to the broker of a Celery app that give up soon, and the address of the queue of ends.

A tick must not hang with the broker, so every connection here is our own: the app's pool waits without limit and tries
a hundred times.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, cast
from urllib.parse import urlsplit

from kombu.entity import Exchange, Queue
from kombu.exceptions import OperationalError
from kombu.transport import virtual
from redis.backoff import NoBackoff
from redis.retry import Retry

from celery_qbeat.core.identity import database_id
from celery_qbeat.core.safe_text import HIDDEN, WRITE_IT_ENCODED, has_misplaced_at, hide_secrets
from celery_qbeat.errors import SettingsError

TIMEOUT_S = 2.0

MOST_CHANNELS = 8
"""More channels than any connection of ours has."""

SENTINEL_TIMEOUT_S = 0.5
"""Seconds that a sentinel which does not answer costs a new connection."""

DONE_TASK = "celery_qbeat.done"

DONE_PREFIX = "qbeat.done."

MOST_NAME = 80
"""Characters in the name of a queue: what the strictest broker (Amazon SQS) allows."""

_UNREADABLE = f"broker_url: this is no URL that can be read; {WRITE_IT_ENCODED}"

LOCAL = frozenset({"filesystem", "memory"})


def connect(make: Callable[..., Any]) -> Any:
    """A kombu connection made by `app.connection_for_write` or `app.connection_for_read`, with bounded waiting.

    Nothing is connected yet. What the app's transport options say about time limits holds when it is shorter. Raises
    SettingsError for a URL that cannot be read.
    """
    plain = checked(make)
    options = plain.transport_options or {}
    return make(
        connect_timeout=min(plain.connect_timeout or TIMEOUT_S, TIMEOUT_S),
        transport_options=_bounds(plain.transport.driver_type, options),
    )


def open_(connection: Any) -> None:
    """Connect, trying every address of a failover list once. Raises one of `lost(connection)`."""
    connection.ensure_connection(
        max_retries=max(0, len(connection.alt) - 1),
        interval_start=0,
        interval_step=0,
        interval_max=0,
        timeout=2 * TIMEOUT_S,
    )


def lost(connection: Any) -> tuple[type[BaseException], ...]:
    """The exceptions that mean that the connection is gone."""
    errors: tuple[type[BaseException], ...] = connection.connection_errors
    # kombu counts KeyError among them on Redis, where a payload can cause it.
    return (*(error for error in errors if not issubclass(error, LookupError)), OperationalError, OSError)


def checked(make: Callable[[], Any]) -> Any:
    """The connection, its URL read. Raises SettingsError without any part of a URL: it may be one of the password."""
    try:
        connection = make()
        scheme = connection.as_uri().partition("://")[0]
    except (ValueError, TypeError):
        pass
    else:
        # A database of Redis is a number; anything else was cut out of a password. So was a part of a failover list
        # that has an @ and no scheme.
        number = str(connection.virtual_host or "").strip("/") or "0"
        is_number = number.isdecimal() or scheme not in ("redis", "rediss", "sentinel")
        if is_number and not any("@" in part and "://" not in part for part in connection.alt):
            return connection
    raise SettingsError(_UNREADABLE)


def check_urls(app: Any) -> None:
    """Refuse broker URLs that cannot be read, before Celery or a driver quotes a part of the password.

    Raises SettingsError.
    """
    for urls in (app.conf.broker_write_url, app.conf.broker_read_url):
        for url in (";".join(urls) if isinstance(urls, list | tuple) else str(urls or "")).split(";"):
            if not _is_readable(url):
                raise SettingsError(_UNREADABLE)
    for make in (app.connection_for_write, app.connection_for_read):
        checked(make)


def _is_readable(url: str) -> bool:
    try:
        if not url.startswith(("redis", "sentinel")):
            # A virtual host may have an @ in its name.
            url = urlsplit(url)._replace(path="").geturl()
        return not has_misplaced_at(url)
    except ValueError:
        return False


def drop(connection: Any) -> None:
    """Forget a connection without waiting for its server. Raises nothing that the connection raises.

    On closing, kombu gives messages back, and a full or read-only Redis refuses that. Each attempt closes one channel
    at least.
    """
    errors = (*lost(connection), *connection.channel_errors)
    for _ in range(MOST_CHANNELS):
        try:
            connection.collect(0.1)
        except errors:
            continue
        return


def describe(connection: Any) -> str:
    """The broker's URL, its password hidden."""
    url: str = connection.as_uri()
    scheme = url.partition("://")[0] + "://"
    if "@" in str(connection.virtual_host or ""):
        # A virtual host with an @ in its name, or a part of a password with a / in it.
        return scheme + HIDDEN
    return scheme if connection.transport.driver_type in LOCAL else hide_secrets(url)


def declare_again(queue: Any) -> None:
    """Declare a bound queue, even if this process remembers that it did.

    On Redis and in files a binding is data, and goes when somebody empties the place.
    """
    channel = queue.channel
    channel.connection.client.declared_entities.clear()
    state = getattr(channel, "state", None)
    if state is not None and channel.connection.driver_type != "memory":
        state.exchanges.pop(queue.exchange.name, None)
        state.binding_delete(queue.name, queue.exchange.name, queue.routing_key)
    queue.declare()


def _bounds(driver: str, options: dict[str, Any]) -> dict[str, Any]:
    def at_most(name: str) -> float:
        return min(options.get(name) or TIMEOUT_S, TIMEOUT_S)

    if driver == "redis":
        # redis-py itself would send a command a second time after a timeout, and the task with it.
        names = ("socket_timeout", "socket_connect_timeout")
        sentinel: dict[str, Any] = {**(options.get("sentinel_kwargs") or {}), "retry": Retry(NoBackoff(), 0)}
        sentinel |= {name: min(sentinel.get(name) or TIMEOUT_S, SENTINEL_TIMEOUT_S) for name in names}
        return {
            "retry_on_timeout": False,
            **{name: at_most(name) for name in names},
            # redis-py would ask a sentinel that does not answer four times, with pauses, before it asks the next one.
            "sentinel_kwargs": sentinel,
        }
    if driver == "amqp":
        # Confirms are waited for by the dispatcher, for many messages together.
        return {"confirm_publish": False, **{name: at_most(name) for name in ("read_timeout", "write_timeout")}}
    return {}


@dataclass(frozen=True, slots=True)
class Address:
    """Where workers send the ends of runs: an exchange and a routing key, which is also the queue's name."""

    exchange: str
    key: str


def done_exchange(connection: Any) -> str | None:
    """The exchange for the ends of runs on this kind of broker; None where a worker could not reach it.

    Never by `queue=`: with a worker that creates no missing queues, or creates them with arguments, that turned
    the success of a user's task into a failure. On AMQP `amq.direct` always exists. Other transports keep their
    exchanges by themselves; those that keep them in the memory of each process cannot lead from a worker to us.
    """
    transport = connection.transport
    if transport.driver_type == "amqp":
        return "amq.direct"
    channel = getattr(transport, "Channel", None)
    if not isinstance(channel, type) or not issubclass(channel, virtual.Channel):
        return None
    shared = channel.get_table is not virtual.Channel.get_table or transport.driver_type == "memory"
    return "celery_qbeat" if shared else None


def done_address(connection: Any, namespace: str, instance: str) -> Address | None:
    """The address of the ends of this database's runs; None on a broker that cannot carry them.

    The queue is `qbeat.done.<namespace>.<database id>`, so two databases never read each other's ends, whatever their
    namespaces are. A long namespace is cut: the name has 80 characters at most, and only letters, digits, `_`, `-` and
    `.`, which every broker takes.
    """
    exchange = done_exchange(connection)
    if exchange is None:
        return None
    identity = f".{database_id(instance)}"
    return Address(exchange, f"{DONE_PREFIX}{namespace}"[: MOST_NAME - len(identity)] + identity)


def old_done_address(connection: Any, namespace: str) -> Address | None:
    """The address of ends in the messages of older versions, which all databases of a namespace shared."""
    exchange = done_exchange(connection)
    return None if exchange is None else Address(exchange, f"{DONE_PREFIX}{namespace}")


def done_queue(address: Address) -> Any:
    """The queue of ends: durable and without any argument, since a change of arguments would lock us out of it."""
    exchange = cast(Any, Exchange)(address.exchange, type="direct", durable=True)
    return cast(Any, Queue)(address.key, exchange, routing_key=address.key, durable=True)
