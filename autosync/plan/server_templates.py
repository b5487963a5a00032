"""Templates of parameter servers: dense, stale, and sparse.

The server's node takes part through its first rank. Dense gradients are reduced there over a star (through one rank of
each node with a local proxy), rows are gathered. A stale server goes on with a copy of its own, the `master`; workers
take what it sent some iterations ago.
"""

from __future__ import annotations

from collections.abc import Sequence

from autosync.plan.builder import Buffer, Builder, Slice
from autosync.plan.rows import whole_rows
from autosync.plan.templates import STEP_CALLED, Finished, Template, num_touched
from autosync.plan.types import Edge, Groups
from autosync.plan.wires import dense_wire, gather_encoded
from autosync.strategy.representation import Cast, Codec, ParameterServer


class ServerTemplate(Template[ParameterServer]):
    """Sum at the server; update there and broadcast the parameter, or broadcast the gradient and update everywhere."""

    def __init__(self, builder: Builder, synchroniser: ParameterServer, codec: Codec | None) -> None:
        super().__init__(builder, synchroniser, codec)
        self.updates_by_slice = synchroniser.update == "server"
        self._root = builder.leaders[synchroniser.server]
        self._at_root: Groups = ((self._root,),)
        self._star = builder.star(synchroniser.server, through_proxies=synchroniser.local_proxy)
        self._proxies = builder.shared_nodes if synchroniser.local_proxy else ()

    def collect(self, piece: Slice) -> Finished:
        b = self.builder
        if self.codec is not None and not isinstance(self.codec, Cast):
            wire, gathered = gather_encoded(b, self.codec, piece, self._star, "star")
            sent: tuple[Edge, ...] = (gathered,)
        else:
            wire = dense_wire(b, self.codec, piece)
            sent = self._reduce(piece.message, wire.buffer, wire.after)
        if self.updates_by_slice:
            return self._average(piece, wire, self._at_root, sent)
        if isinstance(self.codec, Cast):
            arrived = self._broadcast(piece.message, wire.buffer, sent)
            return self._average(piece, wire, b.workers, (*sent, *arrived))
        finished = self._average(piece, wire, self._at_root, sent)
        buffer = Buffer(finished.grads, piece.num_elements, piece.item_bytes)
        arrived = self._broadcast(piece.message, buffer, (*sent, *finished.after))
        return Finished((*finished.after, *arrived), finished.grads, b.workers)

    def settle(
        self, slices: Sequence[Slice], finished: Sequence[Finished], barrier: tuple[Edge, ...]
    ) -> tuple[Edge, ...]:
        if not self.updates_by_slice:
            return Template.settle(self, slices, finished, barrier)
        (piece,) = slices
        if self.synchroniser.staleness:
            return self._settle_stale(piece, finished, barrier)
        params = self._params(slices)
        update = self._update(slices, finished, barrier, self._at_root, params)
        buffer = Buffer(params, piece.num_elements, piece.item_bytes)
        return (update, *self._broadcast(piece.message, buffer, (update, STEP_CALLED)))

    def _settle_stale(self, piece: Slice, finished: Sequence[Finished], barrier: tuple[Edge, ...]) -> tuple[Edge, ...]:
        """The server goes on with a copy of its own; workers take the parameter that is `staleness` steps old."""
        b, root, message, num_elements = self.builder, self._at_root, piece.message, piece.num_elements
        master = b.regions_of("master", piece.pieces)
        incoming = b.regions_of("incoming", piece.pieces)
        params = b.regions_of("param", piece.pieces)
        published_before = Edge("operation", len(b.operations) + 1, 1)
        update = self._update((piece,), finished, barrier, root, master, more=(published_before,))
        publish = b.local(message, "copy", root, master, incoming, (update,), num_elements=num_elements)
        sent = self._broadcast(message, Buffer(incoming, num_elements, piece.item_bytes), (publish,))
        arrived = [Edge(event, target, self.synchroniser.staleness) for event, target, _ in (publish, *sent)]
        after = (*arrived, STEP_CALLED)
        return (b.local(message, "take", b.workers, incoming, params, after, num_elements=num_elements),)

    def _reduce(self, message: int, buffer: Buffer, after: tuple[Edge, ...]) -> tuple[Edge, ...]:
        b, done = self.builder, list[Edge]()
        if self._proxies:
            done.append(b.transfer(message, 0, "reduce", "star", self._proxies, buffer, after))
        if len(self._star[0]) > 1:
            done.append(b.transfer(message, 1, "reduce", "star", self._star, buffer, (*after, *done)))
        return tuple(done)

    def _broadcast(self, message: int, buffer: Buffer, after: tuple[Edge, ...]) -> tuple[Edge, ...]:
        b, done = self.builder, list[Edge]()
        if len(self._star[0]) > 1:
            done.append(b.transfer(message, 2, "broadcast", "star", self._star, buffer, after))
        if self._proxies:
            done.append(b.transfer(message, 3, "broadcast", "star", self._proxies, buffer, (*after, *done)))
        return tuple(done)


