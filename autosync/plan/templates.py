"""Templates: what each synchroniser becomes in a plan. Those of parameter servers are in `server_templates`."""

from __future__ import annotations

from autosync.plan.server_templates import server_template, sparse_server_template
from autosync.plan.steps import (
    ELEMENTS,
    GRADIENTS,
    UPDATED,
    Amount,
    Collect,
    Draft,
    Kept,
    Kinds,
    LocalStep,
    Settle,
    Site,
    Template,
    TransferStep,
    Waits,
    update,
)
from autosync.plan.types import Algorithm, Collective, RegionKind
from autosync.plan.wires import Wire, decode, is_summable, power_sgd, wire_of
from autosync.strategy.representation import (
    AllReduce,
    Codec,
    ParameterServer,
    Periodic,
    PowerSGD,
    Sharded,
    SparseGather,
    SufficientFactors,
    Synchroniser,
)


def template_of(site: Site, synchroniser: Synchroniser, codec: Codec | None) -> Template:
    """The template of a canonical synchroniser with a codec."""
    match synchroniser:
        case AllReduce():
            return Template(codec=codec, collect=_all_reduce(site, synchroniser, codec), settle=_update(site))
        case ParameterServer():
            of_server = sparse_server_template if synchroniser.sparse else server_template
            return of_server(site, synchroniser, codec)
        case Sharded():
            return _sharded(site, synchroniser, codec)
        case SparseGather():
            settle = _update(site, grads="rows", amount=Amount("union_elements"))
            return Template(codec=codec, collect=_sparse_gather(site, synchroniser), settle=settle)
        case SufficientFactors():
            return Template(codec=codec, collect=_factors(site, synchroniser), settle=_update(site))
        case Periodic():
            return _periodic(site, synchroniser, codec)


def _all_reduce(site: Site, synchroniser: AllReduce, codec: Codec | None) -> Collect:
    """Sum everywhere, average."""
    draft, topology, workers = Draft(), synchroniser.topology, site.workers
    if site.num_workers == 1:
        return Collect(kept=(Kept("grad"),), steps=(), finished=(GRADIENTS,), grads="grad", holders=workers)
    if isinstance(codec, PowerSGD):
        kept, done = power_sgd(site, draft, codec, topology)
        return Collect(kept=kept, steps=draft.steps, finished=(done,), grads="grad", holders=workers)
    wire = wire_of(site, draft, codec)
    if synchroniser.hierarchical:
        arrived = _hierarchical(site, draft, topology, wire)
    else:
        collective: Collective = "all_reduce" if is_summable(codec) else "all_gather_v"
        transfer = TransferStep(collective, topology, workers, 0, (wire.kind,), wire.waits, wire.amount)
        arrived = (draft.add(transfer._replace(item_bytes=wire.item_bytes)),)
    done = draft.add(decode(site, codec, workers, arrived))
    return Collect(kept=wire.kept, steps=draft.steps, finished=(done,), grads="grad", holders=workers)


def _hierarchical(site: Site, draft: Draft, topology: Algorithm, wire: Wire) -> Waits:
    """Within nodes, between them, within them again.

    Equal nodes share the work, unequal ones meet through one rank each.
    """
    inner, ready = site.shared_nodes, wire.waits
    within = TransferStep("reduce", "tree", inner, 0, (wire.kind,), ready, wire.amount, item_bytes=wire.item_bytes)
    between = within._replace(collective="all_reduce", algorithm=topology, stage=1)
    if len({len(group) for group in site.nodes}) == 1:
        within = within._replace(algorithm="native" if topology == "native" else "ring")
        across = tuple(zip(*site.nodes, strict=True))
        shared = draft.add(within._replace(collective="reduce_scatter"))
        met = draft.add(between._replace(groups=across, within=inner, waits=(shared,)))
        return (draft.add(within._replace(collective="all_gather", stage=2, waits=(met,))),)
    within = within._replace(algorithm="native" if topology == "native" else "tree")
    leaders = (tuple(group[0] for group in site.nodes),)
    reduced = draft.add(within)
    met = draft.add(between._replace(groups=leaders, waits=(*ready, reduced)))
    home = draft.add(within._replace(collective="broadcast", stage=2, waits=(*ready, reduced, met)))
    return (reduced, met, home)


