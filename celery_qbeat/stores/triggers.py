"""The triggers that note changes of people's tables, and the view for people: SQL for each database.

`create` and `drop` are lists of statements that may be run again and again, one at a time. They import nothing else,
so that every tool which owns the schema (Alembic here, Django there) can run them; each tool runs `create` after its
last migration, because SQLite drops triggers silently when a table is rebuilt.

What the triggers write into `qbeat_changes`: op I, U, D with the job's id (a renamed row: D and U), W with a worker's
name, R with the id of a job somebody wants run by hand, T without an id: everything may have changed. The op is a hint;
a reader looks at the row.
"""

# Built from this file's own constants; the one foreign part, the schema's name, is quoted.
# ruff: noqa: S608

from __future__ import annotations

from dataclasses import dataclass

from celery_qbeat.stores import status_view

JOB_COLUMNS = (
    "id, fn, schedule_kind, schedule, worker, args, kwargs, enabled, timezone, days_only, days_skip, dates_skip, "
    "start_us, end_us, overlap, catch_up, grace_seconds, on_doubt, max_run_seconds, queue, priority, expires_seconds, "
    "description"
)


def create(dialect: str, schema: str = "public", *, view: bool = True) -> list[str]:
    """Statements that make triggers and view anew.

    `dialect` as SQLAlchemy names it; `schema` is that of the tables (PostgreSQL only, where the statements belong into
    one transaction). The view is replaced, not dropped, where that keeps the rights granted on it.
    Without `view` it is left as it is: tables of an older version lack a column that it reads.
    """
    if dialect == "postgresql":
        return _PostgreSQL(_quoted(schema)).all(view=view)
    make = {"sqlite": _sqlite, "mysql": _mysql, "mariadb": _mysql}[dialect]
    return [*_drop_triggers(), *make(view)]


def drop(dialect: str, schema: str = "public") -> list[str]:
    """Statements that remove triggers and view; needed before a column of the view can change its type."""
    if dialect == "postgresql":
        return _postgresql_drop(_quoted(schema))
    return ["DROP VIEW IF EXISTS qbeat_status", *_drop_triggers()]


def _drop_triggers() -> list[str]:
    return [f"DROP TRIGGER IF EXISTS {name}" for name in _NAMES]


_NAMES = (
    "qbeat_jobs_ins",
    "qbeat_jobs_upd",
    "qbeat_jobs_del",
    "qbeat_workers_ins",
    "qbeat_workers_upd",
    "qbeat_workers_del",
    "qbeat_requests_ins",
)


def _quoted(schema: str) -> str:
    return '"' + schema.replace('"', '""') + '"'


# ---------------------------------------------------------------- SQLite

_SQLITE_NOW = status_view.SQLITE.now


def _sqlite(view: bool) -> list[str]:
    log = "INSERT INTO qbeat_changes (job_id, op, at_us)"

    def trigger(name: str, when: str, body: str) -> str:
        return f"CREATE TRIGGER {name} AFTER {when} BEGIN {body} END"

    def note(value: str, op: str) -> str:
        return f"{log} VALUES ({value}, '{op}', {_SQLITE_NOW});"

    def renamed(column: str, op: str) -> str:
        return f"{log} SELECT OLD.{column}, '{op}', {_SQLITE_NOW} WHERE OLD.{column} IS NOT NEW.{column};"

    rev = "UPDATE qbeat_jobs SET rev = last_insert_rowid() WHERE id = NEW.id;"
    select = status_view.query(status_view.SQLITE)
    return [
        trigger("qbeat_jobs_ins", "INSERT ON qbeat_jobs", note("NEW.id", "I") + rev),
        # Only the columns of people: the trigger's own UPDATE of rev must not start it again.
        trigger(
            "qbeat_jobs_upd",
            f"UPDATE OF {JOB_COLUMNS} ON qbeat_jobs",
            renamed("id", "D") + note("NEW.id", "U") + rev,
        ),
        trigger("qbeat_jobs_del", "DELETE ON qbeat_jobs", note("OLD.id", "D")),
        trigger("qbeat_workers_ins", "INSERT ON qbeat_workers", note("NEW.name", "W")),
        trigger("qbeat_workers_upd", "UPDATE ON qbeat_workers", renamed("name", "W") + note("NEW.name", "W")),
        trigger("qbeat_workers_del", "DELETE ON qbeat_workers", note("OLD.name", "W")),
        trigger("qbeat_requests_ins", "INSERT ON qbeat_requests", note("NEW.job_id", "R")),
        *(["DROP VIEW IF EXISTS qbeat_status", "CREATE VIEW qbeat_status AS" + select] if view else []),
        f"{log} VALUES (NULL, 'T', {_SQLITE_NOW})",
    ]


