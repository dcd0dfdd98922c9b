"""Filling in the form of a job, as a browser does."""

from __future__ import annotations

from html import unescape
from typing import Any

ADD = "/admin/qbeat/job/add/"
PREVIEW = "/admin/qbeat/job/preview/"

BLANK: dict[str, Any] = {
    "id": "shop.cleanup.hourly",
    "fn": "shop.cleanup",
    "worker": "",
    "enabled": "on",
    "description": "",
    "schedule_kind": "daily",
    "schedule": "02:30",
    "timezone": "Europe/Berlin",
    "days_only": [],
    "days_skip": [],
    "dates_skip": "",
    "start_us": "",
    "end_us": "",
    "args": "[]",
    "kwargs": "{}",
    "queue": "",
    "priority": "",
    "expires_seconds": "",
    "overlap": "skip",
    "max_run_seconds": "3600",
    "catch_up": "once",
    "grace_seconds": "",
    "on_doubt": "drop",
    "seen_rev": "",
}


def change(name: str) -> str:
    """The address of a job's page."""
    from django.contrib.admin.utils import quote

    return f"/admin/qbeat/job/{quote(name)}/change/"


def typed(**columns: Any) -> dict[str, Any]:
    """The form as it stands after these fields were typed; unticked boxes are not sent."""
    return {name: value for name, value in {**BLANK, **columns}.items() if value is not None}


def errors(answer: Any) -> dict[str, str]:
    """The errors beside each field, as text."""
    if answer.status_code != 200:
        return {}
    form = answer.context["adminform"].form
    return {name: unescape(" ".join(str(words) for words in found)) for name, found in form.errors.items()}
