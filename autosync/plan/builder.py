"""Where a plan grows: regions and operations with their positions, and what each message knows while it is lowered."""

from __future__ import annotations

from collections.abc import Sequence
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
from autosync.strategy.representation import Codec, Message, OuterOptimizer, ParameterServer, Strategy


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
    ready: int
    use: int


class Builder:
    """The growing plan.

    Groups are made once and shared by all operations; `everyone` is the workers and the servers in use.
    """

    def __init__(self, strategy: Strategy, model: ModelSpec, cluster: ClusterSpec, parts: Sequence[Part]) -> None:
        self.strategy = strategy
        self.model = model
        self.cluster = cluster
        self.parts = parts
        index_of = {variable.name: index for index, variable in enumerate(model.variables)}
        self.variable_of = [index_of[part.variable.name] for part in parts]
        self.num_lanes = 1 + max(message.lane for message in strategy.messages)
        self.nodes: Groups = cluster.worker_groups()
        self.workers: Groups = (tuple(range(cluster.num_workers)),)
        self.leaders = {name: cluster.leader(cluster.node_index(name)) for name in _servers(strategy)}
        self.everyone: Groups = (tuple(sorted({*self.workers[0], *self.leaders.values()})),)
        self.regions: list[Region] = []
        self.operations: list[Operation] = []
        self._dtypes = [part.variable.dtype for part in parts]
        self._region_index: dict[Region, int] = {}
        self._stars: dict[tuple[str, bool], Groups] = {}
        self._alone: dict[int, Groups] = {}

    def region(self, kind: RegionKind, piece: Piece, dtype: str) -> int:
        """The position of a region, the same for the same range."""
        region = Region(kind, piece.part, piece.start, piece.stop, dtype)
        index = self._region_index.get(region)
        if index is None:
            index = self._region_index[region] = len(self.regions)
            self.regions.append(region)
        return index

    def item_bytes(self, piece: Slice) -> int:
        """Bytes of one element of a slice."""
        return ITEM_BYTES[self.parts[piece.pieces[0].part].variable.dtype]

    def regions_of(self, kind: RegionKind, pieces: Sequence[Piece], dtype: str = "") -> tuple[int, ...]:
        """One region a piece; in the part's own dtype unless told otherwise."""
        dtypes = self._dtypes
        return tuple([self.region(kind, piece, dtype or dtypes[piece.part]) for piece in pieces])

    def grads_ready(self, pieces: Sequence[Piece]) -> tuple[Edge, ...]:
        """Edges to the gradients that pieces are cut from."""
        variables = dict.fromkeys([self.variable_of[piece.part] for piece in pieces])
        return tuple([Edge("grad_ready", variable) for variable in variables])

    def star(self, server: str, *, through_proxies: bool) -> Groups:
        """The server, then everybody who speaks to it: all workers, or the first of each node."""
        found = self._stars.get((server, through_proxies))
        if found is None:
            root = self.leaders[server]
            speakers = [group[0] for group in self.nodes] if through_proxies else self.workers[0]
            found = ((root, *[rank for rank in speakers if rank != root]),)
            self._stars[server, through_proxies] = found
        return found

    def touched_by_any(self, part: int) -> tuple[int, int]:
        """Rows of an embedding's part that any worker touches: expected, and at most."""
        touched, most = self.parts[part].touched_rows()
        num_rows, num_workers = self.parts[part].shape[0], len(self.workers[0])
        return whole_rows(union_rows(num_rows, touched, num_workers)), min(num_rows, most * num_workers)

    def alone(self, rank: int) -> Groups:
        """The group of one rank."""
        return self._alone.setdefault(rank, ((rank,),))

    def transfer(
        self,
        message: int,
        stage: int,
        collective: Collective,
        algorithm: Algorithm,
        groups: Groups,
        regions: tuple[int, ...],
        after: tuple[Edge, ...],
        *,
        num_elements: int,
        max_elements: int | None = None,
        item_bytes: int,
        within: Groups = (),
        every: int = 1,
    ) -> Edge:
        """Add a transfer in its stage's lane; the edge to it."""
        settings = self.strategy.messages[message]
        self.operations.append(
            Transfer(
                collective=collective,
                algorithm=algorithm,
                groups=groups,
                regions=regions,
                num_elements=num_elements,
                max_elements=num_elements if max_elements is None else max_elements,
                item_bytes=item_bytes,
                within=within,
                lane=settings.lane + stage * self.num_lanes,
                priority=settings.priority,
                message=message,
                after=after,
                every=every,
            )
        )
        return Edge("operation", len(self.operations) - 1)

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
        self.operations.append(
            Local(kind, cost or kind, groups, sharded, inputs, outputs, num_elements, message, after, every, settings)
        )
        return Edge("operation", len(self.operations) - 1)


def _servers(strategy: Strategy) -> set[str]:
    synchronisers = (message.synchroniser for message in strategy.messages)
    return {one.server for one in synchronisers if isinstance(one, ParameterServer)}


def slices_of(index: int, message: Message, parts: Sequence[Part], position: dict[str, int]) -> list[Slice]:
    """The message's parts, one behind the other, cut where its slices end."""
    members = [position[name] for name in message.parts]
    item_bytes = ITEM_BYTES[parts[members[0]].variable.dtype]
    limit = None if message.slice_bytes is None else max(1, message.slice_bytes // item_bytes)
    slices: list[Slice] = []
    pieces: list[Piece] = []
    room = limit
    for member in members:
        start, end = 0, parts[member].num_elements
        while start < end:
            stop = end if room is None else min(end, start + room)
            pieces.append(Piece(member, start, stop))
            if room is not None:
                room -= stop - start
                if room == 0:
                    slices.append(_slice(index, pieces, parts))
                    pieces, room = [], limit
            start = stop
    if pieces:
        slices.append(_slice(index, pieces, parts))
    return slices


def _slice(message: int, pieces: list[Piece], parts: Sequence[Part]) -> Slice:
    variables = [parts[piece.part].variable for piece in pieces]
    return Slice(
        message=message,
        pieces=tuple(pieces),
        num_elements=sum(piece.stop - piece.start for piece in pieces),
        ready=max(variable.ready for variable in variables),
        use=min(variable.use for variable in variables),
    )
