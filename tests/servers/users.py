"""The user under which a server runs: most of them refuse root."""

from __future__ import annotations

import os
import pwd
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class User:
    """Who runs a server. ``switch`` is False when that is whoever runs the tests."""

    uid: int
    gid: int
    switch: bool

    def own(self, path: Path) -> None:
        """Give ``path`` to this user, with everything in it."""
        if not self.switch:
            return
        for each in [path, *path.rglob("*")]:
            os.chown(each, self.uid, self.gid, follow_symlinks=False)

    def popen(self) -> dict[str, object]:
        """The keyword arguments of `subprocess.Popen` that make a process this user's."""
        if not self.switch:
            return {}
        return {"user": self.uid, "group": self.gid, "extra_groups": []}


def whoever_runs_the_tests() -> User:
    """The current user, root or not."""
    return User(os.geteuid(), os.getegid(), switch=False)


def not_root(*preferred: str) -> User:
    """The current user, or when that is root: the first existing one of ``preferred``, of nobody, of all others."""
    if os.geteuid() != 0:
        return whoever_runs_the_tests()
    known = {entry.pw_name: entry for entry in pwd.getpwall() if entry.pw_uid != 0}
    for name in [*preferred, "nobody", *known]:
        if name in known:
            return User(known[name].pw_uid, known[name].pw_gid, switch=True)
    raise AssertionError("this machine has no user but root, and the server refuses to run as root")
