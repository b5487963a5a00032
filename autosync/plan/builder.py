"""Builds a plan: makes its regions and operations from templates and numbers them.

Large plans have a hundred thousand operations, so the sizes of parts and the edges to gradients are computed once,
before the first operation.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from autosync.plan.measures import measured
from autosync.plan.steps import Amount, Kept, LocalStep, Site, Step, Template, WaitKind, Waits
from autosync.plan.types import Edge, Groups, Local, Operation, Region, RegionKind, Transfer, Weights
from autosync.specs.cluster import ClusterSpec
from autosync.specs.model import ITEM_BYTES, ModelSpec
from autosync.strategy.parts import Part
from autosync.strategy.representation import Strategy
from autosync.strategy.stages import holders_of_variables

# The constructor of a NamedTuple calls this; calling it directly takes half the time.
_new = tuple.__new__

STEP_CALLED = Edge("step_called")

Edges = tuple[Edge, ...]


class Piece(NamedTuple):
    """The elements `start` to `stop` of a part; `part` is the part's position in the plan."""

    part: int
    start: int
    stop: int


class Slice(NamedTuple):
    """A slice of a message; templates make operations for it.

    `ready` is the place of its last gradient in the order of gradients, `use` that of its first parameter in the order
    of use.
    """

    message: int
    pieces: tuple[Piece, ...]
    num_elements: int
    item_bytes: int
    ready: int
    use: int


class Finished(NamedTuple):
    """A finished gradient: the edges to wait for, its regions, and the ranks that hold it.

    If `sharded`, each of these ranks holds only its shard, with these `weights`.
    """

    after: Edges
    grads: tuple[int, ...]
    holders: Groups
    sharded: bool
    weights: Weights = ()


class _Scope(NamedTuple):
    """The pieces of a message that steps are applied to, and the regions and edges that words in the steps stand for.

    `first` is the position in the plan of the first step's operation.
    """

    template: Template
    message: int
    pieces: Sequence[Piece]
    num_elements: int
    item_bytes: int
    regions: Mapping[RegionKind, tuple[int, ...]]
    edges: Mapping[WaitKind, Edges]
    first: int


