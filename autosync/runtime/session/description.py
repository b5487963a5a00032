"""Describes what trains a model, in words."""

from __future__ import annotations

from collections.abc import Sequence

from autosync.plan.types import Plan, Transfer
from autosync.runtime.session.model_buffers import Buffers


def described(plan: Plan, by: str, notes: Sequence[str], buffers: Buffers | None) -> str:
    """Describe a plan, what carries it out, and further notes, one line for each."""
    transfers = [one for one in plan.operations if isinstance(one, Transfer)]
    servers = len(plan.ranks) - plan.num_workers
    kinds = dict.fromkeys(f"{one.collective} ({one.algorithm})" for one in transfers)
    of_parts = f"{_many(len(plan.messages), 'message')} of {_many(len(plan.parts), 'part')}"
    in_lanes = f"{_many(len(transfers), 'transfer')} in {_many(plan.num_lanes, 'lane')}"
    lines = [
        f"{by}: {_many(plan.num_workers, 'worker')}" + (f" and {_many(servers, 'server')}" if servers else ""),
        ", ".join((of_parts, in_lanes, f"overlap {plan.overlap}")),
        ", ".join(kinds) or "nothing is sent",
        *notes,
    ]
    if buffers is not None and buffers.num_bytes:
        lines.append(f"buffers of {buffers.num_bytes} bytes come from the first worker in every step")
    return "\n".join(lines)


def _many(number: int, what: str) -> str:
    return f"{number} {what}" + ("" if number == 1 else "s")
