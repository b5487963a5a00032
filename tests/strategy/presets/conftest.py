"""Small models and clusters, written out."""

from collections.abc import Callable, Sequence
from typing import Any

import pytest

from autosync.specs.cluster import ClusterSpec, Node
from autosync.specs.model import ModelSpec, OptimizerSpec, Timeline, Variable

SGD = OptimizerSpec(name="SGD", sparse=True)
ADAM = OptimizerSpec(name="Adam", state_slots=2)
LAMB = OptimizerSpec(name="LAMB", elementwise=False, per_variable=True, state_slots=2)

GIGABIT = 125e6


def _variable(name: str, *shape: int, **fields: Any) -> dict[str, Any]:
    return {"name": name, "shape": shape, **fields}


def _model(*variables: dict[str, Any], optimizer: OptimizerSpec = SGD, **fields: Any) -> ModelSpec:
    """Used in the order written and ready in the reverse, where a variable does not say otherwise."""
    count = len(variables)
    return ModelSpec(
        name="small",
        optimizer=optimizer,
        variables=tuple(
            Variable(**{"use": index, "ready": count - 1 - index, **variable})
            for index, variable in enumerate(variables)
        ),
        timeline=Timeline(device="none", source="computed", forward=(), backward=()),
        **fields,
    )


def _cluster(devices: Sequence[int], *, servers: int = 0, gigabits: Sequence[float] = (), **fields: Any) -> ClusterSpec:
    """Workers n0, n1 … with these many ranks, then servers s0, s1 …; 1 Gbit/s where nothing else is said."""
    counts = [*devices, *[0] * servers]
    rates = [*gigabits, *[1.0] * (len(counts) - len(gigabits))]
    names = [f"n{index}" for index in range(len(devices))] + [f"s{index}" for index in range(servers)]
    nodes = tuple(
        Node(
            name=name,
            host=name,
            role="worker" if count else "server",
            devices=count,
            bandwidth_out=rate * GIGABIT,
            bandwidth_in=rate * GIGABIT,
        )
        for name, count, rate in zip(names, counts, rates, strict=True)
    )
    return ClusterSpec(name="small", nodes=nodes, **fields)


@pytest.fixture
def variable() -> Callable[..., dict[str, Any]]:
    return _variable


@pytest.fixture
def model() -> Callable[..., ModelSpec]:
    return _model


@pytest.fixture
def cluster() -> Callable[..., ClusterSpec]:
    return _cluster


@pytest.fixture
def optimizers() -> dict[str, OptimizerSpec]:
    return {"sgd": SGD, "adam": ADAM, "lamb": LAMB}
