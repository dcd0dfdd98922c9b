"""How each fault is done, and undone when its time is over."""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack, suppress
from typing import Any

import redis
import sqlalchemy as sa

from tests.chaos.plan import ARM, EVERY, WRITER, Fault, kind_of
from tests.chaos.proxy import Proxy
from tests.chaos.world import TTL_S, Seat, World
from tests.servers import Redis

End = Callable[[], None]


def _nothing() -> None:
    return None


def begin(world: World, fault: Fault) -> tuple[str, End] | None:
    """Do it: on what, and how to end it. None when there is nothing to do it to."""
    if kind_of(fault.kind).link:
        seats = world.seats if fault.beat == EVERY else [_seat(world, fault.beat, world.seats)]
        owner = "all beats" if fault.beat == EVERY else f"beat {seats[0].number}"
        proxies = [seat.links.proxies[fault.target] for seat in seats]
        return f"{fault.target} of {owner}", _LINKS[fault.kind.partition(" the ")[0]](proxies, fault.variant)
    if fault.target != "beat":
        return fault.target, _OTHERS[fault.kind](world)
    free = [seat for seat in world.seats if not seat.busy]
    if not free:
        return None
    seat = _seat(world, fault.beat, free)
    seat.busy = True
    undo = _arm(seat, fault) if fault.kind == ARM else _BEATS[fault.kind](seat)

    def release() -> None:
        undo()
        seat.busy = False

    return f"beat {seat.number}", release


def _seat(world: World, wanted: int, candidates: Sequence[Seat]) -> Seat:
    if wanted == WRITER:
        writer = world.writer()
        if writer in candidates:
            return writer
        wanted = 0
    return min(candidates, key=lambda seat: (seat.number - wanted) % len(world.seats))


# ---------------------------------------------------------------- beats


def _kill(seat: Seat) -> End:
    seat.kill()
    return seat.start


def _freeze(seat: Seat) -> End:
    seat.process.freeze()
    return seat.process.thaw


def _arm(seat: Seat, fault: Fault) -> End:
    """Its successor dies or freezes at the point that the fault names, when it gets there."""
    seat.kill()
    return lambda: seat.start(armed=fault.variant)


def _end(seat: Seat) -> End:
    seat.end()

    def again() -> None:
        seat.await_end()
        seat.start()

    return again


# ---------------------------------------------------------------- links


def _hang(proxies: Sequence[Proxy], variant: str) -> End:
    for proxy in proxies:
        if variant == "forget":
            proxy.forget()
        else:
            proxy.hang(requests=variant != "answers", answers=variant != "requests")
    return lambda: _resume(proxies)


def _slow_down(proxies: Sequence[Proxy], variant: str) -> End:
    for proxy in proxies:
        proxy.slow_down(float(variant))
    return lambda: _resume(proxies)


def _resume(proxies: Sequence[Proxy]) -> None:
    for proxy in proxies:
        proxy.resume()


# ---------------------------------------------------------------- servers


def _restart(server: Any) -> End:
    server.stop()
    return lambda: server.start()


def _crash(server: Any) -> End:
    server.kill()
    return lambda: server.start()


def _stop_still(server: Any) -> End:
    server.freeze()
    return lambda: server.thaw()


def _fill(server: Redis) -> End:
    """From now on every command that needs memory is refused."""
    _configure(server, maxmemory_policy="noeviction", maxmemory="1")
    return lambda: _configure(server, maxmemory="0")


def _configure(server: Redis, **settings: str) -> None:
    with server.client() as client:
        for name, value in settings.items():
            client.config_set(name.replace("_", "-"), value)


def _make_replica(server: Redis) -> End:
    """From now on every write is refused: the server follows a primary that is not there, and keeps what it has."""
    with server.client() as client:
        client.replicaof("127.0.0.1", "1")

    def promote() -> None:
        with server.client() as client:
            client.replicaof("NO", "ONE")

    return promote


def _gate(command: Callable[[World, redis.Redis], Any]) -> Callable[[World], End]:
    def do(world: World) -> End:
        with world.gate.client() as client:
            command(world, client)
        return _nothing

    return do


def _take_lock(world: World, client: redis.Redis) -> None:
    if key := world.lock_key(client):
        client.set(key, "somebody:1", px=round(TTL_S * 1000))


def _delete_lock(world: World, client: redis.Redis) -> None:
    if key := world.lock_key(client):
        client.delete(key)


def _flush_broker(world: World) -> End:
    """FLUSHALL. What is lost was taken by the broker, so it is read in the same step."""
    with world.tap.paused() as take, world.broker.client() as client, client.pipeline(transaction=True) as pipeline:
        pipeline.lrange(world.tap.queue, 0, -1)
        pipeline.flushall()
        take(pipeline.execute()[0])
    return _nothing


