"""The spellings of `qbeat_redis_url`, on real servers."""

from __future__ import annotations

import shutil
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import redis
from redis.backoff import NoBackoff
from redis.retry import Retry
from redis.sentinel import MasterNotFoundError, Sentinel

from celery_qbeat.errors import SettingsError
from celery_qbeat.gates import RedisGate
from tests.contract.making_gates import LOCK, GateMaker, Stopwatch, held
from tests.contract.making_sentinels import SentinelServer
from tests.servers import Redis, ServerBroken, wait_for
from tests.servers.ports import free_port


class SecretRedis(Redis):
    def __init__(self) -> None:
        super().__init__("--requirepass", "se/cret@x")

    def client(self, timeout: float = 5.0) -> redis.Redis:
        return redis.Redis(port=self.port, password="se/cret@x", socket_timeout=timeout, retry=Retry(NoBackoff(), 0))


def test_a_password_and_a_database_in_the_url(gate_at: GateMaker) -> None:
    with SecretRedis().start() as server, server.client() as client:
        url = f"redis://:se%2Fcret%40x@127.0.0.1:{server.port}/3"
        gate = gate_at(url)
        held(gate)
        assert "se%2Fcret" not in gate.describe()
        assert client.info("keyspace").keys() == {"db3"}
        wrong = gate_at(url.replace("cret", "x"))
        assert wrong.acquire_or_renew() is None


@pytest.mark.parametrize("spelling", ["unix://{}?db=2", "redis+socket://{}?virtual_host=2"])
def test_a_unix_socket(own_redis: Callable[..., Redis], gate_at: GateMaker, spelling: str) -> None:
    server = own_redis()
    held(gate_at(spelling.format(server.socket)))
    with server.client() as client:
        assert client.info("keyspace").keys() == {"db2"}


def test_tls(tmp_path: Path, gate_at: GateMaker) -> None:
    openssl = shutil.which("openssl")
    if openssl is None:
        pytest.skip("no openssl on this machine")
    key, certificate = tmp_path / "key.pem", tmp_path / "cert.pem"
    subprocess.run(
        [
            *(openssl, "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2"),
            *("-keyout", str(key), "-out", str(certificate), "-subj", "/CN=localhost"),
            *("-addext", "subjectAltName=IP:127.0.0.1"),
        ],
        check=True,
        capture_output=True,
    )
    server = TLSRedis(key, certificate)
    with server.start():
        url = f"rediss://127.0.0.1:{server.tls_port}/0"
        held(gate_at(f"{url}?ssl_cert_reqs=CERT_REQUIRED&ssl_ca_certs={certificate}"))
        untrusting = gate_at(url)
        assert untrusting.acquire_or_renew() is None


class TLSRedis(Redis):
    def __init__(self, key: Path, certificate: Path) -> None:
        self.tls_port = free_port()
        super().__init__(
            *("--tls-port", str(self.tls_port), "--tls-auth-clients", "no"),
            *("--tls-key-file", str(key), "--tls-cert-file", str(certificate), "--tls-ca-cert-file", str(certificate)),
        )

    def start(self) -> TLSRedis:
        try:
            return super().start()
        except ServerBroken as error:
            if "tls" in str(error).lower():
                pytest.skip("this redis-server has no TLS")
            raise


@pytest.fixture
def sentinel(own_redis: Callable[..., Redis]) -> Iterator[tuple[SentinelServer, Redis, Redis]]:
    master = own_redis("--repl-diskless-sync-delay", "0")
    replica = own_redis("--repl-diskless-sync-delay", "0", "--replicaof", "127.0.0.1", str(master.port))
    with SentinelServer(master).start() as server:
        manager = Sentinel([("127.0.0.1", server.port)], socket_timeout=1)

        def ready() -> bool:
            with replica.client() as client:
                return client.info("replication")["master_link_status"] == "up" and bool(
                    manager.discover_slaves("qmaster")
                )

        wait_for(ready, what="the replica is known to the sentinel")
        yield server, master, replica


def test_sentinels_lead_to_the_master_and_after_a_failover_to_the_new_one(
    sentinel: tuple[SentinelServer, Redis, Redis], own_redis: Callable[..., Redis], gate_at: GateMaker
) -> None:
    server, master, replica = sentinel
    gone = own_redis()
    gone.stop()
    url = f"sentinel://127.0.0.1:{gone.port};sentinel://127.0.0.1:{server.port}/0?master_name=qmaster"
    gate = gate_at(url)
    held(gate)
    with master.client() as client:
        assert client.exists(LOCK)
    master.kill()
    manager = Sentinel([("127.0.0.1", server.port)], socket_timeout=1)

    def promoted() -> bool:
        try:
            return manager.discover_master("qmaster") == ("127.0.0.1", replica.port)
        except MasterNotFoundError:
            return False

    wait_for(promoted)
    wait_for(gate.acquire_or_renew)
    with replica.client() as client:
        assert client.exists(LOCK)


def test_a_frozen_sentinel_does_not_hang_the_tick(
    sentinel: tuple[SentinelServer, Redis, Redis], gate_at: GateMaker
) -> None:
    server = sentinel[0]
    server.freeze()
    gate = gate_at(f"sentinel://127.0.0.1:{server.port}?master_name=qmaster")
    started = time.monotonic()
    assert gate.acquire_or_renew() is None
    assert time.monotonic() - started < 30
    server.thaw()
    wait_for(gate.acquire_or_renew)


@pytest.mark.parametrize(
    ("url", "reason"),
    [
        ("http://localhost", "scheme"),
        ("redis+socket://", "no path"),
        ("sentinel://h:26379", r"no \?master_name="),
        ("sentinel://h:26379;redis://h/0?master_name=m", "every part"),
        ("sentinel://h:26379/x?master_name=m", "invalid literal"),
        ("sentinel://h:26379/0?master_name=m&colour=red", r"\?colour= is not known"),
        ("redis://h/0?socket_timeout=soon", "socket_timeout"),
    ],
)
def test_a_url_that_cannot_be_understood_is_refused_with_examples(url: str, reason: str) -> None:
    with pytest.raises(SettingsError, match=f"qbeat_redis_url: .*{reason}.*write it like redis://"):
        RedisGate(url, "test", 10, 1, "here", clock=Stopwatch())


def test_no_password_is_shown() -> None:
    url = "sentinel://:s3cret@h:1;sentinel://u:s3cret@h:2/0?master_name=m&sentinel_password=s3cret"
    text = RedisGate(url, "test", 10, 1, "here", clock=Stopwatch()).describe()
    assert "s3cret" not in text
    assert all(shown in text for shown in ("h:1", "h:2", "master_name=m"))
    with pytest.raises(SettingsError) as error:
        RedisGate("http://:s3cret@h", "test", 10, 1, "here", clock=Stopwatch())
    assert "s3cret" not in str(error.value)
