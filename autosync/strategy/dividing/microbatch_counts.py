"""The numbers of microbatches that a task's global batch can be divided into."""

from __future__ import annotations

from collections.abc import Sequence

from autosync.specs.cluster import ClusterSpec
from autosync.specs.model import ModelSpec

MOST_MICROBATCHES = 64
MICROBATCHES_PER_STAGE = 4
"""With four microbatches or more for each stage, the time in which stages wait for the first one is small (GPipe)."""


def legal_counts(model: ModelSpec, cluster: ClusterSpec) -> list[int]:
    """Return the numbers of microbatches that divide the global batch.

    They are no larger than `MOST_MICROBATCHES`, or what a stage on each rank needs.
    """
    num_examples = model.batch_size * cluster.num_workers
    most = min(num_examples, max(MOST_MICROBATCHES, MICROBATCHES_PER_STAGE * cluster.num_workers))
    return [count for count in range(1, most + 1) if num_examples % count == 0]


def count_for(counts: Sequence[int], num_ranks: int) -> int:
    """Return the first of some numbers with which pipelines of so many ranks wait little, or else the largest."""
    wanted = MICROBATCHES_PER_STAGE * num_ranks
    return next((count for count in counts if count >= wanted), counts[-1])