class SparseServerTemplate(ServerTemplate):
    """Touched rows to the server; back come the rows that anybody touched: new parameters, or the merged gradient."""

    def __init__(self, builder: Builder, synchroniser: ParameterServer, codec: Codec | None) -> None:
        super().__init__(builder, synchroniser, codec)
        # Rows are not summed on the way: everybody speaks to the server, and whole parts are updated at once.
        self.updates_by_slice = False
        self._star = builder.star(synchroniser.server, through_proxies=False)
        self._others: Groups = tuple((rank,) for rank in builder.workers[0] if rank != self._root)

    def num_updated(self, slices: Sequence[Slice]) -> int:
        return num_touched(self.builder, slices)

    def collect(self, piece: Slice) -> Finished:
        b, part = self.builder, self.builder.parts[piece.pieces[0].part]
        rows = b.regions_of("rows", piece.pieces)
        touched, most = part.touched_rows()
        gathered = b.transfer(
            piece.message,
            1,
            "gather_v",
            "star",
            self._star,
            Buffer(rows, whole_rows(touched) * part.row_bytes, 1),
            b.grads_ready(piece.pieces),
            max_elements=most * part.row_bytes,
        )
        work = whole_rows(touched) * part.shape[1] * len(b.workers[0])
        merged = b.local(piece.message, "merge_rows", self._at_root, rows, rows, (gathered,), num_elements=work)
        if self.synchroniser.update == "server":
            return Finished((merged,), rows, self._at_root)
        sent = self._send_rows(piece, rows, (gathered, merged))
        return Finished((sent, merged), rows, b.workers)

    def settle(
        self, slices: Sequence[Slice], finished: Sequence[Finished], barrier: tuple[Edge, ...]
    ) -> tuple[Edge, ...]:
        if self.synchroniser.update == "worker":
            return Template.settle(self, slices, finished, barrier)
        (piece,), (one,) = slices, finished
        if self.synchroniser.staleness:
            return self._settle_stale(piece, finished, barrier)
        params = self._params(slices)
        update = self._update(slices, finished, barrier, self._at_root, params)
        new_rows, sent = self._publish(piece, one.grads, params, update, (STEP_CALLED,))
        return (update, self._write(piece, self._others, new_rows, params, (sent,)))

    def _settle_stale(self, piece: Slice, finished: Sequence[Finished], barrier: tuple[Edge, ...]) -> tuple[Edge, ...]:
        """As with dense gradients: the server updates its copy, workers write the rows that it sent steps ago."""
        b, (one,) = self.builder, finished
        master = b.regions_of("master", piece.pieces)
        read_before = Edge("operation", len(b.operations) + 1, 1)
        update = self._update((piece,), finished, barrier, self._at_root, master, more=(read_before,))
        new_rows, sent = self._publish(piece, one.grads, master, update, ())
        params = b.regions_of("param", piece.pieces)
        arrived = Edge(sent.event, sent.target, self.synchroniser.staleness)
        return (self._write(piece, b.workers, new_rows, params, (arrived, STEP_CALLED)),)

    def _publish(
        self, piece: Slice, rows: tuple[int, ...], source: tuple[int, ...], update: Edge, more: tuple[Edge, ...]
    ) -> tuple[tuple[int, ...], Edge]:
        """Read the rows that were updated, and send them to all."""
        b, work = self.builder, num_touched(self.builder, (piece,))
        new_rows = b.regions_of("new_rows", piece.pieces)
        read = b.local(
            piece.message, "read_rows", self._at_root, (*rows, *source), new_rows, (update,), num_elements=work
        )
        return new_rows, self._send_rows(piece, new_rows, (read, *more))

    def _write(
        self,
        piece: Slice,
        groups: Groups,
        new_rows: tuple[int, ...],
        params: tuple[int, ...],
        after: tuple[Edge, ...],
    ) -> Edge:
        b, work = self.builder, num_touched(self.builder, (piece,))
        return b.local(piece.message, "write_rows", groups, new_rows, params, after, num_elements=work)

    def _send_rows(self, piece: Slice, regions: tuple[int, ...], after: tuple[Edge, ...]) -> Edge:
        b, part_index = self.builder, piece.pieces[0].part
        row_bytes = b.parts[part_index].row_bytes
        union, most = b.touched_by_any(part_index)
        buffer = Buffer(regions, union * row_bytes, 1)
        return b.transfer(
            piece.message, 2, "broadcast", "star", self._star, buffer, after, max_elements=most * row_bytes
        )
