"""The commands: `celery -A proj qbeat ...`, and the same as a program of their own, `qbeat -A proj ...`.

Celery imports this module at every start, of workers too; so it imports the commands only when one is asked for.
For the same reason it is the place where our settings are hidden from `celery report` and `celery inspect conf`.
"""

from __future__ import annotations

from dataclasses import dataclass
from importlib import import_module
from typing import Any

import click

from celery_qbeat.process import hidden_settings

__all__ = ["Chosen", "main", "qbeat"]

COMMANDS = {
    "add": ("edits", "Add a row"),
    "audit": ("auditing", "Recompute the slots and list those without a verdict"),
    "check": ("checks", "Check tables, rows, beat and broker: a health check"),
    "delete": ("switches", "Delete rows, by id or by pattern"),
    "disable": ("switches", "Switch rows off, by id or by pattern"),
    "enable": ("switches", "Switch rows on, by id or by pattern"),
    "list": ("listing", "List the jobs and how each stands"),
    "migrate": ("checks", "Make the tables, or bring them up to date"),
    "preview": ("slots", "Show the next slots of a row, or of a schedule"),
    "release": ("releasing", "End runs in flight, so that their jobs run again"),
    "run-now": ("run_now", "Ask the beat to run a job now, beside its schedule"),
    "runs": ("runs", "Show the ledger: each slot with its verdict"),
    "set": ("edits", "Change columns of a row, and no others"),
    "show": ("showing", "Show a job: row, state, last runs, next slots"),
    "status": ("status", "Show the writer, the standbys and what is under way"),
    "tick": ("run_now", "Run what is due, once, and end"),
}
"""The module of each command, and its line in the list of commands: the list imports no command."""

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
        if cmd_name not in COMMANDS:
            return None
        home, _ = COMMANDS[cmd_name]
        command: click.Command = getattr(import_module(f"{__name__}.{home}"), cmd_name.replace("-", "_") + "_command")
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, line) for name, (_, line) in sorted(COMMANDS.items())])


@dataclass(frozen=True, slots=True)
class Chosen:
    """What the program `qbeat` was told to work on."""

    app: Any = None
    database_url: str | None = None
    no_color: bool = False


@click.group(cls=Group, epilog=OUR_EXAMPLES)
@click.pass_context
def qbeat(ctx: click.Context, /, **kwargs: Any) -> None:
    """Recurring jobs as rows in a SQL database: edit them, look at them, check them.

    All commands but `tick` need the database only.
    """
    # Imported by whoever calls this group; the program `qbeat` does without.
    from celery.bin.base import handle_preload_options

    handle_preload_options(_take_options)(ctx, **kwargs)


def _take_options(_ctx: click.Context, **_options: Any) -> None:
    """What `app.user_options` adds to every command is for Celery's signal."""


@click.group(cls=Group, epilog=OUR_EXAMPLES.replace("celery -A proj qbeat", "qbeat -A proj"))
@click.option("-A", "--app", envvar="CELERY_APP", metavar="APP", help="The Celery app, as for `celery -A`.")
@click.option("--database-url", envvar="QBEAT_DATABASE_URL", metavar="URL", help="SQLAlchemy URL of the tables.")
@click.option("-C", "--no-color", is_flag=True, help="Plain text; the variable NO_COLOR does the same.")
@click.version_option(package_name="celery_qbeat")
@click.pass_context
def main(ctx: click.Context, app: str | None, database_url: str | None, no_color: bool) -> None:
    """Recurring jobs as rows in a SQL database: edit them, look at them, check them.

    Name the Celery app with -A, or, where its settings and tasks do not matter, the tables with --database-url.
    """
    ctx.obj = Chosen(app, database_url, no_color)
