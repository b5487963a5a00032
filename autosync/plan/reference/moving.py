"""Carries out transfers: the moves of their expansion, round by round, with every byte counted."""

from __future__ import annotations

import itertools
from typing import NamedTuple

import numpy as np

from autosync.plan.expansion import Move, chunk_bounds, expand, num_chunks
from autosync.plan.reference.store import Store, content_bytes
from autosync.plan.reference.workload import Array
from autosync.plan.shards import shard_bounds, shard_weights
from autosync.plan.types import Plan, Transfer

CONTENT_KINDS = ("rows", "new_rows", "factors")


class SentElements(NamedTuple):
    """One transfer as it took place in one group.

    `contributions` has the bytes that each member brought to a gather, `links` the bytes from rank to rank.
    """

    operation: int
    step: int
    group: tuple[int, ...]
    contributions: tuple[int, ...]
    links: dict[tuple[int, int], int]


class ReferenceMover:
    """Carries out transfers between the buffers of a store."""

    def __init__(self, plan: Plan, store: Store) -> None:
        self._plan = plan
        self._store = store
        self.sent: list[SentElements] = []

    def move(self, operation: int, group: tuple[int, ...], step: int) -> None:
        """Do a transfer in one of its groups."""
        transfer = self._plan.operations[operation]
        assert isinstance(transfer, Transfer), "locals are not moved"
        if self._has_contents(transfer):
            links, contributions = self._move_contents(transfer, group, step)
        else:
            links, contributions = self._move_numbers(transfer, group, step), ()
        self.sent.append(SentElements(operation, step, group, contributions, links))

    def _has_contents(self, transfer: Transfer) -> bool:
        region = self._plan.regions[transfer.regions[0]]
        return region.kind in CONTENT_KINDS or (region.kind == "encoded" and region.dtype == "uint8")

    def _move_numbers(self, transfer: Transfer, group: tuple[int, ...], step: int) -> dict[tuple[int, int], int]:
        whole = [self._store.joined(transfer.regions, rank, step) for rank in group]
        windows = [self._window(transfer, rank, len(values)) for rank, values in zip(group, whole, strict=True)]
        buffers = [values[window] for values, window in zip(whole, windows, strict=True)]
        bounds = chunk_bounds(len(buffers[0]), num_chunks(transfer.collective, len(group), transfer.algorithm))
        links: dict[tuple[int, int], int] = {}
        for _, moves in itertools.groupby(
            expand(transfer.collective, transfer.algorithm, len(group)), lambda m: m.round
        ):
            self._round(list(moves), buffers, bounds)
        for move in expand(transfer.collective, transfer.algorithm, len(group)):
            size = (bounds[move.last] - bounds[move.first]) * transfer.item_bytes
            _count(links, group, move, size)
        self._poison(transfer, buffers)
        for rank, values in zip(group, whole, strict=True):
            self._store.spread(transfer.regions, rank, step, values)
        return links

    def _window(self, transfer: Transfer, rank: int, num_elements: int) -> slice:
        if not transfer.within:
            return slice(0, num_elements)
        outer = next(outer for outer in transfer.within if rank in outer)
        bounds = chunk_bounds(num_elements, len(outer))
        return slice(bounds[outer.index(rank)], bounds[outer.index(rank) + 1])

    def _round(self, moves: list[Move], buffers: list[Array], bounds: tuple[int, ...]) -> None:
        """Do the moves of a round; all of them read before any writes."""
        carried = [buffers[m.source][bounds[m.first] : bounds[m.last]].copy() for m in moves]
        for move, values in zip(moves, carried, strict=True):
            target = buffers[move.destination][bounds[move.first] : bounds[move.last]]
            if move.adds:
                target += values
            else:
                target[...] = values

    def _poison(self, transfer: Transfer, buffers: list[Array]) -> None:
        """Set the elements that a collective leaves undefined to NaN, so that no plan can depend on them."""
        if transfer.collective == "reduce":
            for values in buffers[1:]:
                values[...] = np.nan
        if transfer.collective == "reduce_scatter":
            bounds = shard_bounds(len(buffers[0]), len(buffers), shard_weights(transfer.algorithm))
            for member, values in enumerate(buffers):
                values[: bounds[member]] = np.nan
                values[bounds[member + 1] :] = np.nan

    def _move_contents(
        self, transfer: Transfer, group: tuple[int, ...], step: int
    ) -> tuple[dict[tuple[int, int], int], tuple[int, ...]]:
        """Gather contributions from all members, or broadcast the root's; return the bytes by link and by member."""
        links: dict[tuple[int, int], int] = {}
        sizes = tuple(self._contribution(transfer, group, rank, step) for rank in group)
        for move in expand(transfer.collective, transfer.algorithm, len(group)):
            first = 0 if transfer.collective == "broadcast" else move.first
            _count(links, group, move, sizes[first])
        for region in transfer.regions:
            if transfer.collective == "broadcast":
                content = self._store.content(region, group[0], step)
                for rank in group[1:]:
                    self._store.put_content(region, rank, step, content)
                continue
            contents = [self._store.content(region, rank, step) for rank in group if self._contributes(transfer, rank)]
            for rank in group[:1] if transfer.collective == "gather_v" else group:
                self._store.put_content(region, rank, step, contents)
        return links, sizes

    def _contributes(self, transfer: Transfer, rank: int) -> bool:
        """Whether a rank brings data to a transfer; a server that only collects does not."""
        return transfer.collective == "broadcast" or self._plan.ranks[rank].role == "worker"

    def _contribution(self, transfer: Transfer, group: tuple[int, ...], rank: int, step: int) -> int:
        """Return the bytes that a rank brings: 0 if it only collects or receives."""
        region = self._plan.regions[transfer.regions[0]]
        if not self._contributes(transfer, rank) or (transfer.collective == "broadcast" and rank != group[0]):
            return 0
        if region.kind == "encoded":
            return transfer.num_bytes
        return content_bytes(self._plan, region, self._store.content(transfer.regions[0], rank, step))


def _count(links: dict[tuple[int, int], int], group: tuple[int, ...], move: Move, num_bytes: int) -> None:
    link = (group[move.source], group[move.destination])
    links[link] = links.get(link, 0) + num_bytes
