"""How each fault is done, and undone when its time is over."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from typing import Any

import redis
import sqlalchemy as sa

from tests.chaos.plan import WRITER, Fault
from tests.chaos.world import TTL_S, Database, Seat, World

End = Callable[[], None]


def _nothing() -> None:
    return None


def begin(world: World, fault: Fault) -> tuple[str, End] | None:
    """Do it: on what, and how to end it. None when there is nothing to do it to."""
    if fault.target == "beat":
        seat = _seat(world, fault.beat)
        if seat is None:
            return None
        seat.busy = True
        undo = _arm(seat, fault) if fault.point else _BEATS[fault.kind](seat)

        def free() -> None:
            undo()
            seat.busy = False

        return f"beat {seat.number}", free
    return fault.target, _OTHERS[fault.kind](world)


def _seat(world: World, wanted: int) -> Seat | None:
    free = [seat for seat in world.seats if not seat.busy]
    if wanted == WRITER:
        try:
            writer = world.writer()
        except (redis.exceptions.RedisError, OSError):
            writer = None
        if writer in free:
            return writer
        wanted = 0
    return min(free, key=lambda seat: (seat.number - wanted) % len(world.seats), default=None)


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
    return lambda: seat.start(armed=fault.point)


def _end(seat: Seat) -> End:
    seat.end()

    def again() -> None:
        seat.await_end()
        seat.start()

    return again


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


def _gate(command: Callable[[redis.Redis, str], Any]) -> Callable[[World], End]:
    def do(world: World) -> End:
        with world.gate.client() as client:
            command(client, world.lock)
        return _nothing

    return do


def _database(how: Callable[[Any], End]) -> Callable[[World], End]:
    def do(world: World) -> End:
        world.reachable = False
        undo = how(_server(world))

        def back() -> None:
            undo()
            world.reachable = True

        return back

    return do


def _server(world: World) -> Database:
    assert world.database is not None
    return world.database


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


_BEATS: dict[str, Callable[[Seat], End]] = {"kill beat": _kill, "freeze beat": _freeze, "end beat": _end}

_LEADER = "SELECT * FROM qbeat_leader FOR UPDATE"

_OTHERS: dict[str, Callable[[World], End]] = {
    "flush the gate": _gate(lambda client, _: client.flushall()),
    "delete the lock": _gate(lambda client, lock: client.delete(lock)),
    "another takes the lock": _gate(lambda client, lock: client.set(lock, "somebody:1", px=round(TTL_S * 1000))),
    "restart the gate": lambda world: _crash(world.gate),
    "freeze the gate": lambda world: _stop_still(world.gate),
    "restart the broker": lambda world: _restart(world.broker),
    "kill the broker": lambda world: _crash(world.broker),
    "freeze the broker": lambda world: _stop_still(world.broker),
    "restart the database": _database(_restart),
    "kill the database": _database(_crash),
    "freeze the database": _database(_stop_still),
    "lock the leader row": _hold(postgresql=_LEADER, mysql=_LEADER),
    "lock the states": _hold(
        postgresql="LOCK TABLE qbeat_state IN EXCLUSIVE MODE", mysql="SELECT * FROM qbeat_state FOR UPDATE"
    ),
    "lock the file": _hold(sqlite="UPDATE qbeat_leader SET id = id"),
}
