"""Random samples of what ranks use in steps."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import replace

from autosync.specs.model import ModelSpec
from autosync.specs.use_sample import UseSample, sample_of


def random_sample(
    rng: random.Random, names: Sequence[str], *, num_ranks: int = 0, num_steps: int = 0
) -> UseSample | None:
    """Ranks that use what a step has for all, or what chance gives each; the first variable is used always."""
    count, length = num_ranks or rng.randint(1, 4), num_steps or rng.randint(1, 6)
    chances = {name: rng.choice((0.0, 0.2, 0.5, 0.9, 1.0)) for name in names} | {names[0]: 1.0}
    is_alike = rng.random() < 0.4
    series: list[list[set[str]]] = [[] for _ in range(count)]
    for _ in range(length):
        common = {name for name in names if rng.random() < chances[name]}
        for ranks in series:
            own = {name for name in names if rng.random() < chances[name]}
            ranks.append(common if is_alike else own)
    return sample_of(series, names)


def with_uses(model: ModelSpec, rng: random.Random, *, num_ranks: int = 0) -> ModelSpec:
    """The model with a random sample of its uses; without one if all are used always."""
    names = [variable.name for variable in model.variables]
    return replace(model, use_sample=random_sample(rng, names, num_ranks=num_ranks))
