"""A Redis Cluster as the lock's Redis: the URL names any node, the lock may be on another one."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from contextlib import ExitStack

import pytest
import redis

from celery_qbeat.errors import Unavailable
from celery_qbeat.gates import RedisGate
from celery_qbeat.gates.redis_server import RedisServer
from tests.contract.making_gates import BEATS, LOCK, GateMaker, held
from tests.servers import Redis, ServerBroken, wait_for
from tests.servers.ports import free_port

SLOTS = 16_384


def _holder(gate: RedisGate) -> str:
    """Who has the lock, as this beat sees it; its own name while it cannot see anything."""
    try:
        holding = gate.lock_holder()
    except Unavailable:
        return repr(gate)
    return holding.holder if holding else ""


class Node(Redis):
    """A node that belongs to no cluster yet. Its second port is not the usual one, which others often use here."""

    def __init__(self) -> None:
        self.bus_port = free_port()
        super().__init__(
            *("--cluster-enabled", "yes", "--cluster-config-file", "nodes.conf", "--cluster-node-timeout", "1000"),
            *("--cluster-port", str(self.bus_port)),
        )

    def start(self) -> Node:
        try:
            return super().start()
        except ServerBroken as error:
            if "Bad directive" in str(error):
                pytest.skip("this redis-server is older than 7")
            raise


class Cluster:
    """Masters that share the slots evenly, then their replicas: node `n + masters` is that of node `n`."""

    def __init__(self, nodes: list[Node], masters: int) -> None:
        self.nodes = nodes
        share = -(-SLOTS // masters)
        for number, node in enumerate(nodes[:masters]):
            last = min(SLOTS, (number + 1) * share) - 1
            self.ask(node, "CLUSTER", "ADDSLOTSRANGE", number * share, last)
            self.ask(node, "CLUSTER", "SET-CONFIG-EPOCH", number + 1)
        for node in nodes[1:]:
            self.ask(node, "CLUSTER", "MEET", "127.0.0.1", nodes[0].port, nodes[0].bus_port)
        wait_for(lambda: all(self.knows(node) == len(nodes) for node in nodes), 30, what="the nodes know each other")
        for number, node in enumerate(nodes[masters:]):
            self.ask(node, "CLUSTER", "REPLICATE", self.ask(nodes[number], "CLUSTER", "MYID"))
        wait_for(lambda: all(self.ready(node) for node in nodes), 30, what="the cluster is ready")

    def ask(self, node: Node, *command: str | int | bytes) -> object:
        with node.client() as client:
            client.response_callbacks.clear()
            return client.execute_command(*command)

    def knows(self, node: Node) -> int:
        return len(str(self.ask(node, "CLUSTER", "NODES")).strip("b'").split("\\n")) - 1

    def ready(self, node: Node) -> bool:
        replicating = b"master_link_status:down" not in self.ask(node, "INFO", "replication")  # type: ignore[operator]
        return replicating and b"cluster_state:ok" in self.ask(node, "CLUSTER", "INFO")  # type: ignore[operator]

    def has(self, node: Node, key: str) -> bool:
        """Whether this node is the master of the key's slot and has it."""
        try:
            with node.client() as client:
                return bool(client.exists(key))
        except redis.exceptions.ResponseError:
            return False

    def owner(self, key: str = LOCK) -> Node:
        (owner,) = (node for node in self.nodes if node.alive() and self.has(node, key))
        return owner


MakeCluster = Callable[[int, int], Cluster]


@pytest.fixture
def node() -> Iterator[Callable[[], Node]]:
    with ExitStack() as stack:
        yield lambda: stack.enter_context(Node().start())


@pytest.fixture
def cluster(node: Callable[[], Node]) -> MakeCluster:
    """`cluster(masters, replicas)`"""
    return lambda masters, replicas: Cluster([node() for _ in range(masters + replicas)], masters)


def test_a_cluster_of_one_node_keeps_the_lock(cluster: MakeCluster, gate_at: GateMaker) -> None:
    (only,) = cluster(1, 0).nodes
    first, second = gate_at(only.url), gate_at(only.url)
    term = held(first).term
    assert second.acquire_or_renew() is None
    assert held(first).term == term
    first.release()
    held(second)


def test_the_lock_is_found_on_whichever_node_has_it(
    cluster: MakeCluster, gate_at: GateMaker, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    three = cluster(3, 0)
    gates = [gate_at(node.url, f"beat:{number}") for number, node in enumerate(three.nodes)]
    term = held(gates[0]).term
    assert [gate.acquire_or_renew() for gate in gates[1:]] == [None, None]
    assert held(gates[0]).term == term
    assert three.has(three.owner(), BEATS)
    for gate in gates:
        assert {beat.holder for beat in gate.beats()} == {"beat:0", "beat:1", "beat:2"}
        holding = gate.lock_holder()
        assert holding is not None
        assert holding.holder == "beat:0"
    gates[0].release()
    held(gates[1])
    lines = [record.getMessage() for record in caplog.records]
    assert all("is a cluster of 3 nodes" in line for line in lines), lines


@pytest.mark.slow
def test_when_the_lock_node_dies_its_replica_is_followed(
    cluster: MakeCluster, gate_at: GateMaker, caplog: pytest.LogCaptureFixture
) -> None:
    """Whichever node the URL names: the one that dies is the one that has the lock."""
    six = cluster(3, 3)
    probe = gate_at(six.nodes[0].url)
    held(probe)
    dead = six.owner()
    probe.release()
    beats = [gate_at(dead.url, "a"), gate_at(next(node for node in six.nodes if node is not dead).url, "b")]
    held(beats[0])
    assert beats[1].acquire_or_renew() is None
    dead.kill()

    def taken_over() -> bool:
        for gate in beats:
            gate.acquire_or_renew()
        return any(six.has(other, LOCK) for other in six.nodes if other is not dead)

    wait_for(taken_over, 60, what="the lock is on another node")
    wait_for(
        lambda: [gate.acquire_or_renew() is None for gate in beats].count(True) == 1, 30, what="one of the two holds"
    )
    assert wait_for(lambda: len({_holder(gate) for gate in beats}) == 1, 30, what="both see the same lock")
    said = [record.getMessage() for record in caplog.records if "jobs paused" in record.getMessage()]
    assert all(any(fact in line for fact in ("is away", "does not serve")) for line in said), said


def test_a_cluster_that_serves_no_slots_is_not_called_away(
    node: Callable[[], Node], gate_at: GateMaker, caplog: pytest.LogCaptureFixture
) -> None:
    gate = gate_at(node().url)
    assert gate.acquire_or_renew() is None
    assert gate.reason() == "the Redis Cluster does not serve the lock's slot"
    (line,) = [record.getMessage() for record in caplog.records]
    assert line.startswith("gate: the Redis Cluster does not serve the lock's slot: jobs paused (redis://")


def test_each_slot_is_followed_to_its_own_node(cluster: MakeCluster) -> None:
    three = cluster(3, 0)
    server = RedisServer(three.nodes[0].url, 1.0)
    keys = [f"qbeat:{{{number}}}:x" for number in range(20)]
    for key in keys:
        assert server.eval("return redis.call('SET', KEYS[1], ARGV[1])", [key], [key]) == b"OK"
        assert server.eval("return redis.call('GET', KEYS[1])", [key], []) == key.encode()
    assert len({three.owner(key).port for key in keys}) == 3
    server.close()
