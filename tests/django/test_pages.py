"""The pages: what they show, and what they cost."""

from __future__ import annotations

import time
from typing import Any
from xml.etree import ElementTree

import pytest
from django.contrib.admin.models import LogEntry
from django.db import connection
from django.test import override_settings
from django.test.utils import CaptureQueriesContext
from kombu import Producer

from celery_qbeat.dispatchers.celery.broker import done_address, done_queue
from celery_qbeat.dispatchers.celery.broker_check import MANY_UNREAD
from celery_qbeat.django.models import Installation, Job, Request, Run, Worker
from tests.django.rows import insert, make_job, make_run, make_state, text, us_now
from tests.django.typing_forms import change

LIST, RUNS = "/admin/qbeat/job/", "/admin/qbeat/run/"
FORECAST, STATUS, WORKERS = LIST + "forecast/", LIST + "status/", "/admin/qbeat/worker/"
MINUTE, HOUR, DAY = 60_000_000, 3_600_000_000, 86_400_000_000


def act(client: Any, action: str, *names: str) -> str:
    page: str = client.post(LIST, {"action": action, "_selected_action": names}, follow=True).content.decode()
    return page


def listed(client: Any, query: str) -> set[str]:
    return {job.pk for job in client.get(LIST + query).context["cl"].result_list} - {"_builtin.prune"}


@pytest.mark.clock_at("2026-06-10T12:20:00Z")
def test_the_list_shows_how_each_job_stands(five: Any) -> None:
    page = text(five, LIST)
    for words in ("in 1 h", "✓</span> succeeded", "! late", "✗</span> failed", "no time of day", "in billing"):
        assert words in page, words
    assert "! stopped" in page


@pytest.mark.parametrize(
    ("query", "names"),
    [
        ("?health=late", {"late"}),
        ("?health=problem", {"broken"}),
        ("?health=failing", {"failing"}),
        ("?health=never", {"new", "broken"}),
        ("?enabled__exact=0", {"new"}),
        ("?kind=interval", {"late"}),
        ("?verdict=failed", {"failing"}),
        ("?scope=%3Dbilling", {"late"}),
        ("?scope=-", {"good", "failing", "broken", "new"}),
        ("?q=brok", {"broken"}),
        ("?o=4", {"good", "late", "failing", "broken", "new"}),
    ],
)
def test_the_list_can_be_narrowed(five: Any, query: str, names: set[str]) -> None:
    assert listed(five, query) == names


def test_many_jobs_cost_the_list_no_more_queries_than_few(site: Any) -> None:
    make_job("first")
    site.get(LIST)
    with CaptureQueriesContext(connection) as few:
        site.get(LIST)
    rows = (
        "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 100000) "
        "INSERT INTO qbeat_jobs (id, fn, schedule_kind, schedule, worker) "
        "SELECT 'many.' || i, 'shop.cleanup', 'daily', (i % 24) || ':00', '' FROM n"
    )
    with connection.cursor() as cursor:
        cursor.execute(rows)
        cursor.execute(
            "INSERT INTO qbeat_state (job_id, next_run_us) SELECT id, 5 FROM qbeat_jobs WHERE id LIKE 'many.%'"
        )
    for query in ("", "?p=500", "?health=late", "?q=many.777", "?o=3"):
        with CaptureQueriesContext(connection) as many:
            page = site.get(LIST + query)
        assert len(page.context["cl"].result_list) <= 100
        assert len(many) <= len(few) + 1, query
    with CaptureQueriesContext(connection) as queries:
        shown = site.get(FORECAST).context["forecast"]
    assert (shown.jobs, shown.total) == (100_002, pytest.approx(7 * 100_000, rel=0.2))
    assert len(queries) < 40
    with CaptureQueriesContext(connection) as queries:
        assert site.get(STATUS).status_code == 200
    assert len(queries) < 25


@pytest.mark.parametrize(
    "address",
    [
        *(f"{LIST}?{name}=%00" for name in ("kind", "verdict", "health", "scope", "q")),
        *(f"{RUNS}?{name}=%00" for name in ("verdict", "hand", "day", "q")),
        f"{RUNS}?day=9999-12-31",
        f"{RUNS}?day=0001-01-01",
        f"{LIST}?kind=moon",
    ],
)
def test_words_in_the_address_that_mean_nothing_narrow_nothing(five: Any, address: str) -> None:
    assert five.get(address).status_code == 200
    if "moon" in address:
        assert len(listed(five, "?kind=moon")) == 5


