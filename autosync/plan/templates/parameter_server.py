"""The templates of parameter servers: dense, stale and sparse.

The server's node takes part through its first rank. Dense gradients are summed there over a star; with local proxies
one rank of each node sends for all of them. Rows are gathered there. A stale server trains a copy of its own, the
`master`, and workers use the parameters that it sent some iterations ago.
"""

from __future__ import annotations

from autosync.plan.steps import (
    GRADIENTS,
    STEP_CALLED,
    Amount,
    Collect,
    Draft,
    Kept,
    LocalStep,
    Settle,
    Site,
    Template,
    TransferStep,
    Wait,
    Waits,
    update,
)
from autosync.plan.types import Groups, RegionKind
from autosync.plan.wires import Wire, decode, is_summable, wire_of
from autosync.strategy.codecs import Cast, Codec
from autosync.strategy.synchronisers.parameter_server import ParameterServer


class _Server:
    """The server's rank, the star around it, and the nodes whose ranks use a proxy."""

    def __init__(self, site: Site, synchroniser: ParameterServer) -> None:
        self.site = site
        self.root = site.leader(synchroniser.server)
        self.at_root: Groups = ((self.root,),)
        # Rows are not summed on the way, so every worker sends its own rows to the server.
        has_proxies = synchroniser.local_proxy and not synchroniser.sparse
        self.star = site.star(synchroniser.server, through_proxies=has_proxies)
        self._proxies = site.shared_nodes if has_proxies else ()

    def reduce(self, draft: Draft, wire: Wire) -> Waits:
        """Add the transfers that sum gradients at the server."""
        done: Waits = ()
        step = TransferStep("reduce", "star", self._proxies, 0, (wire.kind,), wire.waits, wire.amount)
        step = step._replace(item_bytes=wire.item_bytes)
        if self._proxies:
            done = (draft.add(step),)
        if len(self.star[0]) > 1:
            done = (*done, draft.add(step._replace(groups=self.star, stage=1, waits=(*wire.waits, *done))))
        return done

    def broadcast(self, draft: Draft, kind: RegionKind, waits: Waits, *, item_bytes: int = 0) -> Waits:
        """Add the transfers that send a region of the server to all workers."""
        done: Waits = ()
        step = TransferStep("broadcast", "star", self.star, 2, (kind,), waits, item_bytes=item_bytes)
        if len(self.star[0]) > 1:
            done = (draft.add(step),)
        if self._proxies:
            done = (*done, draft.add(step._replace(groups=self._proxies, stage=3, waits=(*waits, *done))))
        return done


def parameter_server_template(site: Site, synchroniser: ParameterServer, codec: Codec | None) -> Template:
    """Return the template for dense gradients, or for rows if the server is sparse."""
    of_server = _sparse_template if synchroniser.sparse else _dense_template
    return of_server(site, synchroniser, codec)


def _dense_template(site: Site, synchroniser: ParameterServer, codec: Codec | None) -> Template:
    """Return the template for dense gradients: sum at the server, update, broadcast.

    The server updates and broadcasts the parameter, or it broadcasts the gradient and every worker updates.
    """
    server = _Server(site, synchroniser)
    collect = _collect(server, synchroniser, codec)
    if synchroniser.update == "worker":
        draft = Draft()
        done: Waits = (draft.add(update(site, site.workers, "grad", "param")),)
        return Template(codec=codec, collect=collect, settle=Settle(kept=_PARAM, once=draft.steps, done=done))
    if synchroniser.staleness:
        return Template(codec=codec, collect=collect, settle=_settle_stale(server, synchroniser.staleness))
    draft = Draft()
    updated = draft.add(update(site, server.at_root, "grad", "param"))
    done = (updated, *server.broadcast(draft, "param", (updated, STEP_CALLED)))
    return Template(
        codec=codec, collect=collect, settle=Settle(kept=_PARAM, once=draft.steps, done=done, by_slice=True)
    )


_PARAM = (Kept("param"),)


def _collect(server: _Server, synchroniser: ParameterServer, codec: Codec | None) -> Collect:
    draft, site = Draft(), server.site
    wire = wire_of(site, draft, codec, is_stale=synchroniser.staleness > 0)
    if is_summable(codec):
        sent = server.reduce(draft, wire)
    else:
        step = TransferStep("gather_v", "star", server.star, 1, (wire.kind,), wire.waits, wire.amount)
        sent = (draft.add(step._replace(item_bytes=wire.item_bytes)),)
    holders, finished = server.at_root, Waits()
    if synchroniser.update == "worker" and isinstance(codec, Cast):
        # The sum is broadcast in the codec's dtype, and workers decode it.
        holders = site.workers
        arrived = server.broadcast(draft, wire.kind, sent, item_bytes=wire.item_bytes)
        finished = (draft.add(decode(site, codec, holders, (*sent, *arrived))),)
    else:
        averaged = draft.add(decode(site, codec, holders, sent))
        finished = (averaged,)
        if synchroniser.update == "worker":
            holders = site.workers
            finished = (averaged, *server.broadcast(draft, "grad", (*sent, averaged)))
    return Collect(kept=wire.kept, steps=draft.steps, finished=finished, grads="grad", holders=holders)


