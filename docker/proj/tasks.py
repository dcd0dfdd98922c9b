"""What rows may run."""

from celery.utils.log import get_task_logger

from proj import app

log = get_task_logger(__name__)


@app.task
def greet(name: str) -> str:
    """Say hello in the worker's log."""
    log.info("hello, %s", name)
    return f"hello, {name}"
