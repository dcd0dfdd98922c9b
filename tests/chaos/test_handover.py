"""What happens to one lock, one server or one beat, and how the others take over: real beats, one cause at a time."""

from __future__ import annotations

import signal
import sys
import time
from collections.abc import Callable

import psutil
import pytest

from tests.celeryproc import Process
from tests.chaos.proxy import Proxy
from tests.chaos.scene import Scene, holder, outage_s, refused, times_seen
from tests.chaos.world import LOCK_KEYS
from tests.servers import PostgreSQL, Redis

pytestmark = [pytest.mark.slow, pytest.mark.chaos]

MakeScene = Callable[..., Scene]
OwnRedis = Callable[..., Redis]
LONG_S = 60.0
"""A lock that a test would not wait for: who takes over before, did not wait for its end."""


def tell(what: str, since: float) -> None:
    """For `pytest -s`; no test fails because a machine is slow."""
    sys.stdout.write(f"{what} {time.monotonic() - since:.3f} s\n")


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGQUIT, signal.SIGHUP])
def test_a_signal_gives_the_lock_back_at_once_and_a_standby_takes_over(
    make_scene: MakeScene, own_redis: OwnRedis, number: signal.Signals
) -> None:
    gate = own_redis()
    scene = make_scene(lock_ttl=LONG_S, poll=0.5)
    scene.insert(20, "interval", "1")
    first = scene.writer(gate.url)
    second = scene.standby(gate.url)
    scene.wait_more()
    held = holder(gate)
    since = time.monotonic()
    first.send_signal(number)
    scene.wait(lambda: holder(gate) != held, "the lock is given back", LONG_S / 2)
    tell("lock given back after", since)
    second.wait_output("beat: writer", LONG_S / 2)
    tell("the standby writes after", since)
    assert first.wait_exit() == 0
    scene.ended.add(first)
    scene.wait_epoch(2)
    scene.finish()


def test_after_sigkill_a_standby_takes_over_when_the_lock_has_ended(make_scene: MakeScene, own_redis: OwnRedis) -> None:
    gate = own_redis()
    scene = make_scene()
    scene.insert(20, "interval", "1", on_doubt="resend")
    first = scene.writer(gate.url)
    second = scene.standby(gate.url)
    scene.wait_more()
    since = time.monotonic()
    first.kill()
    scene.ended.add(first)
    second.wait_output("beat: writer")
    tell("the standby writes after", since)
    scene.wait_epoch(2)
    scene.finish()


def test_a_frozen_writer_claims_nothing_after_waking_and_lives(make_scene: MakeScene, own_redis: OwnRedis) -> None:
    gate = own_redis()
    scene = make_scene()
    scene.insert(20, "interval", "1")
    first = scene.writer(gate.url)
    second = scene.standby(gate.url)
    scene.wait_more()
    first.freeze()
    second.wait_output("beat: writer")
    scene.wait_epoch(2)
    lines = len(scene.ledger())
    first.thaw()
    first.wait_output("follower: jobs paused|fenced")
    scene.wait_more(50)
    assert {entry.epoch for entry in scene.ledger()[lines:]} == {2}
    assert first.running
    scene.finish()


@pytest.mark.parametrize("on_doubt", ["drop", "resend"])
def test_a_writer_frozen_between_its_last_question_and_the_message_sends_no_slot_twice_under_drop(
    make_scene: MakeScene, own_redis: OwnRedis, on_doubt: str
) -> None:
    gate = own_redis()
    scene = make_scene()
    jobs = set(scene.insert(10, "interval", "3600", on_doubt=on_doubt))
    # Ten are asked for one by one; the eleventh question is that before the push.
    first = scene.beat(gate.url, armed="sending:11:SIGSTOP")
    scene.wait(lambda: len(scene.ledger()) == len(jobs) and _stopped(first), "the writer freezes itself")
    assert not scene.messages
    second = scene.writer(gate.url)
    scene.wait(lambda: all(e.sent_us or e.verdict == "in doubt" for e in scene.ledger()), "the slots are settled")
    first.thaw()
    times = 1 if on_doubt == "drop" else 2
    scene.wait(lambda: len(scene.messages) == times * len(jobs), "what was on its way arrives")
    first.wait_output("follower: jobs paused|fenced")
    assert second.running
    evidence = scene.finish()
    verdict = "in doubt" if on_doubt == "drop" else "sent"
    assert {entry.verdict for entry in evidence.ledger if entry.job in jobs} == {verdict}
    assert len({message.task_id for message in evidence.messages}) == len(jobs)


