"""Stages in words: which layers each of them has, and which ranks compute it."""

from __future__ import annotations

from collections.abc import Sequence

from autosync.specs.cluster import ClusterSpec
from autosync.specs.model import ModelSpec, variables_by_name
from autosync.strategy.stages import ModelStage, stages_of_variables
from autosync.units import format_size


def stages_in_words(stages: Sequence[ModelStage], model: ModelSpec, cluster: ClusterSpec) -> list[str]:
    """Return a line for each stage: `stage 1 (12 MB), blocks.0.n1 to blocks.1.o: ranks 1 and 2 (p1, p2)`."""
    begins = [stage.before for stage in stages]
    ends = [*begins[1:], len(model.timeline.forward)]
    sizes, variables = [0] * len(stages), variables_by_name(model)
    for name, uses in stages_of_variables(stages, model).items():
        for stage_number in uses:
            sizes[stage_number] += variables[name].num_bytes
    found = []
    for number, (stage, end) in enumerate(zip(stages, ends, strict=True)):
        first, last = (model.timeline.forward[place].module for place in (stage.before, end - 1))
        layers = first if first == last else f"{first} to {last}"
        nodes = dict.fromkeys(cluster.nodes[cluster.ranks[rank].node].name for rank in stage.ranks)
        noun = "rank" if len(stage.ranks) == 1 else "ranks"
        ranks = ", ".join(map(str, stage.ranks))
        found.append(f"stage {number} ({format_size(sizes[number])}), {layers}: {noun} {ranks} ({', '.join(nodes)})")
    return found
