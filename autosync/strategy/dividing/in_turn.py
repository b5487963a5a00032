"""Divides a model into short stages of about equal compute, dealt to the ranks in turn: an interleaved pipeline."""

from __future__ import annotations

from collections.abc import Sequence

from autosync.errors import DoesNotApplyError
from autosync.specs.cluster import ClusterSpec
from autosync.specs.cuts import even_stages
from autosync.specs.model import ModelSpec
from autosync.strategy import legality
from autosync.strategy.dividing.divided import divided_strategy
from autosync.strategy.dividing.microbatch_counts import count_for, legal_counts
from autosync.strategy.representation import Strategy
from autosync.strategy.stages import ModelStage

USUAL_STAGES = 2
"""The stages of a rank."""


def stages_in_turn(model: ModelSpec, ring: Sequence[int], stages_per_rank: int) -> list[ModelStage] | None:
    """Return stages of about equal compute, dealt to the ranks of a ring; None if the model has too few layers."""
    found = even_stages(model.timeline, stages_per_rank * len(ring))
    if found is None:
        return None
    places = [0, *[cut.before for cut in found.cuts]]
    return [ModelStage(before=before, ranks=(ring[number % len(ring)],)) for number, before in enumerate(places)]


def interleave(
    model: ModelSpec,
    cluster: ClusterSpec,
    *,
    stages_per_rank: int = USUAL_STAGES,
    microbatches: int | None = None,
    slack: int = 0,
    recompute: bool = False,
) -> Strategy:
    """Return the interleaved pipeline over all workers.

    Without `microbatches`, there are four or more for each rank, as far as the batch allows, in whole groups.
    """
    num_ranks = cluster.num_workers
    stages = stages_in_turn(model, range(num_ranks), stages_per_rank)
    if stages is None:
        what = f"{model.name} has {len(model.timeline.cuts) + 1} layers that can be stages"
        raise DoesNotApplyError(what, rule=f"{stages_per_rank} for each of {num_ranks} ranks, or more")
    if microbatches is None:
        counts = [count for count in legal_counts(model, cluster) if count % num_ranks == 0]
        if not counts:
            raise DoesNotApplyError(
                f"the global batch of {model.batch_size * num_ranks} examples has too few for its ranks",
                rule=f"microbatches come in groups of {num_ranks}, one for each rank",
            )
        microbatches = count_for(counts, num_ranks)
    strategy = divided_strategy(model, stages, microbatches, "interleaved", slack, recompute=recompute)
    legality.check(strategy, model, cluster)
    return strategy
