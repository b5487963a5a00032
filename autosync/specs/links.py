"""The names that output gives to what can be full: interfaces, uplinks of racks, links inside nodes, processors."""

from __future__ import annotations

from typing import Literal

Direction = Literal["out", "in"]

PROCESSORS = "processors"
"""All processors of the busiest machine; emulated hosts share one machine."""


def interface_name(node: str, direction: Direction) -> str:
    """Return the name of one direction of a node's network interface."""
    return f"interface of {node}, {direction}"


def uplink_name(rack: str, direction: Direction) -> str:
    """Return the name of one direction of a rack's uplink, seen from the rack."""
    return f"uplink of rack {rack}, {direction}"


def inside_name(node: str, rank: int | None = None) -> str:
    """Return the name of the link between the ranks of a node; with `rank`, of the direction out of that rank."""
    return f"inside of {node}" if rank is None else f"inside of {node}, from rank {rank}"


def busy_in_words(link: str, busy_share: float) -> str:
    """Describe the load of a link or of processors: `uplink of rack r1, out: 98% busy`."""
    return f"{link}: {min(busy_share, 1.0):.0%} busy"
