"""plan_id: the same for all names of alike nodes, another for every other plan."""

import os
import random
import subprocess
import sys
from dataclasses import replace

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from autosync.plan.identity import plan_id
from autosync.plan.lowering import lower
from autosync.specs.cluster import ClusterSpec, Node
from autosync.specs.model import ModelSpec, OptimizerSpec, Timeline, Variable
from autosync.strategy.canonical import strategy_id
from autosync.strategy.representation import Message, Strategy
from autosync.strategy.space import Limits, Space
from autosync.strategy.synchronisers.all_reduce import AllReduce
from autosync.strategy.synchronisers.base import Synchroniser
from autosync.strategy.synchronisers.parameter_server import ParameterServer
from tests.helpers.random_specs import clusters, models


def identity(strategy: Strategy, model: ModelSpec, cluster: ClusterSpec) -> str:
    return plan_id(lower(strategy, model, cluster), cluster)


def renamed(strategy: Strategy, names: dict[str, str]) -> Strategy:
    """The strategy with other servers."""

    def message(given: Message) -> Message:
        synchroniser = given.synchroniser
        if isinstance(synchroniser, ParameterServer):
            synchroniser = replace(synchroniser, server=names[synchroniser.server])
        return replace(given, synchroniser=synchroniser)

    return replace(strategy, messages=tuple(message(one) for one in strategy.messages))


def exchange(cluster: ClusterSpec, rng: random.Random) -> dict[str, str]:
    """Each node's new name: that of one declared like it."""
    names = {node.name: node.name for node in cluster.nodes}
    for alike in cluster.alike:
        names |= zip(alike, rng.sample(alike, len(alike)), strict=True)
    return names


def cluster_of(*devices: int, alike: tuple[tuple[int, ...], ...]) -> ClusterSpec:
    nodes = tuple(
        Node(
            name=f"n{index}",
            host=f"n{index}",
            role="worker" if count else "server",
            devices=count,
            bandwidth_out=1e8,
            bandwidth_in=1e8,
        )
        for index, count in enumerate(devices)
    )
    return ClusterSpec(name="test", nodes=nodes, alike=tuple(tuple(f"n{i}" for i in places) for places in alike))


def model_of(num_variables: int, *, clip_norm: float | None = None) -> ModelSpec:
    return ModelSpec(
        name="test",
        clip_norm=clip_norm,
        optimizer=OptimizerSpec(name="SGD"),
        variables=tuple(Variable(name=f"v{i}", shape=(64,), use=i, ready=i) for i in range(num_variables)),
        timeline=Timeline(device="none", source="computed", forward=(), backward=()),
    )


def one_each(*synchronisers: Synchroniser) -> Strategy:
    messages = tuple(Message(parts=(f"v{i}",), synchroniser=one) for i, one in enumerate(synchronisers))
    return Strategy(messages=messages)


def served_by(*servers: str) -> Strategy:
    return one_each(*(ParameterServer(server=server) for server in servers))


FOUR = cluster_of(1, 1, 1, 1, alike=((0, 1, 2, 3),))


@given(models(), clusters(max_workers=8), st.integers(0, 2**32 - 1))
def test_names_of_alike_nodes_make_no_difference(model: ModelSpec, cluster: ClusterSpec, seed: int) -> None:
    rng = random.Random(seed)
    strategy = Space(model=model, cluster=cluster, limits=Limits(allow=("lossy", "stale"))).sample(rng)
    other = renamed(strategy, exchange(cluster, rng))
    assert identity(strategy, model, cluster) == identity(other, model, cluster)


@pytest.mark.parametrize("num_nodes", [2, 5, 9])
def test_any_exchange_of_many_servers(num_nodes: int) -> None:
    rng = random.Random(num_nodes)
    cluster = cluster_of(*[2] * num_nodes, *[0] * 3, alike=(tuple(range(num_nodes)), (num_nodes, num_nodes + 2)))
    for _ in range(20):
        servers = [rng.choice(cluster.nodes).name for _ in range(8)]
        proxies = [rng.random() < 0.5 for _ in servers]
        strategy = one_each(
            *(ParameterServer(server=s, local_proxy=p) for s, p in zip(servers, proxies, strict=True)), AllReduce()
        )
        other = renamed(strategy, exchange(cluster, rng))
        model = model_of(9)
        assert identity(strategy, model, cluster) == identity(other, model, cluster)


def test_tasks_that_clip() -> None:
    model = model_of(3, clip_norm=1.0)
    strategies = [
        one_each(AllReduce(), ParameterServer(server=first), ParameterServer(server=second))
        for first, second in (("n0", "n1"), ("n1", "n0"), ("n2", "n0"), ("n3", "n2"))
    ]
    assert len({identity(strategy, model, FOUR) for strategy in strategies}) == 1


