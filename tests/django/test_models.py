"""Every way of writing a row through Django is seen by a running beat, and none of them moves a slot."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from django.db import connections

from celery_qbeat.core.planning import Plan
from celery_qbeat.django.models import Job, Leader, Request, Run, State, Worker
from celery_qbeat.django.models.machine import ReadOnly
from celery_qbeat.stores import SqlStore, open_store
from tests.django.databases import register
from tests.django.making_schemas import by_django

SLOT = 1_800_000_000_000_000


@pytest.fixture(scope="module", params=["sqlite", "postgresql", "mysql"])
def tables(
    request: pytest.FixtureRequest, _migrated: None, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[str, str]]:
    """A migrated database of each kind: its alias and its URL."""
    if request.param == "sqlite":
        url = f"sqlite:///{tmp_path_factory.mktemp('models') / 'models.sqlite3'}"
    else:
        server = request.getfixturevalue({"postgresql": "postgres_server", "mysql": "mariadb_server"}[request.param])
        url = server.url_of(server.create_database())
    alias = register(url)
    by_django(alias)
    yield alias, url
    connections[alias].close()


@pytest.fixture
def alias(tables: tuple[str, str]) -> str:
    """Three jobs and nothing else."""
    alias, _ = tables
    with connections[alias].cursor() as cursor:
        for name in ("jobs", "workers", "requests", "state", "runs", "batches"):
            cursor.execute(f"DELETE FROM qbeat_{name}")
    jobs = [Job(id=name, fn="shop.cleanup", schedule_kind="every", schedule="1h") for name in "abc"]
    Job.objects.using(alias).bulk_create(jobs)
    return alias


@pytest.fixture
def store(alias: str, tables: tuple[str, str]) -> Iterator[SqlStore]:
    """A beat's store that has read everything, and has planned the jobs."""
    store = open_store(tables[1])
    store.open()
    epoch = store.take_epoch("test", 1)
    plans = [Plan(name, 1, SLOT, "key") for name in "abc"]
    store.write_plans(epoch, plans, 1)
    for _ in store.load():
        pass
    store.read_changes()
    yield store
    store.close()


def slots(alias: str) -> dict[str, int]:
    return dict(State.objects.using(alias).values_list("job_id", "next_run_us"))


def changed(store: SqlStore) -> dict[str, object]:
    changes = store.read_changes()
    assert not changes.reload
    return dict(changes.rows)


def test_queryset_update_is_seen_and_moves_no_slot(alias: str, store: SqlStore) -> None:
    Job.objects.using(alias).filter(id__in=["a", "b"]).update(schedule="2h")
    assert set(changed(store)) == {"a", "b"}
    assert slots(alias) == dict.fromkeys("abc", SLOT)


def test_bulk_create_is_seen(alias: str, store: SqlStore) -> None:
    jobs = [Job(id=name, fn="shop.report", schedule_kind="daily", schedule="02:00") for name in ("d", "e")]
    Job.objects.using(alias).bulk_create(jobs)
    found = changed(store)
    assert set(found) == {"d", "e"}
    row, state = found["d"]  # type: ignore[misc]
    assert (row["fn"], row["args"], row["kwargs"], row["timezone"]) == ("shop.report", "[]", "{}", "UTC")
    assert state is None


def test_bulk_update_is_seen_and_moves_no_slot(alias: str, store: SqlStore) -> None:
    jobs = list(Job.objects.using(alias).all().filter(id__in="ab"))
    for job in jobs:
        job.kwargs = {"days": 3}
    Job.objects.using(alias).bulk_update(jobs, ["kwargs"])
    assert set(changed(store)) == {"a", "b"}
    assert slots(alias) == dict.fromkeys("abc", SLOT)


def test_delete_is_seen_and_leaves_the_states_of_others(alias: str, store: SqlStore) -> None:
    Job.objects.using(alias).filter(id="c").delete()
    assert changed(store) == {"c": None}
    assert slots(alias) == dict.fromkeys("abc", SLOT)


def test_raw_sql_is_seen(alias: str, store: SqlStore) -> None:
    with connections[alias].cursor() as cursor:
        cursor.execute("UPDATE qbeat_jobs SET enabled = FALSE WHERE id = 'b'")
        cursor.execute("INSERT INTO qbeat_jobs (id, fn, schedule_kind, schedule) VALUES ('z', 'f', 'every', '1m')")
    assert set(changed(store)) == {"b", "z"}
    assert slots(alias) == dict.fromkeys("abc", SLOT)


def test_save_of_a_stale_object_is_seen_and_moves_no_slot_and_no_rev_back(alias: str, store: SqlStore) -> None:
    stale = Job.objects.using(alias).get(id="a")
    Job.objects.using(alias).filter(id="a").update(description="newer")
    newer = Job.objects.using(alias).get(id="a").rev
    stale.description = "stale"
    stale.save()
    assert set(changed(store)) == {"a"}
    assert Job.objects.using(alias).get(id="a").rev > newer
    assert slots(alias) == dict.fromkeys("abc", SLOT)


def test_a_worker_scope_and_a_request_are_seen(alias: str, store: SqlStore) -> None:
    Worker.objects.using(alias).create(name="billing", queues="a\nb")
    Request.objects.using(alias).create(job_id="a", asked_us=5, asked_by="me")
    changes = store.read_changes()
    assert changes.workers is not None
    assert changes.workers["billing"].queues == ("a", "b")
    assert changes.asked
    assert [(request.job_id, request.asked_by) for request in store.pending_requests()] == [("a", "me")]


def test_json_round_trips_through_the_database(alias: str, store: SqlStore) -> None:
    value = {"text": "é ✓ \\ \" '", "list": [1, 2.5, None, True], "deep": {"a": {"b": []}}}
    Job.objects.using(alias).filter(id="a").update(kwargs=value, args=[value])
    job = Job.objects.using(alias).get(id="a")
    assert job.kwargs == value
    assert job.args == [value]


def test_what_the_machine_writes_cannot_be_written_through_the_models(alias: str) -> None:
    leader = Leader.objects.using(alias).get(id=1)
    for write in (
        leader.save,
        leader.delete,
        lambda: Leader.objects.using(alias).update(epoch=9),
        lambda: Run.objects.using(alias).all().delete(),
        lambda: State.objects.using(alias).create(job_id="a"),
        lambda: Run.objects.using(alias).bulk_create([]),
    ):
        with pytest.raises(ReadOnly, match="written by the scheduler only"):
            write()


def test_a_job_is_named_by_its_id_and_knows_its_state(alias: str, store: SqlStore) -> None:
    job = Job.objects.using(alias).select_related("state").get(id="a")
    assert str(job) == "a"
    assert job.state.next_run_us == SLOT
