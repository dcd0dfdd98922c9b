"""Sentry's monitors of periodic tasks, with the real SDK and a transport that writes to a file."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from typing import Any

import pytest

from celery_qbeat.stores import open_store
from tests.celeryproc import Code, Project
from tests.servers.waiting import wait_for

pytest.importorskip("sentry_sdk", reason="pip install sentry-sdk")

pytestmark = pytest.mark.slow

INIT = """
import json, pathlib, sentry_sdk
from sentry_sdk.integrations.celery import CeleryIntegration
from sentry_sdk.transport import Transport


class ToFile(Transport):
    def capture_envelope(self, envelope):
        with pathlib.Path("check-ins.jsonl").open("a") as file:
            for item in envelope.items:
                if item.type == "check_in":
                    file.write(json.dumps(item.payload.json) + "\\n")


sentry_sdk.init(
    dsn="http://key@localhost/1", transport=ToFile, integrations=[CeleryIntegration(monitor_beat_tasks=True)]
)
"""

ROW = "INSERT INTO qbeat_jobs (id, fn, schedule_kind, schedule) VALUES (:id, :fn, :kind, :text)"


def check_ins(project: Project) -> dict[str, list[dict[str, Any]]]:
    """The check-ins of each monitor, oldest first."""
    path = project.folder / "check-ins.jsonl"
    found: dict[str, list[dict[str, Any]]] = {}
    for line in path.read_text().splitlines() if path.exists() else ():
        check_in = json.loads(line)
        found.setdefault(check_in["monitor_slug"], []).append(check_in)
    return found


def test_rows_and_entries_check_in_and_out(make_project: Callable[..., Project], redis_url: str) -> None:
    hourly = Code("{'in-code': {'task': 'proj.tasks.record', 'schedule': 3600}}")
    project = make_project(redis_url, {"qbeat_poll_interval": 0.2, "beat_schedule": hourly}, tasks=INIT)
    store = open_store(project.database_url, create_tables=True)
    store.open()
    store.close()
    project.sql(ROW, id="good", fn="proj.tasks.record", kind="interval", text="3600")
    project.sql(ROW, id="bad", fn="proj.tasks.fail", kind="interval", text="3600")
    project.worker("--pool=solo")
    beat = project.beat()
    wait_for(lambda: project.sql("SELECT 1 FROM qbeat_state WHERE job_id = 'code:in-code'"))
    beat.terminate()
    beat.wait_exit()
    due = int(time.time() * 1e6)
    project.sql("UPDATE qbeat_state SET next_run_us = :due WHERE job_id = 'code:in-code'", due=due)
    project.beat()
    names = ("good", "bad", "in-code")
    wait_for(lambda: all(len(check_ins(project).get(name, ())) >= 2 for name in names), what="check-ins and -outs")
    for name in names:
        first, last = check_ins(project)[name]
        assert (first["status"], last["status"]) == ("in_progress", "error" if name == "bad" else "ok")
        assert first["check_in_id"] == last["check_in_id"]
        assert last["duration"] is not None
        assert first["monitor_config"]["schedule"] == {"type": "interval", "value": 1, "unit": "hour"}
