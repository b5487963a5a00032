"""Checks that a timeline has the variables of its model in the order that plans are made for."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence


def check_order(what: str, segments: Sequence[Sequence[str]], order: Mapping[str, int]) -> None:
    """Raise ValueError unless the segments of a pass name every variable, in the order of their positions."""
    first: dict[str, int] = {}
    for position, names_of_segment in enumerate(segments):
        for name in names_of_segment:
            first.setdefault(name, position)
    missing = order.keys() - first.keys()
    if missing:
        raise ValueError(f"the timeline's {what} pass leaves out {min(missing)!r} (it names every variable)")
    names = sorted(order, key=lambda name: (order[name], first[name]))
    for earlier, later in itertools.pairwise(names):
        if first[earlier] > first[later]:
            field = "use" if what == "forward" else "ready"
            raise ValueError(
                f"the timeline's {what} pass has {later!r} before {earlier!r} (its order is that of {field})"
            )
