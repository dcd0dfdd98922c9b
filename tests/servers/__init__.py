"""Real servers for the tests: each has its own port and data folder, and ends even when the session crashes."""

from tests.servers.base import Server, ServerBroken, ServerMissing
from tests.servers.mariadb import MariaDB
from tests.servers.pgbouncer import PgBouncer
from tests.servers.postgresql import PostgreSQL
from tests.servers.rabbitmq import RabbitMQ
from tests.servers.redis import Redis
from tests.servers.slow_proxy import SlowProxy
from tests.servers.waiting import wait_for

__all__ = [
    "MariaDB",
    "PgBouncer",
    "PostgreSQL",
    "RabbitMQ",
    "Redis",
    "Server",
    "ServerBroken",
    "ServerMissing",
    "SlowProxy",
    "wait_for",
]
