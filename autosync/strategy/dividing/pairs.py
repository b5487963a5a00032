"""Divisions into two stages at every cut. A simulator chooses among them.

The partitioner has one division for each number of microbatches: the fastest by its estimate. It knows nothing of how
messages wait for one another, and may take a division for slow that is the fastest of all. An example are tables of
embeddings, which one rank computes for all others, so that their gradients do not travel.
"""

from __future__ import annotations

from autosync.specs.cluster import ClusterSpec
from autosync.specs.model import ModelSpec
from autosync.strategy import legality
from autosync.strategy.dividing.divided import divided_strategy
from autosync.strategy.dividing.microbatch_counts import count_for, legal_counts
from autosync.strategy.dividing.timed import timed
from autosync.strategy.representation import Strategy
from autosync.strategy.stages import ModelStage

MOST_CUTS = 24
"""Of more cuts, so many are taken, at equal distances."""


def pair_divisions(model: ModelSpec, cluster: ClusterSpec) -> list[Strategy]:
    """Return divisions into two stages, of which the first has one rank, half of all, or all but one.

    They have the most microbatches, or as few as let a pipeline over all ranks wait little.
    """
    num_ranks, counts = cluster.num_workers, legal_counts(model, cluster)
    widths = sorted({1, num_ranks // 2, num_ranks - 1} - {0, num_ranks})
    found = [
        divided_strategy(model, _two_stages(before, width, num_ranks), count)
        for before in _some_cuts(model)
        for width in widths
        for count in sorted({count_for(counts, num_ranks), counts[-1]})
    ]
    return [timed(one, model, cluster) for one in found if not legality.problems(one, model, cluster)]


def _two_stages(before: int, width: int, num_ranks: int) -> tuple[ModelStage, ModelStage]:
    return (
        ModelStage(before=0, ranks=tuple(range(width))),
        ModelStage(before=before, ranks=tuple(range(width, num_ranks))),
    )


def _some_cuts(model: ModelSpec) -> list[int]:
    cuts = [cut.before for cut in model.timeline.cuts]
    share = min(MOST_CUTS / max(len(cuts), 1), 1.0)
    return [cut for place, cut in enumerate(cuts) if int((place + 1) * share) > int(place * share)]