# ---------------------------------------------------------------- MySQL, MariaDB

_MYSQL_NOW = status_view.MYSQL.now


def _mysql(view: bool) -> list[str]:
    log = "INSERT INTO qbeat_changes (job_id, op, at_us)"

    def trigger(name: str, when: str, body: str) -> str:
        return f"CREATE TRIGGER {name} {when} FOR EACH ROW BEGIN {body} END"

    def note(value: str, op: str) -> str:
        return f"{log} VALUES ({value}, '{op}', {_MYSQL_NOW});"

    def renamed(column: str, op: str) -> str:
        return f"IF NOT (NEW.{column} <=> OLD.{column}) THEN {note(f'OLD.{column}', op)} END IF;"

    rev = "SET NEW.rev = LAST_INSERT_ID();"
    # With the rights of the reader: the view outlives the account that made it.
    shown = "CREATE OR REPLACE SQL SECURITY INVOKER VIEW qbeat_status AS" + status_view.query(status_view.MYSQL)
    return [
        trigger("qbeat_jobs_ins", "BEFORE INSERT ON qbeat_jobs", note("NEW.id", "I") + rev),
        trigger("qbeat_jobs_upd", "BEFORE UPDATE ON qbeat_jobs", renamed("id", "D") + note("NEW.id", "U") + rev),
        trigger("qbeat_jobs_del", "AFTER DELETE ON qbeat_jobs", note("OLD.id", "D")),
        trigger("qbeat_workers_ins", "AFTER INSERT ON qbeat_workers", note("NEW.name", "W")),
        trigger("qbeat_workers_upd", "AFTER UPDATE ON qbeat_workers", renamed("name", "W") + note("NEW.name", "W")),
        trigger("qbeat_workers_del", "AFTER DELETE ON qbeat_workers", note("OLD.name", "W")),
        trigger("qbeat_requests_ins", "AFTER INSERT ON qbeat_requests", note("NEW.job_id", "R")),
        *([shown] if view else []),
        # DDL commits one by one here: what was edited between DROP and CREATE was not noted.
        f"{log} VALUES (NULL, 'T', {_MYSQL_NOW})",
    ]


# ---------------------------------------------------------------- PostgreSQL

_PG_NOW = status_view.POSTGRESQL.now
POSTGRESQL_FUNCTIONS = (
    "qbeat_jobs_rev",
    "qbeat_jobs_log",
    "qbeat_jobs_ren",
    "qbeat_workers_log",
    "qbeat_workers_ren",
    "qbeat_requests_log",
)

POSTGRESQL_PATH = "pg_catalog, pg_temp"
"""The search path of our trigger functions: no function or operator that another role made is found on it."""

_ENTER_PATH = (
    # Only for this transaction. A view keeps the functions and operators that it finds when it is made.
    "SELECT pg_catalog.set_config('qbeat.search_path', pg_catalog.current_setting('search_path'), true)",
    f"SELECT pg_catalog.set_config('search_path', '{POSTGRESQL_PATH}', true)",
)
_LEAVE_PATH = "SELECT pg_catalog.set_config('search_path', pg_catalog.current_setting('qbeat.search_path'), true)"


_NEW = "REFERENCING NEW TABLE AS qbeat_new"


def _postgresql_drop(schema: str) -> list[str]:
    # CASCADE takes the triggers along.
    functions = [f"DROP FUNCTION IF EXISTS {schema}.{name}() CASCADE" for name in POSTGRESQL_FUNCTIONS]
    return [
        f"DROP VIEW IF EXISTS {schema}.qbeat_status",
        *functions,
        f"DROP SEQUENCE IF EXISTS {schema}.qbeat_rev_seq",
    ]


