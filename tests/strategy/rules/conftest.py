"""A model and clusters small enough to see through, for the tests that break one rule at a time."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from autosync.specs.cluster import ClusterSpec, Node
from autosync.specs.model import ModelSpec, OptimizerSpec, Timeline, Variable
from autosync.strategy.representation import Message, Strategy

SGD = OptimizerSpec(name="SGD", sparse=True)

VARIABLES = (
    Variable(name="table", shape=(100, 8), kind="embedding", touched_rows=10.0, max_touched_rows=32, use=0, ready=4),
    Variable(name="fc.weight", shape=(16, 8), kind="linear", factor_rows=4, use=1, ready=3),
    Variable(name="fc.bias", shape=(16,), use=2, ready=2),
    Variable(name="half", shape=(6, 6), dtype="float16", use=3, ready=1),
    Variable(name="scale", shape=(), use=4, ready=0),
)


@pytest.fixture
def model() -> ModelSpec:
    """An embedding, a linear layer, a half-precision matrix and a scalar, in an optimizer that takes anything."""
    timeline = Timeline(device="none", source="computed", forward=(), backward=())
    return ModelSpec(name="small", optimizer=SGD, variables=VARIABLES, timeline=timeline)


def _node(name: str, **fields: Any) -> Node:
    return Node(name=name, host=name, bandwidth_out=1e8, bandwidth_in=1e8, **fields)


@pytest.fixture
def cluster() -> ClusterSpec:
    """Three workers on three nodes and a server without a device."""
    nodes = (_node("a"), _node("b"), _node("c"), _node("s", role="server", devices=0))
    return ClusterSpec(name="three", nodes=nodes)


@pytest.fixture
def make_cluster() -> Callable[..., ClusterSpec]:
    """Clusters by the number of ranks on each node; 0 is a server without a device."""

    def make(*devices: int, **fields: Any) -> ClusterSpec:
        nodes = tuple(
            _node("abcdefgh"[index], devices=count, role="worker" if count else "server")
            for index, count in enumerate(devices)
        )
        return replace(ClusterSpec(name="made", nodes=nodes), **fields)

    return make


@pytest.fixture
def make_strategy(model: ModelSpec) -> Callable[..., Strategy]:
    """A legal strategy: the messages given, and one for each variable of the model that is in none of them."""

    def make(*messages: Message, **fields: Any) -> Strategy:
        taken = {part.partition("[")[0] for message in messages for part in message.parts}
        rest = [Message(parts=(v.name,)) for v in model.variables if v.name not in taken]
        return Strategy(messages=(*messages, *rest), **fields)

    return make
