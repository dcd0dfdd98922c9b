"""The tables. Frozen: `stores/tables.py` may go on, this file may not."""

from __future__ import annotations

import uuid
from typing import Any

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import mysql, postgresql
from sqlalchemy.types import TypeEngine

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None

INT, BIG, TEXT = sa.Integer(), sa.BigInteger(), sa.Text()


def _exact(length: int) -> TypeEngine[str]:
    return sa.String(length).with_variant(
        mysql.VARCHAR(length, charset="utf8mb4", collation="utf8mb4_bin"), "mysql", "mariadb"
    )


NAME, KEY, TASK = _exact(64), _exact(191), _exact(64)
FN = _exact(255)
JSON = TEXT.with_variant(postgresql.JSONB(), "postgresql").with_variant(mysql.JSON(), "mysql", "mariadb")


def upgrade() -> None:
    _people()
    _jobs_state()
    _ledger()
    _machine()
    _rows()


def _dialect() -> str:
    return op.get_bind().dialect.name


def _number(name: str) -> sa.Column[int]:
    return sa.Column(name, BIG.with_variant(INT, "sqlite"), sa.Identity(), primary_key=True)


def _need(name: str, kind: TypeEngine[Any], default: str | None = None) -> sa.Column[Any]:
    """A column that is NOT NULL; `default` is SQL."""
    return sa.Column(name, kind, nullable=False, server_default=None if default is None else sa.text(default))


def _long(name: str, kind: TypeEngine[Any] = TEXT, default: str = "''") -> sa.Column[Any]:
    # MySQL takes a default of text and JSON columns as an expression only; MariaDB takes both, and shows it without.
    dialect = op.get_bind().dialect
    mysql_proper = dialect.name == "mysql" and not getattr(dialect, "is_mariadb", False)
    return _need(name, kind, f"({default})" if mysql_proper else default)


def _flag(name: str, default: bool) -> sa.Column[bool]:
    words = ("false", "true") if _dialect() == "postgresql" else ("0", "1")
    return _need(name, sa.Boolean(), words[default])


def _null(name: str, kind: TypeEngine[Any] = BIG) -> sa.Column[Any]:
    return sa.Column(name, kind)


def _flags(table: str, *columns: str) -> list[sa.CheckConstraint]:
    if _dialect() == "postgresql":
        return []
    return [sa.CheckConstraint(f"{name} IN (0, 1)", name=f"{table}_{name}") for name in columns]


def _json(table: str, *columns: str) -> list[sa.CheckConstraint]:
    if _dialect() != "sqlite":
        return []
    return [sa.CheckConstraint(f"json_valid({name})", name=f"{table}_{name}") for name in columns]


def _table(name: str, *items: Any, indexes: dict[str, list[str]] | None = None) -> None:
    """Made unless it is there: DDL of MySQL does not roll back, so a migration that broke off is run again."""
    inspector = sa.inspect(op.get_bind())
    there: set[str | None] = set()
    if inspector.has_table(name):
        there = {index["name"] for index in inspector.get_indexes(name)}
    else:
        options: dict[str, Any] = {"mysql_engine": "InnoDB", "mysql_charset": "utf8mb4"}
        options |= {"mariadb_engine": "InnoDB", "mariadb_charset": "utf8mb4"}
        numbered = any(isinstance(item, sa.Column) and item.identity is not None for item in items)
        op.create_table(name, *items, **options, sqlite_autoincrement=numbered)
    for index, columns in (indexes or {}).items():
        if index not in there:
            op.create_index(index, name, columns)


def _people() -> None:
    _table(
        "qbeat_jobs",
        sa.Column("id", KEY, primary_key=True),
        _need("fn", FN),
        _need("schedule_kind", sa.String(16)),
        _need("schedule", sa.String(255)),
        _need("worker", NAME, "''"),
        _long("args", JSON, "'[]'"),
        _long("kwargs", JSON, "'{}'"),
        _flag("enabled", True),
        _need("timezone", sa.String(64), "'UTC'"),
        _need("days_only", sa.String(32), "''"),
        _need("days_skip", sa.String(32), "''"),
        _long("dates_skip"),
        _null("start_us"),
        _null("end_us"),
        _need("overlap", sa.String(16), "'skip'"),
        _need("catch_up", sa.String(16), "'once'"),
        _null("grace_seconds", INT),
        _need("on_doubt", sa.String(16), "'drop'"),
        _need("max_run_seconds", INT, "3600"),
        _null("queue", sa.String(255)),
        _null("priority", INT),
        _null("expires_seconds", INT),
        _long("description"),
        _need("rev", BIG, "0"),
        *_flags("qbeat_jobs", "enabled"),
        *_json("qbeat_jobs", "args", "kwargs"),
    )
    _table(
        "qbeat_workers",
        sa.Column("name", NAME, primary_key=True),
        _flag("enabled", True),
        _need("queue", sa.String(255), "''"),
        _long("queues"),
        _long("functions"),
        _long("description"),
        *_flags("qbeat_workers", "enabled"),
    )
    _table(
        "qbeat_requests",
        _number("id"),
        _need("job_id", KEY),
        _need("asked_us", BIG),
        _need("asked_by", sa.String(255), "''"),
    )


