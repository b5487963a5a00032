"""The cache of functions that numba compiled, and its renewal when sources change.

numba stores compiled functions beside each source file and compiles again when that file changes. It does not know
which functions of other files were inlined: after an update of some files alone, two versions would run together. So a
cache that does not fit all sources of a package is dropped. If nothing can be written beside the sources, the cache
is a folder among the user's caches; if that fails too, nothing is cached.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar, cast

from autosync.disk_errors import is_full

STAMP = "sources.sha256"
MARK = "compiled-"
"""The beginning of the names of files that say that all functions of a package are compiled."""
FunctionT = TypeVar("FunctionT", bound=Callable[..., Any])


@dataclass(frozen=True, slots=True)
class CompiledCache:
    """The cache of a package's compiled functions: in `folder`, or beside the sources if `folder` is None.

    Nothing is cached unless `is_enabled`.
    """

    is_enabled: bool
    folder: Path | None = None

    def compiled(self, function: FunctionT, options: Mapping[str, Any]) -> FunctionT:
        """Return the function wrapped by numba. The cache is chosen now; numba compiles at the first call."""
        import numba

        settings: Any = numba.config
        before = settings.CACHE_DIR
        if self.folder is not None:
            settings.CACHE_DIR = str(self.folder)
        try:
            return cast("FunctionT", numba.njit(**options, cache=self.is_enabled)(function))
        except RuntimeError:
            # A folder below the package may not be writable.
            return cast("FunctionT", numba.njit(**options)(function))
        finally:
            settings.CACHE_DIR = before


def find_cache(package: Path) -> CompiledCache:
    """Return the cache of a package, without functions that were compiled from other sources."""
    chosen = os.environ.get("NUMBA_CACHE_DIR")
    if not chosen and _takes_files(package / "__pycache__"):
        drop_stale(package)
        return CompiledCache(is_enabled=True)
    # In a shared folder, each state of the sources has a folder of its own.
    for caches in [Path(chosen)] if chosen else _caches():
        folder = caches / f"autosync-{digest_of(package)[:16]}"
        if _takes_files(folder):
            return CompiledCache(is_enabled=True, folder=folder)
    return CompiledCache(is_enabled=False)


def drop_stale(package: Path) -> None:
    """Remove cached functions, and marks that all are there, unless they were compiled from the present sources.

    Does nothing if files cannot be written there.
    """
    stamp = package / "__pycache__" / STAMP
    digest = digest_of(package)
    with contextlib.suppress(OSError):
        if stamp.is_file() and stamp.read_text(encoding="ascii") == digest:
            return
        for pattern in ("*.nbi", "*.nbc", f"__pycache__/{MARK}*"):
            for kept in package.rglob(pattern):
                kept.unlink(missing_ok=True)
        stamp.parent.mkdir(exist_ok=True)
        stamp.write_text(digest, encoding="ascii")


def _caches() -> list[Path]:
    """Return the folders that may hold the user's caches."""
    named = os.environ.get("XDG_CACHE_HOME", "")
    if Path(named).is_absolute():
        return [Path(named)]
    # A user without a home raises RuntimeError.
    with contextlib.suppress(RuntimeError):
        return [Path.home() / ".cache"]
    return []


def _takes_files(folder: Path) -> bool:
    """Whether a folder exists or can be made, files can be written to it, and its disk is not full."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        tempfile.TemporaryFile(dir=folder).close()
    except OSError:
        return False
    return not is_full(folder)


def digest_of(package: Path) -> str:
    """Return a digest of all sources of a package."""
    found = hashlib.sha256()
    for file in sorted(package.rglob("*.py")):
        found.update(file.relative_to(package).as_posix().encode() + b"\0" + file.read_bytes() + b"\0")
    return found.hexdigest()
