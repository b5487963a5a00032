"""Transfers on torch.distributed: the backend's own collectives where a plan asks for them, else rounds of messages."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

import torch
import torch.distributed as dist

from autosync.plan.expansion import Move, chunk_bounds, expand, num_chunks
from autosync.plan.types import Plan, Transfer
from autosync.runtime.groups import Groups
from autosync.runtime.tensors import RegionTensors

NATIVE = frozenset({"all_reduce", "broadcast", "reduce"})
"""Collectives that gloo has in the form that plans mean. Its reduce-scatter and all-gather want even chunks."""


class Mover:
    """Carries out the transfers of a plan for one rank."""

    def __init__(self, plan: Plan, tensors: RegionTensors, groups: Groups) -> None:
        self._plan = plan
        self._tensors = tensors
        self._groups = groups
        self._rank = groups.rank

    def move(self, operation: int, transfer: Transfer) -> None:
        """Take part in a transfer; returns when this rank's buffers hold the result."""
        group = next(group for group in transfer.groups if self._rank in group)
        if len(group) == 1:
            return
        buffer = self._tensors.read(transfer.regions)
        window = self._window(transfer, len(buffer))
        if transfer.algorithm == "native" and transfer.collective in NATIVE:
            self._native(transfer, group, buffer[window])
        else:
            self._rounds(transfer, group, buffer[window], tag=operation)
        self._tensors.write(transfer.regions, buffer)

    def _window(self, transfer: Transfer, num_elements: int) -> slice:
        """The part of the buffer that travels: all, or this rank's chunk of an outer split."""
        if not transfer.within:
            return slice(0, num_elements)
        outer = next(group for group in transfer.within if self._rank in group)
        bounds = chunk_bounds(num_elements, len(outer))
        position = outer.index(self._rank)
        return slice(bounds[position], bounds[position + 1])

    def _native(self, transfer: Transfer, group: tuple[int, ...], buffer: torch.Tensor) -> None:
        if not len(buffer):
            return
        handle = self._groups.native(group)
        if transfer.collective == "all_reduce":
            dist.all_reduce(buffer, group=handle)
            return
        root = self._groups.name(group[0])
        if transfer.collective == "reduce":
            dist.reduce(buffer, root, group=handle)
        else:
            dist.broadcast(buffer, root, group=handle)

    def _rounds(self, transfer: Transfer, group: tuple[int, ...], buffer: torch.Tensor, *, tag: int) -> None:
        me = group.index(self._rank)
        bounds = chunk_bounds(len(buffer), num_chunks(transfer.collective, len(group)))
        moves = expand(transfer.collective, transfer.algorithm, len(group))
        mine = (move for move in moves if me in (move.source, move.destination))
        for _, together in itertools.groupby(mine, key=lambda move: move.round):
            self._round(list(together), buffer, me=me, group=group, bounds=bounds, tag=tag)

    def _round(
        self,
        moves: Sequence[Move],
        buffer: torch.Tensor,
        *,
        me: int,
        group: tuple[int, ...],
        bounds: tuple[int, ...],
        tag: int,
    ) -> None:
        """Post all of a round's messages, then wait: everything is read before anything is written."""
        everyone, timeout = self._groups.everyone, self._groups.timeout
        sends: list[Any] = []
        arrivals: list[tuple[Move, torch.Tensor, Any]] = []
        for move in moves:
            chunk = buffer[bounds[move.first] : bounds[move.last]]
            if not len(chunk):
                continue
            if move.source == me:
                sends.append(dist.isend(chunk.clone(), self._groups.name(group[move.destination]), everyone, tag))
            else:
                arriving = torch.empty_like(chunk)
                work = dist.irecv(arriving, self._groups.name(group[move.source]), everyone, tag)
                arrivals.append((move, arriving, work))
        for move, arriving, work in arrivals:
            work.wait(timeout)
            chunk = buffer[bounds[move.first] : bounds[move.last]]
            if move.adds:
                chunk += arriving
            else:
                chunk.copy_(arriving)
        for work in sends:
            work.wait(timeout)
