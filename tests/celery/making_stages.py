"""Four stages on which runs live and end: real beats, real unmodified workers, one broker and one kind of results each.

They are played at the same time, each in a thread of the test: most of a play is waiting.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from celery import Celery
from click.testing import CliRunner

from celery_qbeat.cli import main
from celery_qbeat.stores import open_store
from tests.celeryproc import Process, Project
from tests.contract.making_runs import make_app
from tests.servers import PostgreSQL, RabbitMQ, Redis, wait_for

SECOND = 1_000_000
DAY = 86_400 * SECOND
PATIENCE_S = 90.0

TASKS = """
import os


@app.task(bind=True)
def hold(self, path):
    write(self, [path], {})
    while not os.path.exists(path):
        time.sleep(0.05)
    write(self, [path], {}, event="finished")


@app.task(ignore_result=True)
def quick():
    pass
"""

OLD = 12_000
KEPT = 500

LOG_OF_DELETIONS = (
    "CREATE TABLE deletions (transaction bigint, runs int)",
    """CREATE FUNCTION log_deletions() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
    INSERT INTO deletions SELECT txid_current(), count(*) FROM gone; RETURN NULL; END $$""",
    """CREATE TRIGGER log_deletions AFTER DELETE ON qbeat_runs REFERENCING OLD TABLE AS gone
    FOR EACH STATEMENT EXECUTE FUNCTION log_deletions()""",
)


@dataclass
class Stage:
    """A project whose tables are there before its beats. `early`: the ledger before anything was killed."""

    project: Project
    app: Celery
    pool: str
    beats: list[Process] = field(default_factory=list)
    workers: list[Process] = field(default_factory=list)
    early: dict[str, list[Any]] = field(default_factory=dict)

    # What it has.

    def worker(self, *, ready: bool = True) -> Process:
        made = self.project.worker(f"--pool={self.pool}", "--queues=celery", concurrency=7, ready=False)
        self.workers.append(made)
        if ready:
            made.wait_output(r" ready\.$", PATIENCE_S)
        return made

    def beat(self) -> Process:
        self.beats.append(self.project.beat())
        return self.beats[-1]

    def writer(self) -> Process:
        beat = self.beat()
        beat.wait_output("beat: writer", PATIENCE_S)
        return beat

    def insert(self, job_id: str, task: str, schedule: int | str = 3600, **columns: Any) -> None:
        """A row; an interval unless `schedule_kind` says otherwise; `args` are values, not JSON."""
        columns = {"schedule_kind": "interval", "overlap": "skip", **columns}
        columns["args"] = json.dumps(columns.get("args", []))
        fn = task if "." in task else f"proj.tasks.{task}"
        row = {"id": job_id, "fn": fn, "schedule": str(schedule), **columns}
        names, values = ", ".join(row), ", ".join(f":{name}" for name in row)
        self.project.sql(f"INSERT INTO qbeat_jobs ({names}) VALUES ({values})", **row)

    def insert_seconds(self, job_id: str, task: str, **columns: Any) -> None:
        """A `daily` row with a slot in each of the next forty seconds."""
        soon = int(time.time()) + 1
        slots = ",".join(str(second % 86_400) for second in range(soon, soon + 40))
        self.insert(job_id, task, slots, schedule_kind="daily", **columns)

    @property
    def gate(self) -> Path:
        """Runs of `held` end when this file is there."""
        return self.project.folder / "let-go"

    # What it did.

    def runs(self, job_id: str) -> list[Any]:
        """All its lines of the ledger, oldest first."""
        return self.project.sql("SELECT * FROM qbeat_runs WHERE job_id = :id ORDER BY slot_us, id", id=job_id)

    def sent(self, job_id: str) -> list[Any]:
        return [run for run in self.runs(job_id) if run.sent_us is not None]

    def ended(self, job_id: str) -> list[Any]:
        return [run for run in self.sent(job_id) if run.finished_us is not None]

    def spans(self, job_id: str) -> list[tuple[float, float | None]]:
        """When a worker began and finished each run, in seconds, by its own word."""
        ids = [run.task_id for run in self.sent(job_id)]
        begun: dict[str, float] = {}
        finished: dict[str, float] = {}
        for record in self.project.records():
            (begun if record["event"] == "started" else finished)[record["id"]] = record["time"]
        return sorted((begun[run], finished.get(run)) for run in ids if run in begun)

    def held(self) -> bool:
        """Whether a worker has begun a run of `held`, and not finished it."""
        spans = self.spans("held")
        return bool(spans) and spans[-1][1] is None

    def wait(self, condition: Callable[[], Any], what: str) -> Any:
        return wait_for(condition, PATIENCE_S, every=0.1, what=what)

    def wait_ended(self, count: int, *job_ids: str) -> None:
        for job_id in job_ids:
            self.wait(lambda job_id=job_id: len(self.ended(job_id)) >= count, f"{count} runs of {job_id} end")

    def remember(self, *job_ids: str) -> None:
        self.early = {job_id: self.runs(job_id) for job_id in job_ids}

    def cli(self, *args: str, code: int = 0) -> Any:
        """`qbeat --database-url ... ARGS --json`, in this process."""
        url = self.project.database_url
        result = CliRunner().invoke(main, ["--database-url", url, *args, "--json"])
        assert result.exit_code == code, result.output
        return json.loads(result.stdout)

    def tick(self) -> Any:
        """`celery -A proj qbeat tick`, to its end; the verdicts that it gave."""
        result = self.project.qbeat("tick", "--json", timeout=PATIENCE_S)
        assert result.returncode == 0, result.stdout + result.stderr
        return json.loads(result.stdout)["verdicts"]


# ---------------------------------------------------------------- the plays


def failover(stage: Stage) -> None:
    """Redis, results in Redis, prefork, a lock in Redis: the writer is killed while a run is in flight."""
    _insert_usual(stage)
    stage.insert("unknown", "nowhere")
    for case in ("revoked", "expired"):
        stage.insert(case, "record", queue="later", expires_seconds=1 if case == "expired" else None)
    worker = stage.worker(ready=False)
    for _ in range(2):
        stage.beat()
    writer = stage.wait(lambda: next((b for b in stage.beats if "beat: writer" in b.output()), None), "a beat writes")
    worker.wait_output(r" ready\.$", PATIENCE_S)
    stage.insert_seconds("seconds", "sleep", args=[1.3])
    task_id = stage.wait(lambda: stage.sent("revoked"), "'revoked' is sent")[0].task_id
    stage.app.control.revoke(task_id, reply=True, timeout=60, limit=1)
    expired_us = stage.wait(lambda: stage.sent("expired"), "'expired' is sent")[0].sent_us + 1_100_000
    stage.wait(lambda: time.time_ns() // 1000 > expired_us, "its message is too old")
    stage.app.control.add_consumer("later", reply=True, timeout=60, limit=1)
    stage.wait_ended(1, "unknown", "revoked", "expired", "long", "unread")
    _wait_usual(stage)
    standby = next(beat for beat in stage.beats if beat is not writer)
    standby.wait_output("follower: jobs paused", PATIENCE_S)
    writer.kill()
    stage.beats.remove(writer)
    stage.beats.append(writer)
    standby.wait_output("beat: writer", PATIENCE_S)
    _go_on(stage)


def restart(stage: Stage) -> None:
    """RabbitMQ, no results, threads, PostgreSQL, standalone: the beat is killed, and a run ends while there is none."""
    _insert_old_runs(stage)
    _insert_usual(stage)
    stage.insert("unknown", "nowhere", max_run_seconds=2)
    stage.insert("expired", "record", queue="later", expires_seconds=1, max_run_seconds=1)
    worker = stage.worker(ready=False)
    first = stage.writer()
    worker.wait_output(r" ready\.$", PATIENCE_S)
    stage.insert_seconds("seconds", "sleep", args=[1.3])
    stage.wait_ended(1, "unknown", "expired", "long", "unread", "_builtin.prune")
    _wait_usual(stage)
    first.kill()
    stage.gate.touch()
    stage.wait(lambda: not stage.held(), "the run ends while there is no beat")
    stage.writer()
    _go_on(stage)


def dying_worker(stage: Stage) -> None:
    """Redis, no results, threads, standalone: the worker is killed, and another one starts."""
    for job_id, task, args in (("interval", "sleep", [1.3]), ("held", "hold", [str(stage.gate)])):
        stage.insert(job_id, task, 1, args=args, max_run_seconds=5)
    worker = stage.worker(ready=False)
    stage.writer()
    worker.wait_output(r" ready\.$", PATIENCE_S)
    stage.wait_ended(2, "interval")
    stage.wait(stage.held, "a run of 'held' is in flight")
    stage.remember("interval", "held")
    worker.kill()
    stage.worker(ready=False)
    stage.wait(lambda: [run for run in stage.runs("held") if run.verdict == "lost"], "the run is lost")
    stage.gate.touch()
    stage.wait_ended(len(stage.early["held"]) + 1, "held")
    stage.wait_ended(len(stage.early["interval"]) + 2, "interval")


def ticks(stage: Stage) -> None:
    """RabbitMQ, results in SQL, prefork, no beat but `qbeat tick`."""
    stage.insert("held", "hold", 1, args=[str(stage.gate)])
    stage.worker(ready=False)
    counted = [stage.tick()]
    stage.wait(stage.held, "a run of 'held' is in flight")
    counted.append(stage.tick())
    stage.remember("held")
    stage.gate.touch()
    stage.wait(lambda: not stage.held(), "the run ends while there is no beat")
    counted.append(stage.tick())
    stage.early["ticks"] = counted


def _insert_usual(stage: Stage) -> None:
    stage.insert("interval", "sleep", 1, args=[1.3])
    stage.insert("held", "hold", 1, args=[str(stage.gate)])
    stage.insert("allowed", "sleep", 1, args=[2.2], overlap="allow")
    stage.insert("long", "sleep", 1, args=[6], max_run_seconds=2)
    stage.insert("unread", "record", 1, queue="nobody", max_run_seconds=2)
    stage.insert("failing", "fail", 1)
    stage.insert("refused", "os.system", 1)
    stage.insert("stranger", "_builtin.prune", 1)
    stage.insert("bad", "record", "often")
    stage.insert("rare", "record", "2099-01-01T00:00", schedule_kind="once", args=["by hand"])


def _wait_usual(stage: Stage) -> None:
    stage.wait_ended(4, "interval", "allowed", "failing")
    stage.wait_ended(2, "seconds")
    stage.wait(lambda: len(stage.sent("unread")) >= 2, "'unread' runs on")
    stage.wait(stage.held, "a run of 'held' is in flight")
    stage.remember("interval", "seconds", "held", "allowed", "unread")


def _go_on(stage: Stage) -> None:
    """After the next beat took over: 'held' stays the only run of its job until it is let go."""
    stage.wait_ended(len(stage.early["interval"]) + 2, "interval")
    if not stage.gate.exists():
        assert len(stage.runs("held")) == len(stage.early["held"]) == 1
        stage.gate.touch()
    stage.wait_ended(3, "held")


def _insert_old_runs(stage: Stage) -> None:
    for statement in LOG_OF_DELETIONS:
        stage.project.sql(statement)
    now = time.time_ns() // 1000
    for verdict, count, days in (("failed", KEPT, 31), ("succeeded", OLD, 9), ("failed", KEPT, 8)):
        stage.project.sql(
            "INSERT INTO qbeat_runs (task_id, job_id, slot_us, verdict, claimed_us, sent_us, finished_us) "
            f"SELECT '{verdict}-{days}-' || n, 'gone', :at + n, :verdict, :at + n, :at + n, :at + n "
            "FROM generate_series(1, :count) n",
            at=now - days * DAY,
            verdict=verdict,
            count=count,
        )


# ---------------------------------------------------------------- all of them


def make_stage(
    folder: Path, broker: str, results: str | None, pool: str, settings: dict[str, Any], stack: ExitStack
) -> Stage:
    folder.mkdir()
    usual: dict[str, Any] = {
        "result_backend": results,
        "qbeat_queues": ["later", "nobody"],
        "qbeat_functions": ["proj.tasks.nowhere"],
        "qbeat_poll_interval": 0.2,
    }
    project = stack.enter_context(Project(folder / "project", broker, usual | settings, tasks=TASKS))
    store = open_store(project.database_url, create_tables=True)
    store.open()
    store.close()
    return Stage(project, make_app(broker, folder), pool)


@contextmanager
def played(folder: Path, redis: Redis, rabbitmq: RabbitMQ, postgres: PostgreSQL) -> Iterator[dict[str, Stage]]:
    """The four stages, by the name of their play, when all of it has happened; their last processes go on."""
    with ExitStack() as stack:
        with redis.client() as client:
            client.flushall()
        database = postgres.create_database()
        stack.callback(postgres.drop_database, database)
        redis_urls = [redis.url.removesuffix("/0") + f"/{number}" for number in range(3)]
        hosts = [stack.enter_context(rabbitmq.virtual_host()) for _ in range(2)]
        kinds: dict[Callable[[Stage], None], tuple[str, str | None, str, dict[str, Any]]] = {
            failover: (
                redis_urls[0],
                redis_urls[0],
                "prefork",
                {"qbeat_redis_url": redis_urls[2], "qbeat_lock_ttl": 6.0},
            ),
            restart: (hosts[0], None, "threads", {"qbeat_database_url": postgres.url_of(database)}),
            dying_worker: (redis_urls[1], None, "threads", {}),
            ticks: (hosts[1], f"db+sqlite:///{folder / 'results.sqlite3'}", "prefork", {}),
        }
        stages = {play: make_stage(folder / play.__name__, *kind, stack) for play, kind in kinds.items()}
        with ThreadPoolExecutor(len(stages)) as pool:
            for done in [pool.submit(play, stage) for play, stage in stages.items()]:
                done.result()
        yield {play.__name__: stage for play, stage in stages.items()}
