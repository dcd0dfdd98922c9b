"""Run the example with one command: `python examples/django/run.py`. Ctrl-C ends it.

Migrates, makes a user and some jobs, then runs a worker, a beat and Django's server.
"""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

HERE = Path(__file__).parent
PORT = os.environ.get("SHOP_PORT", "8000")

JOBS = [
    {"id": "shop.baskets", "fn": "shop.cleanup", "schedule_kind": "interval", "schedule": "20", "max_run_seconds": 60},
    {
        "id": "shop.sales.minutely",
        "fn": "shop.report",
        "schedule_kind": "every",
        "schedule": "1m",
        "max_run_seconds": 60,
    },
    {
        "id": "shop.sales.daily",
        "fn": "shop.report",
        "schedule_kind": "daily",
        "schedule": "02:30,14:00",
        "timezone": "Europe/Berlin",
        "kwargs": {"name": "daily sales"},
        "description": "Twice a day; at the change of the clocks, too.",
    },
    {
        "id": "shop.newsletter.weekly",
        "fn": "shop.newsletter",
        "schedule_kind": "cron",
        "schedule": "0 9 * * 1",
        "timezone": "Europe/Berlin",
    },
    {"id": "shop.broken", "fn": "shop.cleanup", "schedule_kind": "daily", "schedule": "25:00"},
    {"id": "shop.refused", "fn": "celery.chord_unlock", "schedule_kind": "interval", "schedule": "60"},
]


def prepare():
    """Tables, user, jobs; what is there already stays."""
    sys.path.insert(0, str(HERE))
    os.environ.setdefault("DJANGO_SETTINGS_MODULE", "shop.settings")
    import django

    django.setup()
    from django.contrib.auth.models import User
    from django.core.management import call_command

    from celery_qbeat.django.models import Job

    call_command("migrate", verbosity=0)
    if not User.objects.filter(username="admin").exists():
        User.objects.create_superuser("admin", password="admin")
        Job.objects.bulk_create([Job(**job) for job in JOBS])


def start(command):
    return subprocess.Popen([sys.executable, *command], cwd=HERE)


def main():
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    prepare()
    worker = ["-m", "celery", "-A", "shop", "--quiet", "worker", "--loglevel=INFO", "--concurrency=2"]
    beat = ["-m", "celery", "-A", "shop", "--quiet", "beat", "--scheduler=qbeat", "--loglevel=INFO", "--pidfile="]
    server = ["manage.py", "runserver", "--noreload", f"127.0.0.1:{PORT}"]
    children = [start(command) for command in (worker, beat, server)]
    print(f"\n  The jobs: http://127.0.0.1:{PORT}/   (user admin, password admin)\n", flush=True)  # noqa: T201
    try:
        while children[1].poll() is None and children[2].poll() is None:
            time.sleep(0.2)
            if children[0].poll() is not None:
                # Celery's broker of plain files hands over half a message now and then, and its worker ends by that.
                children[0] = start(worker)
    except KeyboardInterrupt:
        pass
    finally:
        for child in children:
            child.terminate()
        for child in children:
            child.wait()


if __name__ == "__main__":
    main()