def test_nodes_that_are_not_alike_make_a_difference() -> None:
    cluster = cluster_of(1, 1, 1, 1, alike=((0, 1), (2, 3)))
    ids = {name: identity(served_by(name), model_of(1), cluster) for name in ("n0", "n1", "n2", "n3")}
    assert ids["n0"] == ids["n1"]
    assert ids["n2"] == ids["n3"]
    assert ids["n0"] != ids["n2"]


def test_without_declared_symmetry_every_node_is_itself() -> None:
    cluster = cluster_of(1, 1, 1, alike=())
    assert len({identity(served_by(f"n{i}"), model_of(1), cluster) for i in range(3)}) == 3


def test_who_serves_with_whom_makes_a_difference() -> None:
    """AABB, ABAB, ABBA and AAAB … are as many plans as there are ways to share four variables out among nodes."""
    model = model_of(4)
    ids = {
        identity(served_by(*(f"n{place}" for place in (a, b, c, d))), model, FOUR)
        for a in range(4)
        for b in range(4)
        for c in range(4)
        for d in range(4)
    }
    assert len(ids) == 15, "the number of partitions of a set of four"


@given(models(), clusters(), st.integers(0, 2**32 - 1))
def test_different_strategies_on_unlike_nodes_have_different_plans(
    model: ModelSpec, cluster: ClusterSpec, seed: int
) -> None:
    """Where no node is like another, equal plan ids mean equal plans."""
    cluster = replace(cluster, alike=())
    space, rng = Space(model=model, cluster=cluster), random.Random(seed)
    first = space.sample(rng)
    second = space.mutate(first, rng)
    assume(strategy_id(first, model, cluster) != strategy_id(second, model, cluster))
    plans = [lower(strategy, model, cluster) for strategy in (first, second)]
    # Messages and the number of lanes are told to people: what no rank sends may be in any lane.
    same = replace(plans[0], messages=(), num_lanes=1) == replace(plans[1], messages=(), num_lanes=1)
    assert (plan_id(plans[0], cluster) == plan_id(plans[1], cluster)) == same


PROGRAM = """
from autosync.plan.identity import plan_id
from autosync.plan.lowering import lower
from autosync.specs.cluster_file import load_cluster, shipped_clusters
from autosync.specs.model_file import load_model, shipped_models
from autosync.strategy.presets import build_preset

model, cluster = load_model(str(shipped_models()["dlrm"])), load_cluster(shipped_clusters()["4-hosts-2-servers"])
print(plan_id(lower(build_preset("parallax", model, cluster), model, cluster), cluster))
"""


def test_it_is_the_same_in_every_process() -> None:
    """Sets have another order in each process; a plan and its identity must not."""
    found = {
        subprocess.run(
            [sys.executable, "-c", PROGRAM],
            env={**os.environ, "PYTHONHASHSEED": seed},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for seed in ("1", "2")
    }
    assert len(found) == 1


def test_every_fact_counts() -> None:
    """Take any field of a plan another way, and the identity is another."""
    model = model_of(2, clip_norm=1.0)
    plan = lower(one_each(AllReduce(), ParameterServer(server="n1")), model, FOUR)
    transfer = next(i for i, o in enumerate(plan.operations) if hasattr(o, "lane"))
    local = next(i for i, o in enumerate(plan.operations) if hasattr(o, "sharded"))

    def with_operation(place: int, **changes: object) -> object:
        operations = list(plan.operations)
        operations[place] = operations[place]._replace(**changes)
        return replace(plan, operations=tuple(operations))

    others = [
        replace(plan, model="other"),
        replace(plan, cluster="other"),
        replace(plan, overlap="forward"),
        replace(plan, backend="nccl"),
        replace(plan, clip_norm=2.0),
        replace(plan, regions=plan.regions[::-1]),
        replace(plan, gates=plan.gates[::-1]),
        replace(plan, operations=plan.operations[:-1]),
        with_operation(transfer, algorithm="tree"),
        with_operation(transfer, groups=((0, 1),)),
        with_operation(transfer, within=((0, 1), (2, 3))),
        with_operation(transfer, num_elements=3),
        with_operation(transfer, item_bytes=3),
        with_operation(transfer, lane=3),
        with_operation(transfer, priority=3),
        with_operation(transfer, after=()),
        with_operation(transfer, every=3),
        with_operation(local, kind="copy"),
        with_operation(local, groups=((0, 1),)),
        with_operation(local, sharded=True),
        with_operation(local, outputs=()),
        with_operation(local, every=3),
    ]
    assert len({plan_id(other, FOUR) for other in (plan, *others)}) == 1 + len(others)
