"""Times the two products of a linear layer's backward pass: of its inputs' gradient, and of its weight's.

They have equally many multiplications, but other shapes, and the second is added to what is there. So neither is half
of the pass for sure. Each product is timed by itself, on tensors of the layer's shapes, with microbatches of several
sizes. If both together take longer than the whole backward pass of their segment did, they are taken as shares of it.
"""

from __future__ import annotations

import statistics
import time
from collections import defaultdict
from collections.abc import Sequence
from typing import NamedTuple

import torch

from autosync.specs.compute_pace import share_factor
from autosync.specs.cuts import segment_seconds
from autosync.specs.model import ModelSpec
from autosync.specs.profile.clock import Clock
from autosync.specs.profile.linear_calls import LinearUse
from autosync.specs.split_layers import SplitLayers

NUM_ROUNDS = 9
FEWEST_ROUNDS = 3
WARM_UP_ROUNDS = 2
MOST_SECONDS = 10.0
"""The time that all products may take; fewer rounds are made of long ones."""


class ProductSeconds(NamedTuple):
    """The times of the gradient of a layer's inputs, and of those of its weight and bias."""

    inputs: float
    weights: float


def split_layers(
    uses: Sequence[LinearUse],
    spec: ModelSpec,
    device: torch.device,
    clock: Clock,
    *,
    num_rounds: int = NUM_ROUNDS,
    warm_up_rounds: int = WARM_UP_ROUNDS,
) -> tuple[SplitLayers, ...]:
    """Return how long the gradients of weights take in each segment, with each of the spec's batch sizes.

    `uses` are those of a pass over the spec's own batch.
    """
    sizes = [one.num_examples for one in spec.timeline.sizes]
    wanted = {_of_size(use, size, spec.batch_size) for use in uses for size in sizes}
    limit = MOST_SECONDS / max(1, len(wanted))
    taken = {use: _timed(use, device, clock, (warm_up_rounds, num_rounds), limit) for use in sorted(wanted, key=str)}
    by_segment: dict[int, list[LinearUse]] = defaultdict(list)
    for use in uses:
        by_segment[use.segment].append(use)
    both, forward = segment_seconds(spec.timeline), [one.seconds for one in spec.timeline.forward]
    found = []
    for segment, of_segment in sorted(by_segment.items()):
        seconds = []
        for size in sizes:
            pairs = [taken[_of_size(use, size, spec.batch_size)] for use in of_segment]
            weights, inputs = sum(one.weights for one in pairs), sum(one.inputs for one in pairs)
            backward = share_factor(spec, size) * (both[segment] - forward[segment])
            seconds.append(weights * min(1.0, backward / (weights + inputs)) if weights else 0.0)
        found.append(SplitLayers(segment=segment, seconds=tuple(seconds)))
    return tuple(found)


def _of_size(use: LinearUse, num_examples: int, batch_size: int) -> LinearUse:
    """Return a use by a microbatch of so many examples, wherever it is."""
    return use._replace(segment=-1, rows=max(1, round(use.rows * num_examples / batch_size)))


def _timed(
    use: LinearUse, device: torch.device, clock: Clock, rounds: tuple[int, int], limit_seconds: float
) -> ProductSeconds:
    """Return the medians of both products' times, from as many rounds after warm-up as the limit allows."""
    warm_up_rounds, num_rounds = rounds
    inputs = torch.ones(use.rows, use.num_inputs, dtype=use.dtype, device=device)
    gradient = torch.ones(use.rows, use.num_outputs, dtype=use.dtype, device=device)
    weight = torch.ones(use.num_outputs, use.num_inputs, dtype=use.dtype, device=device)
    of_weight, of_bias = torch.zeros_like(weight), torch.zeros_like(weight[:, 0])
    taken: list[list[float]] = []
    began = time.monotonic()
    for number in range(warm_up_rounds + num_rounds):
        if number >= warm_up_rounds + FEWEST_ROUNDS and time.monotonic() - began > limit_seconds:
            break
        marks = [clock.mark()]
        gradient @ weight
        marks.append(clock.mark())
        of_weight += gradient.t() @ inputs
        if use.has_bias:
            of_bias += gradient.sum(0)
        marks.append(clock.mark())
        if number >= warm_up_rounds:
            taken.append(clock.seconds(marks))
    return ProductSeconds(*(statistics.median(times) for times in zip(*taken, strict=True)))
