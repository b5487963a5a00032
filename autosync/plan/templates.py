"""Templates: what each synchroniser becomes in a plan.

A template has two halves. `collect` turns the ranks' gradients of one slice into finished ones, wherever the optimizer
needs them; it runs while backward does. `settle` updates the parameters and brings them to whoever lacks them, after
`step()` was called and after the barrier (the norm, where the task clips). Between the two the lowering knows from
`Finished` where gradients are. Those of parameter servers are in `server_templates`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Generic, NamedTuple, TypeVar

from autosync.plan.builder import Buffer, Builder, Slice
from autosync.plan.rows import whole_rows
from autosync.plan.types import Algorithm, Edge, Groups
from autosync.plan.wires import Wire, decoded, dense_wire, gather_encoded, power_sgd
from autosync.strategy.representation import (
    AllReduce,
    Cast,
    Codec,
    Periodic,
    PowerSGD,
    Sharded,
    SparseGather,
    SufficientFactors,
)

STEP_CALLED = Edge("step_called")

Kind = TypeVar("Kind")


class Finished(NamedTuple):
    """A finished gradient: the edges to wait for, its regions, and the ranks that hold it.

    Each holds its shard where `sharded`.
    """

    after: tuple[Edge, ...]
    grads: tuple[int, ...]
    holders: Groups
    sharded: bool = False


class Template(Generic[Kind]):
    """How messages with one synchroniser and one codec are lowered; what depends on these alone is worked out once."""

    updates_by_slice = False
    """Whether each slice is updated (and sent back) as soon as it can be, or the whole message at once."""

    def __init__(self, builder: Builder, synchroniser: Kind, codec: Codec | None) -> None:
        self.builder = builder
        self.synchroniser = synchroniser
        self.codec = codec

    def num_updated(self, slices: Sequence[Slice]) -> int:
        """How many elements an update of slices changes."""
        return sum([one.num_elements for one in slices])

    def collect(self, piece: Slice) -> Finished:
        """The operations that finish a slice's gradient."""
        raise NotImplementedError

    def settle(
        self, slices: Sequence[Slice], finished: Sequence[Finished], barrier: tuple[Edge, ...]
    ) -> tuple[Edge, ...]:
        """Update a message's slices and bring the parameters home: here, on every worker, with nothing more to send."""
        return (self._update(slices, finished, barrier, self.builder.workers, self._params(slices)),)

    def _params(self, slices: Sequence[Slice]) -> tuple[int, ...]:
        return self.builder.regions_of("param", [piece for one in slices for piece in one.pieces])

    def _update(
        self,
        slices: Sequence[Slice],
        finished: Sequence[Finished],
        barrier: tuple[Edge, ...],
        groups: Groups,
        updated: tuple[int, ...],
        *,
        sharded: bool = False,
        more: tuple[Edge, ...] = (),
    ) -> Edge:
        """The optimizer on what is held there, on the parameters or a copy of them."""
        edges = dict.fromkeys([edge for one in finished for edge in one.after])
        return self.builder.local(
            slices[0].message,
            "update",
            groups,
            tuple([grad for one in finished for grad in one.grads]),
            updated,
            (*edges, *barrier, STEP_CALLED, *more),
            num_elements=self.num_updated(slices),
            cost=self.builder.update_cost,
            sharded=sharded,
        )

    def _average(
        self, piece: Slice, wire: Wire, groups: Groups, after: tuple[Edge, ...], *, sharded: bool = False
    ) -> Finished:
        """Turn the sum on the wire into the averaged gradient on those ranks."""
        edge = decoded(self.builder, self.codec, wire, groups, after, piece, sharded=sharded)
        return Finished((edge,), wire.grads, groups, sharded)


def num_touched(builder: Builder, slices: Sequence[Slice]) -> int:
    """Elements of the rows that any worker is expected to touch, where whole parts travel as rows."""
    parts = [piece.part for one in slices for piece in one.pieces]
    return sum([builder.touched_by_any(part)[0] * builder.parts[part].shape[1] for part in parts])


class AllReduceTemplate(Template[AllReduce]):
    """Sum everywhere, average, update everywhere."""

    def __init__(self, builder: Builder, synchroniser: AllReduce, codec: Codec | None) -> None:
        super().__init__(builder, synchroniser, codec)
        self._leaders: Groups = (tuple(group[0] for group in builder.nodes),)
        nodes_are_equal = len({len(group) for group in builder.nodes}) == 1
        self._across: Groups = tuple(zip(*builder.nodes, strict=True)) if nodes_are_equal else ()

    def collect(self, piece: Slice) -> Finished:
        b, topology = self.builder, self.synchroniser.topology
        if len(b.workers[0]) == 1:
            return Finished(b.grads_ready(piece.pieces), b.regions_of("grad", piece.pieces), b.workers)
        if isinstance(self.codec, PowerSGD):
            return Finished(*power_sgd(b, self.codec, piece, topology), b.workers)
        if self.codec is not None and not isinstance(self.codec, Cast):
            wire, edge = gather_encoded(b, self.codec, piece, b.workers, topology)
            return self._average(piece, wire, b.workers, (edge,))
        wire = dense_wire(b, self.codec, piece)
        if self.synchroniser.hierarchical:
            return self._average(piece, wire, b.workers, self._hierarchical(piece.message, wire))
        edge = b.transfer(piece.message, 0, "all_reduce", topology, b.workers, wire.buffer, wire.after)
        return self._average(piece, wire, b.workers, (edge,))

    def _hierarchical(self, message: int, wire: Wire) -> tuple[Edge, ...]:
        """Within nodes, between them, within them again.

        Equal nodes share the work, unequal ones meet through one rank each.
        """
        b, topology, buffer = self.builder, self.synchroniser.topology, wire.buffer
        inner = b.shared_nodes
        if self._across:
            here: Algorithm = "native" if topology == "native" else "ring"
            shared = b.transfer(message, 0, "reduce_scatter", here, inner, buffer, wire.after)
            met = b.transfer(message, 1, "all_reduce", topology, self._across, buffer, (shared,), within=inner)
            return (b.transfer(message, 2, "all_gather", here, inner, buffer, (met,)),)
        there: Algorithm = "native" if topology == "native" else "tree"
        reduced = b.transfer(message, 0, "reduce", there, inner, buffer, wire.after)
        after = (*wire.after, reduced)
        met = b.transfer(message, 1, "all_reduce", topology, self._leaders, buffer, after)
        home = b.transfer(message, 2, "broadcast", there, inner, buffer, (*after, met))
        return (reduced, met, home)


