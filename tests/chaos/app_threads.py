"""Source for an app's `tasks` module, and for a `sitecustomize` before it: what changes how signals arrive."""

from __future__ import annotations

THREADS = """
import threading
import time

from celery.signals import beat_init


@beat_init.connect
def start_threads(**_):
    for _number in range(3):
        threading.Thread(target=time.sleep, args=(3600,), daemon=True).start()


start_threads()
"""
"""Three threads that sleep, as those of Sentry, OpenTelemetry and prometheus_client do most of the time. Anew where the
beat runs: threads do not survive a fork."""

SLOW_PUBLISHING = """
import time
from pathlib import Path

from celery.signals import before_task_publish


@before_task_publish.connect
def wait(**_):
    if Path("slow").exists():
        print("publishing waits", flush=True)
        time.sleep(120)
"""
"""While the project's folder has a file `slow`, no message gets out."""

IN_A_THREAD = """
import signal

from celery.beat import EmbeddedService

from proj import app


def end(_number, _frame):
    raise SystemExit


signal.signal(signal.SIGTERM, end)
beat = EmbeddedService(app, thread=True, scheduler_cls="qbeat")
try:
    beat.start()
    while True:
        signal.pause()
finally:
    beat.stop()
"""
"""A program of its own, with the beat in a thread of it."""
