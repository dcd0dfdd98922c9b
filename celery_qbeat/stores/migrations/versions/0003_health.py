"""How long a beat may be silent. Frozen: `stores/tables.py` may go on, this file may not."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0003"
down_revision = "0002"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """MySQL commits each step by itself, so each can be repeated."""
    if "silence_us" not in {column["name"] for column in sa.inspect(op.get_bind()).get_columns("qbeat_leader")}:
        column = sa.Column("silence_us", sa.BigInteger, nullable=False, server_default=sa.text("15000000"))
        op.add_column("qbeat_leader", column)
    meta = sa.table("qbeat_meta", sa.column("id"), sa.column("schema_version"))
    op.execute(sa.update(meta).where(meta.c.id == 1, meta.c.schema_version < 3).values(schema_version=3))
