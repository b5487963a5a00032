"""Warnings of a prediction: its weak assumptions, and the sizes at which no prediction was ever checked."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence

from autosync.scaling.errors import MeasuredErrors
from autosync.scaling.extension import num_worker_nodes
from autosync.scaling.prediction import SizePrediction
from autosync.simulators.timeline.scene_builder import MOST_RANKS
from autosync.specs.cluster import ClusterSpec
from autosync.specs.model import ModelSpec
from autosync.specs.profile.quality import profile_warning
from autosync.strategy.wording import count


def warnings_of(
    model: ModelSpec,
    cluster: ClusterSpec,
    sizes: Sequence[SizePrediction],
    *,
    link: float | None,
    errors: MeasuredErrors | None,
) -> Iterator[str]:
    """Yield the warnings of a prediction, one sentence for each."""
    there, most = num_worker_nodes(cluster), max(size.num_nodes for size in sizes)
    if cluster.calibration is None:
        yield "The cluster was not probed: its links are taken to be as fast as its file says."
    elif most > there:
        yield f"The probe saw {count(there, 'node')}; up to {most} nodes are predicted from it."
    if link is not None:
        yield "Links of this rate were not measured on this cluster."
    if errors is None:
        yield "No errors of today's simulators are known, so predictions have no intervals."
    yield from _beyond(sizes)
    if any(size.num_ranks > MOST_RANKS for size in sizes):
        yield (
            f"On more than {MOST_RANKS} ranks, one node is played for all, and plans with very many messages are "
            "predicted by a coarser simulator, with larger errors."
        )
    words = profile_warning(model)
    if words is not None:
        yield f"{words[0].upper()}{words[1:]}."


def _beyond(sizes: Sequence[SizePrediction]) -> Iterator[str]:
    """Yield a sentence for each difference from all measured clusters, with the sizes that have it."""
    found: dict[str, list[int]] = defaultdict(list)
    for size in sizes:
        for words in size.beyond if size.num_ranks > 1 else ():
            found[words].append(size.num_nodes)
    for words, numbers in found.items():
        where = "At all sizes" if len(numbers) == len(sizes) else f"At {', '.join(map(str, numbers))} nodes"
        yield f"{where}, no prediction was ever compared with a measurement: {words}. Errors may be larger there."
