"""The example project as a person runs it, and a browser to look at it."""

from __future__ import annotations

import os
import sqlite3
import sys
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

from tests.celeryproc import Process
from tests.servers.ports import free_port
from tests.servers.waiting import wait_for

ROOT = Path(__file__).parents[2]
FLAGS = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
)


class Shop:
    """`python examples/django/run.py` with a folder and a port of its own; ``python``: of another environment."""

    def __init__(self, folder: Path, broker: str, python: Path | None = None) -> None:
        self.folder = folder
        self.port = free_port()
        self.address = f"http://127.0.0.1:{self.port}"
        dropped = ("DJANGO", "CELERY", "QBEAT_", "PYTEST")
        self.environment = {
            **{name: value for name, value in os.environ.items() if not name.startswith(dropped)},
            "PYTHONPATH": "" if python else str(ROOT),
            "PYTHONUNBUFFERED": "1",
            "SHOP_FOLDER": str(folder / "data"),
            "SHOP_PORT": str(self.port),
            "SHOP_BROKER": broker,
        }
        command = [str(python or sys.executable), str(ROOT / "examples" / "django" / "run.py")]
        self.process = Process("shop", command, folder, self.environment, folder / "shop.log")

    def wait_ready(self) -> None:
        """Until server, worker and beat are at work."""
        for pattern in (r"The jobs: http", r"Starting development server|development server at", r" ready\.$"):
            self.process.wait_output(pattern, deadline=90)
        self.process.wait_output(r"beat: writer", deadline=60)

    def sql(self, statement: str, *values: Any) -> list[Any]:
        """One statement on the shop's database, committed; the rows."""
        with closing(sqlite3.connect(self.folder / "data" / "shop.sqlite3", timeout=30)) as connection, connection:
            return connection.execute(statement, values).fetchall()

    def runs(self, job: str, verdict: str = "succeeded") -> int:
        """How many runs of a job have this verdict."""
        return int(self.sql("SELECT count(*) FROM qbeat_runs WHERE job_id = ? AND verdict = ?", job, verdict)[0][0])

    def wait_runs(self, job: str, count: int = 1) -> None:
        """Until so many runs of a job have succeeded."""
        wait_for(lambda: self.runs(job) >= count, 60, what=f"{job} has succeeded {count} times")

    def close(self) -> None:
        """End it as Ctrl-C does, then for good."""
        self.process.terminate()
        try:
            self.process.wait_exit(20)
        finally:
            self.process.close()


@contextmanager
def page_of(chromium: Any, shop: Shop, **options: Any) -> Iterator[Any]:
    """A page logged in as the admin. Fails when the page has an error or asks another host for anything."""
    context = chromium.new_context(viewport={"width": 1440, "height": 900}, **options)
    context.set_default_timeout(30_000)
    page = context.new_page()
    wrong: list[str] = []
    page.on("pageerror", lambda error: wrong.append(str(error)))
    page.on("console", lambda message: wrong.append(message.text) if is_error(message) else None)
    page.on("request", lambda request: None if request.url.startswith(shop.address) else wrong.append(request.url))
    page.goto(f"{shop.address}/admin/login/?next=/admin/qbeat/job/")
    page.fill("#id_username", "admin")
    page.fill("#id_password", "admin")
    page.click("input[type=submit]")
    page.wait_for_selector("#changelist")
    try:
        yield page
        assert wrong == []
    finally:
        context.close()
        assert shop.process.running, f"the shop has ended:\n{shop.process.output()[-5000:]}"


def is_error(message: Any) -> bool:
    """Whether the console says that something is wrong, but for the picture that browsers ask every site for."""
    return message.type == "error" and "favicon" not in str(message.location)
