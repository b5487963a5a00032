"""Templates: what each synchroniser becomes in a plan.

A template has two halves. `collect` turns the ranks' gradients of one slice into finished ones, wherever the optimizer
needs them; it runs while backward does. `settle` updates the parameters and brings them to whoever lacks them, after
`step()` was called and after the barrier (the norm, where the task clips). Between the two the lowering knows from
`Finished` where gradients are. Those of parameter servers are in `server_templates`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from autosync.plan.builder import Builder, Slice
from autosync.plan.rows import whole_rows
from autosync.plan.types import Algorithm, Edge, Groups
from autosync.plan.wires import Size, Wire, decoded, dense_wire, gather_encoded, power_sgd
from autosync.specs.model import ITEM_BYTES
from autosync.strategy.representation import (
    AllReduce,
    Cast,
    Codec,
    Message,
    Periodic,
    PowerSGD,
    Sharded,
    SparseGather,
    SufficientFactors,
)

STEP_CALLED = Edge("step_called")


class Finished(NamedTuple):
    """A finished gradient: the edges to wait for, its regions, and the ranks that hold it.

    Each holds its shard where `sharded`.
    """

    after: tuple[Edge, ...]
    grads: tuple[int, ...]
    holders: Groups
    sharded: bool = False


@dataclass(frozen=True, slots=True)
class Template:
    """One message being lowered: the builder, the message and its position."""

    builder: Builder
    index: int
    message: Message

    @property
    def updates_by_slice(self) -> bool:
        """Whether each slice is updated (and sent back) as soon as it can be, or the whole message at once."""
        return False

    @property
    def codec(self) -> Codec | None:
        return self.message.codec

    def num_updated(self, slices: Sequence[Slice]) -> int:
        """How many elements an update of slices changes."""
        return sum([one.num_elements for one in slices])

    def collect(self, piece: Slice) -> Finished:
        """The operations that finish a slice's gradient."""
        raise NotImplementedError

    def settle(
        self, slices: Sequence[Slice], finished: Sequence[Finished], barrier: tuple[Edge, ...]
    ) -> tuple[Edge, ...]:
        """Update slices and bring the parameters home: here, on every worker, with nothing more to send."""
        return (self._update(slices, finished, barrier, self.builder.workers),)

    def _update(
        self,
        slices: Sequence[Slice],
        finished: Sequence[Finished],
        barrier: tuple[Edge, ...],
        groups: Groups,
        *,
        sharded: bool = False,
        updated: tuple[int, ...] = (),
        more: tuple[Edge, ...] = (),
    ) -> Edge:
        """The optimizer on what is held there: on the parameters, or on the regions named in `updated`."""
        pieces = [piece for piece_slice in slices for piece in piece_slice.pieces]
        grads = tuple(grad for one in finished for grad in one.grads)
        edges = tuple(dict.fromkeys(edge for one in finished for edge in one.after))
        return self.builder.local(
            self.index,
            "update",
            groups,
            grads,
            updated or self.builder.regions_of("param", pieces),
            (*edges, *barrier, STEP_CALLED, *more),
            num_elements=self.num_updated(slices),
            cost=f"update:{self.builder.model.optimizer.name}",
            sharded=sharded,
        )

    def _average(
        self, piece: Slice, wire: Wire, groups: Groups, after: tuple[Edge, ...], *, sharded: bool = False
    ) -> Finished:
        """Turn the sum on the wire into the averaged gradient on those ranks."""
        edge = decoded(self.builder, self.index, self.codec, wire, groups, after, piece, sharded=sharded)
        return Finished((edge,), wire.grads, groups, sharded)


def num_touched(builder: Builder, slices: Sequence[Slice]) -> int:
    """Elements of the rows that any worker is expected to touch, where whole parts travel as rows."""
    parts = [piece.part for one in slices for piece in one.pieces]
    return sum([builder.touched_by_any(part)[0] * builder.parts[part].shape[1] for part in parts])


