"""The template of periodic averaging: workers update their own copies and average them every few steps."""

from __future__ import annotations

from autosync.plan.steps import (
    GRADIENTS,
    UPDATED,
    Collect,
    Draft,
    Kept,
    Kinds,
    LocalStep,
    Settle,
    Site,
    Template,
    TransferStep,
    update,
)
from autosync.strategy.codecs import Codec
from autosync.strategy.synchronisers.periodic import Periodic


def periodic_template(site: Site, synchroniser: Periodic, codec: Codec | None) -> Template:
    """Return the template: workers update their own copies; every k steps they average them and run the outer step."""
    holders = tuple((rank,) for rank in site.workers[0])
    collect = Collect(kept=(Kept("grad"),), steps=(), finished=(GRADIENTS,), grads="grad", holders=holders)
    draft = Draft()
    updated = draft.add(update(site, site.workers, "grad", "param"))
    once, draft = draft.steps, Draft()
    kept: tuple[Kept, ...] = (Kept("param"),)
    met, every = UPDATED, synchroniser.every
    if site.num_workers > 1:
        topology = synchroniser.topology
        meeting = site.ordered(site.workers, topology)
        met = draft.add(TransferStep("all_reduce", topology, meeting, 0, ("param",), (met,), every=every))
        met = draft.add(LocalStep("average", site.workers, ("param",), ("param",), (met,), every=every))
    if synchroniser.outer is not None:
        kept = (*kept, Kept("anchor"))
        both: Kinds = ("param", "anchor")
        met = draft.add(LocalStep("outer", site.workers, both, both, (met,), every=every, settings=synchroniser.outer))
    settle = Settle(kept=kept, once=once, done=(updated,), each=draft.steps, each_done=() if met == UPDATED else (met,))
    return Template(codec=codec, collect=collect, settle=settle)
