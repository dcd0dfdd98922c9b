"""What all commands share: their errors, `--json`, and the project they work on."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any, TypeVar

import click

from celery_qbeat.cli.project import Project
from celery_qbeat.core.safe_text import hide_secrets_in_text, one_line
from celery_qbeat.errors import QbeatError

F = TypeVar("F", bound=Callable[..., Any])


class QbeatCommand(click.Command):
    """A command that says in one sentence why it cannot do its work, and ends with 1."""

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except QbeatError as error:
            raise click.ClickException(one_line(hide_secrets_in_text(str(error)))) from None


def command(name: str) -> Callable[[Callable[..., Any]], click.Command]:
    """A command called `name`, with `--json`; its function gets the Project first."""

    def make(function: Callable[..., Any]) -> click.Command:
        @wraps(function)
        def run(*args: Any, **kwargs: Any) -> Any:
            ctx = click.get_current_context()
            project = Project.of(ctx)
            try:
                return function(project, *args, **kwargs)
            finally:
                project.close()

        made: click.Command = click.command(name, cls=QbeatCommand)(run)
        made.params.append(click.Option(["--json", "as_json"], is_flag=True, help="Print JSON."))
        return made

    return make


def finish(ok: bool) -> None:
    """End with 0 or 1."""
    click.get_current_context().exit(0 if ok else 1)
