"""RabbitMQ: the machine's own; there is no wheel of it. One node with its own port mapper, cookie and data."""

from __future__ import annotations

import itertools
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path

import amqp

from tests.servers import guard
from tests.servers.base import Server, ServerMissing
from tests.servers.ports import free_port
from tests.servers.users import User, not_root
from tests.servers.waiting import wait_for

_names = itertools.count(1)
_PATH_OF_ROOT = "/usr/sbin:/usr/local/sbin"


def _script() -> str:
    """The script inside RabbitMQ's own folder; the one on Debian's PATH changes the user and the folders by itself."""
    places = [Path("/usr/lib/rabbitmq/bin"), *Path("/usr/lib/rabbitmq/lib").glob("*/sbin")]
    for place in places:
        if (place / "rabbitmq-server").exists():
            return str(place / "rabbitmq-server")
    found = shutil.which("rabbitmq-server") or shutil.which("rabbitmq-server", path=_PATH_OF_ROOT)
    if found is None:
        raise ServerMissing("no rabbitmq-server on this machine (Debian: apt-get install rabbitmq-server)")
    return found


def _port_mapper() -> str:
    places = [shutil.which("epmd"), *Path("/usr/lib/erlang").glob("erts-*/bin/epmd")]
    found = next((str(place) for place in places if place is not None), None)
    if found is None:
        raise ServerMissing("no epmd of Erlang on this machine (Debian: apt-get install rabbitmq-server)")
    return found


@cache
def _user() -> User:
    return not_root("rabbitmq")


class RabbitMQ(Server):
    """A RabbitMQ node; `guest` may use the virtual host `/`."""

    name = "rabbitmq"
    patience = 90.0

    def __init__(self, *lines: str) -> None:
        """``lines``: lines of `rabbitmq.conf` such as ``consumer_timeout = 10000``."""
        self._program = _script()
        self._epmd = _port_mapper()
        super().__init__()
        self._lines = lines
        self._distribution_port = free_port()
        self._epmd_port = free_port()
        self._mapper: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        """The virtual host `/` as guest."""
        return f"amqp://guest:guest@127.0.0.1:{self.port}//"

    def connect(self, timeout: float = 10.0) -> amqp.Connection:
        """A new connection to the virtual host `/`, for a `with` statement."""
        limits = {"connect_timeout": timeout, "read_timeout": timeout, "write_timeout": timeout}
        return amqp.Connection(f"127.0.0.1:{self.port}", "guest", "guest", confirm_publish=True, **limits)

    def alive(self) -> bool:
        """A connection and a channel."""
        try:
            with self.connect(timeout=1.0) as connection:
                connection.channel().close()
            return True
        except (OSError, amqp.exceptions.AMQPError):
            return False

    @contextmanager
    def virtual_host(self) -> Iterator[str]:
        """The URL of a new virtual host, deleted afterwards with its queues and connections."""
        name = f"q{next(_names)}"
        self._evaluate(
            f'rabbit_vhost:add(<<"{name}">>, <<"tests">>),'
            f'rabbit_auth_backend_internal:set_permissions(<<"guest">>, <<"{name}">>,'
            ' <<".*">>, <<".*">>, <<".*">>, <<"tests">>).'
        )
        yield f"amqp://guest:guest@127.0.0.1:{self.port}/{name}"
        self._evaluate(f'rabbit_vhost:delete(<<"{name}">>, <<"tests">>).')

    def alarm(self, on: bool) -> None:
        """The alarm for memory: while it is on, whoever publishes is blocked."""
        limit = 1 if on else 1_000_000_000
        self._evaluate(f"vm_memory_monitor:set_vm_memory_high_watermark({{absolute, {limit}}}).")

    def change_password(self, password: str) -> None:
        """Of the user `guest`; connections that are open stay."""
        self._evaluate(f'rabbit_auth_backend_internal:change_password(<<"guest">>, <<"{password}">>, <<"tests">>).')

    def _evaluate(self, expression: str) -> None:
        control = str(Path(self._program).with_name("rabbitmqctl"))
        self.run_as_user([control, "eval", expression], **self._environment())

    def kill(self) -> None:
        """SIGKILL the node and its port mapper."""
        super().kill()
        if self._mapper is not None:
            self._mapper.kill()
            self._mapper.wait()
            guard.release(self._mapper.pid)
            self._mapper = None

    def _user(self) -> User:
        return _user()

    def _prepare(self) -> None:
        (self.folder / "plugins").write_text("[].\n")
        super()._prepare()

    def _configure(self) -> None:
        lines = [
            f"listeners.tcp.1 = 127.0.0.1:{self.port}",
            "loopback_users = none",
            "disk_free_limit.absolute = 10MB",
            "vm_memory_high_watermark.absolute = 1GB",
            "log.console = true",
            "log.file = false",
            *self._lines,
        ]
        (self.folder / "rabbitmq.conf").write_text("\n".join(lines) + "\n")

    def _spawn(self) -> None:
        self._configure()
        self._start_mapper()
        super()._spawn()

    def _start_mapper(self) -> None:
        """The node's own epmd: the shared one on the default port would outlive the tests."""
        if self._mapper is not None:
            return
        command = [self._epmd, "-port", str(self._epmd_port), "-address", "127.0.0.1"]
        with self.log.open("ab") as log:
            self._mapper = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                **self._user().popen(),  # type: ignore[call-overload]
            )
        guard.watch(self._mapper.pid)
        ask = [self._epmd, "-port", str(self._epmd_port), "-names"]
        wait_for(lambda: subprocess.run(ask, capture_output=True).returncode == 0, what="epmd answers")

    def _command(self) -> list[str]:
        return [self._program]

    def _environment(self) -> dict[str, str]:
        folder = str(self.folder)
        return {
            "HOME": folder,
            "ERL_EPMD_PORT": str(self._epmd_port),
            "ERL_EPMD_ADDRESS": "127.0.0.1",
            "RABBITMQ_NODENAME": f"qbeat{self.port}@localhost",
            "RABBITMQ_NODE_PORT": str(self.port),
            "RABBITMQ_DIST_PORT": str(self._distribution_port),
            "RABBITMQ_MNESIA_BASE": f"{folder}/data",
            "RABBITMQ_LOG_BASE": f"{folder}/logs",
            "RABBITMQ_LOGS": "-",
            "RABBITMQ_PID_FILE": f"{folder}/pid",
            "RABBITMQ_CONF_ENV_FILE": f"{folder}/none",
            "RABBITMQ_CONFIG_FILE": f"{folder}/rabbitmq.conf",
            "RABBITMQ_ENABLED_PLUGINS_FILE": f"{folder}/plugins",
            "RABBITMQ_SERVER_ADDITIONAL_ERL_ARGS": (
                "-start_epmd false +S 2:2 +sbwt none -kernel inet_dist_use_interface {127,0,0,1}"
            ),
        }
