"""What a command works on: the app and its settings, the gate's rules, the tables."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from difflib import get_close_matches
from functools import cached_property, partial
from typing import Any, TypeVar

import click
import sqlalchemy as sa

from celery_qbeat.core.health import HealthRules
from celery_qbeat.core.jobs import CODE_PREFIX, Job, RowRules
from celery_qbeat.core.liveness import is_alive
from celery_qbeat.core.privileges import Privileges
from celery_qbeat.errors import QbeatError, SchemaError, SettingsError, Unavailable
from celery_qbeat.process.clock import SystemClock
from celery_qbeat.settings import Settings, read_settings
from celery_qbeat.stores import SqlStore, reading, reports, rows, schema
from celery_qbeat.stores.rows import Found
from celery_qbeat.wiring import build_privileges, build_store, row_rules

T = TypeVar("T")


class Project:
    """Made for one command. `app` is None when only the tables were named. Everything is read when it is needed."""

    def __init__(self, app: Any = None, database_url: str | None = None) -> None:
        self._app = app
        self._database_url = database_url
        self._checked = False
        self.clock = SystemClock()

    @classmethod
    def of(cls, ctx: click.Context) -> Project:
        """The one that the command line names."""
        app, url = getattr(ctx.obj, "app", None), getattr(ctx.obj, "database_url", None)
        if app is None and url is None:
            raise click.UsageError("name the Celery app with -A proj, or the tables with --database-url URL", ctx)
        return cls(app, url)

    @cached_property
    def app(self) -> Any:
        """The Celery app with its modules imported, or None. Raises SettingsError when it cannot be loaded."""
        if self._app is None:
            return None
        return _loading(self._load_app)

    def _load_app(self) -> Any:
        # Here and below, what only some commands need is imported by them: imports are most of what a command costs.
        from celery.app.utils import find_app

        app = find_app(self._app) if isinstance(self._app, str) else self._app
        # Sets Django up, too, where the project is one: the tables may be in its database.
        app.loader.import_default_modules()
        return app

    @cached_property
    def settings(self) -> Settings:
        settings = Settings() if self.app is None else _loading(lambda: read_settings(self.app.conf))
        if self._database_url is None:
            return settings
        return settings.model_copy(update={"database_url": self._database_url})

    @cached_property
    def privileges(self) -> Privileges | None:
        """The gate's rules; None when the app is not known."""
        return None if self.app is None else _loading(lambda: build_privileges(self.app, self.settings))

    @property
    def rules(self) -> RowRules:
        """How rows are read. Without the app nobody here knows whether cron rows run: what a beat wrote tells it."""
        rules = row_rules(self.settings)
        return replace(rules, cron=True) if self.app is None else rules

    @cached_property
    def code_jobs(self) -> dict[str, Job]:
        """The entries of `app.conf.beat_schedule`."""
        if self.app is None or not self.app.conf.beat_schedule:
            return {}
        from celery_qbeat.beat_schedule import code_jobs

        return {job.id: job for job in _loading(lambda: code_jobs(self.app))}

    # ------------------------------------------------------------ the tables

    @cached_property
    def store(self) -> SqlStore:
        return build_store(self.settings)

    def read(self, work: Callable[[sa.Connection], T]) -> T:
        """`work` in autocommit. Raises Unavailable and SchemaError with what to do."""
        self._look()
        return self.with_database_errors(lambda: self.store.link.read(work))

    def write(self, work: Callable[[sa.Connection], T]) -> T:
        """`work` in a transaction. Where the settings allow it, missing tables are made first."""
        self._look(making=True)
        return self.with_database_errors(lambda: self.store.link.write(work))

    def instance(self) -> str:
        """The identity of the tables. Raises Unavailable and SchemaError."""
        found = self.read(schema.identity)
        return "" if found is None else found.instance

    def check(self) -> None:
        """All that a beat checks at its start. Raises SchemaError; makes no tables."""
        store = build_store(self.settings.model_copy(update={"create_tables": False}))
        try:
            self.with_database_errors(store.open)
        finally:
            store.close()

    def close(self) -> None:
        """Give the connection back."""
        if "store" in self.__dict__:
            self.store.close()

    def with_database_errors(self, work: Callable[[], T]) -> T:
        """`work` on the store, its errors in sentences that name the database."""
        try:
            return work()
        except Unavailable as error:
            raise Unavailable(f"the database {self.store.describe()} cannot be used: {error}") from error

    def _look(self, *, making: bool = False) -> None:
        """Whether the tables are there and of our version; a role that may not look at that may still do its work."""
        if self._checked:
            return
        try:
            found = self.with_database_errors(lambda: self.store.link.read(schema.identity))
        except SchemaError:
            self._checked = True
            return
        except Unavailable:
            # Perhaps only because there is no SQLite file yet.
            found = None
        if found is None:
            if making:
                self.with_database_errors(self.store.open)
            else:
                self.check()
        elif found.version != schema.SCHEMA_VERSION:
            remedy = schema.MIGRATE.get(found.owner, found.owner)
            raise SchemaError(
                f"the tables have schema version {found.version}, this celery_qbeat works with "
                f"{schema.SCHEMA_VERSION}: run {remedy}, or install the celery_qbeat that made them"
            )
        self._checked = True

    # ------------------------------------------------------------ jobs

    def health_rules(self) -> HealthRules:
        """What rows are judged by, at this moment."""
        now = self.clock.now_us()
        leader = self.read(reports.leader)
        return HealthRules(
            rules=self.rules,
            workers=self.read(reading.workers),
            privileges=self.privileges,
            now_us=now,
            heard=is_alive(leader.seen_us, now, leader.silence_us),
        )

    def found(self, job_id: str) -> Found:
        """The row with this id, or the state of the entry in code. Raises QbeatError naming what there is."""
        row = self.read(lambda connection: rows.get(connection, [job_id])).get(job_id)
        if row is None and job_id.startswith(CODE_PREFIX):
            row = self.entries().get(job_id)
        if row is None:
            raise self.unknown(job_id)
        return row

    def with_runs(self, found: Sequence[Found]) -> list[Found]:
        """The same jobs with their last runs and those in flight."""
        return self.read(lambda connection: rows.with_runs(connection, found))

    def unknown(self, job_id: str) -> QbeatError:
        """The error for an id that no row has."""
        return QbeatError(f"there is no row {job_id!r} in {self.store.describe()}{self._near(job_id)}")

    def entries(self) -> dict[str, Found]:
        """The entries in code, by id; without the app those that a beat left a state of."""
        states = self.read(lambda connection: rows.code_states(connection, CODE_PREFIX))
        if self.app is None:
            return states
        return {job_id: states.get(job_id) or Found(job_id, {}, None) for job_id in sorted(self.code_jobs)}

    def all_rows(self, pattern: str | None = None, worker: str | None = None) -> Iterator[Found]:
        """Every row, in parts, in the order of their ids."""
        after: Any = None
        while True:
            part = self.read(partial(rows.part, after=after, pattern=pattern, worker=worker))
            yield from self.with_runs([found for found in part if pattern is None or rows.matches(found.id, pattern)])
            if len(part) < rows.ROWS_A_PART:
                return
            after = part[-1].row["id"]

    def _near(self, job_id: str) -> str:
        known = [found.id for found in self.read(rows.part)]
        near = get_close_matches(job_id, known, n=1)
        return f"; did you mean {near[0]!r}?" if near else ""


def _loading(work: Callable[[], T]) -> T:
    """What a user's modules do at import is theirs to name, ours to say in one sentence."""
    try:
        return work()
    except QbeatError:
        raise
    except Exception as error:
        raise SettingsError(f"the Celery app cannot be loaded: {type(error).__name__}: {error}") from error