class Builder:
    """A plan under construction. `everyone` is the group of the workers and the servers in use."""

    def __init__(
        self, strategy: Strategy, model: ModelSpec, cluster: ClusterSpec, named_parts: Mapping[str, Part]
    ) -> None:
        self.strategy = strategy
        self.model = model
        self.site = Site(model, cluster)
        self._cluster = cluster
        self._holders = holders_of_variables(strategy.stages, model) if strategy.stages else {}
        self._sites: dict[tuple[int, ...], Site] = {}
        self.parts = tuple(named_parts.values())
        index_of = {variable.name: index for index, variable in enumerate(model.variables)}
        self.variable_of = [index_of[part.variable.name] for part in self.parts]
        self.num_lanes = strategy.num_lanes
        self.everyone = self.site.everyone(_servers(strategy))
        self.regions: list[Region] = []
        self.operations: list[Operation] = []
        self._position = {name: position for position, name in enumerate(named_parts)}
        self._sizes = [part.num_elements for part in self.parts]
        self._dtypes = [part.variable.dtype for part in self.parts]
        self._ready = [part.variable.ready for part in self.parts]
        self._use = [part.variable.use for part in self.parts]
        self._grad_ready = [Edge("grad_ready", variable) for variable in self.variable_of]

    def site_of(self, message: int) -> Site:
        """Return the site of a message: its workers are the ranks that hold its variables."""
        if not self._holders:
            return self.site
        members = self._holders[self.parts[self._position[self.strategy.messages[message].parts[0]]].variable.name]
        return self._sites.setdefault(members, Site(self.model, self._cluster, members))

    def region(self, region: Region) -> int:
        """Add a region and return its position."""
        self.regions.append(region)
        return len(self.regions) - 1

    def add(self, operation: Operation) -> Edge:
        """Add an operation and return the edge to it."""
        self.operations.append(operation)
        return _new(Edge, ("operation", len(self.operations) - 1, 0))

    def collect(self, template: Template, piece: Slice) -> Finished:
        """Add the operations that finish a slice's gradient."""
        half, pieces = template.collect, piece.pieces
        regions = {kept.kind: self._regions(template, kept, pieces) for kept in half.kept}
        gradients = tuple(dict.fromkeys([self._grad_ready[one.part] for one in pieces]))
        edges: dict[WaitKind, Edges] = {"gradients": gradients}
        scope = self._scope(template, (piece,), pieces, regions, edges)
        self._stamp(half.steps, scope)
        return Finished(_after(half.finished, scope), regions[half.grads], half.holders, half.sharded, half.weights)

    def settle(self, template: Template, slices: Sequence[Slice], finished: Sequence[Finished], norm: Edges) -> Edges:
        """Add the operations that update slices and send the parameters; return the edges that their use waits for."""
        half = template.settle
        pieces = [piece for one in slices for piece in one.pieces]
        regions = {kept.kind: self._regions(template, kept, pieces) for kept in half.kept}
        regions[template.collect.grads] = tuple([grad for one in finished for grad in one.grads])
        collected = tuple(dict.fromkeys([edge for one in finished for edge in one.after]))
        edges: dict[WaitKind, Edges] = {"collected": collected, "norm": norm, "step_called": (STEP_CALLED,)}
        scope = self._scope(template, slices, pieces, regions, edges)
        self._stamp(half.once, scope)
        done = updated = _after(half.done, scope)
        begin = 0
        for one in slices if half.each else ():
            end = begin + len(one.pieces)
            own = {kind: all_of[begin:end] for kind, all_of in regions.items()}
            scope = self._scope(template, (one,), one.pieces, own, {"updated": updated})
            self._stamp(half.each, scope)
            done, begin = done + _after(half.each_done, scope), end
        return done

    def _regions(self, template: Template, kept: Kept, pieces: Sequence[Piece]) -> tuple[int, ...]:
        """Add a region for each piece and return their positions."""
        first, dtypes, (kind, dtype, amount) = len(self.regions), self._dtypes, kept
        if amount.measure == "elements":
            self.regions.extend(
                [_new(Region, (kind, part, start, stop, dtype or dtypes[part])) for part, start, stop in pieces]
            )
        else:
            for piece in pieces:
                size = self._size(amount, template, (piece,))
                self.regions.append(Region(kind, piece.part, 0, size, dtype or dtypes[piece.part]))
        return tuple(range(first, len(self.regions)))

    def _size(self, amount: Amount, template: Template, pieces: Sequence[Piece]) -> int:
        codec, num_workers, parts = template.codec, self.site.num_workers, self.parts
        sizes = [
            measured(amount.measure, parts[part], stop - start, codec, num_workers) for part, start, stop in pieces
        ]
        return amount.factor * sum(sizes)

    def _scope(
        self,
        template: Template,
        slices: Sequence[Slice],
        pieces: Sequence[Piece],
        regions: Mapping[RegionKind, tuple[int, ...]],
        edges: Mapping[WaitKind, Edges],
    ) -> _Scope:
        message, item_bytes = slices[0].message, slices[0].item_bytes
        num_elements = sum([one.num_elements for one in slices])
        first = len(self.operations)
        return _new(_Scope, (template, message, pieces, num_elements, item_bytes, regions, edges, first))

    def _stamp(self, steps: Sequence[Step], scope: _Scope) -> None:
        """Add the operations of these steps."""
        template, message, pieces, elements, item_bytes, regions, _, _ = scope
        settings = self.strategy.messages[message]
        for step in steps:
            (measure, factor), after = step.amount, _after(step.waits, scope)
            size = elements * factor if measure == "elements" else self._size(step.amount, template, pieces)
            operation: Operation
            if isinstance(step, LocalStep):
                inputs = tuple([one for kind in step.inputs for one in regions[kind]])
                outputs = tuple([one for kind in step.outputs for one in regions[kind]])
                operation = _new(
                    Local,
                    (
                        step.kind,
                        step.cost or step.kind,
                        step.groups,
                        step.sharded,
                        inputs,
                        outputs,
                        size,
                        message,
                        after,
                        step.every,
                        step.settings,
                        step.weights,
                    ),
                )
            else:
                operation = _new(
                    Transfer,
                    (
                        step.collective,
                        step.algorithm,
                        step.groups,
                        tuple([one for kind in step.regions for one in regions[kind]]),
                        size,
                        size if step.most is None else self._size(step.most, template, pieces),
                        step.item_bytes or item_bytes,
                        step.within,
                        settings.lane + step.stage * self.num_lanes,
                        settings.priority,
                        message,
                        after,
                        step.every,
                    ),
                )
            self.operations.append(operation)

    def slices_of(self, message: int) -> list[Slice]:
        """Return the slices of a message: its parts, one behind the other, cut where a slice is full."""
        settings = self.strategy.messages[message]
        members = [self._position[name] for name in settings.parts]
        item_bytes = ITEM_BYTES[self._dtypes[members[0]]]
        whole = [Piece(member, 0, self._sizes[member]) for member in members]
        if settings.slice_bytes is None:
            return [self._slice(message, whole, item_bytes)]
        limit = max(1, settings.slice_bytes // item_bytes)
        return [self._slice(message, pieces, item_bytes) for pieces in _cut(whole, limit)]

    def _slice(self, message: int, pieces: Sequence[Piece], item_bytes: int) -> Slice:
        """Make a slice of pieces, which come in the order of their gradients, as the parts of a message do."""
        num_elements = sum([stop - start for _, start, stop in pieces])
        ready = self._ready[pieces[-1].part]
        use = min([self._use[piece.part] for piece in pieces])
        return _new(Slice, (message, tuple(pieces), num_elements, item_bytes, ready, use))


def _after(waits: Waits, scope: _Scope) -> Edges:
    """Return the edges that waits stand for."""
    found: list[Edge] = []
    for on, step, lag in waits:
        if on == "step":
            found.append(_new(Edge, ("operation", scope.first + step, lag)))
        else:
            found += scope.edges[on]
    return tuple(found)


def _servers(strategy: Strategy) -> set[str]:
    servers = (message.synchroniser.served_by for message in strategy.messages)
    return {server for server in servers if server is not None}


def _cut(whole: Sequence[Piece], limit: int) -> list[list[Piece]]:
    """Group pieces so that each group holds `limit` elements, and the last group the rest; pieces are cut as needed."""
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
