"""Templates: what each synchroniser becomes in a plan.

A template has two halves. `collect` turns the ranks' gradients of one slice into finished ones, wherever the optimizer needs them; it runs
while backward does. `settle` updates the parameters and brings them to whoever lacks them, after `step()` was called and
after the barrier (the norm, where the task clips). Between the two the lowering knows from `Finished` where gradients are.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from autosync.plan.builder import Builder, Slice
from autosync.plan.rows import union_rows
from autosync.plan.types import Algorithm, Edge, Groups
from autosync.plan.wires import Size, Wire, decoded, dense_wire, gather_encoded, power_sgd
from autosync.specs.model import ITEM_BYTES
from autosync.strategy.representation import (
    AllReduce,
    Cast,
    Codec,
    Message,
    ParameterServer,
    Periodic,
    PowerSGD,
    Sharded,
    SparseGather,
    SufficientFactors,
)

STEP_CALLED = Edge("step_called")


class Finished(NamedTuple):
    """A finished gradient: the edges to wait for, its regions, and the ranks that hold it (each its shard where `sharded`)."""

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
        more: tuple[Edge, ...] = (),
    ) -> Edge:
        pieces = [piece for piece_slice in slices for piece in piece_slice.pieces]
        grads = tuple(grad for one in finished for grad in one.grads)
        edges = tuple(dict.fromkeys(edge for one in finished for edge in one.after))
        return self.builder.local(
            self.index,
            "update",
            groups,
            grads,
            self.builder.regions_of("param", pieces),
            (*edges, *barrier, STEP_CALLED, *more),
            num_elements=sum(one.num_elements for one in slices),
            cost=f"update:{self.builder.model.optimizer.name}",
            sharded=sharded,
        )

    def _average(
        self, piece: Slice, wire: Wire, groups: Groups, after: tuple[Edge, ...], *, sharded: bool = False
    ) -> Finished:
        """Turn the sum on the wire into the averaged gradient on those ranks."""
        grads = self.builder.regions_of("grad", piece.pieces)
        edge = decoded(self.builder, self.index, self.codec, wire, grads, groups, after, piece, sharded=sharded)
        return Finished((edge,), grads, groups, sharded)


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
        """Within nodes, between them, within them again. Equal nodes share the work, unequal ones meet through one rank each."""
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


class ServerTemplate(Template):
    """Sum at the server; update there and broadcast the parameter, or broadcast the gradient and update everywhere."""

    @property
    def server(self) -> ParameterServer:
        assert isinstance(self.message.synchroniser, ParameterServer)
        return self.message.synchroniser

    @property
    def updates_by_slice(self) -> bool:
        return self.server.update == "server"

    @property
    def root(self) -> int:
        return self.builder.leaders[self.server.server]

    def collect(self, piece: Slice) -> Finished:
        b = self.builder
        if self.codec is not None and not isinstance(self.codec, Cast):
            wire, gathered = gather_encoded(b, self.index, self.codec, piece, self._star(), "star")
            sent: tuple[Edge, ...] = (gathered,)
        else:
            wire = dense_wire(b, self.index, self.codec, piece)
            sent = self._reduce(wire)
        if self.server.update == "server":
            return self._average(piece, wire, ((self.root,),), sent)
        if isinstance(self.codec, Cast):
            arrived = self._broadcast(wire.regions, wire.size(), sent)
            return self._average(piece, wire, b.workers, (*sent, *arrived))
        finished = self._average(piece, wire, ((self.root,),), sent)
        arrived = self._broadcast(finished.grads, self._size(piece), (*sent, *finished.after))
        return Finished((*finished.after, *arrived), finished.grads, b.workers)

    def settle(
        self, slices: Sequence[Slice], finished: Sequence[Finished], barrier: tuple[Edge, ...]
    ) -> tuple[Edge, ...]:
        if self.server.update == "worker":
            return Template.settle(self, slices, finished, barrier)
        b, (piece,) = self.builder, slices
        if self.server.staleness:
            return self._settle_stale(piece, finished, barrier)
        update = self._update(slices, finished, barrier, ((self.root,),))
        params = b.regions_of("param", piece.pieces)
        return (update, *self._broadcast(params, self._size(piece), (update, STEP_CALLED)))

    def _settle_stale(self, piece: Slice, finished: Sequence[Finished], barrier: tuple[Edge, ...]) -> tuple[Edge, ...]:
        """The server goes on with a copy of its own; workers take the parameter that is `staleness` steps old."""
        b, root = self.builder, ((self.root,),)
        master = b.regions_of("master", piece.pieces)
        incoming = b.regions_of("incoming", piece.pieces)
        params = b.regions_of("param", piece.pieces)
        grads = tuple(grad for one in finished for grad in one.grads)
        edges = tuple(edge for one in finished for edge in one.after)
        publish_index = len(b.operations) + 1
        update = b.local(
            self.index,
            "update",
            root,
            grads,
            master,
            (*edges, *barrier, STEP_CALLED, Edge("operation", publish_index, 1)),
            num_elements=piece.num_elements,
            cost=f"update:{b.model.optimizer.name}",
        )
        publish = b.local(self.index, "copy", root, master, incoming, (update,), num_elements=piece.num_elements)
        sent = self._broadcast(incoming, self._size(piece), (publish,))
        arrived = tuple(edge._replace(lag=self.server.staleness) for edge in (publish, *sent))
        after = (*arrived, STEP_CALLED)
        return (b.local(self.index, "take", b.workers, incoming, params, after, num_elements=piece.num_elements),)

    def _size(self, piece: Slice) -> Size:
        return Size(num_elements=piece.num_elements, item_bytes=self.builder.item_bytes(piece))

    def _star(self) -> Groups:
        """The server, then everybody who speaks to it."""
        b = self.builder
        speakers = tuple(group[0] for group in b.nodes) if self.server.local_proxy else b.workers[0]
        return ((self.root, *(rank for rank in speakers if rank != self.root)),)

    def _proxies(self) -> Groups:
        return tuple(group for group in self.builder.nodes if len(group) > 1) if self.server.local_proxy else ()

    def _reduce(self, wire: Wire) -> tuple[Edge, ...]:
        b, done = self.builder, list[Edge]()
        if self._proxies():
            done.append(
                b.transfer(self.index, 0, "reduce", "star", self._proxies(), wire.regions, wire.after, **wire.size())
            )
        if len(self._star()[0]) > 1:
            after = (*wire.after, *done)
            done.append(b.transfer(self.index, 1, "reduce", "star", self._star(), wire.regions, after, **wire.size()))
        return tuple(done)

    def _broadcast(self, regions: tuple[int, ...], size: Size, after: tuple[Edge, ...]) -> tuple[Edge, ...]:
        b, done = self.builder, list[Edge]()
        if len(self._star()[0]) > 1:
            done.append(b.transfer(self.index, 2, "broadcast", "star", self._star(), regions, after, **size))
        if self._proxies():
            after = (*after, *done)
            done.append(b.transfer(self.index, 3, "broadcast", "star", self._proxies(), regions, after, **size))
        return tuple(done)


class SparseServerTemplate(ServerTemplate):
    """Touched rows to the server; back come the rows that anybody touched: new parameters, or the merged gradient."""

    @property
    def updates_by_slice(self) -> bool:
        return False

    def collect(self, piece: Slice) -> Finished:
        b, part = self.builder, self.builder.parts[piece.pieces[0].part]
        rows = b.regions_of("rows", piece.pieces)
        touched, most = part.touched_rows()
        gathered = b.transfer(
            self.index,
            1,
            "gather_v",
            "star",
            ((self.root, *(rank for rank in b.workers[0] if rank != self.root)),),
            rows,
            b.grads_ready(piece.pieces),
            num_elements=round(touched) * part.row_bytes,
            max_elements=most * part.row_bytes,
            item_bytes=1,
        )
        merged = b.local(
            self.index,
            "merge_rows",
            ((self.root,),),
            rows,
            rows,
            (gathered,),
            num_elements=round(touched) * part.shape[1] * len(b.workers[0]),
        )
        if self.server.update == "server":
            return Finished((merged,), rows, ((self.root,),))
        sent = self._send_rows(rows, part_index=piece.pieces[0].part, after=(gathered, merged), stage=2)
        return Finished((sent, merged), rows, b.workers)

    def settle(
        self, slices: Sequence[Slice], finished: Sequence[Finished], barrier: tuple[Edge, ...]
    ) -> tuple[Edge, ...]:
        if self.server.update == "worker":
            return Template.settle(self, slices, finished, barrier)
        b, (piece,) = self.builder, slices
        update = self._update(slices, finished, barrier, ((self.root,),))
        new_rows = b.regions_of("new_rows", piece.pieces)
        params = b.regions_of("param", piece.pieces)
        part = b.parts[piece.pieces[0].part]
        num_elements = self._union(piece.pieces[0].part)[0] * part.shape[1]
        read = b.local(
            self.index,
            "read_rows",
            ((self.root,),),
            (*finished[0].grads, *params),
            new_rows,
            (update,),
            num_elements=num_elements,
        )
        sent = self._send_rows(new_rows, part_index=piece.pieces[0].part, after=(read, STEP_CALLED), stage=2)
        others = tuple((rank,) for rank in b.workers[0] if rank != self.root)
        written = b.local(self.index, "write_rows", others, new_rows, params, (sent,), num_elements=num_elements)
        return (update, written)

    def _union(self, part_index: int) -> tuple[int, int]:
        """Rows that any worker touches: expected, and at most."""
        part, num_workers = self.builder.parts[part_index], len(self.builder.workers[0])
        touched, most = part.touched_rows()
        return round(union_rows(part.shape[0], touched, num_workers)), min(part.shape[0], most * num_workers)

    def _send_rows(self, regions: tuple[int, ...], *, part_index: int, after: tuple[Edge, ...], stage: int) -> Edge:
        b, part = self.builder, self.builder.parts[part_index]
        union, most = self._union(part_index)
        group = ((self.root, *(rank for rank in b.workers[0] if rank != self.root)),)
        return b.transfer(
            self.index,
            stage,
            "broadcast",
            "star",
            group,
            regions,
            after,
            num_elements=union * part.row_bytes,
            max_elements=most * part.row_bytes,
            item_bytes=1,
        )


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
            num_elements=round(touched) * part.row_bytes,
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
            num_elements=round(touched) * part.shape[1] * len(b.workers[0]),
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


def template_of(builder: Builder, index: int) -> Template:
    """The template of a message."""
    message = builder.strategy.messages[index]
    synchroniser = message.synchroniser
    if isinstance(synchroniser, ParameterServer):
        kind = SparseServerTemplate if synchroniser.sparse else ServerTemplate
        return kind(builder, index, message)
    return _TEMPLATES[type(synchroniser)](builder, index, message)


_TEMPLATES: dict[type, type[Template]] = {
    AllReduce: AllReduceTemplate,
    Sharded: ShardedTemplate,
    SparseGather: SparseGatherTemplate,
    SufficientFactors: FactorsTemplate,
    Periodic: PeriodicTemplate,
}
