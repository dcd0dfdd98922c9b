"""How Redis is read: messages stay where they are until they were dealt with, whoever else reads there."""

from __future__ import annotations

from pathlib import Path

import pytest

from celery_qbeat.core.identity import run_token
from celery_qbeat.core.jobs import Verdict
from celery_qbeat.dispatchers.celery.redis_completion_queue import WINDOW
from tests.contract.making_runs import BUDGET_S, INSTANCE, QUEUE, Desk, fresh_id
from tests.servers import Redis


@pytest.fixture
def desk(redis_url: str, tmp_path: Path) -> Desk:
    return Desk(redis_url, tmp_path)


def test_what_was_read_stays_in_its_list_until_it_is_acknowledged(desk: Desk, redis_server: Redis) -> None:
    desk.report(fresh_id())
    assert len(desk.take()) == 1
    with redis_server.client() as client:
        assert client.llen(QUEUE) == 1
        desk.completions.acknowledge()
        assert client.llen(QUEUE) == 0
    desk.completions.close()


def test_more_messages_than_one_look_brings_come_in_their_order(desk: Desk) -> None:
    runs = [fresh_id() for _ in range(2 * WINDOW + 3)]
    for run in runs:
        desk.report(run)
    assert [run for run, _ in desk.take()] == runs
    desk.completions.acknowledge()
    assert desk.take() == []
    desk.completions.close()


def test_a_reader_that_wakes_up_late_removes_nothing_that_it_has_not_read(desk: Desk) -> None:
    first, second = fresh_id(), fresh_id()
    desk.report(first)
    frozen, writer = desk.completions, desk.another()
    assert [end.task_id for end in frozen.receive(BUDGET_S)] == [first]
    assert [end.task_id for end in writer.receive(BUDGET_S)] == [first]
    writer.acknowledge()
    desk.report(second)
    frozen.acknowledge()
    assert [end.task_id for end in writer.receive(BUDGET_S)] == [second]
    writer.acknowledge()
    frozen.close()
    writer.close()


def test_what_could_not_be_stored_comes_again_with_the_next_look(desk: Desk) -> None:
    first, second = fresh_id(), fresh_id()
    desk.report(first)
    assert desk.take() == [(first, Verdict.SUCCEEDED)]
    desk.report(second)
    assert [run for run, _ in desk.take()] == [first, second]
    desk.completions.acknowledge()
    assert desk.take() == []
    desk.completions.close()


def test_dropped_messages_are_gone_though_nothing_was_acknowledged(desk: Desk, redis_server: Redis) -> None:
    desk.write(7)
    with redis_server.client() as client:
        client.rpush(QUEUE, b"\xff")
        assert desk.take() == []
        assert client.llen(QUEUE) == 0
    desk.completions.close()


@pytest.mark.parametrize("options", [{"global_keyprefix": "shop."}, {"priority_steps": [0, 5]}])
def test_ends_of_every_priority_are_read_under_the_apps_own_names(
    redis_url: str, tmp_path: Path, options: dict[str, object]
) -> None:
    desk = Desk(redis_url, tmp_path)
    desk.completions.close()
    desk.app.conf.broker_transport_options = options
    desk.completions = desk.another()
    assert desk.take() == []
    runs = {priority: fresh_id() for priority in (0, 3, 5, 9)}
    for priority, run in runs.items():
        kwargs = {"v": 1, "run": run, "outcome": "success", "token": run_token(INSTANCE, run)}
        desk.write([[], kwargs, {}], priority=priority)
    assert sorted(run for run, _ in desk.take()) == sorted(runs.values())
    desk.completions.acknowledge()
    assert desk.take() == []
    desk.completions.close()
