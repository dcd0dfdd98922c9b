"""What the documents say is there, and what is there they say."""

from __future__ import annotations

import re
from pathlib import Path

import click
import pytest

from celery_qbeat.cli import qbeat
from celery_qbeat.core.jobs import Verdict
from celery_qbeat.core.schedules import KINDS
from celery_qbeat.settings import Settings
from celery_qbeat.stores import tables

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text()
PAGES = sorted([ROOT / "README.md", ROOT / "CHANGELOG.md", *(ROOT / "docs").glob("*.md")])


@pytest.mark.parametrize("name", sorted(Settings.model_fields))
def test_the_readme_explains_every_setting(name: str) -> None:
    assert f"| `qbeat_{name}` |" in README


def test_the_readme_names_no_setting_that_is_not_there() -> None:
    named = set(re.findall(r"\| `qbeat_([a-z_]+)` \|", README))
    assert named == Settings.model_fields.keys()


@pytest.mark.parametrize("column", tables.jobs.columns.keys())
def test_the_readme_explains_every_column_of_a_row(column: str) -> None:
    table = README[README.index("## The table") : README.index("## Settings")]
    assert f"`{column}`" in table


@pytest.mark.parametrize("kind", sorted(KINDS))
def test_every_kind_of_schedule_is_explained(kind: str) -> None:
    assert f"**`{kind}`**" in (ROOT / "docs/schedules.md").read_text()
    assert f"| `{kind}` |" in README


@pytest.mark.parametrize("verdict", list(Verdict))
def test_every_verdict_is_explained(verdict: Verdict) -> None:
    assert f"`{verdict}`" in (ROOT / "docs/runs.md").read_text()


@pytest.mark.parametrize("command", qbeat.list_commands(click.Context(qbeat)))
def test_every_command_is_explained(command: str) -> None:
    assert f"`{command}" in (ROOT / "docs/commands.md").read_text()


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_between_pages_lead_somewhere(page: Path) -> None:
    for target in re.findall(r"\]\((?!https?://)([^)#]+)", page.read_text()):
        assert (page.parent / target).exists(), target
