"""All that the session starts is known to one reaper process (`reaper.py`), which outlives a crash of the session."""

from __future__ import annotations

import atexit
import os
import shutil
import subprocess
import sys
import tempfile
import threading
from pathlib import Path

_lock = threading.Lock()
_reaper: subprocess.Popen[str] | None = None
_reaper_of: int | None = None
_base: Path | None = None


def _tell(order: str) -> None:
    global _reaper, _reaper_of
    with _lock:
        if _reaper is None or _reaper_of != os.getpid():
            script = Path(__file__).with_name("reaper.py")
            _reaper = subprocess.Popen(
                [sys.executable, str(script)], stdin=subprocess.PIPE, text=True, start_new_session=True
            )
            _reaper_of = os.getpid()
            atexit.register(_dismiss)
        assert _reaper.stdin is not None
        _reaper.stdin.write(order + "\n")
        _reaper.stdin.flush()


def _dismiss() -> None:
    """The session ends in order: wait until the reaper has tidied up."""
    if _reaper is not None and _reaper.stdin is not None and _reaper_of == os.getpid():
        _reaper.stdin.close()
        _reaper.wait(timeout=60)


def watch(pid: int) -> None:
    """The process ``pid`` (leader of its own process group) must not outlive the session."""
    _tell(f"watch {pid}")


def release(pid: int) -> None:
    """The process ``pid`` has ended and was waited for."""
    _tell(f"release {pid}")


def new_folder(name: str) -> Path:
    """A new empty folder, short of path (Unix sockets) and reachable by every user, removed after the session."""
    global _base
    if _base is None or not _base.exists():
        _base = Path(tempfile.mkdtemp(prefix="qbeat-", dir=_place()))
        _base.chmod(0o755)
        _tell(f"folder {_base}")
    return Path(tempfile.mkdtemp(prefix=f"{name}-", dir=_base))


def remove_folder(folder: Path) -> None:
    """Remove a folder of `new_folder` now."""
    shutil.rmtree(folder, ignore_errors=True)


def reachable(path: Path) -> bool:
    """Whether a user without rights of his own may pass through every folder down to ``path`` and read there."""
    return all(folder.stat().st_mode & 0o001 for folder in [path, *path.parents])


def _place() -> str | None:
    default = Path(tempfile.gettempdir()).resolve()
    if len(str(default)) > 40 or not reachable(default):
        return "/tmp"
    return None