def _settle_stale(server: _Server, staleness: int) -> Settle:
    """Return the half in which the server updates its own copy, and workers take the one of `staleness` steps ago."""
    draft, site = Draft(), server.site
    published_before = draft.next(1, lag=1)
    updated = draft.add(update(site, server.at_root, "grad", "master", more=(published_before,)))
    published = draft.add(LocalStep("copy", server.at_root, ("master",), ("incoming",), (updated,)))
    sent = server.broadcast(draft, "incoming", (published,))
    arrived = [edge._replace(lag=staleness) for edge in (published, *sent)]
    taken = draft.add(LocalStep("take", site.workers, ("incoming",), ("param",), (*arrived, STEP_CALLED)))
    kept = (Kept("master"), Kept("incoming"), Kept("param"))
    return Settle(kept=kept, once=draft.steps, done=(taken,), by_slice=True)


# Rows.

_UNION = Amount("union_elements")


def _sparse_template(site: Site, synchroniser: ParameterServer, codec: Codec | None) -> Template:
    """Return the template for rows: workers send the rows that they touch, and the server broadcasts all touched rows.

    It broadcasts rows of the new parameter, or rows of the merged gradient if workers update. Each part is updated at
    once, not in slices.
    """
    server = _Server(site, synchroniser)
    collect = _collect_rows(server, update_at_server=synchroniser.update == "server")
    draft = Draft()
    if synchroniser.update == "worker":
        updated = draft.add(update(site, site.workers, "rows", "param", amount=_UNION))
        settle = Settle(kept=_PARAM, once=draft.steps, done=(updated,))
    elif synchroniser.staleness:
        settle = _settle_stale_rows(server, synchroniser.staleness)
    else:
        others = tuple((rank,) for rank in site.workers[0] if rank != server.root)
        updated = draft.add(update(site, server.at_root, "rows", "param", amount=_UNION))
        read = draft.add(_read_rows(server, "param", updated))
        sent = draft.add(_send_rows(server, "new_rows", (read, STEP_CALLED)))
        written = draft.add(LocalStep("write_rows", others, ("new_rows",), ("param",), (sent,), _UNION))
        settle = Settle(kept=(Kept("param"), Kept("new_rows")), once=draft.steps, done=(updated, written))
    return Template(codec=codec, collect=collect, settle=settle)


def _collect_rows(server: _Server, *, update_at_server: bool) -> Collect:
    draft, site = Draft(), server.site
    gathered = draft.add(
        TransferStep(
            "gather_v",
            "star",
            server.star,
            1,
            ("rows",),
            (GRADIENTS,),
            Amount("touched_bytes"),
            most=Amount("most_touched_bytes"),
            item_bytes=1,
        )
    )
    work = Amount("touched_elements", site.num_workers)
    merged = draft.add(LocalStep("merge_rows", server.at_root, ("rows",), ("rows",), (gathered,), work))
    finished: Waits = (merged,)
    if not update_at_server:
        finished = (draft.add(_send_rows(server, "rows", (gathered, merged))), merged)
    holders = server.at_root if update_at_server else site.workers
    return Collect(kept=(Kept("rows"),), steps=draft.steps, finished=finished, grads="rows", holders=holders)


def _settle_stale_rows(server: _Server, staleness: int) -> Settle:
    """Return the half in which the server updates its copy, and workers write the rows sent `staleness` steps ago."""
    draft, site = Draft(), server.site
    read_before = draft.next(1, lag=1)
    updated = draft.add(update(site, server.at_root, "rows", "master", amount=_UNION, more=(read_before,)))
    read = draft.add(_read_rows(server, "master", updated))
    sent = draft.add(_send_rows(server, "new_rows", (read,)))
    waits = (sent._replace(lag=staleness), STEP_CALLED)
    written = draft.add(LocalStep("write_rows", site.workers, ("new_rows",), ("param",), waits, _UNION))
    kept = (Kept("master"), Kept("new_rows"), Kept("param"))
    return Settle(kept=kept, once=draft.steps, done=(written,))


def _read_rows(server: _Server, source: RegionKind, updated: Wait) -> LocalStep:
    """Return the step that reads the updated rows at the server."""
    return LocalStep("read_rows", server.at_root, ("rows", source), ("new_rows",), (updated,), _UNION)


def _send_rows(server: _Server, kind: RegionKind, waits: Waits) -> TransferStep:
    """Return the step that broadcasts the rows that any rank touched to all workers."""
    step = TransferStep("broadcast", "star", server.star, 2, (kind,), waits, Amount("union_bytes"))
    return step._replace(most=Amount("most_union_bytes"), item_bytes=1)
