"""The template of all-reduce: every worker sums all gradients, averages them and updates its own copy."""

from __future__ import annotations

from autosync.plan.steps import GRADIENTS, Collect, Draft, Kept, Site, Template, TransferStep, Waits, update_everywhere
from autosync.plan.types import Algorithm, Collective, Groups
from autosync.plan.wires import Wire, decode, is_summable, power_sgd, wire_of
from autosync.strategy.codecs import Codec, PowerSGD
from autosync.strategy.shapes.trees import TreeShape
from autosync.strategy.synchronisers.all_reduce import AllReduce


def all_reduce_template(site: Site, synchroniser: AllReduce, codec: Codec | None) -> Template:
    """Return the template: every worker sums all gradients, averages them and updates its own copy."""
    return Template(codec=codec, collect=_collect(site, synchroniser, codec), settle=update_everywhere(site))


def _collect(site: Site, synchroniser: AllReduce, codec: Codec | None) -> Collect:
    """Return the half that makes the average of all gradients on every worker."""
    draft, workers = Draft(), site.workers
    if len(workers[0]) == 1:
        return Collect(kept=(Kept("grad"),), steps=(), finished=(GRADIENTS,), grads="grad", holders=workers)
    topology = site.algorithm(synchroniser.topology, synchroniser.trees)
    if isinstance(codec, PowerSGD):
        kept, done = power_sgd(site, draft, codec, topology)
        return Collect(kept=kept, steps=draft.steps, finished=(done,), grads="grad", holders=workers)
    wire = wire_of(site, draft, codec)
    if synchroniser.hierarchical:
        arrived = _in_groups(site, draft, topology, wire, site.nodes)
    elif synchroniser.topology == "levels" and topology == "native":
        arrived = _in_groups(site, draft, topology, wire, site.racks)
    else:
        collective: Collective = "all_reduce" if is_summable(codec) else "all_gather_v"
        # Trees may have servers as inner nodes.
        all_ranks = (tuple(range(topology.num_ranks)),) if isinstance(topology, TreeShape) else None
        members = all_ranks or site.ordered(workers, topology)
        transfer = TransferStep(collective, topology, members, 0, (wire.kind,), wire.waits, wire.amount)
        arrived = (draft.add(transfer._replace(item_bytes=wire.item_bytes)),)
        if site.adds_up:
            return Collect(kept=wire.kept, steps=draft.steps, finished=arrived, grads="grad", holders=workers)
    done = draft.add(decode(site, codec, workers, arrived))
    return Collect(kept=wire.kept, steps=draft.steps, finished=(done,), grads="grad", holders=workers)


def _in_groups(site: Site, draft: Draft, topology: Algorithm, wire: Wire, groups: Groups) -> Waits:
    """Add the transfers of an all-reduce within groups (nodes or racks), between groups, and within groups again.

    If all groups have equally many ranks, these share the work; otherwise one rank of each group sums between groups.
    """
    inner, ready = tuple(group for group in groups if len(group) > 1), wire.waits
    within = TransferStep("reduce", "tree", inner, 0, (wire.kind,), ready, wire.amount, item_bytes=wire.item_bytes)
    between = within._replace(collective="all_reduce", algorithm=topology, stage=1)
    if len({len(group) for group in groups}) == 1:
        within = within._replace(algorithm="native" if topology == "native" else "ring")
        across = tuple(zip(*groups, strict=True))
        shared = draft.add(within._replace(collective="reduce_scatter"))
        across = site.ordered(across, topology)
        met = draft.add(between._replace(groups=across, within=inner, waits=(shared,)))
        return (draft.add(within._replace(collective="all_gather", stage=2, waits=(met,))),)
    within = within._replace(algorithm="native" if topology == "native" else "tree")
    leaders = site.ordered((tuple(group[0] for group in groups),), topology)
    reduced = draft.add(within)
    met = draft.add(between._replace(groups=leaders, waits=(*ready, reduced)))
    home = draft.add(within._replace(collective="broadcast", stage=2, waits=(*ready, reduced, met)))
    return (reduced, met, home)
