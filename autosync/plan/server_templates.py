"""Templates of parameter servers: dense, stale, and sparse.

The server's node takes part through its first rank. Dense gradients are reduced there over a star (through one rank of
each node with a local proxy), rows are gathered. A stale server goes on with a copy of its own, the `master`; workers
take what it sent some iterations ago.
"""

from __future__ import annotations

from collections.abc import Sequence

from autosync.plan.builder import Slice
from autosync.plan.rows import whole_rows
from autosync.plan.templates import STEP_CALLED, Finished, Template, num_touched
from autosync.plan.types import Edge, Groups
from autosync.plan.wires import Size, Wire, dense_wire, gather_encoded
from autosync.strategy.representation import Cast, ParameterServer


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

    @property
    def _at_root(self) -> Groups:
        return self.builder.alone(self.root)

    def collect(self, piece: Slice) -> Finished:
        b = self.builder
        if self.codec is not None and not isinstance(self.codec, Cast):
            wire, gathered = gather_encoded(b, self.index, self.codec, piece, self._star(), "star")
            sent: tuple[Edge, ...] = (gathered,)
        else:
            wire = dense_wire(b, self.index, self.codec, piece)
            sent = self._reduce(wire)
        if self.server.update == "server":
            return self._average(piece, wire, self._at_root, sent)
        if isinstance(self.codec, Cast):
            arrived = self._broadcast(wire.regions, wire.size(), sent)
            return self._average(piece, wire, b.workers, (*sent, *arrived))
        finished = self._average(piece, wire, self._at_root, sent)
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
        update = self._update(slices, finished, barrier, self._at_root)
        params = b.regions_of("param", piece.pieces)
        return (update, *self._broadcast(params, self._size(piece), (update, STEP_CALLED)))

    def _settle_stale(self, piece: Slice, finished: Sequence[Finished], barrier: tuple[Edge, ...]) -> tuple[Edge, ...]:
        """The server goes on with a copy of its own; workers take the parameter that is `staleness` steps old."""
        b, root = self.builder, self._at_root
        master = b.regions_of("master", piece.pieces)
        incoming = b.regions_of("incoming", piece.pieces)
        params = b.regions_of("param", piece.pieces)
        published_before = Edge("operation", len(b.operations) + 1, 1)
        update = self._update((piece,), finished, barrier, root, updated=master, more=(published_before,))
        publish = b.local(self.index, "copy", root, master, incoming, (update,), num_elements=piece.num_elements)
        sent = self._broadcast(incoming, self._size(piece), (publish,))
        arrived = tuple(edge._replace(lag=self.server.staleness) for edge in (publish, *sent))
        after = (*arrived, STEP_CALLED)
        return (b.local(self.index, "take", b.workers, incoming, params, after, num_elements=piece.num_elements),)

    def _size(self, piece: Slice) -> Size:
        return Size(num_elements=piece.num_elements, item_bytes=self.builder.item_bytes(piece))

    def _star(self) -> Groups:
        return self.builder.star(self.server.server, through_proxies=self.server.local_proxy)

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

    def num_updated(self, slices: Sequence[Slice]) -> int:
        return num_touched(self.builder, slices)

    def collect(self, piece: Slice) -> Finished:
        b, part = self.builder, self.builder.parts[piece.pieces[0].part]
        rows = b.regions_of("rows", piece.pieces)
        touched, most = part.touched_rows()
        gathered = b.transfer(
            self.index,
            1,
            "gather_v",
            "star",
            b.star(self.server.server, through_proxies=False),
            rows,
            b.grads_ready(piece.pieces),
            num_elements=whole_rows(touched) * part.row_bytes,
            max_elements=most * part.row_bytes,
            item_bytes=1,
        )
        merged = b.local(
            self.index,
            "merge_rows",
            self._at_root,
            rows,
            rows,
            (gathered,),
            num_elements=whole_rows(touched) * part.shape[1] * len(b.workers[0]),
        )
        if self.server.update == "server":
            return Finished((merged,), rows, self._at_root)
        sent = self._send_rows(rows, part_index=piece.pieces[0].part, after=(gathered, merged), stage=2)
        return Finished((sent, merged), rows, b.workers)

    def settle(
        self, slices: Sequence[Slice], finished: Sequence[Finished], barrier: tuple[Edge, ...]
    ) -> tuple[Edge, ...]:
        if self.server.update == "worker":
            return Template.settle(self, slices, finished, barrier)
        b, (piece,) = self.builder, slices
        if self.server.staleness:
            return self._settle_stale(piece, finished, barrier)
        update = self._update(slices, finished, barrier, self._at_root)
        params = b.regions_of("param", piece.pieces)
        sent = self._publish(piece, params, update, (STEP_CALLED,))
        others = tuple((rank,) for rank in b.workers[0] if rank != self.root)
        return (update, self._write(piece, others, (sent,)))

    def _settle_stale(self, piece: Slice, finished: Sequence[Finished], barrier: tuple[Edge, ...]) -> tuple[Edge, ...]:
        """As with dense gradients: the server updates its copy, workers write the rows that it sent steps ago."""
        b = self.builder
        master = b.regions_of("master", piece.pieces)
        read_before = Edge("operation", len(b.operations) + 1, 1)
        update = self._update((piece,), finished, barrier, self._at_root, updated=master, more=(read_before,))
        sent = self._publish(piece, master, update, ())
        return (self._write(piece, b.workers, (sent._replace(lag=self.server.staleness), STEP_CALLED)),)

    def _publish(self, piece: Slice, source: tuple[int, ...], update: Edge, more: tuple[Edge, ...]) -> Edge:
        """Read the rows that were updated, and send them to all."""
        b, part_index = self.builder, piece.pieces[0].part
        rows, new_rows = b.regions_of("rows", piece.pieces), b.regions_of("new_rows", piece.pieces)
        num_elements = b.touched_by_any(part_index)[0] * b.parts[part_index].shape[1]
        read = b.local(
            self.index, "read_rows", self._at_root, (*rows, *source), new_rows, (update,), num_elements=num_elements
        )
        return self._send_rows(new_rows, part_index=part_index, after=(read, *more), stage=2)

    def _write(self, piece: Slice, groups: Groups, after: tuple[Edge, ...]) -> Edge:
        b, part_index = self.builder, piece.pieces[0].part
        new_rows, params = b.regions_of("new_rows", piece.pieces), b.regions_of("param", piece.pieces)
        num_elements = b.touched_by_any(part_index)[0] * b.parts[part_index].shape[1]
        return b.local(self.index, "write_rows", groups, new_rows, params, after, num_elements=num_elements)

    def _send_rows(self, regions: tuple[int, ...], *, part_index: int, after: tuple[Edge, ...], stage: int) -> Edge:
        b, part = self.builder, self.builder.parts[part_index]
        union, most = b.touched_by_any(part_index)
        return b.transfer(
            self.index,
            stage,
            "broadcast",
            "star",
            b.star(self.server.server, through_proxies=False),
            regions,
            after,
            num_elements=union * part.row_bytes,
            max_elements=most * part.row_bytes,
            item_bytes=1,
        )
