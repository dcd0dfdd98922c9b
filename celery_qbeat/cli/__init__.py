"""The commands: `celery -A proj qbeat ...`, and the same as a program of their own, `qbeat -A proj ...`.

Celery imports this module at every start, of workers too; so it imports the commands only when one is asked for.
For the same reason it is the place where our settings are hidden from `celery report` and `celery inspect conf`.
"""

from __future__ import annotations

from dataclasses import dataclass
from importlib import import_module
from typing import Any

import click
from celery.bin.base import handle_preload_options

from celery_qbeat import hidden_settings

__all__ = ["Chosen", "main", "qbeat"]

COMMANDS = {
    "add": "edits",
    "audit": "auditing",
    "check": "checks",
    "delete": "switches",
    "disable": "switches",
    "enable": "switches",
    "list": "listing",
    "migrate": "checks",
    "preview": "slots",
    "release": "releasing",
    "run-now": "hand",
    "runs": "ledger",
    "set": "edits",
    "show": "showing",
    "status": "status",
    "tick": "hand",
}
"""Where each command is."""

OUR_EXAMPLES = """\b
Examples:
  celery -A proj qbeat list
  celery -A proj qbeat add shop.cleanup proj.tasks.cleanup --daily 02:00,14:00 --timezone Europe/Berlin
  celery -A proj qbeat preview shop.cleanup"""


hidden_settings.install()


class Group(click.Group):
    """Loads a command when it is asked for."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return sorted(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        home = COMMANDS.get(cmd_name)
        if home is None:
            return None
        command: click.Command = getattr(import_module(f"{__name__}.{home}"), cmd_name.replace("-", "_") + "_command")
        return command


@dataclass(frozen=True, slots=True)
class Chosen:
    """What the program `qbeat` was told to work on."""

    app: Any = None
    database_url: str | None = None
    no_color: bool = False


@click.group(cls=Group, epilog=OUR_EXAMPLES)
@click.pass_context
@handle_preload_options
def qbeat(ctx: click.Context, **kwargs: Any) -> None:
    """Recurring jobs as rows in a SQL database: edit them, look at them, check them.

    All commands but `tick` need the database only.
    """


@click.group(cls=Group, epilog=OUR_EXAMPLES.replace("celery -A proj qbeat", "qbeat -A proj"))
@click.option("-A", "--app", envvar="CELERY_APP", metavar="APP", help="The Celery app, as for `celery -A`.")
@click.option("--database-url", envvar="QBEAT_DATABASE_URL", metavar="URL", help="SQLAlchemy URL of the tables.")
@click.option("-C", "--no-color", is_flag=True, envvar="NO_COLOR", help="Plain text.")
@click.version_option(package_name="celery_qbeat")
@click.pass_context
def main(ctx: click.Context, app: str | None, database_url: str | None, no_color: bool) -> None:
    """Recurring jobs as rows in a SQL database: edit them, look at them, check them.

    Name the Celery app with -A, or, where its settings and tasks do not matter, the tables with --database-url.
    """
    ctx.obj = Chosen(app, database_url, no_color)
