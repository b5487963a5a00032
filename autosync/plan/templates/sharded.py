"""The template of sharded updates: reduce-scatter gradients, update shards, all-gather parameters."""

from __future__ import annotations

from dataclasses import replace

from autosync.plan.shards import shard_weights
from autosync.plan.steps import Collect, Draft, Kept, Settle, Site, Template, TransferStep, update
from autosync.plan.wires import decode, wire_of
from autosync.strategy.codecs import Codec
from autosync.strategy.shapes.trees import TreeShape, by_root
from autosync.strategy.synchronisers.sharded import Sharded


def sharded_template(site: Site, synchroniser: Sharded, codec: Codec | None) -> Template:
    """Return the template: reduce-scatter gradients, let each rank update its shard, all-gather parameters."""
    draft = Draft()
    topology = site.algorithm(synchroniser.topology, synchroniser.trees)
    # Local work names the ranks in the same order, because a rank's shard is that of its place.
    workers = site.ordered(site.workers, topology)
    if isinstance(topology, TreeShape):
        topology = replace(topology, shares=by_root(topology.shares))
    weights = shard_weights(topology)
    wire = wire_of(site, draft, codec)
    transfer = TransferStep("reduce_scatter", topology, workers, 0, (wire.kind,), wire.waits, wire.amount)
    summed = draft.add(transfer._replace(item_bytes=wire.item_bytes))
    done = draft.add(decode(site, codec, workers, (summed,), sharded=True, weights=weights))
    collect = Collect(
        kept=wire.kept,
        steps=draft.steps,
        finished=(done,),
        grads="grad",
        holders=workers,
        sharded=True,
        weights=weights,
    )
    draft = Draft()
    updated = draft.add(update(site, workers, "grad", "param", sharded=True, weights=weights))
    home = draft.add(TransferStep("all_gather", topology, workers, 1, ("param",), (updated,)))
    settle = Settle(kept=(Kept("param"),), once=draft.steps, done=(home,), by_slice=True)
    return Template(codec=codec, collect=collect, settle=settle)