class ShardedTemplate(Template[Sharded]):
    """Reduce-scatter, update of each rank's shard, all-gather of parameters."""

    updates_by_slice = True

    def collect(self, piece: Slice) -> Finished:
        b, topology = self.builder, self.synchroniser.topology
        wire = dense_wire(b, self.codec, piece)
        edge = b.transfer(piece.message, 0, "reduce_scatter", topology, b.workers, wire.buffer, wire.after)
        return self._average(piece, wire, b.workers, (edge,), sharded=True)

    def settle(
        self, slices: Sequence[Slice], finished: Sequence[Finished], barrier: tuple[Edge, ...]
    ) -> tuple[Edge, ...]:
        b, topology, (piece,) = self.builder, self.synchroniser.topology, slices
        params = self._params(slices)
        update = self._update(slices, finished, barrier, b.workers, params, sharded=True)
        buffer = Buffer(params, piece.num_elements, piece.item_bytes)
        return (b.transfer(piece.message, 1, "all_gather", topology, b.workers, buffer, (update,)),)


class SparseGatherTemplate(Template[SparseGather]):
    """Everybody's touched rows to everybody; merge; update the rows."""

    def num_updated(self, slices: Sequence[Slice]) -> int:
        return num_touched(self.builder, slices)

    def collect(self, piece: Slice) -> Finished:
        b, part = self.builder, self.builder.parts[piece.pieces[0].part]
        rows = b.regions_of("rows", piece.pieces)
        touched, most = part.touched_rows()
        edge = b.transfer(
            piece.message,
            0,
            "all_gather_v",
            self.synchroniser.topology,
            b.workers,
            Buffer(rows, whole_rows(touched) * part.row_bytes, 1),
            b.grads_ready(piece.pieces),
            max_elements=most * part.row_bytes,
        )
        work = whole_rows(touched) * part.shape[1] * len(b.workers[0])
        merged = b.local(piece.message, "merge_rows", b.workers, rows, rows, (edge,), num_elements=work)
        return Finished((merged,), rows, b.workers)


class FactorsTemplate(Template[SufficientFactors]):
    """Everybody's two factors to everybody; multiply, add up, average."""

    def collect(self, piece: Slice) -> Finished:
        b, part = self.builder, self.builder.parts[piece.pieces[0].part]
        factors = b.regions_of("factors", piece.pieces)
        grads = b.regions_of("grad", piece.pieces)
        edge = b.transfer(
            piece.message,
            0,
            "all_gather_v",
            self.synchroniser.topology,
            b.workers,
            Buffer(factors, part.factor_bytes // piece.item_bytes, piece.item_bytes),
            b.grads_ready(piece.pieces),
        )
        work = part.num_elements * (part.variable.factor_rows or 0) * len(b.workers[0])
        rebuilt = b.local(piece.message, "rebuild", b.workers, factors, grads, (edge,), num_elements=work)
        return Finished((rebuilt,), grads, b.workers)


class PeriodicTemplate(Template[Periodic]):
    """Each worker's own update; every k steps the average of the parameters, and the outer optimizer's step on it."""

    def __init__(self, builder: Builder, synchroniser: Periodic, codec: Codec | None) -> None:
        super().__init__(builder, synchroniser, codec)
        self._holders: Groups = tuple((rank,) for rank in builder.workers[0])

    def collect(self, piece: Slice) -> Finished:
        b = self.builder
        return Finished(b.grads_ready(piece.pieces), b.regions_of("grad", piece.pieces), self._holders)

    def settle(
        self, slices: Sequence[Slice], finished: Sequence[Finished], barrier: tuple[Edge, ...]
    ) -> tuple[Edge, ...]:
        params = self._params(slices)
        update = self._update(slices, finished, barrier, self.builder.workers, params)
        last, begin = [update], 0
        for piece in slices:
            end = begin + len(piece.pieces)
            last.extend(self._meet(piece, params[begin:end], update))
            begin = end
        return tuple(last)

    def _meet(self, piece: Slice, params: tuple[int, ...], update: Edge) -> tuple[Edge, ...]:
        b, synchroniser, every = self.builder, self.synchroniser, self.synchroniser.every
        message, num_elements = piece.message, piece.num_elements
        edge = update
        if len(b.workers[0]) > 1:
            buffer = Buffer(params, num_elements, piece.item_bytes)
            edge = b.transfer(
                message, 0, "all_reduce", synchroniser.topology, b.workers, buffer, (update,), every=every
            )
            edge = b.local(
                message, "average", b.workers, params, params, (edge,), num_elements=num_elements, every=every
            )
        if synchroniser.outer is not None:
            both = (*params, *b.regions_of("anchor", piece.pieces))
            edge = b.local(
                message,
                "outer",
                b.workers,
                both,
                both,
                (edge,),
                num_elements=num_elements,
                every=every,
                settings=synchroniser.outer,
            )
        return () if edge is update else (edge,)