def test_more_jobs_than_are_duplicated_at_once_are_named_as_such(five: Any) -> None:
    Job.objects.bulk_create(
        Job(id=f"many.{number}", fn="shop.cleanup", schedule_kind="every", schedule="1h") for number in range(101)
    )
    page = act(five, "duplicate", *(f"many.{number}" for number in range(101)))
    assert "100 jobs duplicated" in page
    assert "At most 100 jobs are duplicated at once." in page
    assert "you may not" not in page


def test_enable_and_disable_change_many_and_write_the_history(five: Any) -> None:
    assert "2 jobs disabled." in act(five, "disable", "good", "late", "new")
    assert not Job.objects.filter(pk__in=["good", "late"], enabled=True).exists()
    assert {entry.object_id for entry in LogEntry.objects.filter(change_message="Disabled.")} == {"good", "late"}
    assert "1 job enabled." in act(five, "enable", "new")
    assert "Disabled." in text(five, "/admin/qbeat/job/good/history/")


def test_run_now_asks_the_beat_and_says_whether_there_is_one(five: Any) -> None:
    assert "no beat is running: it waits for one" in act(five, "run_now", "good")
    with connection.cursor() as cursor:
        cursor.execute("UPDATE qbeat_leader SET epoch = 1, holder = 'me:1', taken_us = 1, seen_us = %s", [us_now()])
    page = five.post(f"{LIST}late/run-now/", follow=True).content.decode()
    assert "The beat sends within about a second." in page
    assert set(Request.objects.values_list("job_id", "asked_by")) == {("good", "boss"), ("late", "boss")}


def test_a_release_asks_the_beat_to_end_runs_in_flight(five: Any) -> None:
    assert "Nothing to release" in act(five, "release", "good")
    assert "qb-release" not in text(five, change("good"))
    make_run("good", 1, "succeeded")
    task_id = make_run("good", 2, "sent", lease_until_us=3)
    assert "qb-release" in text(five, change("good"))
    assert "Asked for 1 release, but no beat is running" in act(five, "release", "good", "late")
    five.post(f"{LIST}good/release/")
    keys = Run.objects.filter(job_id="good").values_list("pk", flat=True)
    five.post(RUNS, {"action": "release", "_selected_action": list(keys)}, follow=True)
    asked = list(Request.objects.order_by("pk").values_list("job_id", "action", "task_id", "asked_by"))
    of_job = ("good", "release", "", "boss")
    assert asked == [of_job, of_job, ("good", "release", task_id, "boss")]


def test_a_duplicate_is_disabled_and_has_a_name_of_its_own(five: Any) -> None:
    Job.objects.filter(pk="good").update(kwargs={"a": [1]}, description="mine")
    act(five, "duplicate", "good", "_builtin.prune")
    act(five, "duplicate", "good")
    copies = Job.objects.filter(pk__startswith="good.")
    assert [(job.pk, job.enabled, job.kwargs, job.description) for job in copies] == [
        ("good.copy", False, {"a": [1]}, "mine"),
        ("good.copy2", False, {"a": [1]}, "mine"),
    ]
    assert Job.objects.filter(pk__startswith="_builtin").count() == 1


def test_the_page_of_a_job_shows_its_runs_its_next_firings_and_its_rate(five: Any) -> None:
    now = us_now()
    for number in range(1, 9):
        slot = now - number * HOUR
        make_run(
            "good", slot, "failed" if number == 3 else "succeeded", sent_us=slot, finished_us=slot + 90 * 1_000_000
        )
    make_run(
        "good", now - 9 * HOUR, "succeeded", sent_us=now, finished_us=now + HOUR, started_us=now, took_us=2_500_000
    )
    make_run("good", now - 10 * HOUR, "skipped", detail="previous run still in flight")
    make_run("good", now, "sent", sent_us=now, lease_until_us=now + HOUR)
    page = text(five, change("good"))
    assert "88.9 %" in page
    assert "of 9 that ended" in page
    assert page.count("qb-bar-ok") == 8
    assert page.count('class="qb-next"') == 8
    assert "took about 1 min 30 s" in page
    assert "took 2.5 s" in page
    assert "previous run still in flight" in page
    assert f"{RUNS}?job_id=good" in page
    assert "ValueError: &lt;no&gt;" in text(five, change("failing"))
    assert "It is disabled." in text(five, change("new"))


