"""From settings to a working engine: the only place that names concrete classes.

The engine, the dispatchers and the gates are imported by the functions that make them: a command that reads the tables
needs none of them, and they take a good part of its time.
"""

from __future__ import annotations

import os
import signal
import socket
import sys
from collections import Counter
from collections.abc import Callable
from importlib import import_module
from typing import TYPE_CHECKING, Any

from celery_qbeat.core.jobs import RowRules, Verdict
from celery_qbeat.core.liveness import TICK_PREFIX, silence_limit_us
from celery_qbeat.core.privileges import BUILTIN_PRUNE, NAMESPACES, Privileges
from celery_qbeat.errors import SettingsError
from celery_qbeat.ports import Clock, Gate, Steps, Store
from celery_qbeat.process import heartbeat
from celery_qbeat.process.clock import SystemClock
from celery_qbeat.process.heartbeat import HeartbeatFile
from celery_qbeat.process.safe_logging import get_logger
from celery_qbeat.settings import DEFAULT_DATABASE_URL, Settings
from celery_qbeat.stores import SqlStore, open_store, parsed_url, shown

if TYPE_CHECKING:
    from celery_qbeat.dispatchers.celery.overrides import EntryHook
    from celery_qbeat.engine import Chore, Engine

log = get_logger(__name__)

DAY_US = 86_400_000_000

FAIL_POINT = "QBEAT_FAIL_POINT"
"""An environment variable for tests of crashes, see `fail_point`; unset in production."""


def build(
    app: Any,
    settings: Settings,
    *,
    poll_s: float | None = None,
    tick_every_s: float | None = None,
    stopping: Callable[[], bool] = lambda: False,
    note_alive: Callable[[], None] = lambda: None,
    hook: EntryHook | None = None,
) -> Engine:
    """An engine for this app. Connects to nothing. Raises SettingsError for settings that do not fit together.

    `tick_every_s`: the process ends after a tick, and the next one is started so many seconds later; None: it stays.
    `hook`: the beat's `apply_entry`, for SDKs that patch it.
    """
    from celery_qbeat.beat_schedule import code_jobs
    from celery_qbeat.dispatchers import CeleryCompletions, CeleryDispatcher
    from celery_qbeat.dispatchers.celery.broker import check_urls
    from celery_qbeat.engine import Dependencies, Engine, Limits

    check_urls(app)
    poll = poll_s or settings.poll_interval
    clock = SystemClock()
    store = build_store(settings)
    holder = holder_name() if tick_every_s is None else TICK_PREFIX + holder_name()
    silence_us = silence_limit_us(tick_every_s or poll)
    privileges = build_privileges(app, settings)
    for warning in privileges.unmatched():
        log.warning("beat: %s", warning)
    return Engine(
        Dependencies(
            store=store,
            gate=build_gate(settings, poll, holder, clock),
            dispatcher=CeleryDispatcher(app, namespace=settings.namespace, instance=lambda: store.instance, hook=hook),
            completions=CeleryCompletions(app, namespace=settings.namespace, instance=lambda: store.instance),
            clock=clock,
            privileges=privileges,
            rules=row_rules(settings),
            limits=Limits(poll_s=poll, silence_us=silence_us),
            holder=holder,
            code_jobs=code_jobs(app),
            run_code_entries=settings.run_code_entries,
            builtin_tasks={BUILTIN_PRUNE: pruning(settings)},
            fail_point=fail_point(os.environ.get(FAIL_POINT)),
            stopping=stopping,
            note_alive=note_alive,
        )
    )


def heartbeat_file(settings: Settings, every_s: float) -> HeartbeatFile | None:
    """The file that a beat touches; None when neither the settings nor the environment name one."""
    path = settings.heartbeat_file or os.environ.get(heartbeat.VARIABLE)
    return HeartbeatFile(path, every_s) if path else None


def build_store(settings: Settings) -> SqlStore:
    """The store behind `qbeat_database_url`."""
    url, from_django = database_url(settings)
    create = settings.create_tables
    if create is None:
        create = url.startswith("sqlite") and not from_django
    return open_store(url, create_tables=create)


def database_url(settings: Settings) -> tuple[str, bool]:
    """The URL of the tables, and whether it is Django's: the default in a project that has the Django app installed."""
    if settings.database_url is not None:
        return settings.database_url, False
    django_apps = sys.modules.get("django.apps")
    if django_apps is not None and django_apps.apps.ready and django_apps.apps.is_installed("celery_qbeat.django"):
        # By name: the Django app is an edge above this module, and there only in Django projects.
        url: str = import_module("celery_qbeat.django.url").database_url(settings.django_database)
        return url, True
    return DEFAULT_DATABASE_URL, False


def build_gate(settings: Settings, poll_s: float, holder: str, clock: Clock) -> Gate:
    """A lock in Redis when `qbeat_redis_url` is set, else a gate that is always open."""
    from celery_qbeat.gates import RedisGate, StandaloneGate

    if settings.redis_url is None:
        return StandaloneGate()
    return RedisGate(settings.redis_url, settings.namespace, settings.lock_ttl, poll_s, holder, clock=clock)


def build_privileges(app: Any, settings: Settings) -> Privileges:
    """What rows may run in this app: its registered tasks, and the settings."""
    app.loader.import_default_modules()
    return Privileges(
        registered=frozenset(app.tasks),
        functions=frozenset(settings.functions),
        namespaces=NAMESPACES + settings.privileged,
        denied=frozenset(settings.denied),
        queues=frozenset(settings.queues),
        allow=settings.allow,
        reserved=tuple((pattern, frozenset(scopes)) for pattern, scopes in settings.reserved.items()),
        scope_required=settings.scope_required,
    )


def row_rules(settings: Settings) -> RowRules:
    """How rows are read under these settings."""
    return RowRules(min_interval_us=round(settings.min_interval * 1_000_000), cron=settings.cron)


def pruning(settings: Settings) -> Chore:
    """The built-in chore that deletes what the ledger has kept long enough."""
    keep = settings.retention

    def prune(store: Store, now_us: int) -> Steps:
        days = dict.fromkeys(Verdict, keep.other)
        days |= {Verdict.SUCCEEDED: keep.succeeded, Verdict.FAILED: keep.failed}
        return store.prune({verdict: now_us - round(kept * DAY_US) for verdict, kept in days.items()}, now_us)

    return prune


def fail_point(order: str | None) -> Callable[[str], None]:
    """What the engine calls, by name, at the points where a crash would hurt; without an `order` it does nothing.

    For tests only: `published:3` sends this process SIGKILL when it passes `published` for the third time, and
    `sending:1:SIGSTOP` freezes it when it passes `sending` for the first time. Raises SettingsError.
    """
    if not order:
        return lambda name: None
    try:
        point, passing, by = order.split(":") if order.count(":") == 2 else (*order.split(":"), "SIGKILL")
        count, number = int(passing), signal.Signals[by]
    except (ValueError, KeyError):
        raise SettingsError(f"{FAIL_POINT}: {order!r} is not understood; write it like 'published:3'") from None
    passed: Counter[str] = Counter()

    def passing_by(name: str) -> None:
        passed[name] += 1
        if name == point and passed[name] == count:
            os.kill(os.getpid(), number)

    return passing_by


def holder_name() -> str:
    """How this process is named to people: host and pid."""
    return f"{socket.gethostname()}:{os.getpid()}"


def engine_database(settings: Settings) -> str:
    """The database's URL for a banner, its password hidden. Raises SettingsError."""
    return shown(parsed_url(database_url(settings)[0]))
