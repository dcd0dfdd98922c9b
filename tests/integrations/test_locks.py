"""celery-singleton and celery-once, whose tasks refuse to be queued twice, with their locks in a real Redis."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from celery import Celery

from celery_qbeat.dispatchers import CeleryDispatcher
from tests.contract.making_runs import INSTANCE, entry, make_app, row, run_of, take_all, yes

singleton = pytest.importorskip("celery_singleton", reason="pip install celery-singleton")
once = pytest.importorskip("celery_once", reason="pip install celery-once")


def anything(*args: Any, **kwargs: Any) -> None:
    """Takes all arguments."""


@pytest.fixture
def app(redis_url: str, tmp_path: Path) -> Celery:
    lock = {"backend": "celery_once.backends.Redis", "settings": {"url": redis_url, "default_timeout": 60}}
    app = make_app(redis_url, tmp_path, result_backend=redis_url, ONCE=lock)
    app.task(shared=False, name="single", base=singleton.Singleton)(anything)
    app.task(shared=False, name="strict", base=singleton.Singleton, raise_on_duplicate=True)(anything)
    app.task(shared=False, name="once", base=once.QueueOnce)(anything)
    app.task(shared=False, name="graceful", base=once.QueueOnce, once={"graceful": True})(anything)
    return app


@pytest.fixture
def dispatcher(app: Celery) -> Iterator[CeleryDispatcher]:
    made = CeleryDispatcher(app, namespace="test", instance=lambda: INSTANCE)
    yield made
    made.close()


@pytest.mark.parametrize(
    ("fn", "detail"),
    [
        ("single", "sent nothing and returned task {first}, which runs already"),
        ("strict", "raised DuplicateTaskError: Attempted to queue a duplicate of task ID {first}"),
        ("once", "raised AlreadyQueued: Expires in"),
        ("graceful", "sent nothing and returned a result in the state REJECTED"),
    ],
)
@pytest.mark.parametrize("make", [row, entry])
def test_the_second_run_is_declined_until_the_first_ends(
    app: Celery, dispatcher: CeleryDispatcher, fn: str, detail: str, make: Any
) -> None:
    first, second, other = (run_of(make(fn=fn)) for _ in range(3))
    receipts = dispatcher.send([first, second], yes)
    assert [receipt.outcome.value for receipt in receipts] == ["sent", "declined"], receipts
    assert detail.format(first=first.run.task_id) in receipts[1].detail
    (message,) = take_all(app)
    assert message.headers["id"] == first.run.task_id
    # As a worker does at the end of the first.
    task = app.tasks[fn]
    if fn in ("single", "strict"):
        task.on_success(None, first.run.task_id, [], {})
    else:
        task.after_return("SUCCESS", None, first.run.task_id, [], {}, None)
    assert [receipt.outcome.value for receipt in dispatcher.send([other], yes)] == ["sent"]
    assert len(take_all(app)) == 1


def test_a_broker_that_takes_nothing_leaves_no_lock(
    app: Celery, dispatcher: CeleryDispatcher, monkeypatch: pytest.MonkeyPatch
) -> None:
    shipment = run_of(row(fn="single"))
    answers = iter([True, False])
    (receipt,) = dispatcher.send([shipment], lambda: next(answers))
    assert receipt.outcome.value == "not sent", "trust ended while the task took its lock"
    (receipt,) = dispatcher.send([shipment], yes)
    assert receipt.outcome.value == "sent"