class AllReduceTemplate(Template):
    """Sum everywhere, average, update everywhere."""

    def collect(self, piece: Slice) -> Finished:
        b, synchroniser = self.builder, self.message.synchroniser
        assert isinstance(synchroniser, AllReduce)
        if len(b.workers[0]) == 1:
            return Finished(b.grads_ready(piece.pieces), b.regions_of("grad", piece.pieces), b.workers)
        if isinstance(self.codec, PowerSGD):
            return Finished(*power_sgd(b, self.index, self.codec, piece, synchroniser.topology), b.workers)
        if self.codec is not None and not isinstance(self.codec, Cast):
            wire, edge = gather_encoded(b, self.index, self.codec, piece, b.workers, synchroniser.topology)
            return self._average(piece, wire, b.workers, (edge,))
        wire = dense_wire(b, self.index, self.codec, piece)
        if synchroniser.hierarchical:
            return self._average(piece, wire, b.workers, self._hierarchical(wire, synchroniser))
        edge = b.transfer(
            self.index, 0, "all_reduce", synchroniser.topology, b.workers, wire.regions, wire.after, **wire.size()
        )
        return self._average(piece, wire, b.workers, (edge,))

    def _hierarchical(self, wire: Wire, synchroniser: AllReduce) -> tuple[Edge, ...]:
        """Within nodes, between them, within them again.

        Equal nodes share the work, unequal ones meet through one rank each.
        """
        b, topology = self.builder, synchroniser.topology
        inner: Groups = tuple(group for group in b.nodes if len(group) > 1)
        if len({len(group) for group in b.nodes}) == 1:
            here: Algorithm = "native" if topology == "native" else "ring"
            across: Groups = tuple(zip(*b.nodes, strict=True))
            shared = b.transfer(self.index, 0, "reduce_scatter", here, inner, wire.regions, wire.after, **wire.size())
            met = b.transfer(
                self.index, 1, "all_reduce", topology, across, wire.regions, (shared,), within=inner, **wire.size()
            )
            return (b.transfer(self.index, 2, "all_gather", here, inner, wire.regions, (met,), **wire.size()),)
        there: Algorithm = "native" if topology == "native" else "tree"
        leaders: Groups = (tuple(group[0] for group in b.nodes),)
        reduced = b.transfer(self.index, 0, "reduce", there, inner, wire.regions, wire.after, **wire.size())
        after = (*wire.after, reduced)
        met = b.transfer(self.index, 1, "all_reduce", topology, leaders, wire.regions, after, **wire.size())
        after = (*after, met)
        home = b.transfer(self.index, 2, "broadcast", there, inner, wire.regions, after, **wire.size())
        return (reduced, met, home)


class ShardedTemplate(Template):
    """Reduce-scatter, update of each rank's shard, all-gather of parameters."""

    @property
    def updates_by_slice(self) -> bool:
        return True

    def collect(self, piece: Slice) -> Finished:
        b, synchroniser = self.builder, self.message.synchroniser
        assert isinstance(synchroniser, Sharded)
        wire = dense_wire(b, self.index, self.codec, piece)
        edge = b.transfer(
            self.index, 0, "reduce_scatter", synchroniser.topology, b.workers, wire.regions, wire.after, **wire.size()
        )
        return self._average(piece, wire, b.workers, (edge,), sharded=True)

    def settle(
        self, slices: Sequence[Slice], finished: Sequence[Finished], barrier: tuple[Edge, ...]
    ) -> tuple[Edge, ...]:
        b, synchroniser, (piece,) = self.builder, self.message.synchroniser, slices
        assert isinstance(synchroniser, Sharded)
        update = self._update(slices, finished, barrier, b.workers, sharded=True)
        params = b.regions_of("param", piece.pieces)
        gathered = b.transfer(
            self.index,
            1,
            "all_gather",
            synchroniser.topology,
            b.workers,
            params,
            (update,),
            num_elements=piece.num_elements,
            item_bytes=b.item_bytes(piece),
        )
        return (gathered,)


