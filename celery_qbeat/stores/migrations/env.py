"""Alembic's entry point. Runs inside the caller's transaction, with a version table of our own."""

from __future__ import annotations

from alembic import context

from celery_qbeat.stores import tables
from celery_qbeat.stores.upgrade import VERSION_TABLE

context.configure(
    connection=context.config.attributes["connection"],
    target_metadata=tables.metadata,
    version_table=VERSION_TABLE,
)
context.run_migrations()
