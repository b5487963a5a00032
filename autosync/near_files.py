"""Finds the file that a misspelt path may have meant, for the hints of messages about missing files."""

from __future__ import annotations

import errno
import itertools
import os
from pathlib import Path

from autosync.errors import Problem, did_you_mean, nearest

_MOST_ENTRIES = 10_000
"""More entries of a folder are not looked at: a hint may not take long."""


def near_path(path: Path | str) -> str:
    """Return an existing path that differs from a missing one in a few letters of a name; empty if there is none."""
    name, parent = Path(path).name, Path(path).parent
    try:
        if not parent.exists() and (near_parent := near_path(parent)) and (Path(near_parent) / name).exists():
            return str(Path(near_parent) / name)
        with os.scandir(parent) as entries:
            names = [entry.name for entry in itertools.islice(entries, _MOST_ENTRIES)]
    except (OSError, ValueError):
        return ""
    found = nearest(name, [one for one in names if one != name and not one.startswith(".")])
    return str(Path(path).parent / found) if found else ""


def near_path_hint(path: Path | str) -> str:
    """Return `did you mean 'cluster.yaml'?` if there is a file or folder of a similar name, else an empty text."""
    found = near_path(path)
    return did_you_mean(found, [found]) if found else ""


def missing_file(path: Path | str) -> Problem:
    """Return the problem of a file that does not exist."""
    what = f"cannot be read: {os.strerror(errno.ENOENT)}"
    return Problem(what=what, rule="must be a readable file", file=str(path), hint=near_path_hint(path))
