"""The example project in a real browser, with a real beat and a real worker behind it."""

from __future__ import annotations

import os
import random
import shutil
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NoReturn

import pytest

from tests.django.shop import FLAGS, ROOT, Shop, page_of
from tests.servers import Redis
from tests.servers.waiting import wait_for

pytestmark = [pytest.mark.browser, pytest.mark.slow]

LIST = "/admin/qbeat/job/"
IMAGES = ROOT / "docs" / "images"


def missing(reason: str) -> NoReturn:
    if os.environ.get("QBEAT_TEST_REQUIRE_SERVERS") == "1":
        pytest.fail(f"QBEAT_TEST_REQUIRE_SERVERS=1, but {reason}", pytrace=False)
    pytest.skip(reason)


@pytest.fixture(scope="module")
def chromium() -> Iterator[Any]:
    """Debian's Chromium, driven by Playwright."""
    program = shutil.which("chromium") or shutil.which("chromium-browser")
    if program is None:
        missing("no chromium on this machine (Debian: apt-get install chromium)")
    try:
        from playwright.sync_api import sync_playwright
    except ImportError:
        missing("the Python package playwright is not installed")
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=program, args=list(FLAGS))
        yield browser
        browser.close()


@pytest.fixture(scope="module")
def shop(tmp_path_factory: pytest.TempPathFactory, redis_server: Redis) -> Iterator[Shop]:
    """The example, started with its one command, on the session's Redis."""
    with redis_server.client() as client:
        client.flushall()
    made = Shop(tmp_path_factory.mktemp("shop"), redis_server.url)
    try:
        made.wait_ready()
        yield made
    finally:
        made.close()


@pytest.fixture
def page(chromium: Any, shop: Shop) -> Iterator[Any]:
    with page_of(chromium, shop) as opened:
        yield opened


def fill_in(page: Any, shop: Shop, name: str, kind: str, schedule: str) -> None:
    page.goto(f"{shop.address}{LIST}add/")
    page.fill("#id_id", name)
    page.fill("#id_fn", "shop.cleanup")
    page.check(f"input[name=schedule_kind][value={kind}]")
    page.fill("#id_schedule", schedule)


def test_a_job_made_in_the_admin_runs_and_its_run_appears(page: Any, shop: Shop) -> None:
    fill_in(page, shop, "made.here", "interval", "2")
    page.wait_for_selector("#qb-preview.qb-live .qb-firings tbody tr >> nth=9")
    assert "at once" in page.inner_text(".qb-firings tbody tr >> nth=0")
    page.click("input[name=_continue]")
    page.wait_for_selector(".qb-panel")
    shop.wait_runs("made.here", 2)
    page.reload()
    page.wait_for_selector(".qb-bar-ok")
    assert "succeeded" in page.inner_text(".qb-facts")
    assert page.locator(".qb-next").count() == 8
    page.click("#qb-runs")
    page.wait_for_selector("#result_list")
    assert page.locator("#result_list .qb-ok").count() >= 2


def test_run_now_runs_a_job_that_is_not_due(page: Any, shop: Shop) -> None:
    page.goto(f"{shop.address}{LIST}shop.sales.daily/change/")
    page.click("#qb-run-now")
    page.wait_for_selector(".messagelist .success >> text=Asked for 1 run")
    shop.wait_runs("shop.sales.daily")
    page.goto(f"{shop.address}/admin/qbeat/run/?job_id=shop.sales.daily")
    assert "by hand" in page.inner_text("#result_list")


def test_a_bad_schedule_shows_its_reason_while_typing_and_beside_its_field(page: Any, shop: Shop) -> None:
    fill_in(page, shop, "bad.schedule", "daily", "25:00")
    page.wait_for_selector(".qb-preview-problem >> text=no time of day")
    page.click("input[name=_save]")
    page.wait_for_selector(".field-schedule .errorlist >> text=no time of day")
    page.fill("#id_schedule", "23:00")
    page.wait_for_selector(".qb-firings >> text=23:00:00")
    page.click("input[name=_save]")
    page.wait_for_selector(".messagelist .success")
    assert shop.sql("SELECT schedule FROM qbeat_jobs WHERE id = 'bad.schedule'") == [("23:00",)]