def test_the_page_of_a_job_without_a_plan_says_why(five: Any) -> None:
    make_state("new", late_after_us=1)
    page = text(five, change("new"))
    assert "It is disabled." in page
    assert "! late" not in page
    Job.objects.filter(pk="new").update(enabled=True)
    assert "a beat has yet to plan it" in text(five, change("new"))
    assert "not while it has a problem" in text(five, change("broken"))
    Job.objects.filter(pk="new").update(schedule_kind="once", schedule="2020-01-01T00:00")
    assert "never again" in text(five, change("new"))


def test_the_page_of_a_job_names_the_zone_of_its_times(five: Any) -> None:
    with override_settings(TIME_ZONE="Asia/Kolkata"):
        assert "times: Asia/Kolkata" in text(five, change("good"))


def test_whoever_may_only_look_reads_limits_as_times_in_the_jobs_zone(site: Any, client_of: Any) -> None:
    make_job("limited", timezone="Asia/Kolkata", start_us=1_796_112_000_000_000, end_us=2**62)
    page = text(client_of("view_job"), change("limited"))
    assert "2026-12-01 13:30:00 (Asia/Kolkata)" in page
    assert "1796112000000000" not in page
    assert str(2**62) in page


def test_pictures_are_well_formed_and_come_from_nowhere_else(five: Any) -> None:
    for address in (change("good"), FORECAST):
        page = text(five, address)
        start = page.index('<svg class="qb-picture"')
        end = page.index("</svg>", start) + 6
        picture = ElementTree.fromstring(page[start:end])
        assert picture.attrib["role"] == "img"
        assert picture.find("{http://www.w3.org/2000/svg}title") is not None
        assert " style=" not in page[start:end]
        assert "href" not in page[start:end]


def test_runs_can_be_read_and_narrowed_but_not_changed(five: Any) -> None:
    now = us_now()
    make_run("good", now, "succeeded", late_us=2_000_000, collapsed=3)
    make_run("late", now - DAY, "missed", detail="86400.0 s late: nobody was dispatching")
    make_run("gone", now - 3 * DAY, "succeeded", by_hand=True, detail="by hand")
    page = text(five, RUNS)
    for words in ("stands for 3 older ones", "nobody was dispatching", "by hand", "2 s"):
        assert words in page, words
    names = {
        "?verdict=missed": {"late"},
        "?day=today": {"good"},
        "?day=yesterday": {"late"},
        "?day=week": {"good", "late", "gone"},
        "?job_id=gone": {"gone"},
        "?hand=1": {"gone"},
        "?q=good": {"good"},
        f"?day={time.strftime('%Y-%m-%d', time.gmtime((now - 3 * DAY) / 1e6))}": {"gone"},
    }
    for query, wanted in names.items():
        assert {run.job_id for run in five.get(RUNS + query).context["cl"].result_list} == wanted, query
    run = five.get(RUNS).context["cl"].result_list[0]
    assert text(five, f"{RUNS}{run.pk}/change/").count("<input") <= 3
    assert five.post(f"{RUNS}{run.pk}/change/", {"verdict": "failed"}).status_code == 403
    assert five.get(f"{RUNS}add/").status_code == 403
    assert five.post(f"{RUNS}{run.pk}/delete/", {"post": "yes"}).status_code == 403


def test_a_run_is_named_by_its_job_and_a_time_that_people_can_read(site: Any) -> None:
    make_run("good", 1_796_112_000_000_000)
    page = text(site, f"{RUNS}{site.get(RUNS).context['cl'].result_list[0].pk}/change/")
    assert "good @ 2026-12-01 08:00:00" in page
    assert "1796112000000000" not in page


