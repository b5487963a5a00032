"""Where a plan grows: regions and operations with their positions, and what messages are cut into.

Large plans have a hundred thousand operations and a search lowers thousands of plans, so what can be known before the
first operation (sizes of parts, edges to gradients, stars) is worked out once.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from autosync.plan.rows import union_rows, whole_rows
from autosync.plan.types import (
    Algorithm,
    Collective,
    Edge,
    Groups,
    Local,
    LocalKind,
    Operation,
    Region,
    RegionKind,
    Transfer,
)
from autosync.specs.cluster import ClusterSpec
from autosync.specs.model import ITEM_BYTES, ModelSpec
from autosync.strategy.parts import Part
from autosync.strategy.representation import Codec, OuterOptimizer, ParameterServer, Strategy

# What the constructor of a NamedTuple does, without a call of Python that costs as much again.
_new = tuple.__new__


class Piece(NamedTuple):
    """Elements `start` to `stop` of a part (by its position in the plan)."""

    part: int
    start: int
    stop: int


class Slice(NamedTuple):
    """What one round of a message's template works on.

    `ready` is the last gradient it needs, `use` the first parameter it feeds.
    """

    message: int
    pieces: tuple[Piece, ...]
    num_elements: int
    item_bytes: int
    ready: int
    use: int


class Buffer(NamedTuple):
    """Regions that travel one behind the other, with their size."""

    regions: tuple[int, ...]
    num_elements: int
    item_bytes: int


class Builder:
    """The growing plan.

    `shared_nodes` are the nodes with several workers, `everyone` is the workers and the servers in use.
    """

    def __init__(
        self, strategy: Strategy, model: ModelSpec, cluster: ClusterSpec, named_parts: Mapping[str, Part]
    ) -> None:
        self.strategy = strategy
        self.model = model
        self.cluster = cluster
        self.parts = tuple(named_parts.values())
        index_of = {variable.name: index for index, variable in enumerate(model.variables)}
        self.variable_of = [index_of[part.variable.name] for part in self.parts]
        self.num_lanes = 1 + max([message.lane for message in strategy.messages])
        self.nodes: Groups = cluster.worker_groups()
        self.shared_nodes: Groups = tuple(group for group in self.nodes if len(group) > 1)
        self.workers: Groups = (tuple(range(cluster.num_workers)),)
        self.leaders = {name: cluster.leader(cluster.node_index(name)) for name in _servers(strategy)}
        self.everyone: Groups = (tuple(sorted({*self.workers[0], *self.leaders.values()})),)
        self.update_cost = f"update:{model.optimizer.name}"
        self.regions: list[Region] = []
        self.operations: list[Operation] = []
        self._position = {name: position for position, name in enumerate(named_parts)}
        self._sizes = [part.num_elements for part in self.parts]
        self._dtypes = [part.variable.dtype for part in self.parts]
        self._ready = [part.variable.ready for part in self.parts]
        self._use = [part.variable.use for part in self.parts]
        self._grad_ready = [Edge("grad_ready", variable) for variable in self.variable_of]

    def region(self, kind: RegionKind, piece: Piece, dtype: str) -> int:
        """The position of a new region."""
        self.regions.append(Region(kind, piece.part, piece.start, piece.stop, dtype))
        return len(self.regions) - 1

    def regions_of(self, kind: RegionKind, pieces: Sequence[Piece], dtype: str = "") -> tuple[int, ...]:
        """A new region for each piece; in the part's own dtype unless told otherwise."""
        first, dtypes = len(self.regions), self._dtypes
        self.regions.extend(
            [_new(Region, (kind, part, start, stop, dtype or dtypes[part])) for part, start, stop in pieces]
        )
        return tuple(range(first, len(self.regions)))

    def grads_ready(self, pieces: Sequence[Piece]) -> tuple[Edge, ...]:
        """Edges to the gradients that pieces are cut from."""
        return tuple(dict.fromkeys([self._grad_ready[piece.part] for piece in pieces]))

    def star(self, server: str, *, through_proxies: bool) -> Groups:
        """The server, then everybody who speaks to it: all workers, or the first of each node."""
        root = self.leaders[server]
        speakers = [group[0] for group in self.nodes] if through_proxies else self.workers[0]
        return ((root, *[rank for rank in speakers if rank != root]),)

    def touched_by_any(self, part: int) -> tuple[int, int]:
        """Rows of an embedding's part that any worker touches: expected, and at most."""
        touched, most = self.parts[part].touched_rows()
        num_rows, num_workers = self.parts[part].shape[0], len(self.workers[0])
        return whole_rows(union_rows(num_rows, touched, num_workers)), min(num_rows, most * num_workers)

    def transfer(
        self,
        message: int,
        stage: int,
        collective: Collective,
        algorithm: Algorithm,
        groups: Groups,
        buffer: Buffer,
        after: tuple[Edge, ...],
        *,
        max_elements: int | None = None,
        within: Groups = (),
        every: int = 1,
    ) -> Edge:
        """Add a transfer in its stage's lane; the edge to it."""
        settings = self.strategy.messages[message]
        regions, num_elements, item_bytes = buffer
        operation = (
            collective,
            algorithm,
            groups,
            regions,
            num_elements,
            num_elements if max_elements is None else max_elements,
            item_bytes,
            within,
            settings.lane + stage * self.num_lanes,
            settings.priority,
            message,
            after,
            every,
        )
        self.operations.append(_new(Transfer, operation))
        return _new(Edge, ("operation", len(self.operations) - 1, 0))

    def local(
        self,
        message: int,
        kind: LocalKind,
        groups: Groups,
        inputs: tuple[int, ...],
        outputs: tuple[int, ...],
        after: tuple[Edge, ...],
        *,
        num_elements: int,
        cost: str = "",
        sharded: bool = False,
        every: int = 1,
        settings: Codec | OuterOptimizer | None = None,
    ) -> Edge:
        """Add work within ranks; the edge to it."""
        operation = (
            kind,
            cost or kind,
            groups,
            sharded,
            inputs,
            outputs,
            num_elements,
            message,
            after,
            every,
            settings,
        )
        self.operations.append(_new(Local, operation))
        return _new(Edge, ("operation", len(self.operations) - 1, 0))

    def slices_of(self, message: int) -> list[Slice]:
        """The message's parts, one behind the other, cut where its slices end."""
        settings = self.strategy.messages[message]
        members = [self._position[name] for name in settings.parts]
        item_bytes = ITEM_BYTES[self._dtypes[members[0]]]
        whole = [Piece(member, 0, self._sizes[member]) for member in members]
        if settings.slice_bytes is None:
            return [self._slice(message, whole, item_bytes)]
        limit = max(1, settings.slice_bytes // item_bytes)
        return [self._slice(message, pieces, item_bytes) for pieces in _cut(whole, limit)]

    def _slice(self, message: int, pieces: Sequence[Piece], item_bytes: int) -> Slice:
        """A slice of pieces in the order of their gradients, as a message's parts are."""
        num_elements = sum([stop - start for _, start, stop in pieces])
        ready = self._ready[pieces[-1].part]
        use = min([self._use[piece.part] for piece in pieces])
        return _new(Slice, (message, tuple(pieces), num_elements, item_bytes, ready, use))


def _servers(strategy: Strategy) -> set[str]:
    synchronisers = (message.synchroniser for message in strategy.messages)
    return {one.server for one in synchronisers if isinstance(one, ParameterServer)}


def _cut(whole: Sequence[Piece], limit: int) -> list[list[Piece]]:
    """Pieces of so many elements together, but for the last ones."""
    found: list[list[Piece]] = [[]]
    room = limit
    for part, begin, stop in whole:
        start = begin
        while start < stop:
            if room == 0:
                found.append([])
                room = limit
            end = min(stop, start + room)
            found[-1].append(_new(Piece, (part, start, end)))
            room -= end - start
            start = end
    return found
