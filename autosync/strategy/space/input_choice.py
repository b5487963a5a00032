"""Draws and changes the input settings of strategies, for a task with a dataset.

The profile says how long a worker makes an example, so most draws have as many workers as keep up with the compute, or
some more. Others stay in the space: workers take the processors that messages need, and reads their links.
"""

from __future__ import annotations

import math
import random
from dataclasses import dataclass, replace
from typing import Any, get_args

from autosync.specs.cluster import BackendName
from autosync.specs.input_settings import InputSettings, RightOfWay
from autosync.specs.model import ModelSpec
from autosync.strategy.representation import Strategy
from autosync.strategy.space.chance import draw_weighted
from autosync.strategy.space.limits import Limits

NUM_WORKERS = (0, 1, 2, 4, 8, 16)
PREFETCH_FACTORS = (1, 2, 4, 8)
READ_BYTES = (2**16, 2**18, 2**20, 2**23)
READ_CONCURRENCY = (1, 4, 16)
RIGHTS_OF_WAY: tuple[RightOfWay, ...] = get_args(RightOfWay)

MOST_BATCHES_AHEAD = 16
"""The most batches that the workers of a rank read ahead. They are in memory, and a trial must be far longer than they
last: it would otherwise measure how fast batches are taken that were read before."""

SPARE = 4.0
"""More than this many times the workers that keep up with compute are drawn less often."""

Weights = dict[int, float]


@dataclass(frozen=True, slots=True, kw_only=True)
class InputChoice:
    """The values of each setting with their chances. Settings that are not named here stay as they are in `usual`."""

    usual: InputSettings

    num_workers: Weights
    prefetch_factor: Weights
    read_bytes: Weights
    read_concurrency: Weights
    right_of_way: dict[RightOfWay, float]

    def draw(self, rng: random.Random) -> InputSettings:
        """Draw all settings."""
        return self._within(
            replace(
                self.usual,
                num_workers=draw_weighted(rng, self.num_workers),
                prefetch_factor=draw_weighted(rng, self.prefetch_factor),
                read_bytes=draw_weighted(rng, self.read_bytes),
                read_concurrency=draw_weighted(rng, self.read_concurrency),
                right_of_way=draw_weighted(rng, self.right_of_way),
            )
        )

    def change(self, settings: InputSettings | None, rng: random.Random) -> InputSettings:
        """Return settings in which one is drawn anew, from its other values."""
        before = settings or self.usual
        # Half of the changes are to the number of workers: it matters most.
        changes = {
            "num_workers": 1.0,
            "prefetch_factor": 0.4,
            "read_bytes": 0.4,
            "read_concurrency": 0.4,
            "right_of_way": 0.4,
        }
        possible = {
            name: weight
            for name, weight in changes.items()
            if any(one != getattr(before, name) for one in getattr(self, name))
        }
        name = draw_weighted(rng, possible)
        others = {one: weight for one, weight in getattr(self, name).items() if one != getattr(before, name)}
        drawn: dict[str, Any] = {name: draw_weighted(rng, others)}
        return self._within(replace(before, **drawn))

    def log10_size(self) -> float:
        """Return the decimal logarithm of the number of settings."""
        requests = len(self.read_bytes) * len(self.read_concurrency)
        with_workers = len(self.prefetch_factor) * len(self.right_of_way) * sum(one > 0 for one in self.num_workers)
        # Without workers, reads do not give way.
        without = len(self.right_of_way.keys() - {"gradients"})
        return math.log10(requests * (with_workers + without))

    def _within(self, settings: InputSettings) -> InputSettings:
        most = MOST_BATCHES_AHEAD // max(settings.num_workers, 1)
        return replace(settings, prefetch_factor=min(settings.prefetch_factor, most))


def input_choice(model: ModelSpec, limits: Limits, backend: BackendName) -> InputChoice | None:
    """Return the input settings of a space; None if its strategies leave them to the program.

    Only a backend whose messages the engine carries itself lets reads and messages give way to each other.
    """
    cost = model.input
    if cost is None or cost.usual is None or not limits.input:
        return None
    usual = cost.usual
    sizes: tuple[int, ...] = (usual.read_bytes,)
    concurrency: tuple[int, ...] = (usual.read_concurrency,)
    rights: tuple[RightOfWay, ...] = (usual.right_of_way,)
    if cost.example_bytes:
        # Requests that are larger than an example are those of a whole example.
        longest = next((size for size in READ_BYTES if size >= cost.example_bytes), READ_BYTES[-1])
        sizes, concurrency = tuple(size for size in READ_BYTES if size <= longest), READ_CONCURRENCY
        rights = RIGHTS_OF_WAY if backend == "gloo" else rights
    return InputChoice(
        usual=usual,
        num_workers=_weights_of_workers(model, cost.worker_seconds),
        prefetch_factor=dict.fromkeys(PREFETCH_FACTORS, 1.0),
        read_bytes=dict.fromkeys(sizes, 1.0),
        read_concurrency=dict.fromkeys(concurrency, 1.0),
        right_of_way=dict.fromkeys(rights, 1.0),
    )


def with_input(strategy: Strategy, settings: InputSettings | None) -> Strategy:
    """Return the strategy with these input settings."""
    return strategy if strategy.input == settings else replace(strategy, name="", input=settings)


def _weights_of_workers(model: ModelSpec, worker_seconds: float) -> Weights:
    compute = max(model.step_seconds, 1e-9)
    work = model.batch_size * model.accumulation_steps * worker_seconds
    needed = max(work / compute, 1.0)
    # Without workers, the rank makes the batch before it computes.
    weights = {0: (compute / (compute + work)) ** 2}
    for number in NUM_WORKERS[1:]:
        weights[number] = min(number / needed, 1.0) ** 2 * min(SPARE * needed / number, 1.0)
    return weights
