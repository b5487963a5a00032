"""Repairs the fields of a cluster file with mistakes, so that the values beside these mistakes are checked too.

The form of a file (keys and types) is checked before its values are read. Without a repair, a wrong rate would be
reported only after the user has mended an unknown key.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from autosync.errors import Path, Problem

_DEPENDS_ON = {"devices": "role", "hosts": "count", "host": "count"}
"""Fields that are right or wrong depending on another field of their entry."""


def repaired(fields: Mapping[str, Any], problems: Sequence[Problem]) -> dict[str, Any]:
    """Return the fields without the values that problems of their form name, and with a name for nameless nodes."""
    wrong = {problem.path for problem in problems}
    rest = _without(fields, wrong, ())
    assert isinstance(rest, dict), "only values inside it are left out"
    for kind in ("nodes", "racks"):
        entries = rest.get(kind)
        for position, entry in enumerate(entries) if isinstance(entries, list) else ():
            if isinstance(entry, dict):
                entry.setdefault("name", f"unnamed-{kind}-{position}")
    return rest


def is_due_to(problem: Problem, earlier: Sequence[Problem]) -> bool:
    """Return whether a problem of repaired fields may come from the repair of earlier problems, not from the user."""
    path = problem.path
    key, entry = (str(path[-1]), path[:-1]) if path else ("", ())
    paths = {one.path for one in earlier}
    if any(path[: len(one)] == one for one in paths):
        return True
    if key in _DEPENDS_ON and (*entry, _DEPENDS_ON[key]) in paths:
        return True
    if problem.what == "is missing":
        # Its key is there, misspelt.
        stem = key.removesuffix("_in").removesuffix("_out")
        return any(one.path[:-1] == entry and f"'{stem}" in one.hint for one in earlier)
    if path[:1] == ("alike",):
        return any(one[:1] == ("nodes",) for one in paths)
    return key == "rack" and any(one[:1] == ("racks",) for one in paths)


def _without(value: Any, wrong: set[Path], path: Path) -> Any:
    if isinstance(value, Mapping):
        return {key: _without(item, wrong, (*path, key)) for key, item in value.items() if (*path, key) not in wrong}
    if isinstance(value, list):
        # Positions stay: they are the places of other problems.
        return [{} if (*path, i) in wrong else _without(item, wrong, (*path, i)) for i, item in enumerate(value)]
    return value
