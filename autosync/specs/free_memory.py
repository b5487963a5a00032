"""The memory of this machine that new programs may use: what is free, within the limits of this process's group."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

MEMINFO = Path("/proc/meminfo")
GROUPS = Path("/proc/self/cgroup")
GROUPS_FOLDER = Path("/sys/fs/cgroup")


class _Names(NamedTuple):
    """The files of a group with its limit and its use, and what its use has of files that the kernel can drop."""

    limit: str
    use: str
    droppable: str


_NEW = _Names("memory.max", "memory.current", "inactive_file")
_OLD = _Names("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file")


def free_bytes(meminfo: Path = MEMINFO, *, groups: Path = GROUPS, groups_folder: Path = GROUPS_FOLDER) -> int | None:
    """Return the bytes that new programs may use; None on systems other than Linux.

    A container or a job of Slurm is a group of processes with a limit, which the machine's free memory does not show.
    """
    if not meminfo.exists():
        return None
    for line in meminfo.read_text(encoding="utf-8").splitlines():
        name, _, value = line.partition(":")
        if name == "MemAvailable":
            return min([int(value.split()[0]) * 1024, *_left_in_groups(groups, groups_folder)])
    return None


def _left_in_groups(groups: Path, root: Path) -> Iterator[int]:
    """Yield what is left of the limit of each group that this process is in."""
    for folder, names in _groups(groups, root):
        # Groups without a limit say "max" or have no such file.
        with contextlib.suppress(OSError, ValueError):
            limit, use = (int((folder / name).read_text(encoding="utf-8")) for name in (names.limit, names.use))
            yield max(limit - use + _droppable(folder, names), 0)


def _droppable(folder: Path, names: _Names) -> int:
    for line in (folder / "memory.stat").read_text(encoding="utf-8").splitlines():
        name, _, value = line.partition(" ")
        if name == names.droppable:
            return int(value)
    return 0


def _groups(groups: Path, root: Path) -> Iterator[tuple[Path, _Names]]:
    """Yield the folder of each group for memory, and those that it is in. A container may see the outermost alone."""
    lines = groups.read_text(encoding="utf-8").splitlines() if groups.exists() else []
    for line in lines:
        _, kinds, place = line.split(":", 2)
        if kinds and "memory" not in kinds.split(","):
            continue
        base, names = (root / "memory", _OLD) if kinds else (root, _NEW)
        folder = base / place.lstrip("/")
        for one in (folder, *folder.parents):
            if one.is_relative_to(base):
                yield one, names
