"""Random models with cuts, and random divisions of them into stages."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import replace

from autosync.specs.cluster import ClusterSpec, Node
from autosync.specs.cuts import StageCut
from autosync.specs.model import ModelSpec, OptimizerSpec, Segment, Timeline, Variable
from autosync.strategy import legality
from autosync.strategy.dividing.divided import divided_strategy
from autosync.strategy.representation import Strategy
from autosync.strategy.stages import UNFLUSHED, ModelStage


def chain(
    num_segments: int,
    *,
    batch_size: int = 4,
    tied: Sequence[tuple[int, int]] = (),
    sizes: Sequence[int] = (),
    seconds: Sequence[float] = (),
) -> ModelSpec:
    """A chain of segments with a weight each. `tied` pairs have one weight: that of the first of them.

    `sizes` are the activations of an example before each segment but the first, in elements.
    """
    weight = list(range(num_segments))
    for first, second in tied:
        weight[second] = weight[first]
    used = sorted(set(weight))
    ready = {name: place for place, name in enumerate(reversed(used))}
    variables = tuple(
        Variable(name=f"w{name}", shape=(2 + name % 3, 3), use=place, ready=ready[name])
        for place, name in enumerate(used)
    )
    times = list(seconds) or [1.0] * num_segments
    forward = tuple(
        Segment(module=f"m{number}", seconds=times[number], variables=(f"w{weight[number]}",))
        for number in range(num_segments)
    )
    backward = tuple(
        Segment(module=f"m{name}", seconds=2 * times[name], variables=(f"w{name}",)) for name in reversed(used)
    )
    elements = list(sizes) or [number % 4 + 1 for number in range(num_segments - 1)]
    cuts = tuple(
        StageCut(before=number + 1, num_bytes=4 * elements[number] * batch_size, constant_bytes=8 * (number % 2))
        for number in range(num_segments - 1)
    )
    cuts = tuple(
        StageCut(
            before=cut.before,
            num_bytes=cut.num_bytes,
            constant_bytes=cut.constant_bytes,
            fixed_constant_bytes=cut.constant_bytes,
        )
        for cut in cuts
    )
    return ModelSpec(
        name="chain",
        batch_size=batch_size,
        optimizer=OptimizerSpec(name="SGD"),
        variables=variables,
        timeline=Timeline(device="none", source="computed", forward=forward, backward=backward, cuts=cuts),
    )


def nodes(*devices: int) -> ClusterSpec:
    """A cluster of nodes with so many ranks each."""
    return ClusterSpec(
        name="test",
        nodes=tuple(
            Node(name=f"n{i}", host=f"n{i}", devices=count, bandwidth_out=1e8, bandwidth_in=1e8)
            for i, count in enumerate(devices)
        ),
    )


def random_division(rng: random.Random) -> tuple[Strategy, ModelSpec, ClusterSpec]:
    """A legal strategy with stages, for a random chain on a random cluster."""
    if rng.random() < 0.2:
        return _random_interleaving(rng)
    num_segments = rng.randint(2, 7)
    tied = []
    if num_segments > 2 and rng.random() < 0.6:
        first, second = sorted(rng.sample(range(num_segments), 2))
        tied = [(first, second)]
    num_stages = rng.randint(1, min(4, num_segments))
    places = [0, *sorted(rng.sample(range(1, num_segments), num_stages - 1))]
    returns = num_stages > 2 and rng.random() < 0.4
    widths = [rng.randint(1, 3) for _ in places[: num_stages - returns]]
    num_workers = sum(widths)
    order = list(range(num_workers))
    rng.shuffle(order)
    stages: list[ModelStage] = []
    for before, width in zip(places, widths, strict=False):
        stages.append(ModelStage(before=before, ranks=tuple(order[:width])))
        del order[:width]
    if returns:
        # The ranks of the first stage have the last one too.
        stages.append(ModelStage(before=places[-1], ranks=stages[0].ranks))
    model = chain(num_segments, batch_size=rng.choice((2, 4, 6)), tied=tied)
    model = replace(model, clip_norm=rng.choice((None, 0.3)))
    cluster = nodes(*_placed(num_workers, rng))
    num_examples = model.batch_size * num_workers
    counts = [count for count in range(max(widths), num_examples + 1) if num_examples % count == 0]
    schedule = rng.choice(("gpipe", "1f1b", "zero_bubble"))
    strategy = divided_strategy(model, stages, rng.choice(counts), schedule, rng.choice((0, 0, 2)))
    unflushed = [replace(strategy, schedule=one) for one in UNFLUSHED]
    legal = [one for one in unflushed if not legality.problems(one, model, cluster)]
    if legal and rng.random() < 0.5:
        return rng.choice(legal), model, cluster
    if rng.random() < 0.5:
        units = [sorted(rng.choices(range(12), k=2), reverse=True) for _ in stages]
        told = [replace(stage, units=(rng.randrange(9), *pair)) for stage, pair in zip(stages, units, strict=True)]
        strategy = replace(strategy, stages=tuple(told), send_units=rng.choice((0, 1, 7)))
    return strategy, model, cluster


def _random_interleaving(rng: random.Random) -> tuple[Strategy, ModelSpec, ClusterSpec]:
    """Two or three ranks take two or three stages each, in turn."""
    num_workers, per_rank = rng.randint(2, 3), rng.randint(2, 3)
    num_segments = num_workers * per_rank + rng.randint(0, 3)
    tied = [(0, num_segments - 1)] if rng.random() < 0.5 else []
    places = [0, *sorted(rng.sample(range(1, num_segments), num_workers * per_rank - 1))]
    ring = rng.sample(range(num_workers), num_workers)
    stages = [ModelStage(before=before, ranks=(ring[n % num_workers],)) for n, before in enumerate(places)]
    model = chain(num_segments, batch_size=rng.choice((2, 4, 6)), tied=tied)
    num_examples = model.batch_size * num_workers
    counts = [count for count in range(num_workers, num_examples + 1, num_workers) if num_examples % count == 0]
    strategy = divided_strategy(model, stages, rng.choice(counts), "interleaved", rng.choice((0, 0, 2)))
    return strategy, model, nodes(*_placed(num_workers, rng))


def _placed(num_workers: int, rng: random.Random) -> list[int]:
    devices = []
    while num_workers:
        devices.append(rng.randint(1, min(2, num_workers)))
        num_workers -= devices[-1]
    return devices