def test_an_edit_shows_what_it_changes_before_it_is_saved(page: Any, shop: Shop) -> None:
    page.goto(f"{shop.address}{LIST}shop.sales.daily/change/")
    page.wait_for_selector("#qb-preview.qb-live .qb-firings")
    assert page.locator(".qb-difference").count() == 0
    page.fill("#id_schedule", "02:30,15:00")
    page.wait_for_selector(".qb-difference >> text=added")
    page.wait_for_selector(".qb-difference >> text=removed")
    page.check("#id_days_skip input[value='0']")
    page.wait_for_function("!document.querySelector('.qb-firings').innerText.includes('Sun ')")


def test_the_kind_of_schedule_switches_the_help(page: Any, shop: Shop) -> None:
    page.goto(f"{shop.address}{LIST}add/")
    for kind, words in {"cron": "Five fields", "once": "One instant", "daily": "Times of day"}.items():
        page.check(f"input[name=schedule_kind][value={kind}]")
        page.wait_for_selector(f".qb-kind-{kind}:visible >> text={words}")
        assert page.locator(".qb-kind:visible").count() == 1


def test_disabling_stops_a_job(page: Any, shop: Shop) -> None:
    for name in ("to.stop", "goes.on"):
        fill_in(page, shop, name, "interval", "1")
        page.click("input[name=_save]")
        page.wait_for_selector(".messagelist .success")
    shop.wait_runs("to.stop", 2)
    page.goto(f"{shop.address}{LIST}?q=to.stop")
    page.check("input[name=_selected_action]")
    page.select_option("select[name=action]", "disable")
    page.click("button[name=index]")
    page.wait_for_selector(".messagelist .success >> text=1 job disabled.")
    stopped = "SELECT 1 FROM qbeat_history WHERE job_id = 'to.stop' AND spec IS NULL"
    wait_for(lambda: shop.sql(stopped), what="the beat has noticed")
    count = "SELECT count(*) FROM qbeat_runs WHERE job_id = 'to.stop'"
    before = shop.sql(count)
    shop.wait_runs("goes.on", shop.runs("goes.on") + 3)
    assert shop.sql(count) == before


def test_the_preview_works_without_javascript(chromium: Any, shop: Shop) -> None:
    with page_of(chromium, shop, java_script_enabled=False) as page:
        fill_in(page, shop, "", "daily", "04:05")
        page.click("text=Show the next firings")
        frame = page.frame_locator("iframe[name=qb-preview-frame]")
        frame.locator(".qb-firings tbody tr >> nth=9").wait_for()
        assert "04:05:00" in frame.locator(".qb-firings tbody tr >> nth=0").inner_text()


PAINTED = (
    ("shop.backup.nightly", "02:00", ""),
    ("shop.mail.digest", "08:00,13:00,17:00", "mon-fri"),
    ("shop.prices.hourly", ",".join(f"{hour:02}:00" for hour in range(7, 20)), "mon-fri"),
    ("shop.search.reindex", "02:00,14:00", ""),
    ("shop.stock.nightly", "02:00", ""),
)


def paint_a_shop(shop: Shop) -> None:
    """Jobs that a shop has, in place of what other tests made."""
    shop.sql("DELETE FROM qbeat_jobs WHERE id NOT LIKE 'shop.%' AND id NOT LIKE '_builtin.%'")
    insert = (
        "INSERT OR REPLACE INTO qbeat_jobs (id, fn, schedule_kind, schedule, days_only, timezone) "
        "VALUES (?, 'shop.report', 'daily', ?, ?, 'Europe/Berlin')"
    )
    for row in PAINTED:
        shop.sql(insert, *row)
    planned = "SELECT count(*) FROM qbeat_state WHERE next_run_us > 0 AND job_id = ?"
    wait_for(lambda: all(shop.sql(planned, row[0])[0][0] for row in PAINTED), what="they are planned")


