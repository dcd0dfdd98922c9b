"""Signals in the middle of a dispatch, in apps with threads: real beats, real signals, nothing in doubt afterwards."""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Callable
from random import Random

import pytest

from celery_qbeat.process.shutdown_signals import SAME_REQUEST_S
from celery_qbeat.wiring import FAIL_POINT
from tests.celeryproc import Process
from tests.chaos.app_threads import IN_A_THREAD, SLOW_PUBLISHING, THREADS
from tests.chaos.scene import GATE, Scene, holder
from tests.servers import PostgreSQL, Redis, Server, wait_for

pytestmark = pytest.mark.slow

MakeScene = Callable[..., Scene]
OwnRedis = Callable[..., Redis]
ROWS = 30
IN_THE_MIDDLE = "sending:3"
"""The third of the questions whether a message may go."""

PATIENCE_OF_DOCKER_S = 10.0
"""Five seconds are promised; a slow machine may take some more."""

GREENLETS = [
    "import eventlet, gevent",
    "import gevent.monkey; gevent.monkey.patch_all()",
    "import eventlet; eventlet.monkey_patch()",
]

HANDOVERS = int(os.environ.get("QBEAT_TEST_HANDOVERS", "8"))
"""How many beats are ended one after the other; set it to see more by hand."""


def nothing_is_open(scene: Scene) -> None:
    """A beat has ended: what it claimed was sent, and the rest is not in the ledger."""
    sent = scene.arrived()
    assert [entry.verdict for entry in scene.ledger()] == ["sent"] * sent


def signalled(scene: Scene, point: str) -> set[str]:
    """A beat gets a signal at this point of its first batch, and ends; the jobs."""
    jobs = set(scene.insert(ROWS, "interval", "3600"))
    beat = scene.beat(None, armed=point)
    assert beat.wait_exit(60) == 0
    scene.ended.add(beat)
    nothing_is_open(scene)
    return jobs


def ended_after_s(beat: Process) -> float:
    since = time.monotonic()
    beat.terminate()
    assert beat.wait_exit() == 0
    took = time.monotonic() - since
    sys.stdout.write(f"ended after {took:.1f} s\n")
    return took


@pytest.mark.parametrize("point", ["claimed:1", IN_THE_MIDDLE, "published:1"])
def test_a_signal_in_a_dispatch_leaves_no_doubt_beside_threads(make_scene: MakeScene, point: str) -> None:
    scene = make_scene(tasks=THREADS)
    jobs = signalled(scene, f"{point}:SIGTERM")
    scene.writer(None)
    scene.wait(lambda: len(scene.ledger()) == ROWS, "every slot has its verdict")
    evidence = scene.finish()
    assert {entry.verdict for entry in evidence.ledger if entry.job in jobs} == {"sent"}
    assert len(evidence.messages) == ROWS


@pytest.mark.parametrize("name", ["SIGINT", "SIGQUIT", "SIGHUP"])
def test_every_signal_to_end_leaves_no_doubt(make_scene: MakeScene, name: str) -> None:
    signalled(make_scene(tasks=THREADS), f"{IN_THE_MIDDLE}:{name}")


@pytest.mark.parametrize("source", GREENLETS)
def test_a_signal_leaves_no_doubt_beside_greenlets(make_scene: MakeScene, source: str) -> None:
    scene = make_scene(tasks=THREADS)
    # Before all other imports: later, a patch does not reach everything.
    (scene.project.folder / "sitecustomize.py").write_text(source)
    signalled(scene, f"{IN_THE_MIDDLE}:SIGTERM")


def test_a_beat_without_signal_masks_and_sighup_dispatches_and_ends(make_scene: MakeScene) -> None:
    lacking = "import signal\ndel signal.pthread_sigmask, signal.sigpending, signal.SIGHUP, signal.SIGQUIT\n"
    signalled(make_scene(tasks=THREADS + lacking), f"{IN_THE_MIDDLE}:SIGTERM")


def test_a_detached_beat_leaves_no_doubt(make_scene: MakeScene) -> None:
    scene = make_scene(tasks=THREADS)
    scene.insert(ROWS, "interval", "3600")
    scene.project.environment[FAIL_POINT] = f"{IN_THE_MIDDLE}:SIGTERM"
    pidfile, log = scene.project.folder / "beat.pid", scene.project.folder / "beat.log"
    run = scene.project.cli("beat", "-S", "qbeat", "--detach", f"--pidfile={pidfile}", f"--logfile={log}", "-l", "INFO")
    assert run.returncode == 0, run.stderr
    del scene.project.environment[FAIL_POINT]
    wait_for(lambda: log.exists() and "beat: writer" in log.read_text(), 60, what="the daemon writes")
    wait_for(lambda: not pidfile.exists(), 30, what="the daemon has ended")
    nothing_is_open(scene)


def test_a_beat_in_a_worker_leaves_no_doubt(make_scene: MakeScene, own_redis: OwnRedis) -> None:
    gate = own_redis()
    scene = make_scene(tasks=THREADS, lock_ttl=60.0)
    scene.insert(ROWS, "interval", "3600")
    scene.project.environment |= {FAIL_POINT: f"{IN_THE_MIDDLE}:SIGTERM", GATE: gate.url}
    # Another queue: the tap reads that of the rows.
    worker = scene.project.worker("-B", "--scheduler", "qbeat", "-Q", "other", ready=False)
    del scene.project.environment[FAIL_POINT]
    worker.wait_output("beat: writer")
    wait_for(lambda: holder(gate) is None, 30, what="the beat has given the lock back")
    worker.terminate()
    assert worker.wait_exit() == 0
    nothing_is_open(scene)


