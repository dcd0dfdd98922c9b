"""The demo's Celery app: `celery -A celery_qbeat.demo.app ...`, in the folder named by QBEAT_DEMO_FOLDER."""

from __future__ import annotations

import os
from pathlib import Path

from celery import Celery
from celery.utils.log import get_task_logger

from celery_qbeat.demo import DATABASE, FOLDER_VARIABLE
from celery_qbeat.process.safe_logging import SafeText

log = get_task_logger(__name__)
log.addFilter(SafeText())

app = Celery("celery_qbeat.demo.app", broker="filesystem://localhost")
folder = Path(os.environ[FOLDER_VARIABLE])
messages, control = folder / "messages", folder / "control"
messages.mkdir(parents=True, exist_ok=True)
control.mkdir(parents=True, exist_ok=True)
app.conf.update(
    broker_transport_options={
        "data_folder_in": str(messages),
        "data_folder_out": str(messages),
        "control_folder": str(control),
    },
    broker_connection_retry_on_startup=True,
    worker_log_format="%(message)s",
    worker_task_log_format="%(message)s",
    qbeat_database_url=f"sqlite:///{folder / DATABASE}",
    qbeat_poll_interval=0.5,
)


@app.task(name="demo.greet")
def greet(name: str = "world") -> str:
    """Say hello: the only task that the demo's rows may run, beside `demo.report`."""
    log.warning("ran: demo.greet(%r): hello, %s", name, name)
    return f"hello, {name}"


@app.task(name="demo.report")
def report(day: str = "today") -> str:
    """Pretend to write a report."""
    log.warning("ran: demo.report(%r): the report of %s is written", day, day)
    return day