def test_while_redis_refuses_at_the_start_nothing_is_sent(make_scene: MakeScene, own_redis: OwnRedis) -> None:
    gate = own_redis()
    gate.stop()
    scene = make_scene()
    scene.insert(10, "interval", "1")
    assert refused(gate.url)
    beats = [scene.beat(gate.url), scene.beat(gate.url)]
    for beat in beats:
        beat.wait_output("gate: Redis is away: jobs paused")
    before_us = time.time_ns() // 1000
    assert not scene.messages
    gate.start()
    scene.wait_more()
    assert min(message.seen_us for message in scene.messages) >= before_us
    for beat in beats:
        beat.wait_output("Redis is back")
    scene.finish()


def test_a_writer_that_alone_loses_redis_sends_nothing_after_its_trust_ended(
    make_scene: MakeScene, own_redis: OwnRedis
) -> None:
    gate = own_redis()
    scene = make_scene()
    scene.insert(20, "interval", "1")
    with Proxy(gate.port) as proxy:
        first = scene.writer(f"redis://127.0.0.1:{proxy.port}/0")
        second = scene.standby(gate.url)
        scene.wait_more()
        proxy.lead_to(None)
        first.wait_output("gate: Redis is away: jobs paused")
        second.wait_output("beat: writer")
        scene.wait_epoch(2)
        # Its lock had not ended when it stopped, so nothing of the new writer came before its last message.
        last = max(scene.messages.index(message) for message in scene.by_epoch(1))
        assert last < min(scene.messages.index(message) for message in scene.by_epoch(2))
        proxy.lead_to(gate.port)
        first.wait_output("gate: Redis is back")
        scene.wait_more(30)
        scene.finish()


def test_a_writer_that_alone_loses_the_database_leaves_the_lock_to_a_standby(
    make_scene: MakeScene, own_redis: OwnRedis, own_postgres: Callable[..., PostgreSQL]
) -> None:
    database, gate = own_postgres(), own_redis()
    url = database.url_of(database.create_database())
    scene = make_scene(url, lock_ttl=LONG_S)
    scene.insert(20, "interval", "1")
    with Proxy(database.port) as proxy:
        scene.project.configure(qbeat_database_url=url.replace(f":{database.port}/", f":{proxy.port}/"))
        first = scene.writer(gate.url)
        scene.project.configure(qbeat_database_url=url)
        second = scene.standby(gate.url)
        scene.wait_more()
        proxy.lead_to(None)
        since = time.monotonic()
        second.wait_output("beat: writer", LONG_S / 2)
        tell("the standby writes after", since)
        scene.wait_epoch(2)
        proxy.lead_to(database.port)
        first.wait_output("database: back(.|\n)*follower: jobs paused")
        scene.wait_more(30)
        scene.finish()
    assert times_seen(first, "database: ") == 2
    assert times_seen(second, "database: ") == 0


def test_an_emptied_redis_ends_nobody(make_scene: MakeScene, own_redis: OwnRedis) -> None:
    gate = own_redis()
    scene = make_scene()
    scene.insert(20, "interval", "1")
    scene.writer(gate.url)
    scene.standby(gate.url)

    def flush() -> None:
        with gate.client() as client:
            client.flushall()

    def delete() -> None:
        with gate.client() as client:
            client.delete(*client.scan_iter(LOCK_KEYS))

    def restart() -> None:
        gate.kill()
        gate.start()

    for epoch, empty in enumerate((flush, delete, restart), start=2):
        scene.wait_more()
        held = holder(gate)
        empty()
        scene.wait(lambda held=held: holder(gate) not in (None, held), "somebody acquires the lock anew")
        scene.wait_epoch(epoch)
    scene.finish()


def test_a_failover_to_a_replica_without_the_lock_ends_nobody(make_scene: MakeScene, own_redis: OwnRedis) -> None:
    old, new = own_redis(), own_redis()
    scene = make_scene()
    scene.insert(20, "interval", "1")
    with Proxy(old.port) as proxy:
        url = f"redis://127.0.0.1:{proxy.port}/0"
        scene.writer(url)
        scene.standby(url)
        scene.wait_more()
        assert holder(new) is None
        proxy.lead_to(new.port)
        scene.wait(lambda: holder(new) is not None, "somebody acquires the lock there")
        scene.wait_epoch(2)
        scene.wait_more(30)
        scene.finish()