@pytest.mark.parametrize("end", [Process.terminate, Process.interrupt], ids=["SIGTERM", "Ctrl-C"])
def test_a_worker_that_ends_in_a_burst_ends_its_beat_without_doubt(
    make_scene: MakeScene, own_redis: OwnRedis, end: Callable[[Process], None]
) -> None:
    gate = own_redis()
    scene = make_scene(tasks=THREADS, lock_ttl=60.0)
    scene.insert(200, "interval", "1")
    scene.project.environment[GATE] = gate.url
    worker = scene.project.worker("-B", "--scheduler", "qbeat", "-Q", "other")
    scene.wait_more()
    end(worker)
    worker.wait_exit()
    assert holder(gate) is None
    assert {entry.verdict for entry in scene.ledger()} == {"sent"}


def test_a_beat_in_a_thread_ends_with_its_tick(make_scene: MakeScene) -> None:
    scene = make_scene(tasks=THREADS)
    scene.insert(ROWS, "interval", "3600")
    scene.project.environment[FAIL_POINT] = f"{IN_THE_MIDDLE}:SIGTERM"
    program = scene.project.run("thread", [sys.executable, "-c", IN_A_THREAD])
    del scene.project.environment[FAIL_POINT]
    assert program.wait_exit(60) == 0
    nothing_is_open(scene)


def test_a_signal_in_a_tick_of_the_command_line_leaves_no_doubt(make_scene: MakeScene, own_redis: OwnRedis) -> None:
    gate = own_redis()
    scene = make_scene(lock_ttl=60.0)
    scene.insert(ROWS, "interval", "3600")
    scene.project.environment |= {FAIL_POINT: f"{IN_THE_MIDDLE}:SIGTERM", GATE: gate.url}
    assert scene.project.qbeat("tick").returncode == 128 + signal.SIGTERM
    assert holder(gate) is None
    nothing_is_open(scene)


@pytest.mark.parametrize("times", [1, 2])
def test_a_beat_that_is_held_up_ends_all_the_same_and_the_next_one_knows_the_doubt(
    make_scene: MakeScene, own_redis: OwnRedis, times: int
) -> None:
    gate = own_redis()
    scene = make_scene(tasks=SLOW_PUBLISHING, lock_ttl=60.0)
    slow = scene.project.folder / "slow"
    slow.touch()
    drop, resend = (set(scene.insert(3, "interval", "3600", on_doubt=policy)) for policy in ("drop", "resend"))
    first = scene.writer(gate.url)
    first.wait_output("publishing waits")
    for _ in range(times - 1):
        first.terminate()
        # Nothing tells when the signal has been noted.
        time.sleep(2 * SAME_REQUEST_S)
        assert first.running
    assert ended_after_s(first) < PATIENCE_OF_DOCKER_S
    scene.ended.add(first)
    assert holder(gate) is None
    assert [entry.verdict for entry in scene.ledger()] == ["claimed"] * 6
    slow.unlink()
    scene.writer(gate.url)
    evidence = scene.finish()
    assert {entry.job for entry in scene.ledger() if entry.verdict == "in doubt"} == drop
    assert {message.job for message in evidence.messages} == resend


@pytest.mark.timeout(60 + 30 * HANDOVERS)
def test_handovers_in_bursts_leave_no_doubt(make_scene: MakeScene, own_redis: OwnRedis, postgres_url: str) -> None:
    gate, dice = own_redis(), Random(7)
    # A lock that nobody would wait for.
    scene = make_scene(postgres_url, lock_ttl=600.0, tasks=THREADS)
    jobs = set(scene.insert(150, "interval", "1"))
    writer = scene.writer(gate.url)
    for _ in range(HANDOVERS):
        standby = scene.standby(gate.url)
        scene.wait_more(dice.randrange(1, 150))
        writer.terminate()
        assert writer.wait_exit() == 0
        scene.ended.add(writer)
        standby.wait_output("beat: writer")
        writer = standby
    evidence = scene.finish()
    assert {entry.verdict for entry in evidence.ledger if entry.job in jobs} <= {"sent", "missed"}


@pytest.mark.parametrize("frozen", ["database", "broker", "gate"])
def test_a_signal_ends_a_beat_whose_server_is_frozen(
    make_scene: MakeScene, own_redis: OwnRedis, own_postgres: Callable[..., PostgreSQL], frozen: str
) -> None:
    servers: dict[str, Server] = {"database": own_postgres(), "broker": own_redis(), "gate": own_redis()}
    database, broker, gate = servers.values()
    assert isinstance(database, PostgreSQL)
    assert isinstance(broker, Redis)
    scene = make_scene(database.url_of(database.create_database()), broker, lock_ttl=60.0, tasks=THREADS)
    scene.insert(150, "interval", "1")
    beat = scene.writer(gate.url)
    scene.wait_more()
    servers[frozen].freeze()
    # Within a poll it waits for an answer.
    time.sleep(0.5)
    assert ended_after_s(beat) < PATIENCE_OF_DOCKER_S
    scene.ended.add(beat)
    servers[frozen].thaw()
    scene.writer(own_redis().url)
    scene.finish()


def test_a_signal_ends_a_beat_that_starts_on_a_frozen_database(
    make_scene: MakeScene, own_postgres: Callable[..., PostgreSQL]
) -> None:
    database = own_postgres()
    scene = make_scene(database.url_of(database.create_database()))
    database.freeze()
    beat = scene.beat(None)
    beat.wait_output("beat: Starting")
    time.sleep(0.5)
    assert ended_after_s(beat) < PATIENCE_OF_DOCKER_S