def _update(site: Site, *, grads: RegionKind = "grad", amount: Amount = ELEMENTS) -> Settle:
    """Every worker updates its own copy, with nothing more to send."""
    draft = Draft()
    done = draft.add(update(site, site.workers, grads, "param", amount=amount))
    return Settle(kept=(Kept("param"),), once=draft.steps, done=(done,))


def _sharded(site: Site, synchroniser: Sharded, codec: Codec | None) -> Template:
    """Reduce-scatter, update of each rank's shard, all-gather of parameters."""
    draft, topology, workers = Draft(), synchroniser.topology, site.workers
    wire = wire_of(site, draft, codec)
    transfer = TransferStep("reduce_scatter", topology, workers, 0, (wire.kind,), wire.waits, wire.amount)
    summed = draft.add(transfer._replace(item_bytes=wire.item_bytes))
    done = draft.add(decode(site, codec, workers, (summed,), sharded=True))
    collect = Collect(kept=wire.kept, steps=draft.steps, finished=(done,), grads="grad", holders=workers, sharded=True)
    draft = Draft()
    updated = draft.add(update(site, workers, "grad", "param", sharded=True))
    home = draft.add(TransferStep("all_gather", topology, workers, 1, ("param",), (updated,)))
    settle = Settle(kept=(Kept("param"),), once=draft.steps, done=(home,), by_slice=True)
    return Template(codec=codec, collect=collect, settle=settle)


def _sparse_gather(site: Site, synchroniser: SparseGather) -> Collect:
    """Everybody's touched rows to everybody; merge."""
    draft, workers = Draft(), site.workers
    gathered = draft.add(
        TransferStep(
            "all_gather_v",
            synchroniser.topology,
            workers,
            0,
            ("rows",),
            (GRADIENTS,),
            Amount("touched_bytes"),
            most=Amount("most_touched_bytes"),
            item_bytes=1,
        )
    )
    work = Amount("touched_elements", site.num_workers)
    merged = draft.add(LocalStep("merge_rows", workers, ("rows",), ("rows",), (gathered,), work))
    return Collect(kept=(Kept("rows"),), steps=draft.steps, finished=(merged,), grads="rows", holders=workers)


def _factors(site: Site, synchroniser: SufficientFactors) -> Collect:
    """Everybody's two factors to everybody; multiply, add up, average."""
    draft, workers, topology = Draft(), site.workers, synchroniser.topology
    amount, work = Amount("factor_elements"), Amount("rebuilt_elements", site.num_workers)
    gathered = draft.add(TransferStep("all_gather_v", topology, workers, 0, ("factors",), (GRADIENTS,), amount))
    rebuilt = draft.add(LocalStep("rebuild", workers, ("factors",), ("grad",), (gathered,), work))
    kept = (Kept("factors"), Kept("grad"))
    return Collect(kept=kept, steps=draft.steps, finished=(rebuilt,), grads="grad", holders=workers)


def _periodic(site: Site, synchroniser: Periodic, codec: Codec | None) -> Template:
    """Each worker's own update; every k steps the average of the parameters, and the outer optimizer's step on it."""
    holders = tuple((rank,) for rank in site.workers[0])
    collect = Collect(kept=(Kept("grad"),), steps=(), finished=(GRADIENTS,), grads="grad", holders=holders)
    draft = Draft()
    updated = draft.add(update(site, site.workers, "grad", "param"))
    once, draft = draft.steps, Draft()
    kept: tuple[Kept, ...] = (Kept("param"),)
    met, every = UPDATED, synchroniser.every
    if site.num_workers > 1:
        met = draft.add(
            TransferStep("all_reduce", synchroniser.topology, site.workers, 0, ("param",), (met,), every=every)
        )
        met = draft.add(LocalStep("average", site.workers, ("param",), ("param",), (met,), every=every))
    if synchroniser.outer is not None:
        kept = (*kept, Kept("anchor"))
        both: Kinds = ("param", "anchor")
        met = draft.add(LocalStep("outer", site.workers, both, both, (met,), every=every, settings=synchroniser.outer))
    settle = Settle(kept=kept, once=once, done=(updated,), each=draft.steps, each_done=() if met == UPDATED else (met,))
    return Template(codec=codec, collect=collect, settle=settle)
