"""Finds the local work that a parameter server does: its costs may differ from those of workers."""

from __future__ import annotations

from collections.abc import Sequence


def is_at_server(groups: Sequence[Sequence[int]], num_workers: int) -> bool:
    """Return whether local work of these groups is one rank's, for all the others."""
    return num_workers > 1 and len(groups) == 1 and len(groups[0]) == 1