def test_two_holders_at_once_send_no_slot_twice_and_both_live(make_scene: MakeScene, own_redis: OwnRedis) -> None:
    one, two = own_redis(), own_redis()
    scene = make_scene()
    scene.insert(20, "interval", "1")
    first = scene.writer(one.url)
    scene.wait_more()
    second = scene.writer(two.url)
    # Each is fenced by the other in turn; it gives its lock back and comes again after a while.
    first.wait_output("fenced: a newer beat writes")
    second.wait_output("fenced: a newer beat writes")
    scene.wait_epoch(4)
    scene.finish()


def test_of_two_standalone_beats_the_older_stands_by_and_says_so_once(make_scene: MakeScene) -> None:
    scene = make_scene()
    scene.insert(20, "interval", "1")
    first = scene.writer(None)
    scene.wait_more()
    second = scene.writer(None)
    first.wait_output("fenced: a newer beat writes")
    scene.wait_epoch(2)
    scene.wait_more(60)
    evidence = scene.finish()
    assert times_seen(first, "fenced") == 1
    assert times_seen(second, "fenced") == 0
    assert max(entry.epoch or 0 for entry in evidence.ledger) == 2


def test_while_postgresql_is_away_nothing_is_sent_and_afterwards_each_slot_has_its_verdict(
    make_scene: MakeScene, own_redis: OwnRedis, own_postgres: Callable[..., PostgreSQL]
) -> None:
    database, gate = own_postgres(), own_redis()
    scene = make_scene(database.url_of(database.create_database()))
    beats = [scene.writer(gate.url), scene.standby(gate.url)]
    once, skip, every = (scene.seconds(36, catch_up=policy)[0] for policy in ("once", "skip", "all"))
    graceful = scene.seconds(36, catch_up="all", grace_seconds=3)[0]
    scene.insert(10, "interval", "1")
    scene.wait_more(20)
    database.stop()
    beats[0].wait_output("database: away")
    sent = scene.arrived()
    time.sleep(outage_s(15))
    assert scene.arrived() == sent
    database.start()
    beats[0].wait_output("database: back")
    scene.wait_more(40)
    evidence = scene.finish()
    for beat in beats:
        assert times_seen(beat, "database: away") <= 1
    assert times_seen(beats[0], "database: back after") == 1
    lines = {job: [entry for entry in evidence.ledger if entry.job == job] for job in (once, skip, every, graceful)}
    assert any(entry.collapsed > 5 for entry in lines[once])
    assert any("nobody was dispatching" in entry.detail for entry in lines[skip])
    assert all(entry.verdict != "missed" or "the row changed" in entry.detail for entry in lines[every])
    assert sum("its grace of 3 s was over" in entry.detail for entry in lines[graceful]) > 5


def test_while_the_broker_is_away_claims_stop_and_what_surely_was_not_sent_is_sent_later(
    make_scene: MakeScene, own_redis: OwnRedis
) -> None:
    broker, gate = own_redis("--appendfsync", "always", persist=True), own_redis()
    scene = make_scene(broker=broker)
    beat = scene.writer(gate.url)
    other = scene.standby(gate.url)
    every = scene.seconds(36, catch_up="all")[0]
    graceful = scene.seconds(36, catch_up="all", grace_seconds=3)[0]
    scene.insert(10, "interval", "1")
    scene.wait_more(20)
    broker.kill()
    beat.wait_output("broker: away")
    lines = sum(entry.verdict != "missed" for entry in scene.ledger())
    time.sleep(outage_s(15))
    # One job is claimed now and then, to ask the broker, and given back.
    assert sum(entry.verdict != "missed" for entry in scene.ledger()) <= lines + 1
    broker.start()
    beat.wait_output("broker: back")
    scene.wait_more(40)
    evidence = scene.finish()
    assert times_seen(beat, "broker: away, ") == 1
    assert times_seen(beat, "broker: back") == 1
    assert times_seen(other, "broker: ") == 0
    assert all(e.verdict != "missed" or "the row changed" in e.detail for e in evidence.ledger if e.job == every)
    assert any("its grace of 3 s was over" in entry.detail for entry in evidence.ledger if entry.job == graceful)


def _stopped(beat: Process) -> bool:
    return bool(psutil.Process(beat.pid).status() == psutil.STATUS_STOPPED)
