"""The two ways to a schema: Django's migrations and Alembic's."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import command
from django.core.management import call_command

from celery_qbeat.stores.upgrade import config, install


def by_django(alias: str, *, everything: bool = False) -> None:
    """`manage.py migrate qbeat --database=alias`, or without `qbeat`: all apps."""
    call_command("migrate", *([] if everything else ["qbeat"]), database=alias, verbosity=0)


def by_alembic(url: str) -> None:
    """What `celery qbeat migrate` does, but for the table with Alembic's own note."""
    engine = sa.create_engine(url, poolclass=sa.NullPool)
    with engine.begin() as connection:
        command.upgrade(config(connection), "head")
        install(connection)
        connection.exec_driver_sql("DROP TABLE qbeat_alembic_version")
