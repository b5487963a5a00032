"""Random models and clusters: what every property over strategies and plans is tried on.

`random_model` and `random_cluster` draw from a seeded generator; `models` and `clusters` are the same draws as
hypothesis strategies. They are small on purpose (mostly hundreds to thousands of bytes, at most six workers) and odd
on purpose: scalars, axes of size one, tied weights, tables larger than a batch, ranks that share nodes, nodes without
devices, racks, declared symmetry.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Literal, get_args

from hypothesis import strategies as st
from hypothesis.strategies import SearchStrategy

from autosync.specs.cluster import BackendName, ClusterSpec, Node, Rack
from autosync.specs.model import DType, ModelSpec, OptimizerSpec, Segment, Timeline, Variable
from autosync.specs.untrained import Untrained

SIZES = (1, 2, 3, 5, 7, 8, 16, 33)
GIGABIT_BYTES_PER_SECOND = 125e6

_OPTIMIZERS = (
    OptimizerSpec(name="SGD", elementwise=True, sparse=True),
    OptimizerSpec(name="SGD", elementwise=True, sparse=False, state_slots=1),
    OptimizerSpec(name="Adam", elementwise=True, sparse=False, state_slots=2),
    OptimizerSpec(name="SparseAdam", elementwise=True, sparse=True, state_slots=2),
    OptimizerSpec(name="LAMB", elementwise=False, per_variable=True, sparse=False, state_slots=2),
)


def random_model(
    rng: random.Random, *, max_variables: int = 8, num_variables: int | None = None, dtypes: Sequence[DType] = ()
) -> ModelSpec:
    """A model of `num_variables`, else of up to `max_variables`; in one of `dtypes` or, now and then, in several."""
    count = num_variables or rng.randint(1, max_variables)
    choices = tuple(dtypes) or get_args(DType)
    used: Sequence[DType] = choices if rng.random() < 0.2 else (rng.choice(choices),)
    uses = [rng.randrange(count) for _ in range(count)] if rng.random() < 0.3 else list(range(count))
    variables = tuple(
        _random_variable(rng, index, use=use, ready=ready, dtype=rng.choice(used))
        for index, (use, ready) in enumerate(zip(uses, _random_ready_order(rng, count), strict=True))
    )
    return ModelSpec(
        name=f"random-{count}",
        batch_size=rng.choice((1, 4, 32)),
        accumulation_steps=rng.choice((1, 1, 1, 2)),
        clip_norm=rng.choice((None, None, None, 1.0)),
        loss_scaling=rng.random() < 0.1,
        optimizer=rng.choice(_OPTIMIZERS),
        variables=variables,
        untrained=_random_untrained(rng),
        timeline=_random_timeline(rng, variables),
    )


def random_cluster(
    rng: random.Random, *, max_workers: int = 6, backends: Sequence[BackendName] = ("gloo", "gloo", "nccl")
) -> ClusterSpec:
    """A cluster of one to `max_workers` ranks that train, and up to two nodes that only serve."""
    devices = _random_devices(rng, rng.randint(1, max_workers))
    roles: list[Literal["worker", "server"]] = ["worker"] * len(devices)
    for _ in range(rng.choice((0, 0, 0, 1, 2))):
        # Anywhere in the file: worker ranks come first whatever the order of the nodes is.
        position = rng.randrange(len(roles) + 1)
        roles.insert(position, "server")
        devices.insert(position, 0)
    racks = _random_racks(rng, len(roles))
    nodes = tuple(
        _random_node(rng, index, role=role, devices=count, rack=rng.choice(racks).name if racks else None)
        for index, (role, count) in enumerate(zip(roles, devices, strict=True))
    )
    nodes, alike = _with_symmetry(rng, nodes)
    return ClusterSpec(
        name=f"random-{len(nodes)}", nodes=nodes, racks=racks, alike=alike, backend=rng.choice(tuple(backends))
    )


def models(*, max_variables: int = 8, dtypes: Sequence[DType] = ()) -> SearchStrategy[ModelSpec]:
    """Random models; shrinks towards few variables."""

    def draw(count: int, seed: int) -> ModelSpec:
        return random_model(random.Random(seed), num_variables=count, dtypes=dtypes)

    return st.builds(draw, st.integers(1, max_variables), st.integers(0, 2**32 - 1))


def clusters(
    *, max_workers: int = 6, backends: Sequence[BackendName] = ("gloo", "gloo", "nccl")
) -> SearchStrategy[ClusterSpec]:
    """Random clusters; shrinks towards few workers."""

    def draw(most: int, seed: int) -> ClusterSpec:
        return random_cluster(random.Random(seed), max_workers=most, backends=backends)

    return st.builds(draw, st.integers(1, max_workers), st.integers(0, 2**32 - 1))


def _random_ready_order(rng: random.Random, count: int) -> list[int]:
    """Mostly the declaration reversed with a few exchanged, as residual blocks make it; sometimes any order."""
    order = list(range(count - 1, -1, -1))
    if rng.random() < 0.3:
        rng.shuffle(order)
    for _ in range(rng.choice((0, 1, 2))):
        left, right = rng.randrange(count), rng.randrange(count)
        order[left], order[right] = order[right], order[left]
    return order


def _random_variable(rng: random.Random, index: int, *, use: int, ready: int, dtype: DType) -> Variable:
    name = f"layers.{index}.weight"
    shape: tuple[int, ...]
    match rng.choice(("any", "convolution", "vector", "linear", "linear", "embedding")):
        case "linear":
            shape = (rng.choice(SIZES), rng.choice(SIZES))
            rows = rng.choice((1, 2, 4, 32))
            return Variable(name=name, shape=shape, dtype=dtype, kind="linear", use=use, ready=ready, factor_rows=rows)
        case "embedding":
            return _random_embedding(rng, name, use=use, ready=ready, dtype=dtype)
        case "convolution":
            shape = (rng.choice(SIZES), rng.choice(SIZES), *rng.choice(((1, 1), (3, 3), (1, 3))))
        case "vector":
            shape = (rng.choice((*SIZES, 1000)),)
        case _:
            shape = tuple(rng.choice(SIZES) for _ in range(rng.choice((0, 1, 2, 3))))
    aliases = (f"tied.{index}.weight",) if rng.random() < 0.1 else ()
    return Variable(name=name, shape=shape, dtype=dtype, use=use, ready=ready, aliases=aliases)


def _random_embedding(rng: random.Random, name: str, *, use: int, ready: int, dtype: DType) -> Variable:
    num_rows = rng.choice((*SIZES, 100))
    most = rng.randint(0, num_rows)
    mean = most * rng.choice((0.0, 0.25, 0.7, 1.0))
    shape = (num_rows, rng.choice(SIZES))
    return Variable(
        name=name,
        shape=shape,
        dtype=dtype,
        kind="embedding",
        use=use,
        ready=ready,
        touched_rows=mean,
        max_touched_rows=most,
        sparse=rng.random() < 0.5,
    )


def _random_untrained(rng: random.Random) -> tuple[Untrained, ...]:
    if rng.random() < 0.7:
        return ()
    return (
        Untrained(name="frozen.weight", shape=(3, 2), reason="frozen"),
        Untrained(name="idle.bias", shape=(5,), reason="unused"),
    )


def _random_timeline(rng: random.Random, variables: Sequence[Variable]) -> Timeline:
    by_use = sorted(variables, key=lambda variable: variable.use)
    by_ready = sorted(variables, key=lambda variable: variable.ready)

    def segments(ordered: Sequence[Variable]) -> tuple[Segment, ...]:
        return tuple(
            Segment(module=v.name.rpartition(".")[0], seconds=rng.choice((0.0, 1e-4, 1e-3)), variables=(v.name,))
            for v in ordered
        )

    return Timeline(
        device="none",
        source="computed",
        note="drawn at random",
        forward=segments(by_use),
        backward=segments(by_ready),
        optimizer=segments(by_ready),
    )


def _random_devices(rng: random.Random, num_workers: int) -> list[int]:
    """How many ranks each node has: one each, all on one, equally many, or any."""
    match rng.choice(("one each", "one node", "equal", "any")):
        case "one each":
            return [1] * num_workers
        case "one node":
            return [num_workers]
        case "equal":
            per_node = rng.choice([count for count in range(1, num_workers + 1) if num_workers % count == 0])
            return [per_node] * (num_workers // per_node)
        case _:
            devices: list[int] = []
            while sum(devices) < num_workers:
                devices.append(rng.randint(1, num_workers - sum(devices)))
            return devices


def _random_racks(rng: random.Random, num_nodes: int) -> tuple[Rack, ...]:
    if num_nodes < 2 or rng.random() < 0.6:
        return ()
    rate = rng.choice((0.5, 1.0, 4.0)) * GIGABIT_BYTES_PER_SECOND
    return tuple(Rack(name=f"rack{index}", uplink_out=rate, uplink_in=rate) for index in range(2))


def _random_node(
    rng: random.Random, index: int, *, role: Literal["worker", "server"], devices: int, rack: str | None
) -> Node:
    out = rng.choice((0.3, 1.0, 1.0, 10.0)) * GIGABIT_BYTES_PER_SECOND
    return Node(
        name=f"node{index}",
        host=f"10.0.0.{index + 1}",
        role=role,
        devices=devices,
        bandwidth_out=out,
        bandwidth_in=rng.choice((out, out, out / 2)),
        intra_bandwidth=rng.choice((None, 10 * out)) if devices > 1 else None,
        rack=rack,
    )


def _with_symmetry(rng: random.Random, nodes: tuple[Node, ...]) -> tuple[tuple[Node, ...], tuple[tuple[str, ...], ...]]:
    """Sometimes declare nodes of one role, size and rack alike, and give them the rates of the first."""
    if rng.random() < 0.5:
        return nodes, ()
    classes: dict[tuple[str, int, str | None], list[Node]] = {}
    for node in nodes:
        classes.setdefault((node.role, node.devices, node.rack), []).append(node)
    first_of = {node.name: members[0] for members in classes.values() for node in members}
    equal = tuple(_with_rates_of(node, first_of[node.name]) for node in nodes)
    alike = tuple(tuple(node.name for node in members) for members in classes.values() if len(members) > 1)
    return equal, alike


def _with_rates_of(node: Node, other: Node) -> Node:
    return Node(
        name=node.name,
        host=node.host,
        role=node.role,
        devices=node.devices,
        bandwidth_out=other.bandwidth_out,
        bandwidth_in=other.bandwidth_in,
        intra_bandwidth=other.intra_bandwidth,
        rack=node.rack,
    )
