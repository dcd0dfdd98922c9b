"""Source for an app's `tasks` module: what apps do that changes where signals arrive."""

from __future__ import annotations

THREADS = """
import threading
import time

for _number in range(3):
    threading.Thread(target=time.sleep, args=(3600,), daemon=True).start()
"""
"""Three threads that sleep, as those of Sentry, OpenTelemetry and prometheus_client do most of the time."""