def _jobs_state() -> None:
    _table(
        "qbeat_state",
        sa.Column("job_id", KEY, primary_key=True),
        _need("first_seen_us", BIG, "0"),
        _null("next_run_us"),
        _null("last_run_us"),
        _null("last_slot_us"),
        _null("last_finished_us"),
        _null("last_succeeded_us"),
        _null("late_after_us"),
        _need("last_verdict", sa.String(16), "''"),
        _long("last_error"),
        _need("runs", BIG, "0"),
        _need("failures_in_a_row", INT, "0"),
        _long("problem"),
        _need("plan_key", sa.String(64), "''"),
        _need("claim_epoch", BIG, "0"),
    )
    _table(
        "qbeat_history",
        _number("id"),
        _need("job_id", KEY),
        _need("since_us", BIG),
        _null("spec", TEXT),
        indexes={"qbeat_history_job": ["job_id", "since_us"]},
    )


def _ledger() -> None:
    _table(
        "qbeat_runs",
        _number("id"),
        _need("task_id", TASK),
        _need("job_id", KEY),
        _need("slot_us", BIG),
        _null("batch_id"),
        _need("verdict", sa.String(16)),
        _need("claimed_us", BIG, "0"),
        _null("sent_us"),
        _null("finished_us"),
        _null("lease_until_us"),
        _need("late_us", BIG, "0"),
        _need("collapsed", BIG, "0"),
        _long("detail"),
        _flag("by_hand", False),
        _flag("resend", False),
        sa.UniqueConstraint("task_id", name="qbeat_runs_task"),
        sa.UniqueConstraint("slot_us", "job_id", name="qbeat_runs_slot"),
        *_flags("qbeat_runs", "by_hand", "resend"),
        indexes={
            "qbeat_runs_job": ["job_id", "slot_us"],
            "qbeat_runs_batch": ["batch_id"],
            "qbeat_runs_lease": ["lease_until_us", "id"],
        },
    )
    _table(
        "qbeat_batches",
        sa.Column("batch_id", BIG, primary_key=True, autoincrement=False),
        _need("epoch", BIG),
        _need("claimed_us", BIG),
        _need("n", INT),
        _null("sent_us"),
        indexes={"qbeat_batches_sent": ["sent_us"]},
    )


def _machine() -> None:
    _table(
        "qbeat_changes",
        _number("version"),
        _null("job_id", KEY),
        _need("op", sa.String(1)),
        _need("at_us", BIG, "0"),
        _need("txid", BIG, "0"),
        indexes={"qbeat_changes_txid": ["txid"]},
    )
    _table(
        "qbeat_leader",
        sa.Column("id", INT, primary_key=True, autoincrement=False),
        _need("epoch", BIG, "0"),
        _need("holder", sa.String(255), "''"),
        _need("taken_us", BIG, "0"),
        _need("seen_us", BIG, "0"),
    )
    _table(
        "qbeat_meta",
        sa.Column("id", INT, primary_key=True, autoincrement=False),
        _need("schema_version", INT),
        _need("instance", sa.String(36)),
        _need("log_floor", BIG, "0"),
        _need("owner", sa.String(16), "'alembic'"),
    )


def _rows() -> None:
    leader = sa.table("qbeat_leader", sa.column("id"))
    meta = sa.table("qbeat_meta", sa.column("id"), sa.column("schema_version"), sa.column("instance"))
    connection = op.get_bind()
    if connection.execute(sa.select(leader.c.id)).first() is None:
        connection.execute(sa.insert(leader), {"id": 1})
    if connection.execute(sa.select(meta.c.id)).first() is None:
        connection.execute(sa.insert(meta), {"id": 1, "schema_version": 1, "instance": str(uuid.uuid4())})
        # With the first migration only: who deletes it does not want it.
        names = ("id", "fn", "schedule_kind", "schedule", "description")
        jobs = sa.table("qbeat_jobs", *(sa.column(name) for name in names))
        values = ("_builtin.prune", "_builtin.prune", "every", "1h", "Deletes runs that were kept long enough.")
        connection.execute(sa.insert(jobs), dict(zip(names, values, strict=True)))
