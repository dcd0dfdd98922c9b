"""What the choices of a job mean, in the words of the form."""

from __future__ import annotations

from django.utils.html import format_html, format_html_join
from django.utils.safestring import SafeString

from celery_qbeat.core.schedules import KINDS

KIND_HELP = {
    "interval": (
        "Interval",
        "Whole seconds from one dispatch to the next. The first run is at once.",
        ("3600 – an hour after the last run", "90 – a minute and a half after it"),
    ),
    "every": (
        "Every",
        "Whole periods of the clock, counted from 1970 in UTC, the same on every machine; one minute to seven days.",
        ("15m – at :00, :15, :30, :45", "1h – at every full hour UTC", "1d – at midnight UTC"),
    ),
    "daily": (
        "Daily",
        "Times of day in the time zone below, each once a day, also when the clocks change.",
        ("02:00 – at two in the morning", "02:00,14:00 – twice a day", "09:30:15 – with seconds"),
    ),
    "cron": (
        "Cron",
        "Five fields: minute, hour, day of month, month, weekday (0 or 7 is Sunday).",
        ("*/5 * * * * – every five minutes", "0 9 * * 1-5 – weekdays at nine", "30 2 1 * * – the first of the month"),
    ),
    "once": (
        "Once",
        "One instant: local time in the time zone below, or with an offset of its own. Then the job is finished.",
        ("2026-12-01T09:00 – local time", "2026-12-01T09:00Z – UTC", "2026-12-01T09:00+02:00"),
    ),
}


def kind_help() -> SafeString:
    """What each kind takes; the style sheet shows the part of the kind that is chosen."""
    parts = []
    for name, (_, words, examples) in KIND_HELP.items():
        listed = format_html_join("", "<li><code>{}</code>{}</li>", (_example(example) for example in examples))
        parts.append(format_html('<div class="qb-kind qb-kind-{}">{}<ul>{}</ul></div>', name, words, listed))
    return format_html_join("", "{}", ((part,) for part in parts))


def _example(text: str) -> tuple[str, str]:
    example, dash, meaning = text.partition(" – ")
    return example, f"{dash}{meaning}"


KIND_CHOICES = tuple((name, KIND_HELP[name][0]) for name in KINDS)

OVERLAP = (
    ("skip", "skip – while a run is in flight, start none"),
    ("allow", "allow – runs may overlap"),
)
CATCH_UP = (
    ("once", "once – one run stands for all slots that were missed"),
    ("skip", "skip – no run for slots that passed while no beat was running"),
    ("all", "all – a run for each of them, oldest first"),
)
ON_DOUBT = (
    ("drop", "drop – if nobody knows whether a run was sent, do not send it again"),
    ("resend", "resend – send it again, under the same task id"),
)
HELP = {
    "id": "A name for ever, such as shop.cleanup.hourly.",
    "fn": "The task's full name. Offered are the registered tasks that rows may run.",
    "worker": "Jobs of a scope share its default queue, its allowed queues and its tasks, and are paused with it.",
    "timezone": "Wall-clock times and days are those of this zone.",
    "days_only": "None ticked: every day.",
    "days_skip": "Never on these days.",
    "dates_skip": "Dates on which the job does not run, one a line: 2026-12-25",
    "start_us": "In the job's time zone.",
    "end_us": "In the job's time zone.",
    "args": "A JSON list of positional arguments.",
    "kwargs": "A JSON object of keyword arguments.",
    "queue": "Empty: the default queue of the scope, or where Celery routes the task.",
    "priority": "0 to 255, as the broker understands it.",
    "expires_seconds": "A run that still waits in the queue after so many seconds is not started.",
    "grace_seconds": "A slot later than this is missed, not sent. Empty: no limit.",
    "max_run_seconds": "A run that has not ended after so many seconds is lost, and no longer in the way of the next.",
}
