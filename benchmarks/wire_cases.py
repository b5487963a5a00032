"""What the benchmarks on emulated links have in common: clusters, models whose compute is replayed, strategies."""

from __future__ import annotations

import secrets
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from autosync.plan.bundling import bundled
from autosync.specs.cluster import ClusterSpec, Node
from autosync.specs.model import ModelSpec, OptimizerSpec, Segment, Timeline, Variable
from autosync.strategy.presets.buckets import assign_by_size
from autosync.strategy.representation import (
    AllReduce,
    Message,
    Overlap,
    ParameterServer,
    Partition,
    Sharded,
    Strategy,
)
from autosync.trials.contestant import Contestant

MEGABIT = 125_000.0
"""Bytes per second."""


# ------------------------------------------------------------------------------------------------------- clusters


def emulated(*megabits: float, devices: int = 1, servers: Sequence[float] = ()) -> ClusterSpec:
    """Worker hosts with these rates, then hosts that only serve, under a name that nobody else's testbed has."""
    workers = [_node(f"n{number}", rate, devices) for number, rate in enumerate(megabits)]
    serving = [replace(_node(f"s{number}", rate, 0), role="server") for number, rate in enumerate(servers)]
    return ClusterSpec(name=f"wire-{secrets.token_hex(4)}", nodes=(*workers, *serving), launcher="testbed")


def _node(name: str, megabits: float, devices: int) -> Node:
    rate = megabits * MEGABIT
    return Node(name=name, host=name, devices=devices, bandwidth_out=rate, bandwidth_in=rate)


def all_reduce_seconds(num_bytes: int, num_nodes: int, megabits: float) -> float:
    """What an all-reduce between nodes takes by the rate of the links."""
    return 2 * (num_nodes - 1) / num_nodes * num_bytes / (megabits * MEGABIT)


# --------------------------------------------------------------------------------------------------------- models


@dataclass(frozen=True, slots=True, kw_only=True)
class Layer:
    """One layer: its variables with their shapes, and the seconds of its forward and its backward pass."""

    name: str
    shapes: tuple[tuple[str, tuple[int, ...]], ...]
    forward_seconds: float = 0.0
    backward_seconds: float = 0.0


def replayed_model(name: str, layers: Sequence[Layer]) -> ModelSpec:
    """Layers used one after another, whose gradients come the other way round; the update takes no time."""
    num_variables = sum(len(layer.shapes) for layer in layers)
    variables: list[Variable] = []
    for use, layer in enumerate(layers):
        for leaf, shape in layer.shapes:
            ready = num_variables - 1 - len(variables)
            variables.append(Variable(name=f"{layer.name}.{leaf}", shape=shape, use=use, ready=ready))
    forward = tuple(
        Segment(module=layer.name, seconds=layer.forward_seconds, variables=_names(layer)) for layer in layers
    )
    backward = tuple(
        Segment(module=layer.name, seconds=layer.backward_seconds, variables=_names(layer)[::-1])
        for layer in reversed(layers)
    )
    return ModelSpec(
        name=name,
        optimizer=OptimizerSpec(name="SGD", state_slots=1),
        variables=tuple(variables),
        timeline=Timeline(device="none", source="computed", note="made up", forward=forward, backward=backward),
    )


def _names(layer: Layer) -> tuple[str, ...]:
    return tuple(f"{layer.name}.{leaf}" for leaf, _ in layer.shapes)


def one_gradient(num_bytes: int) -> ModelSpec:
    """All bytes in one gradient that takes no compute: all that a step does is to synchronise it."""
    return replayed_model("one-gradient", [Layer(name="all", shapes=(("weight", (num_bytes // 4,)),))])


CONVOLUTIONS = (32, 64, 128, 246)
LAYERS_PER_WIDTH = 15


def convnet(compute_seconds: float) -> ModelSpec:
    """60 convolutions of 43 MB in all: each layer computes as long as any other, the last ones have the most bytes.

    A third of the compute is forward, two thirds are backward.
    """
    widths = [width for width in CONVOLUTIONS for _ in range(LAYERS_PER_WIDTH)]
    each = compute_seconds / len(widths)
    layers = [
        Layer(
            name=f"conv{number}",
            shapes=(("weight", (width, before, 3, 3)), ("bias", (width,))),
            forward_seconds=each / 3,
            backward_seconds=each * 2 / 3,
        )
        for number, (before, width) in enumerate(zip([3, *widths], widths, strict=False))
    ]
    return replayed_model("convnet-43MB", layers)


# ----------------------------------------------------------------------------------------------------- strategies


def merged(
    model: ModelSpec,
    synchronisers: Sequence[AllReduce | Sharded | ParameterServer],
    *,
    merge_bytes: int,
    slice_bytes: int | None = None,
    num_bands: int = 1,
    num_lanes: int | None = None,
    overlap: Overlap = "forward",
) -> Strategy:
    """Gradients merged, in the order in which they come, to messages of that size or just above it.

    Synchronisers take turns. Bands have about equal bytes each and priorities in the order of use, so that what the
    next forward pass needs first goes first. Every band is a lane, unless messages are dealt to so many lanes in turn.
    """
    ready = sorted(model.variables, key=lambda variable: variable.ready)
    groups = assign_by_size(ready, (merge_bytes,), lambda _: False)
    messages: list[Message] = []
    num_after = 0
    for number, group in enumerate(groups):
        num_bytes = sum(variable.num_bytes for variable in group)
        # What comes last is used first, and is in band 0.
        middle = 2 * (model.num_bytes - num_after) - num_bytes
        band = min(num_bands - 1, num_bands * middle // (2 * model.num_bytes))
        messages.append(
            Message(
                parts=tuple(variable.name for variable in group),
                synchroniser=synchronisers[number % len(synchronisers)],
                priority=band,
                lane=band if num_lanes is None else number % num_lanes,
                slice_bytes=slice_bytes if slice_bytes is not None and num_bytes > slice_bytes else None,
            )
        )
        num_after += num_bytes
    return Strategy(overlap=overlap, messages=tuple(messages))


def served_in_shards(
    model: ModelSpec, servers: Sequence[str], *, shard_bytes: int, num_lanes: int, overlap: Overlap = "backward"
) -> Strategy:
    """The model's one variable in even shards, dealt to servers in turn and to lanes in turn."""
    (variable,) = model.variables
    num_rows = variable.shape[0]
    num_shards = -(-variable.num_bytes // shard_bytes)
    size, rest = divmod(num_rows, num_shards)
    sizes = (size + 1,) * rest + (size,) * (num_shards - rest)
    return Strategy(
        overlap=overlap,
        partitions={variable.name: Partition(sizes=sizes)},
        messages=tuple(
            Message(
                parts=(f"{variable.name}[{number}]",),
                synchroniser=ParameterServer(server=servers[number % len(servers)]),
                lane=number % num_lanes,
            )
            for number in range(num_shards)
        ),
    )


# ---------------------------------------------------------------------------------------------------- contestants


def contestants_of(
    strategies: Iterable[tuple[str, Strategy]], model: ModelSpec, cluster: ClusterSpec
) -> list[Contestant]:
    """Strategies by name as contestants."""
    return [Contestant(name=name, bundle=bundled(one, model, cluster)) for name, one in strategies]