@pytest.mark.clock_at("2026-06-10T12:20:00Z")
def test_the_forecast_counts_all_jobs_with_an_interval_and_names_those_who_meet(site: Any) -> None:
    now = us_now()
    made = [
        Job(id=f"many.{number:04}", fn="shop.cleanup", schedule_kind="interval", schedule="7200")
        for number in range(3_000)
    ]
    Job.objects.bulk_create(made, batch_size=500)
    with connection.cursor() as cursor:
        plan = "INSERT INTO qbeat_state (job_id, next_run_us) SELECT id, %s FROM qbeat_jobs WHERE id {} 'many.1000'"
        cursor.execute(plan.format("<"), [now + 30 * MINUTE])
        cursor.execute(plan.format(">"), [now + 31 * MINUTE])
    with CaptureQueriesContext(connection) as queries:
        shown = site.get(FORECAST).context["forecast"]
    weekly = 7 * 12
    assert shown.total - 7 * 24 == pytest.approx(3_000 * weekly, rel=0.1)
    assert shown.peaks[0].runs >= 1_000
    assert {"many.0000", "many.1001"} & set(shown.peaks[0].names)
    assert len(queries) < 40


def test_the_forecast_says_that_reserved_and_bad_rows_are_not_counted(site: Any, celery_app: Any) -> None:
    celery_app.conf.qbeat_cron = False
    make_job("reserved", schedule_kind="cron", schedule="0 9 * * *")
    make_job("bad", schedule_kind="daily", schedule="25:00")
    assert "2 enabled jobs with a problem</a> are not counted" in text(site, FORECAST)
    celery_app.conf.qbeat_cron = True
    assert "1 enabled job with a problem</a> is not counted" in text(site, FORECAST)


def test_the_forecast_waits_for_the_start_of_an_interval(site: Any) -> None:
    make_job("later", schedule_kind="interval", schedule="86400", start_us=us_now() + 3 * DAY)
    make_job("never", schedule_kind="interval", schedule="86400", start_us=us_now() + 30 * DAY)
    Job.objects.filter(pk="_builtin.prune").delete()
    shown = site.get(FORECAST).context["forecast"]
    assert [sum(count or 0 for count in day) for day in shown.counts[:3]] == [0, 0, 0]
    assert shown.total in (3, 4)


def test_the_forecast_counts_hours_and_names_those_who_meet(site: Any) -> None:
    for name in ("a", "b", "c"):
        make_job(name, schedule_kind="daily", schedule="09:30", timezone="Europe/Berlin")
    make_job("hourly", schedule="1h")
    make_job("often", schedule_kind="interval", schedule="60")
    make_job("off", schedule_kind="every", schedule="1m", enabled=False)
    shown = site.get(FORECAST + "?zone=Europe/Berlin").context["forecast"]
    assert len(shown.counts) == 7
    assert all(len(row) == 24 for row in shown.counts)
    # Hourly job, built-in chore, and the interval's sixty; three more at nine.
    assert shown.counts[3][8] == 62
    assert shown.counts[3][9] == 65
    first = shown.peaks[0]
    assert (first.runs, first.names[:3]) == (3, ("a", "b", "c"))
    assert first.when.startswith("09:30 on ")
    assert (3, 9) in shown.peak_cells
    assert "Europe/Berlin" in text(site, FORECAST + "?zone=Europe/Berlin")
    assert 'value="UTC"' in text(site, FORECAST + "?zone=Nowhere")
    assert "There is no time zone “Nowhere”: this is UTC." in text(site, FORECAST + "?zone=Nowhere")
    assert "There is no time zone" not in text(site, FORECAST + "?zone=Europe/Berlin")


def test_the_status_page_names_writer_late_jobs_problems_batches_and_code(five: Any) -> None:
    assert "none yet" in text(five, STATUS)
    insert("qbeat_batches", batch_id=77, epoch=4, claimed_us=us_now(), n=12)
    make_state("code:nightly", last_verdict="succeeded")
    now = us_now()
    with connection.cursor() as cursor:
        cursor.execute("UPDATE qbeat_leader SET epoch = 4, holder = 'host:1', taken_us = %s, seen_us = %s", [now, now])
    page = text(five, STATUS)
    for words in ("alive", "host:1", "Epoch 4", "77", "code:nightly", "late", "has no such hour", "Standalone"):
        assert words in page, words
    with connection.cursor() as cursor:
        cursor.execute("UPDATE qbeat_leader SET taken_us = %s, seen_us = %s", [now - 5 * MINUTE, now - 5 * MINUTE])
    assert "silent for 5 min" in text(five, STATUS)


def test_the_status_page_says_when_the_broker_is_away(site: Any, celery_app: Any) -> None:
    assert "memory:// takes messages" in text(site, STATUS)
    celery_app.conf.broker_url = "redis://:s3cret@127.0.0.1:1/0"
    page = text(site, STATUS)
    assert "redis://***@127.0.0.1:1/0 takes no messages: OperationalError" in page
    assert "s3cret" not in page


