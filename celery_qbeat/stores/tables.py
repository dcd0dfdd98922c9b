"""The tables, one description for all databases. Migrations create them; this is what they are compared with.

People write `qbeat_jobs`, `qbeat_workers` and `qbeat_requests`; the machine writes the rest. No foreign keys: a
cascade of MariaDB passes the triggers by, and the ledger outlives the jobs. No second unique constraint on
`qbeat_jobs`: SQLite's REPLACE would delete through it without a trace.
"""

from __future__ import annotations

from typing import Any

import sqlalchemy as sa
from sqlalchemy.dialects import mysql, postgresql
from sqlalchemy.ext.compiler import compiles
from sqlalchemy.schema import SchemaItem
from sqlalchemy.types import TypeEngine

ID_LENGTH = 191
"""The longest id whose index fits into every database: 191 characters of four bytes."""

metadata = sa.MetaData()


class LongText(sa.ColumnElement[Any]):
    """A default for text and JSON columns; MySQL wants it in parentheses, as an expression."""

    inherit_cache = True

    def __init__(self, text: str) -> None:
        self.text = text


class Truth(sa.ColumnElement[Any]):
    """A default for boolean columns: PostgreSQL has true and false, the others 1 and 0."""

    inherit_cache = True

    def __init__(self, value: bool) -> None:
        self.value = value


@compiles(LongText)
def _text(element: LongText, _compiler: Any, **_: Any) -> str:
    return f"'{element.text}'"


@compiles(LongText, "mysql")
def _text_mysql(element: LongText, compiler: Any, **_: Any) -> str:
    return f"'{element.text}'" if compiler.dialect.is_mariadb else f"('{element.text}')"


@compiles(Truth)
def _truth(element: Truth, _compiler: Any, **_: Any) -> str:
    return "1" if element.value else "0"


@compiles(Truth, "postgresql")
def _truth_postgresql(element: Truth, _compiler: Any, **_: Any) -> str:
    return "true" if element.value else "false"


def exact(length: int) -> TypeEngine[str]:
    """Text that is compared byte for byte; the usual collations of MySQL fold case and accents."""
    binary = mysql.VARCHAR(length, charset="utf8mb4", collation="utf8mb4_bin")
    return sa.String(length).with_variant(binary, "mysql", "mariadb")


def big_id() -> TypeEngine[int]:
    """A number that the database gives: 64 bits, except that SQLite wants the word INTEGER."""
    return sa.BigInteger().with_variant(sa.Integer(), "sqlite")


def json_text() -> TypeEngine[Any]:
    """JSON where the database knows it, checked text on SQLite."""
    return sa.Text().with_variant(postgresql.JSONB(), "postgresql").with_variant(mysql.JSON(), "mysql", "mariadb")


def _table(name: str, *columns: sa.Column[Any] | SchemaItem) -> sa.Table:
    return sa.Table(
        name,
        metadata,
        *columns,
        mysql_engine="InnoDB",
        mysql_charset="utf8mb4",
        mariadb_engine="InnoDB",
        mariadb_charset="utf8mb4",
        sqlite_autoincrement=any(isinstance(item, sa.Column) and item.identity is not None for item in columns),
    )


def _number(name: str) -> sa.Column[int]:
    return sa.Column(name, big_id(), sa.Identity(), primary_key=True)


def _us(name: str, *, default: str | None = None) -> sa.Column[int]:
    return sa.Column(name, sa.BigInteger, nullable=default is None, server_default=default and sa.text(default))


def _count(name: str, kind: type[TypeEngine[int]] = sa.Integer, default: str = "0") -> sa.Column[int]:
    return sa.Column(name, kind, nullable=False, server_default=sa.text(default))


def _short(name: str, kind: TypeEngine[str], default: str = "") -> sa.Column[str]:
    return sa.Column(name, kind, nullable=False, server_default=sa.text(f"'{default}'"))


def _text_column(name: str) -> sa.Column[str]:
    return sa.Column(name, sa.Text, nullable=False, server_default=LongText(""))


def _json(name: str, default: str) -> sa.Column[Any]:
    return sa.Column(name, json_text(), nullable=False, server_default=LongText(default))


def _flag(name: str, default: bool) -> sa.Column[bool]:
    return sa.Column(name, sa.Boolean, nullable=False, server_default=Truth(default))


def _is_flag(table: str, column: str) -> sa.CheckConstraint:
    """SQLite would store 'false' as a true text, MySQL any number."""
    check = sa.CheckConstraint(f"{column} IN (0, 1)", name=f"{table}_{column}")
    return check.ddl_if(callable_=_has_no_booleans)


def _has_no_booleans(*_: Any, dialect: sa.Dialect, **__: Any) -> bool:
    return dialect.name != "postgresql"


def _is_json(table: str, column: str) -> sa.CheckConstraint:
    return sa.CheckConstraint(f"json_valid({column})", name=f"{table}_{column}").ddl_if(dialect="sqlite")