@dataclass(frozen=True, slots=True)
class _PostgreSQL:
    """The statements for the tables of one schema, its name quoted."""

    schema: str

    def all(self, *, view: bool) -> list[str]:
        schema, sequence = self.schema, self.regclass("qbeat_rev_seq")
        select = status_view.query(status_view.POSTGRESQL, f"{schema}.")
        return [
            *_ENTER_PATH,
            f"CREATE SEQUENCE IF NOT EXISTS {schema}.qbeat_rev_seq",
            *self.function("qbeat_jobs", "rev", f"NEW.rev := pg_catalog.nextval({sequence}); RETURN NEW;"),
            *self.function("qbeat_jobs", "log", self.log("left(TG_OP, 1)", "id")),
            *self.function("qbeat_workers", "log", self.log("'W'", "name")),
            *self.function("qbeat_requests", "log", self.log("'R'", "job_id")),
            *self.function("qbeat_jobs", "ren", self.rename("id", "D")),
            *self.function("qbeat_workers", "ren", self.rename("name", "W")),
            *self.trigger("qbeat_jobs", "rev", "BEFORE INSERT OR UPDATE ON {table} FOR EACH ROW", "qbeat_jobs_rev()"),
            *self.logged("qbeat_jobs"),
            *self.renamed("qbeat_jobs", "id"),
            *self.logged("qbeat_workers"),
            *self.renamed("qbeat_workers", "name"),
            *self.statement("qbeat_requests", "ins", "INSERT", _NEW),
            *([f"CREATE OR REPLACE VIEW {schema}.qbeat_status AS{select}"] if view else []),
            self.note("VALUES (NULL, 'T', {tail})"),
            _LEAVE_PATH,
        ]

    def regclass(self, name: str) -> str:
        """The object `name` of the schema as a constant."""
        literal = f"{self.schema}.{name}".replace("'", "''")
        return f"'{literal}'::pg_catalog.regclass"

    def note(self, lines: str) -> str:
        tail = f"{_PG_NOW}, pg_current_xact_id()::text::bigint"
        return f"INSERT INTO {self.schema}.qbeat_changes (job_id, op, at_us, txid) " + lines.format(tail=tail)

    def log(self, op: str, column: str) -> str:
        # Never joins old with new: PL/pgSQL keeps the first call's plan, which takes minutes for a bulk edit.
        none = self.note("VALUES (NULL, 'T', {tail})")
        old = self.note(f"SELECT o.{column}, {op}, {{tail}} FROM qbeat_old o")
        new = self.note(f"SELECT n.{column}, {op}, {{tail}} FROM qbeat_new n")
        return f"IF TG_OP = 'TRUNCATE' THEN {none}; ELSIF TG_OP = 'DELETE' THEN {old}; ELSE {new}; END IF; RETURN NULL;"

    def rename(self, column: str, op: str) -> str:
        return self.note(f"VALUES (OLD.{column}, '{op}', {{tail}})") + "; RETURN NULL;"

    def function(self, table: str, name: str, body: str) -> list[str]:
        """The function `{table}_{name}` for triggers of `table`.

        SECURITY DEFINER: a role that edits rows needs no right on the log. Every role may read the function's text and
        choose the table, the types and the objects around a call, so the function has a fixed search path, nobody may
        set it on a table of his own, and on such a table, where it was set before, it fails before it reads a value.
        """
        called = f"{self.schema}.{table}_{name}()"
        message = f"{table}_{name} is only for table {self.schema}.{table}".replace("'", "''")
        foreign = (
            f"IF TG_RELID <> {self.regclass(table)} "
            f"THEN RAISE EXCEPTION USING MESSAGE = '{message}', ERRCODE = 'wrong_object_type'; END IF;"
        )
        definition = (
            f"CREATE OR REPLACE FUNCTION {called} RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER "
            f"SET search_path = {POSTGRESQL_PATH} AS $qbeat$ BEGIN {foreign} {body} END $qbeat$"
        )
        return [definition, f"REVOKE EXECUTE ON FUNCTION {called} FROM PUBLIC"]

    def trigger(self, table: str, name: str, timing: str, call: str) -> list[str]:
        when = timing.format(table=f"{self.schema}.{table}")
        return [
            f"DROP TRIGGER IF EXISTS {table}_{name} ON {self.schema}.{table}",
            f"CREATE TRIGGER {table}_{name} {when} EXECUTE FUNCTION {self.schema}.{call}",
        ]

    def statement(self, table: str, name: str, event: str, rows: str = "") -> list[str]:
        return self.trigger(table, name, f"AFTER {event} ON {{table}} {rows} FOR EACH STATEMENT", f"{table}_log()")

    def logged(self, table: str) -> list[str]:
        return [
            *self.statement(table, "ins", "INSERT", _NEW),
            *self.statement(table, "upd", "UPDATE", _NEW),
            *self.statement(table, "del", "DELETE", "REFERENCING OLD TABLE AS qbeat_old"),
            *self.statement(table, "trn", "TRUNCATE"),
        ]

    def renamed(self, table: str, column: str) -> list[str]:
        timing = f"AFTER UPDATE OF {column} ON {{table}} FOR EACH ROW WHEN (OLD.{column} IS DISTINCT FROM NEW.{column})"
        return self.trigger(table, "ren", timing, f"{table}_ren()")
