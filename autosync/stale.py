"""Compiled functions that are no longer those of their sources.

numba keeps what it compiled beside each source file and compiles anew where that file changed. It does not see which
functions of other files were built into it: after an update of some files alone, two versions would run together.
"""

from __future__ import annotations

import contextlib
import hashlib
import itertools
from pathlib import Path

STAMP = "sources.sha256"


def drop_stale(package: Path) -> None:
    """Remove what numba kept in the folders of a package, unless all of it is of the sources that are there now.

    Where nothing may be written, nothing is done.
    """
    stamp = package / "__pycache__" / STAMP
    digest = _digest(package)
    with contextlib.suppress(OSError):
        if stamp.is_file() and stamp.read_text(encoding="ascii") == digest:
            return
        for kept in itertools.chain(package.rglob("*.nbi"), package.rglob("*.nbc")):
            kept.unlink(missing_ok=True)
        stamp.parent.mkdir(exist_ok=True)
        stamp.write_text(digest, encoding="ascii")


def _digest(package: Path) -> str:
    found = hashlib.sha256()
    for file in sorted(package.rglob("*.py")):
        found.update(file.relative_to(package).as_posix().encode() + b"\0" + file.read_bytes() + b"\0")
    return found.hexdigest()
