"""The epoch: who may write."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import sqlalchemy as sa

from celery_qbeat.errors import Fenced
from celery_qbeat.stores import tables

BATCH_BITS = 20
"""A batch id is `epoch << 20 | n`."""


def fence(connection: sa.Connection, epoch: int) -> None:
    """Hold the leader row until the end of the transaction. Raises Fenced unless its epoch is this one."""
    leader = tables.leader.c
    mine = sa.select(leader.id).where(leader.id == 1, leader.epoch == epoch).with_for_update(read=True)
    if connection.execute(mine).first() is None:
        raise fenced(connection)


def fenced(connection: sa.Connection) -> Fenced:
    """The error for a writer whose epoch is over: it names the next one."""
    leader = tables.leader.c
    found = connection.execute(sa.select(leader.epoch, leader.holder).where(leader.id == 1)).first()
    if found is None:
        return Fenced("the row of qbeat_leader is gone", epoch=0)
    return Fenced(f"epoch {found[0]} was taken by {found[1]}", epoch=found[0])


def take_epoch(connection: sa.Connection, values: Mapping[str, Any], known: int, above: int) -> int:
    """See `Store.take_epoch`; `values`: the other columns of the leader's row.

    Above the epochs of all batches: the row alone may have been restored, or changed by hand.
    """
    leader, batches = tables.leader, tables.batches
    row = connection.execute(sa.select(leader.c.epoch).where(leader.c.id == 1).with_for_update()).first()
    newest = connection.execute(sa.select(sa.func.max(batches.c.batch_id))).scalar_one()
    last = max(row[0] if row else 0, (newest or 0) >> BATCH_BITS)
    if last < known:
        raise Fenced(f"the epoch is {last}, and was {known} before", epoch=last)
    epoch = max(last, above) + 1
    if row:
        connection.execute(sa.update(leader).where(leader.c.id == 1).values(epoch=epoch, **values))
    else:
        connection.execute(sa.insert(leader), {"id": 1, "epoch": epoch, **values})
    return int(epoch)


def record_heartbeat(connection: sa.Connection, epoch: int, now_us: int) -> None:
    """Note that the writer lives. Raises Fenced."""
    leader = tables.leader
    mine = sa.and_(leader.c.id == 1, leader.c.epoch == epoch)
    if connection.execute(sa.update(leader).where(mine).values(seen_us=now_us)).rowcount == 0:
        raise fenced(connection)
