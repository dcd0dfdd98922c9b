"""`manage.py qbeat ...`: the commands of `celery -A proj qbeat ...`, on this project's Celery app."""

from __future__ import annotations

from importlib import import_module
from typing import Any

from django.core.management.base import BaseCommand

from celery_qbeat.django.project import celery_app


class Command(BaseCommand):
    """Django reads nothing but the command's name; the rest is for the commands of celery_qbeat."""

    help = "Recurring jobs as rows: edit them, look at them, check them. The commands of `celery -A proj qbeat`."
    requires_system_checks: list[str] = []

    def run_from_argv(self, argv: list[str]) -> None:
        """`argv` as typed: manage.py, qbeat, and what follows. Ends the process with the command's exit code."""
        run(argv[2:], prog_name=f"{argv[0]} {argv[1]}")

    def add_arguments(self, parser: Any) -> None:
        parser.add_argument("arguments", nargs="*")

    def handle(self, *arguments: str, **_: Any) -> None:
        """`call_command("qbeat", "list", "--json")`. Raises SystemExit with the command's exit code."""
        run(arguments, prog_name="manage.py qbeat")


def run(arguments: Any, prog_name: str) -> None:
    """By name: the commands are an edge like this one, and neither imports the other."""
    cli = import_module("celery_qbeat.cli")
    cli.qbeat.main(list(arguments), prog_name=prog_name, obj=cli.Chosen(app=celery_app()))