class SparseGatherTemplate(Template):
    """Everybody's touched rows to everybody; merge; update the rows."""

    def num_updated(self, slices: Sequence[Slice]) -> int:
        return num_touched(self.builder, slices)

    def collect(self, piece: Slice) -> Finished:
        b, synchroniser = self.builder, self.message.synchroniser
        assert isinstance(synchroniser, SparseGather)
        part = b.parts[piece.pieces[0].part]
        rows = b.regions_of("rows", piece.pieces)
        touched, most = part.touched_rows()
        edge = b.transfer(
            self.index,
            0,
            "all_gather_v",
            synchroniser.topology,
            b.workers,
            rows,
            b.grads_ready(piece.pieces),
            num_elements=whole_rows(touched) * part.row_bytes,
            max_elements=most * part.row_bytes,
            item_bytes=1,
        )
        merged = b.local(
            self.index,
            "merge_rows",
            b.workers,
            rows,
            rows,
            (edge,),
            num_elements=whole_rows(touched) * part.shape[1] * len(b.workers[0]),
        )
        return Finished((merged,), rows, b.workers)


class FactorsTemplate(Template):
    """Everybody's two factors to everybody; multiply, add up, average."""

    def collect(self, piece: Slice) -> Finished:
        b, synchroniser = self.builder, self.message.synchroniser
        assert isinstance(synchroniser, SufficientFactors)
        part = b.parts[piece.pieces[0].part]
        item_bytes = ITEM_BYTES[part.variable.dtype]
        factors = b.regions_of("factors", piece.pieces)
        grads = b.regions_of("grad", piece.pieces)
        edge = b.transfer(
            self.index,
            0,
            "all_gather_v",
            synchroniser.topology,
            b.workers,
            factors,
            b.grads_ready(piece.pieces),
            num_elements=part.factor_bytes // item_bytes,
            item_bytes=item_bytes,
        )
        multiplications = part.num_elements * (part.variable.factor_rows or 0) * len(b.workers[0])
        rebuilt = b.local(self.index, "rebuild", b.workers, factors, grads, (edge,), num_elements=multiplications)
        return Finished((rebuilt,), grads, b.workers)


class PeriodicTemplate(Template):
    """Each worker's own update; every k steps the average of the parameters, and the outer optimizer's step on it."""

    def collect(self, piece: Slice) -> Finished:
        b = self.builder
        holders: Groups = tuple((rank,) for rank in b.workers[0])
        return Finished(b.grads_ready(piece.pieces), b.regions_of("grad", piece.pieces), holders)

    def settle(
        self, slices: Sequence[Slice], finished: Sequence[Finished], barrier: tuple[Edge, ...]
    ) -> tuple[Edge, ...]:
        b, synchroniser = self.builder, self.message.synchroniser
        assert isinstance(synchroniser, Periodic)
        update = self._update(slices, finished, barrier, b.workers)
        last: list[Edge] = [update]
        for piece in slices:
            last.extend(self._meet(piece, synchroniser, update))
        return tuple(last)

    def _meet(self, piece: Slice, synchroniser: Periodic, update: Edge) -> tuple[Edge, ...]:
        b, every = self.builder, synchroniser.every
        params = b.regions_of("param", piece.pieces)
        edge = update
        if len(b.workers[0]) > 1:
            size = Size(num_elements=piece.num_elements, item_bytes=b.item_bytes(piece))
            edge = b.transfer(
                self.index, 0, "all_reduce", synchroniser.topology, b.workers, params, (update,), every=every, **size
            )
            edge = b.local(
                self.index, "average", b.workers, params, params, (edge,), num_elements=piece.num_elements, every=every
            )
        if synchroniser.outer is not None:
            anchor = b.regions_of("anchor", piece.pieces)
            edge = b.local(
                self.index,
                "outer",
                b.workers,
                (*params, *anchor),
                (*params, *anchor),
                (edge,),
                num_elements=piece.num_elements,
                every=every,
                settings=synchroniser.outer,
            )
        return () if edge is update else (edge,)
