"""Runs know when a worker started them and how long they took.

Frozen: `stores/tables.py` may go on, this file may not."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0004"
down_revision = "0003"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """MySQL commits each step by itself, so each can be repeated."""
    present = {column["name"] for column in sa.inspect(op.get_bind()).get_columns("qbeat_runs")}
    for name in ("started_us", "took_us"):
        if name not in present:
            op.add_column("qbeat_runs", sa.Column(name, sa.BigInteger, nullable=True))
    meta = sa.table("qbeat_meta", sa.column("id"), sa.column("schema_version"))
    op.execute(sa.update(meta).where(meta.c.id == 1, meta.c.schema_version < 3).values(schema_version=3))
