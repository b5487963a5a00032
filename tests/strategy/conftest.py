"""A small model and cluster, and one strategy for them that uses every aspect of the representation."""

import pytest

from autosync.specs.cluster import ClusterSpec, Node
from autosync.specs.model import ModelSpec, OptimizerSpec, Segment, Timeline, Variable
from autosync.strategy.codecs import Cast, Int8, PowerSGD
from autosync.strategy.parts import Partition
from autosync.strategy.representation import Message, Strategy
from autosync.strategy.synchronisers.all_reduce import AllReduce
from autosync.strategy.synchronisers.outer_optimizer import OuterOptimizer
from autosync.strategy.synchronisers.parameter_server import ParameterServer
from autosync.strategy.synchronisers.periodic import Periodic
from autosync.strategy.synchronisers.sharded import Sharded
from autosync.strategy.synchronisers.sparse_gather import SparseGather
from autosync.strategy.synchronisers.sufficient_factors import SufficientFactors

SHAPES = {"table": (100, 8), "fc1": (64, 32), "fc2": (64, 64), "fc3": (10, 64), "bias": (10,), "norm": (64,)}


@pytest.fixture
def model() -> ModelSpec:
    def variable(position: int, name: str, shape: tuple[int, ...]) -> Variable:
        order = {"use": position, "ready": len(SHAPES) - 1 - position}
        if name == "table":
            return Variable(name=name, shape=shape, kind="embedding", touched_rows=9.5, max_touched_rows=16, **order)
        if name.startswith("fc"):
            return Variable(name=name, shape=shape, kind="linear", factor_rows=4, **order)
        return Variable(name=name, shape=shape, **order)

    variables = tuple(variable(position, name, shape) for position, (name, shape) in enumerate(SHAPES.items()))
    segment = Segment(module="all", seconds=0.1, variables=tuple(SHAPES))
    timeline = Timeline(device="cpu", source="computed", forward=(segment,), backward=(segment,))
    optimizer = OptimizerSpec(name="SGD", sparse=True)
    return ModelSpec(name="small", optimizer=optimizer, variables=variables, timeline=timeline)


@pytest.fixture
def cluster() -> ClusterSpec:
    nodes = tuple(
        Node(name=f"node-{i}", host=f"host-{i}", devices=2, bandwidth_out=1e8, bandwidth_in=1e8) for i in range(4)
    )
    return ClusterSpec(name="four", nodes=nodes, alike=(("node-0", "node-1", "node-2", "node-3"),))


@pytest.fixture
def strategy() -> Strategy:
    """Legal for the model on the cluster; every aspect has a value other than its default somewhere."""
    proxy = ParameterServer(server="node-1", local_proxy=True)
    stale = ParameterServer(server="node-2", staleness=2)
    outer = OuterOptimizer(learning_rate=0.5, momentum=0.75)
    return Strategy(
        name="all aspects",
        overlap="forward",
        partitions={
            "fc1": Partition(sizes=(20, 44)),
            "fc2": Partition(axis=1, sizes=(10, 10, 20, 24)),
            "table": Partition(sizes=(60, 40)),
        },
        messages=(
            Message(parts=("fc1[0]",), synchroniser=SufficientFactors(topology="ring"), priority=3),
            Message(parts=("fc1[1]", "fc2[2]"), synchroniser=proxy, codec=Cast(dtype="float16"), lane=1),
            Message(parts=("fc2[0]",), synchroniser=stale, codec=Int8(block=64, error_feedback=True)),
            Message(parts=("fc2[1]",), synchroniser=Sharded(topology="halving_doubling"), slice_bytes=1024),
            Message(parts=("fc2[3]",), synchroniser=AllReduce(), codec=PowerSGD(rank=2)),
            Message(parts=("fc3", "bias"), synchroniser=AllReduce(topology="tree", hierarchical=True), lane=2),
            Message(parts=("norm",), synchroniser=Periodic(every=8, topology="ring", outer=outer)),
            Message(parts=("table[0]",), synchroniser=SparseGather(topology="ring")),
            Message(parts=("table[1]",), synchroniser=ParameterServer(server="node-3", sparse=True)),
        ),
    )