def _restart_broker_empty(world: World) -> End:
    """What is lost was taken by the broker, so it is read when no beat can reach the broker any more."""
    proxies = [seat.links.proxies["broker"] for seat in world.seats]
    for proxy in proxies:
        proxy.lead_to(None)
    # What the proxies passed on is in the sockets of the broker: it reads them before it reads a new connection.
    time.sleep(0.1)
    with world.tap.paused() as take, world.broker.client() as client:
        take(client.lrange(world.tap.queue, 0, -1))  # type: ignore[arg-type]
        world.broker.kill()
    shutil.rmtree(world.broker.folder / "appendonlydir")

    def again() -> None:
        world.broker.start()
        for proxy in proxies:
            proxy.lead_to(world.broker.port)

    return again


def _database(how: Callable[[Any], End]) -> Callable[[World], End]:
    def do(world: World) -> End:
        assert world.database is not None
        world.reachable = False
        undo = how(world.database)

        def back() -> None:
            undo()
            world.reachable = True

        return back

    return do


def _execute(world: World, statements: dict[str, Sequence[str]]) -> None:
    """Run statements as an administrator, by the name of the database."""
    with world.administrate() as connection:
        for statement in statements[connection.dialect.name]:
            connection.execute(sa.text(statement))


def _make_read_only(world: World) -> End:
    """Sessions of beats can only read, as after a reconnect to a replica; sessions that are open stay so."""
    _execute(
        world,
        {
            "postgresql": ["ALTER ROLE beats SET default_transaction_read_only = on"],
            "mysql": ["SET GLOBAL read_only = ON"],
        },
    )
    _end_sessions(world)
    back = {
        "postgresql": ["ALTER ROLE beats RESET default_transaction_read_only"],
        "mysql": ["SET GLOBAL read_only = OFF"],
    }
    return lambda: _execute(world, back)


def _end_sessions(world: World) -> End:
    """End every session of a beat at the server."""
    with world.administrate() as connection:
        if connection.dialect.name == "postgresql":
            query = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE usename = 'beats'"
            connection.execute(sa.text(query))
            return _nothing
        query = "SELECT id FROM information_schema.processlist WHERE user = 'qbeat'"
        for number in connection.execute(sa.text(query)).scalars().all():
            # It may have ended by itself.
            with suppress(sa.exc.OperationalError):
                connection.execute(sa.text(f"KILL {number}"))
    return _nothing


def _hold(**statements: str) -> Callable[[World], End]:
    """Somebody's open transaction, by the name of the database."""

    def do(world: World) -> End:
        world.reachable = False
        stack = ExitStack()
        connection = stack.enter_context(world.connect())
        try:
            connection.execute(sa.text(statements[connection.dialect.name]))
        except sa.exc.OperationalError:
            # Somebody else was there first, for longer than one waits.
            connection.rollback()

        def let_go() -> None:
            stack.close()
            world.reachable = True

        return let_go

    return do


_BEATS: dict[str, Callable[[Seat], End]] = {
    "kill beat": _kill,
    "freeze beat": _freeze,
    "end beat": _end,
    "end beat in a burst": _end,
}

_LINKS: dict[str, Callable[[Sequence[Proxy], str], End]] = {"hang": _hang, "slow down": _slow_down}

_LEADER = "SELECT * FROM qbeat_leader FOR UPDATE"

_OTHERS: dict[str, Callable[[World], End]] = {
    "flush the gate": _gate(lambda _world, client: client.flushall()),
    "delete the lock": _gate(_delete_lock),
    "another takes the lock": _gate(_take_lock),
    "restart the gate": lambda world: _crash(world.gate),
    "freeze the gate": lambda world: _stop_still(world.gate),
    "fill the gate": lambda world: _fill(world.gate),
    "make the gate read-only": lambda world: _make_replica(world.gate),
    "restart the broker": lambda world: _restart(world.broker),
    "kill the broker": lambda world: _crash(world.broker),
    "freeze the broker": lambda world: _stop_still(world.broker),
    "fill the broker": lambda world: _fill(world.broker),
    "make the broker read-only": lambda world: _make_replica(world.broker),
    "restart the broker empty": _restart_broker_empty,
    "flush the broker": _flush_broker,
    "restart the database": _database(_restart),
    "kill the database": _database(_crash),
    "freeze the database": _database(_stop_still),
    "make the database read-only": _make_read_only,
    "end the sessions": _end_sessions,
    "lock the leader row": _hold(postgresql=_LEADER, mysql=_LEADER),
    "lock the states": _hold(
        postgresql="LOCK TABLE qbeat_state IN EXCLUSIVE MODE", mysql="SELECT * FROM qbeat_state FOR UPDATE"
    ),
    "lock the jobs": _hold(
        postgresql="LOCK TABLE qbeat_jobs IN ACCESS EXCLUSIVE MODE", mysql="LOCK TABLES qbeat_jobs WRITE"
    ),
    "lock the file": _hold(sqlite="UPDATE qbeat_leader SET id = id"),
}
