"""Requests can release runs, too. Frozen: `stores/tables.py` may go on, this file may not."""

from __future__ import annotations

from typing import Any

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import mysql

revision = "0002"
down_revision = "0001"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """MySQL commits each step by itself, so each can be repeated."""
    binary = mysql.VARCHAR(64, charset="utf8mb4", collation="utf8mb4_bin")
    exact = sa.String(64).with_variant(binary, "mysql", "mariadb")
    present = {column["name"] for column in sa.inspect(op.get_bind()).get_columns("qbeat_requests")}
    columns: tuple[sa.Column[Any], ...] = (
        sa.Column("action", sa.String(16), nullable=False, server_default=sa.text("'run'")),
        sa.Column("task_id", exact, nullable=False, server_default=sa.text("''")),
    )
    for column in columns:
        if column.name not in present:
            op.add_column("qbeat_requests", column)
    meta = sa.table("qbeat_meta", sa.column("id"), sa.column("schema_version"))
    op.execute(sa.update(meta).where(meta.c.id == 1, meta.c.schema_version < 2).values(schema_version=2))
