"""`python -m tests.wheel FILE`: does the wheel hold every file of the package, and nothing else?"""

from __future__ import annotations

import sys
from pathlib import Path
from zipfile import ZipFile


def main(wheel: str) -> str | None:
    """What is wrong with the wheel; None when nothing is."""
    root = Path(__file__).parents[1]
    files = {str(p.relative_to(root)) for p in (root / "celery_qbeat").rglob("*") if p.is_file()}
    wanted = {name for name in files if "__pycache__" not in name}
    with ZipFile(wheel) as archive:
        held = {name for name in archive.namelist() if ".dist-info/" not in name}
    if missing := wanted - held:
        return f"{wheel} lacks {', '.join(sorted(missing))}: name them in setup.cfg, [options.package_data]"
    if surplus := held - wanted:
        return f"{wheel} holds {', '.join(sorted(surplus))}, which the package does not have"
    return None


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
