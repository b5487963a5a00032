"""Brings the variables of all stages, and the optimizer's state of them, to every rank."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

import safetensors.torch
import torch

from autosync.errors import OperationError
from autosync.plan.expansion import expand
from autosync.runtime.memory.byte_views import as_bytes
from autosync.runtime.wire.exchange import Exchange
from autosync.runtime.wire.flow_control import Flow
from autosync.runtime.wire.links import Links
from autosync.runtime.wire.transfer_pieces import cut_moves

_TAG = 2**29 - 4
"""The tag of these messages; no operation of a plan has this number."""


@torch.no_grad()
def send_variables(
    parameters: Mapping[str, torch.nn.Parameter], holders: Mapping[str, Sequence[int]], links: Links
) -> None:
    """Copy each variable from the first rank that holds it to all ranks that do not."""
    exchange = Exchange(links, Flow())
    for name, parameter in parameters.items():
        held = holders[name]
        members = [held[0], *[rank for rank in range(links.num_ranks) if rank not in held]]
        if links.rank not in members or len(members) == 1:
            continue
        values = as_bytes(parameter).clone()
        position = members.index(links.rank)
        pieces = cut_moves(expand("broadcast", "tree", len(members)), (0, len(values)), position=position, item_bytes=1)
        exchange.run(pieces, values, members=members, tag=_TAG, priority=0)
        if position:
            parameter.data.copy_(values.view(parameter.dtype).view(parameter.shape))


_WORDS = "words"


@torch.no_grad()
def send_optimizer_state(
    optimizer: torch.optim.Optimizer,
    parameters: Mapping[str, torch.nn.Parameter],
    holders: Mapping[str, Sequence[int]],
    links: Links,
) -> None:
    """Copy the optimizer's state of each variable from the first rank that holds it to all ranks that do not."""
    exchange = Exchange(links, Flow())
    # Those in no group have no state, and an entry for one would be an error later.
    grouped = {id(parameter) for group in optimizer.param_groups for parameter in group["params"]}
    for name, parameter in parameters.items():
        held = holders[name]
        members = [held[0], *[rank for rank in range(links.num_ranks) if rank not in held]]
        if links.rank not in members or len(members) == 1 or id(parameter) not in grouped:
            continue
        entry = _packed(name, optimizer.state.get(parameter, {})) if links.rank == held[0] else _EMPTY
        content, *_ = exchange.broadcast_v(entry, members=members, tag=_TAG, priority=0)
        if links.rank != held[0]:
            state = _unpacked(content)
            if state:
                optimizer.state[parameter] = state
            else:
                optimizer.state.pop(parameter, None)


_EMPTY = torch.empty(0, dtype=torch.uint8)


def _packed(name: str, entry: Mapping[str, Any]) -> torch.Tensor:
    """Return an entry of an optimizer's state as bytes."""
    tensors = {key: value.detach().contiguous() for key, value in entry.items() if isinstance(value, torch.Tensor)}
    words = {key: value for key, value in entry.items() if not isinstance(value, torch.Tensor)}
    if any(value is not None and not isinstance(value, bool | int | float | str) for value in words.values()):
        raise OperationError(f"the optimizer's state of {name} has more than tensors, numbers and words")
    text = torch.frombuffer(bytearray(json.dumps(words).encode()), dtype=torch.uint8)
    return torch.frombuffer(bytearray(safetensors.torch.save({**tensors, _WORDS: text})), dtype=torch.uint8)


def _unpacked(content: torch.Tensor) -> dict[str, Any]:
    tensors = safetensors.torch.load(content.numpy().tobytes())
    words: dict[str, Any] = json.loads(tensors.pop(_WORDS).numpy().tobytes())
    return {**tensors, **words}
