"""The template of sparse gather: every worker receives all rows, merges them and updates its own copy."""

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
from autosync.strategy.synchronisers.sparse_gather import SparseGather


def sparse_gather_template(site: Site, synchroniser: SparseGather, codec: Codec | None) -> Template:
    """Return the template: every rank sends its touched rows to all, merges those of all, and updates its own copy."""
    settle = update_everywhere(site, grads="rows", amount=Amount("union_elements"))
    return Template(codec=codec, collect=_collect(site, synchroniser), settle=settle)


def _collect(site: Site, synchroniser: SparseGather) -> Collect:
    """Return the half that gathers the rows that any rank touched and merges them on every worker."""
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
