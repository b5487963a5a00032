"""The template of sufficient factors: every worker receives all factors, rebuilds the gradient and updates its copy."""

from __future__ import annotations

from autosync.plan.steps import (
    GRADIENTS,
    Amount,
    Collect,
    Draft,
    Kept,
    LocalStep,
    Site,
    Template,
    TransferStep,
    update_everywhere,
)
from autosync.strategy.codecs import Codec
from autosync.strategy.synchronisers.sufficient_factors import SufficientFactors


def sufficient_factors_template(site: Site, synchroniser: SufficientFactors, codec: Codec | None) -> Template:
    """Return the template: every rank sends its two factors to all, rebuilds the gradient, and updates its own copy."""
    return Template(codec=codec, collect=_collect(site, synchroniser), settle=update_everywhere(site))


def _collect(site: Site, synchroniser: SufficientFactors) -> Collect:
    """Return the half that gathers all factors and rebuilds the averaged gradient on every worker."""
    draft, workers, topology = Draft(), site.workers, synchroniser.topology
    amount, work = Amount("factor_elements"), Amount("rebuilt_elements", site.num_workers)
    gathered = draft.add(TransferStep("all_gather_v", topology, workers, 0, ("factors",), (GRADIENTS,), amount))
    rebuilt = draft.add(LocalStep("rebuild", workers, ("factors",), ("grad",), (gathered,), work))
    kept = (Kept("factors"), Kept("grad"))
    return Collect(kept=kept, steps=draft.steps, finished=(rebuilt,), grads="grad", holders=workers)
