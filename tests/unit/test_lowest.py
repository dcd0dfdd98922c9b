"""`make matrix` installs the oldest versions that setup.cfg allows."""

from __future__ import annotations

import re
from configparser import ConfigParser
from pathlib import Path

ROOT = Path(__file__).parents[2]
# What pip is told beside: the same release under two names.
TWINS = {"psycopg-binary": "psycopg"}


def _versions(text: str, sign: str) -> dict[str, str]:
    """Names and versions, both in one spelling: 2 is 2.0.0."""
    found = re.findall(rf"^([\w-]+)(?:\[\w+])?{sign}([\d.]+?)(?:\.0)*$", text.lower(), re.MULTILINE)
    return dict(found)


def test_the_matrix_has_the_oldest_versions_that_are_allowed() -> None:
    config = ConfigParser()
    config.read(ROOT / "setup.cfg")
    extras = config["options.extras_require"]
    needed = [
        config["options"]["install_requires"],
        *(extras[name] for name in ("redis", "postgresql", "mysql", "django")),
    ]
    floors = _versions("\n".join(needed), ">=")
    pinned = _versions((ROOT / "tests/lowest.txt").read_text(), "==")
    assert {name: oldest for name, oldest in pinned.items() if name not in TWINS} == floors
    assert [pinned[twin] for twin in TWINS] == [pinned[name] for name in TWINS.values()]