jobs = _table(
    "qbeat_jobs",
    sa.Column("id", exact(ID_LENGTH), primary_key=True),
    sa.Column("fn", exact(255), nullable=False),
    sa.Column("schedule_kind", sa.String(16), nullable=False),
    sa.Column("schedule", sa.String(255), nullable=False),
    _short("worker", exact(64)),
    _json("args", "[]"),
    _json("kwargs", "{}"),
    _flag("enabled", True),
    _short("timezone", sa.String(64), "UTC"),
    _short("days_only", sa.String(32)),
    _short("days_skip", sa.String(32)),
    _text_column("dates_skip"),
    _us("start_us"),
    _us("end_us"),
    _short("overlap", sa.String(16), "skip"),
    _short("catch_up", sa.String(16), "once"),
    sa.Column("grace_seconds", sa.Integer),
    _short("on_doubt", sa.String(16), "drop"),
    _count("max_run_seconds", default="3600"),
    sa.Column("queue", sa.String(255)),
    sa.Column("priority", sa.Integer),
    sa.Column("expires_seconds", sa.Integer),
    _text_column("description"),
    _us("rev", default="0"),
    _is_flag("qbeat_jobs", "enabled"),
    _is_json("qbeat_jobs", "args"),
    _is_json("qbeat_jobs", "kwargs"),
)

workers = _table(
    "qbeat_workers",
    sa.Column("name", exact(64), primary_key=True),
    _flag("enabled", True),
    _short("queue", sa.String(255)),
    _text_column("queues"),
    _text_column("functions"),
    _text_column("description"),
    _is_flag("qbeat_workers", "enabled"),
)

requests = _table(
    "qbeat_requests",
    _number("id"),
    sa.Column("job_id", exact(ID_LENGTH), nullable=False),
    sa.Column("asked_us", sa.BigInteger, nullable=False),
    _short("asked_by", sa.String(255)),
    _short("action", sa.String(16), "run"),
    _short("task_id", exact(64)),
)

state = _table(
    "qbeat_state",
    sa.Column("job_id", exact(ID_LENGTH), primary_key=True),
    _us("first_seen_us", default="0"),
    _us("next_run_us"),
    _us("last_run_us"),
    _us("last_slot_us"),
    _us("last_finished_us"),
    _us("last_succeeded_us"),
    _us("late_after_us"),
    _short("last_verdict", sa.String(16)),
    _text_column("last_error"),
    _count("runs", sa.BigInteger),
    _count("failures_in_a_row"),
    _text_column("problem"),
    _short("plan_key", sa.String(64)),
    _us("claim_epoch", default="0"),
)

runs = _table(
    "qbeat_runs",
    _number("id"),
    sa.Column("task_id", exact(64), nullable=False),
    sa.Column("job_id", exact(ID_LENGTH), nullable=False),
    sa.Column("slot_us", sa.BigInteger, nullable=False),
    _us("batch_id"),
    sa.Column("verdict", sa.String(16), nullable=False),
    _us("claimed_us", default="0"),
    _us("sent_us"),
    _us("finished_us"),
    _us("lease_until_us"),
    _us("late_us", default="0"),
    _count("collapsed", sa.BigInteger),
    _text_column("detail"),
    _flag("by_hand", False),
    _flag("resend", False),
    _us("started_us"),
    _us("took_us"),
    sa.UniqueConstraint("task_id", name="qbeat_runs_task"),
    # Slot first: new entries go to the end of the index.
    sa.UniqueConstraint("slot_us", "job_id", name="qbeat_runs_slot"),
    sa.Index("qbeat_runs_job", "job_id", "slot_us"),
    sa.Index("qbeat_runs_batch", "batch_id"),
    # Finds the runs in flight: a run that ended has no lease.
    sa.Index("qbeat_runs_lease", "lease_until_us", "id"),
    _is_flag("qbeat_runs", "by_hand"),
    _is_flag("qbeat_runs", "resend"),
)

batches = _table(
    "qbeat_batches",
    sa.Column("batch_id", sa.BigInteger, primary_key=True, autoincrement=False),
    sa.Column("epoch", sa.BigInteger, nullable=False),
    sa.Column("claimed_us", sa.BigInteger, nullable=False),
    sa.Column("n", sa.Integer, nullable=False),
    _us("sent_us"),
    sa.Index("qbeat_batches_sent", "sent_us"),
)

changes = _table(
    "qbeat_changes",
    sa.Column("version", big_id(), sa.Identity(), primary_key=True),
    sa.Column("job_id", exact(ID_LENGTH)),
    sa.Column("op", sa.String(1), nullable=False),
    _us("at_us", default="0"),
    _us("txid", default="0"),
    sa.Index("qbeat_changes_txid", "txid"),
)

history = _table(
    "qbeat_history",
    _number("id"),
    sa.Column("job_id", exact(ID_LENGTH), nullable=False),
    sa.Column("since_us", sa.BigInteger, nullable=False),
    sa.Column("spec", sa.Text),
    sa.Index("qbeat_history_job", "job_id", "since_us"),
)

leader = _table(
    "qbeat_leader",
    sa.Column("id", sa.Integer, primary_key=True, autoincrement=False),
    _us("epoch", default="0"),
    _short("holder", sa.String(255)),
    _us("taken_us", default="0"),
    _us("seen_us", default="0"),
    _us("silence_us", default="15000000"),
)

meta = _table(
    "qbeat_meta",
    sa.Column("id", sa.Integer, primary_key=True, autoincrement=False),
    sa.Column("schema_version", sa.Integer, nullable=False),
    sa.Column("instance", sa.String(36), nullable=False),
    _us("log_floor", default="0"),
    _short("owner", sa.String(16), "alembic"),
)


def metadata_of(dialect: str) -> sa.MetaData:
    """The tables as that database shows them, for comparison: PostgreSQL alone has identity columns."""
    shown = sa.MetaData()
    for table in metadata.sorted_tables:
        for column in table.to_metadata(shown).columns:
            if dialect != "postgresql" and column.identity is not None:
                column.identity = column.server_default = None
    return shown
