"""One Django in the test process, without a settings module: Celery must not take every app for a Django project."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import django
import pytest
from celery import Celery
from django.conf import settings
from django.test.utils import setup_test_environment

from tests.django.databases import register

INSTALLED = [
    "django.contrib.admin",
    "django.contrib.auth",
    "django.contrib.contenttypes",
    "django.contrib.messages",
    "django.contrib.sessions",
    "django.contrib.staticfiles",
    "celery_qbeat.django",
]
MIDDLEWARE = [
    "django.middleware.security.SecurityMiddleware",
    "django.contrib.sessions.middleware.SessionMiddleware",
    "django.middleware.common.CommonMiddleware",
    "django.middleware.csrf.CsrfViewMiddleware",
    "django.contrib.auth.middleware.AuthenticationMiddleware",
    "django.contrib.messages.middleware.MessageMiddleware",
    "django.middleware.clickjacking.XFrameOptionsMiddleware",
]
TEMPLATES = [
    {
        "BACKEND": "django.template.backends.django.DjangoTemplates",
        "APP_DIRS": True,
        "OPTIONS": {
            "string_if_invalid": "",
            "context_processors": [
                "django.template.context_processors.request",
                "django.contrib.auth.context_processors.auth",
                "django.contrib.messages.context_processors.messages",
            ],
        },
    }
]

if not settings.configured:
    settings.configure(
        SECRET_KEY="of the tests",
        ALLOWED_HOSTS=["testserver", "127.0.0.1"],
        INSTALLED_APPS=INSTALLED,
        MIDDLEWARE=MIDDLEWARE,
        TEMPLATES=TEMPLATES,
        ROOT_URLCONF="tests.django.urls",
        DATABASES={
            "default": {
                "ENGINE": "django.db.backends.sqlite3",
                "NAME": ":memory:",
                "OPTIONS": {"transaction_mode": "IMMEDIATE", "timeout": 20},
            }
        },
        USE_TZ=True,
        TIME_ZONE="UTC",
        STATIC_URL="/static/",
        PASSWORD_HASHERS=["django.contrib.auth.hashers.MD5PasswordHasher"],
    )
    django.setup()
    # So that answers tell which context their page was made from.
    setup_test_environment()


@pytest.fixture(scope="session")
def _file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("django") / "django.sqlite3"


@pytest.fixture(scope="session")
def _migrated(_file: Path) -> Iterator[None]:
    from django.core.management import call_command
    from django.db import connections

    connections["default"].settings_dict["NAME"] = str(_file)
    # A test may have opened the database in memory that stood here before.
    connections["default"].close()
    call_command("migrate", verbosity=0)
    yield
    connections["default"].close()


@pytest.fixture
def db(_migrated: None) -> Iterator[None]:
    """Django's default database, migrated; what the test writes is rolled back."""
    from django.db import transaction

    with transaction.atomic():
        yield
        transaction.set_rollback(True)


@pytest.fixture
def celery_app() -> Iterator[Celery]:
    """The project's Celery app: three tasks, the queue `slow`."""
    from django.apps import apps

    app = Celery("shop", broker="memory://", set_as_current=False)
    app.conf.update(qbeat_queues=["slow"], qbeat_cron=True)
    for name in ("shop.cleanup", "shop.report", "mail.send"):
        app.task(name=name)(_nothing)
    config = apps.get_app_config("qbeat")
    before, config.celery_app = config.celery_app, app
    yield app
    config.celery_app = before
    app.close()


@pytest.fixture
def site(db: None, celery_app: Celery) -> Any:
    """A browser without a screen, logged in as superuser."""
    from django.contrib.auth.models import User
    from django.test import Client

    client = Client(raise_request_exception=True)
    client.force_login(User.objects.create_superuser("boss"))
    return client


def _nothing(*_: Any, **__: Any) -> None:
    """A task that does nothing."""


@pytest.fixture
def django_database() -> Iterator[Callable[[str], str]]:
    """`django_database(url)`: SQLAlchemy's URL becomes an entry of DATABASES; its alias."""
    from django.db import connections

    aliases: list[str] = []

    def make(url: str) -> str:
        aliases.append(register(url))
        return aliases[-1]

    yield make
    for alias in aliases:
        connections[alias].close()
        del connections[alias]
        del connections.databases[alias]


@pytest.fixture
def client_of(site: Any) -> Callable[..., Any]:
    """`client_of("view_job", ...)`: logged in as a member of the staff with exactly these permissions."""
    from django.contrib.auth.models import Permission, User
    from django.test import Client

    def make(*codenames: str) -> Any:
        user = User.objects.create_user(f"user{User.objects.count()}", is_staff=True)
        found = list(Permission.objects.filter(content_type__app_label="qbeat", codename__in=codenames))
        assert len(found) == len(codenames), f"{codenames}: {found}"
        user.user_permissions.set(found)
        client = Client()
        client.force_login(user)
        return client

    return make


@pytest.fixture
def five(site: Any) -> Any:
    """Jobs in five conditions."""
    from celery_qbeat.django.models import Worker
    from tests.django.rows import make_job, make_state, us_now

    hour = 3_600_000_000
    now = us_now()
    Worker.objects.create(name="billing")
    make_job("good")
    make_state(
        "good",
        next_run_us=now + hour,
        last_run_us=now - hour,
        last_verdict="succeeded",
        late_after_us=now + hour,
    )
    make_job("late", schedule_kind="interval", schedule="60", worker="billing")
    make_state(
        "late",
        next_run_us=now,
        last_run_us=now - 24 * hour,
        last_verdict="sent",
        late_after_us=now - hour,
    )
    make_job("failing")
    make_state("failing", last_run_us=now, last_verdict="failed", last_error="ValueError: <no>", failures_in_a_row=3)
    make_job("broken", schedule_kind="daily", schedule="25:00")
    make_state("broken", problem="schedule '25:00' has no such hour")
    make_job("new", enabled=False)
    return site