def test_the_status_page_says_that_nobody_reads_the_ends(site: Any, celery_app: Any, redis_url: str) -> None:
    celery_app.conf.broker_url = redis_url
    assert "the queue of ends" not in text(site, STATUS)
    with celery_app.connection_for_write() as broker:
        address = done_address(broker, "default", Installation.objects.get().instance)
        done_queue(address)(broker.default_channel).declare()
        producer = Producer(broker)
        for _ in range(MANY_UNREAD):
            producer.publish({}, exchange=address.exchange, routing_key=address.key)
    assert "the queue of ends holds 1,000 messages: no beat reads it" in text(site, STATUS)


@pytest.mark.parametrize("kind", ["text", "list"])
def test_junk_in_the_keys_of_the_lock_is_no_error_of_the_status_page(
    site: Any, celery_app: Any, redis_url: str, redis_server: Any, kind: str
) -> None:
    from celery_qbeat.gates import lock_key

    celery_app.conf.qbeat_redis_url = redis_url
    key = lock_key("default", Installation.objects.get().instance)
    beats = key.removesuffix("lock") + "beats"
    with redis_server.client() as client:
        if kind == "list":
            client.rpush(key, "x")
            client.rpush(beats, "x")
        else:
            client.set(key, b"\xff\xfe")
            client.zadd(beats, {b"\xff": float("inf"), b'["b", "x", 7]': float("-inf"), b"9" * 5_000: 1})
    page = text(site, STATUS)
    assert (f"redis-cli DEL &#x27;{beats}&#x27;" in page) == (kind == "list")


def test_the_page_of_scopes_counts_their_jobs_and_keeps_those_in_use(five: Any) -> None:
    Worker.objects.create(name="idle")
    with CaptureQueriesContext(connection) as queries:
        page = text(five, WORKERS)
    assert len([query for query in queries if "qbeat_jobs" in query["sql"]]) == 1
    assert 'href="/admin/qbeat/job/?scope=%3Dbilling">1</a>' in page
    five.post(WORKERS, {"action": "disable", "_selected_action": ["billing"]})
    assert not Worker.objects.get(pk="billing").enabled
    assert "Its worker scope &#x27;billing&#x27; is disabled." in text(five, change("late"))
    for name in ("billing", "idle"):
        five.post(f"{WORKERS}{name}/delete/", {"post": "yes"})
    assert set(Worker.objects.values_list("name", flat=True)) == {"billing"}


def test_no_job_of_a_disabled_scope_counts_as_late(five: Any) -> None:
    def late() -> dict[str, int]:
        return {scope.pk: scope.late_count for scope in five.get(WORKERS).context["cl"].result_list}

    Job.objects.filter(pk="late").update(worker="billing")
    assert late() == {"billing": 1}
    Worker.objects.update(enabled=False)
    assert late() == {"billing": 0}


@pytest.mark.parametrize("use_tz", [True, False])
def test_times_are_those_of_djangos_zone_with_and_without_use_tz(site: Any, use_tz: bool) -> None:
    make_job("a")
    make_state("a", next_run_us=1_900_000_000_000_000)
    make_run("a", 1_500_000_000_000_000)
    with override_settings(USE_TZ=use_tz, TIME_ZONE="Asia/Tokyo"):
        page = text(site, LIST)
        assert "2030-03-18 02:46" in page
        assert "2017-07-14 11:40" in text(site, RUNS)
        for address in (FORECAST, STATUS, change("a")):
            text(site, address)


@pytest.mark.parametrize(("column", "values"), [(4, "next_run_us"), (5, "last_run_us"), (6, "late_after_us")])
def test_jobs_without_a_time_are_last_in_both_directions(site: Any, column: int, values: str) -> None:
    for name in ("early", "late", "unseen"):
        make_job(name)
    for name, us in (("early", 1), ("late", 2)):
        make_state(name, **{values: us})
    for sign, expected in (("", ["early", "late"]), ("-", ["late", "early"])):
        jobs = site.get(f"{LIST}?o={sign}{column}&q=").context["cl"].queryset
        assert [job.pk for job in jobs if job.pk != "_builtin.prune"] == [*expected, "unseen"]