def paint_the_past(shop: Shop) -> None:
    """Runs of all verdicts, so that a picture has something to show."""
    chance = random.Random(7)
    now = time.time_ns() // 1000
    minute = 60_000_000
    verdicts = ["succeeded"] * 11 + ["failed", "skipped", "in doubt", "lost", "missed"]
    insert = (
        "INSERT INTO qbeat_runs (task_id, job_id, slot_us, verdict, claimed_us, sent_us, finished_us, late_us) "
        "VALUES (?, 'shop.sales.minutely', ?, ?, ?, ?, ?, ?)"
    )
    for number in range(3, 31):
        slot = now - now % minute - number * minute
        verdict = chance.choice(verdicts)
        sent = None if verdict in ("skipped", "missed") else slot + 20_000
        took = round(chance.lognormvariate(13.5, 0.5))
        ended = sent + took if sent and verdict in ("succeeded", "failed") else None
        late = chance.choice([0, 0, 0, 3_000_000, 9_000_000])
        shop.sql(insert, f"painted-{number}", slot, verdict, slot, sent, ended, late)
    count = "(SELECT count(*) FROM qbeat_runs WHERE job_id = 'shop.sales.minutely')"
    shop.sql(f"UPDATE qbeat_state SET runs = {count} WHERE job_id = 'shop.sales.minutely'")


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_the_pages_open_in_light_and_dark(chromium: Any, shop: Shop, scheme: str, tmp_path: Path) -> None:
    """With QBEAT_SCREENSHOTS=1 the pictures of the documentation are made anew."""
    wanted = os.environ.get("QBEAT_SCREENSHOTS") == "1"
    folder = IMAGES if wanted else tmp_path
    if scheme == "light":
        paint_a_shop(shop)
        paint_the_past(shop)
    pages = {
        "list": (LIST, "#result_list"),
        "job": (f"{LIST}shop.sales.minutely/change/", ".qb-firings"),
        "forecast": (f"{LIST}forecast/", ".qb-picture"),
        "status": (f"{LIST}status/", ".qb-card"),
    }
    ending = "" if scheme == "light" else "-dark"
    with page_of(chromium, shop, color_scheme=scheme) as page:
        for name, (address, mark) in pages.items():
            page.goto(shop.address + address)
            page.wait_for_selector(mark)
            file = folder / f"{name}{ending}.png"
            page.screenshot(path=str(file), clip={"x": 0, "y": 0, "width": 1440, "height": 900})
            assert file.stat().st_size > 10_000


@pytest.mark.parametrize("width", [390, 1440])
def test_no_page_is_wider_than_its_window_however_long_names_are(chromium: Any, shop: Shop, width: int) -> None:
    name, scope = "long." + "x" * 186, "s" * 64
    shop.sql("INSERT OR REPLACE INTO qbeat_workers (name, queue) VALUES (?, ?)", scope, "q" * 250)
    shop.sql(
        "INSERT OR REPLACE INTO qbeat_jobs (id, fn, schedule_kind, schedule, worker, enabled) "
        "VALUES (?, ?, 'daily', '25:00', ?, 1)",
        *(name, "f" * 255, scope),
    )
    shop.sql("INSERT OR REPLACE INTO qbeat_state (job_id) VALUES (?)", "code:" + "y" * 186)
    run = "INSERT OR IGNORE INTO qbeat_runs (task_id, job_id, slot_us, verdict) VALUES ('long', ?, 1, 'refused')"
    shop.sql(run, name)
    number = shop.sql("SELECT id FROM qbeat_runs WHERE task_id = 'long'")[0][0]
    wait_for(
        lambda: shop.sql("SELECT 1 FROM qbeat_state WHERE job_id = ? AND problem > ''", name), 30, what="its problem"
    )
    pages = (LIST, f"{LIST}{name}/change/", f"{LIST}forecast/", f"{LIST}status/", f"{LIST}add/", "/admin/qbeat/worker/")
    runs = ("/admin/qbeat/run/", f"/admin/qbeat/run/{number}/change/", f"/admin/qbeat/worker/{scope}/change/")
    with page_of(chromium, shop) as page:
        page.set_viewport_size({"width": width, "height": 800})
        for address in (*pages, *runs):
            page.goto(shop.address + address)
            page.wait_for_load_state()
            assert page.evaluate("document.documentElement.scrollWidth") <= width, address
