"""What the admin tells of the beat, and of the condition of each job."""

from __future__ import annotations

from typing import Any

from django.db import connection
from django.test.utils import CaptureQueriesContext
from redis import Redis

from celery_qbeat.core.jobs import RowRules, read_row
from celery_qbeat.django.models import Installation, Job, Worker
from celery_qbeat.django.models.people import row_of
from tests.django.rows import beat_lives, make_job, make_run, make_state, text, us_now
from tests.django.typing_forms import change

LIST, RUNS = "/admin/qbeat/job/", "/admin/qbeat/run/"
FORECAST, STATUS, WORKERS = LIST + "forecast/", LIST + "status/", "/admin/qbeat/worker/"
MINUTE, HOUR, DAY = 60_000_000, 3_600_000_000, 86_400_000_000


def test_every_page_says_that_no_beat_is_at_work(five: Any) -> None:
    make_run("good", 1)
    run = five.get(RUNS).context["cl"].result_list[0].pk
    pages = [LIST, f"{LIST}add/", change("good"), f"{LIST}good/delete/", f"{LIST}good/history/", FORECAST, STATUS]
    pages += [RUNS, f"{RUNS}{run}/change/", WORKERS, f"{WORKERS}add/", f"{WORKERS}billing/change/", "/admin/qbeat/"]
    for page in pages:
        assert text(five, page).count("No beat is at work") == 1, page
        assert "none has ever run on this database" in text(five, page)
    confirmation = five.post(LIST, {"action": "delete_selected", "_selected_action": ["good"]}).content.decode()
    assert "No beat is at work" in confirmation
    beat_lives(5 * MINUTE)
    assert "the last one was host:1, silent for 5 min" in text(five, LIST)
    beat_lives()
    for page in pages:
        assert "No beat is at work" not in text(five, page), page


def test_the_banner_costs_one_query_of_one_row(five: Any) -> None:
    with CaptureQueriesContext(connection) as queries:
        five.get(f"{LIST}good/history/")
    assert [query["sql"].count("qbeat_leader") > 0 for query in queries].count(True) == 1


def test_a_beat_that_works_seldom_is_not_called_dead(five: Any) -> None:
    beat_lives(10 * MINUTE, holder="tick on host:1", silence_us=15 * MINUTE)
    assert "No beat is at work" not in text(five, LIST)


def conditions(client: Any) -> dict[str, str]:
    jobs = client.get(LIST).context["cl"].result_list
    return {job.pk: str(job.health.standing.condition) for job in jobs}


def test_the_list_tells_the_condition_of_each_job(five: Any) -> None:
    now = us_now()
    Worker.objects.create(name="off", enabled=False)
    make_job("paused", worker="off")
    make_state("paused", late_after_us=1)
    make_job("once", schedule_kind="once", schedule="2020-01-01T00:00")
    job = Job.objects.get(pk="once")
    key = read_row(row_of(job), RowRules(), {}).job.plan_key
    make_state("once", plan_key=key, last_run_us=now - DAY, last_verdict="succeeded")
    make_job("refused", fn="celery.map")
    make_job("blocked", schedule_kind="interval", schedule="60")
    make_state("blocked", next_run_us=now - MINUTE, last_run_us=now - HOUR, last_verdict="skipped")
    task_id = make_run("blocked", now - HOUR, "sent", sent_us=now - HOUR, batch_id=1, lease_until_us=now + HOUR)
    expected = {"good": "ready", "late": "late", "failing": "ready", "broken": "bad", "new": "disabled"}
    expected |= {"paused": "paused", "once": "finished", "refused": "refused", "blocked": "blocked"}
    beat_lives()
    found = conditions(five)
    assert {name: found[name] for name in expected} == expected
    page = text(five, LIST)
    assert f"by run {task_id} since" in page
    beat_lives(HOUR)
    assert conditions(five)["good"] == "stopped"


def test_the_last_run_of_a_job_is_one_run(site: Any) -> None:
    now = us_now()
    make_job("a", schedule="1m")
    make_state("a", next_run_us=now + MINUTE, last_run_us=now - HOUR, last_verdict="skipped", last_slot_us=now)
    make_run("a", now - HOUR, "sent", sent_us=now - HOUR, batch_id=1, lease_until_us=now + HOUR)
    make_run("a", now, "skipped")
    [job] = [job for job in site.get(LIST).context["cl"].result_list if job.pk == "a"]
    assert (job.health.last_run.at_us, job.health.last_run.verdict) == (now - HOUR, "sent")
    make_job("b")
    make_state("b", last_verdict="succeeded")
    make_run("b", now - MINUTE, "succeeded", sent_us=now - MINUTE, batch_id=2, by_hand=True)
    panel = site.get(change("b")).context["panel"]
    assert (panel.last_run.at_us, panel.last_run.verdict) == (now - MINUTE, "succeeded")


def test_the_status_page_costs_the_same_with_many_late_jobs(five: Any) -> None:
    with CaptureQueriesContext(connection) as few:
        five.get(STATUS)
    for number in range(20):
        make_job(f"late.{number}")
        make_state(f"late.{number}", late_after_us=1, problem="no good")
    with CaptureQueriesContext(connection) as many:
        page = five.get(STATUS)
    assert len(page.context["status"].late) == 20
    assert len(many) == len(few)


def test_the_status_page_lists_the_beats_in_redis_and_says_when_it_is_away(
    site: Any, celery_app: Any, redis_url: str
) -> None:
    from celery_qbeat.gates import RedisGate, lock_key
    from celery_qbeat.process.clock import SystemClock

    celery_app.conf.qbeat_redis_url = redis_url
    gates = [RedisGate(redis_url, "default", 10, 1, f"host:{number}", clock=SystemClock()) for number in (1, 2)]
    instance = Installation.objects.get().instance
    for gate in gates:
        gate.bind(instance)
    assert gates[0].acquire_or_renew() is not None
    assert gates[1].acquire_or_renew() is None
    beat_lives()
    page = text(site, STATUS)
    assert page.index("host:1</th>") < page.index("holds the lock") < page.index("host:2</th>") < page.index("standby")
    with Redis.from_url(redis_url) as client:
        # As it ends by itself some time after the writer was killed.
        client.delete(lock_key("default", instance))
    assert "silent: it was killed, or is cut off" in text(site, STATUS)
    for gate in gates:
        gate.release()
    celery_app.conf.qbeat_redis_url = "redis://127.0.0.1:1/0"
    assert "Redis is away (redis://127.0.0.1:1/0" in text(site, STATUS)
