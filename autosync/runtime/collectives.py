"""The backend's own collectives, on a group that one lane has for itself.

gloo has all-reduce, reduce and broadcast in the form that plans mean. Its all-gather and its reduce-scatter want even
chunks; where a plan asks for those, `native` means what it means in `plan.expansion`, a ring of ours.
"""

from __future__ import annotations

from typing import Any

import torch

from autosync.errors import OperationError
from autosync.plan.types import Collective, Transfer
from autosync.runtime.links import said

NATIVE: frozenset[Collective] = frozenset({"all_reduce", "reduce", "broadcast"})
"""Collectives that gloo carries out itself."""


def is_native(transfer: Transfer) -> bool:
    """Whether a transfer is carried out by gloo, and so needs a group (of its members, for its lane) of its own."""
    return transfer.algorithm == "native" and transfer.collective in NATIVE


def run_native(collective: Collective, group: Any, buffer: torch.Tensor) -> None:
    """Take part in a collective of a `Links.native` group with a flat, contiguous buffer; the first member is the root.

    Returns when the buffer holds the result. Which member failed is not known: gloo names an address at most.
    """
    if not buffer.numel():
        return
    try:
        _begin(collective, group, buffer).wait()
    except RuntimeError as error:
        raise OperationError(f"native {collective}: {said(error)}") from error


def _begin(collective: Collective, group: Any, buffer: torch.Tensor) -> Any:
    if collective == "all_reduce":
        return group.allreduce(buffer)
    if collective == "reduce":
        return group.reduce(buffer, 0)
    assert collective == "broadcast", "all others are carried out by rounds"
    return group.broadcast(buffer, 0)
