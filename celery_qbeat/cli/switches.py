"""`enable`, `disable` and `delete`: several rows at once."""

from __future__ import annotations

import sys
from functools import partial

import click
import sqlalchemy as sa

from celery_qbeat.cli import output
from celery_qbeat.cli.command import command
from celery_qbeat.cli.project import Project
from celery_qbeat.core.jobs import CODE_PREFIX
from celery_qbeat.core.plurals import quantity
from celery_qbeat.core.safe_text import one_line
from celery_qbeat.errors import QbeatError
from celery_qbeat.stores import rows

SHOWN = 10

_ids = click.argument("names", metavar="ID...", nargs=-1, required=True)
_yes = click.option("--yes", is_flag=True, help="Do not ask before a pattern is followed.")


@command("enable")
@_ids
@_yes
def enable_command(project: Project, names: tuple[str, ...], yes: bool, as_json: bool) -> None:
    """Switch rows on, by id or by pattern (* and ?).

    An enabled job is planned from now on; what it missed is not made up for.

    \b
    Example:
      celery -A proj qbeat enable 'shop.*' --yes
    """
    _switch(project, names, yes, as_json, True)


@command("disable")
@_ids
@_yes
def disable_command(project: Project, names: tuple[str, ...], yes: bool, as_json: bool) -> None:
    """Switch rows off, by id or by pattern (* and ?). Runs in flight go on.

    \b
    Example:
      celery -A proj qbeat disable shop.cleanup shop.report
    """
    _switch(project, names, yes, as_json, False)


@command("delete")
@_ids
@_yes
def delete_command(project: Project, names: tuple[str, ...], yes: bool, as_json: bool) -> None:
    """Delete rows, by id or by pattern (* and ?). Their ledger stays.

    \b
    Example:
      celery -A proj qbeat delete 'test.*' --yes
    """
    found = _chosen(project, names, yes, "delete")
    count = project.write(lambda connection: rows.delete(connection, found))
    if as_json:
        output.dump({"deleted": count, "ids": found})
    else:
        output.say(f"deleted {quantity(count, 'row')}")


def _switch(project: Project, names: tuple[str, ...], yes: bool, as_json: bool, enabled: bool) -> None:
    word = "enable" if enabled else "disable"
    found = _chosen(project, names, yes, word)
    count = project.write(lambda connection: rows.enable(connection, found, enabled))
    if as_json:
        output.dump({f"{word}d": count, "ids": found})
        return
    rest = len(found) - count
    already = f"; {quantity(rest, 'row')} {'was' if rest == 1 else 'were'} {word}d already" if rest else ""
    output.say(f"{word}d {quantity(count, 'row')}{already}")


def _chosen(project: Project, names: tuple[str, ...], yes: bool, word: str) -> list[str]:
    """The ids that are meant, each once. A name that is an id is that id, even with a * in it."""
    exact = project.read(lambda connection: rows.get(connection, list(names)))
    chosen = dict.fromkeys(name for name in names if name in exact)
    by_pattern: list[str] = []
    for name in names:
        if name in exact:
            continue
        if name.startswith(CODE_PREFIX):
            raise QbeatError(f"{name!r} is an entry of beat_schedule: change it in the code")
        if not rows.is_pattern(name):
            raise project.unknown(name)
        matching = project.read(partial(_matching, pattern=name))
        if not matching:
            raise QbeatError(f"no row matches {name!r}")
        by_pattern.extend(matching)
    chosen.update(dict.fromkeys(by_pattern))
    if by_pattern and not yes:
        _confirm(list(chosen), word)
    return list(chosen)


def _matching(connection: sa.Connection, pattern: str) -> list[str]:
    return list(rows.ids(connection, pattern))


def _confirm(ids: list[str], word: str) -> None:
    for job_id in ids[:SHOWN]:
        click.echo(f"  {one_line(job_id)}", err=True)
    if len(ids) > SHOWN:
        click.echo(f"  and {len(ids) - SHOWN} more", err=True)
    if not sys.stdin.isatty():
        raise click.UsageError(f"a pattern would {word} {quantity(len(ids), 'row')}: say --yes if that is meant")
    click.confirm(f"{word} {quantity(len(ids), 'row')}?", abort=True, err=True)
