"""No exact strategy moves less, or is faster, than the bound says."""

import math
import random
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from autosync.plan.bound import bound
from autosync.plan.bound_terms import Bound, Term
from autosync.plan.lowering import lower
from autosync.plan.traffic import Traffic, plan_traffic
from autosync.plan.types import Plan
from autosync.runtime.varying.expected_bytes import expected_traffic
from autosync.specs.cluster import ClusterSpec, Node, Rack
from autosync.specs.model import ModelSpec, OptimizerSpec, Segment, Timeline, Variable
from autosync.specs.use_sample import sample_of
from autosync.strategy.representation import Message, Strategy
from autosync.strategy.space import Space
from autosync.strategy.synchronisers.all_reduce import AllReduce
from autosync.strategy.synchronisers.parameter_server import ParameterServer
from autosync.strategy.synchronisers.sharded import Sharded
from tests.helpers.random_specs import clusters, models
from tests.helpers.use_samples import with_uses

MEGABYTE = 1_000_000


RATE = 1e8


def worker(name: str, *, devices: int = 1, rate: float = RATE, into: float = 0, rack: str | None = None) -> Node:
    return Node(name=name, host=name, devices=devices, bandwidth_out=rate, bandwidth_in=into or rate, rack=rack)


def server(name: str, *, rate: float = RATE) -> Node:
    return Node(name=name, host=name, role="server", devices=0, bandwidth_out=rate, bandwidth_in=rate)


def cluster_of(*nodes: Node, racks: Sequence[Rack] = ()) -> ClusterSpec:
    return ClusterSpec(name="test", nodes=nodes, racks=tuple(racks))


def model_of(
    *variables: Variable,
    forward: Sequence[tuple[float, tuple[str, ...]]] = (),
    backward: Sequence[tuple[float, tuple[str, ...]]] = (),
    accumulation_steps: int = 1,
    clip_norm: float | None = None,
) -> ModelSpec:
    def segments(given: Sequence[tuple[float, tuple[str, ...]]]) -> tuple[Segment, ...]:
        return tuple(Segment(module="m", seconds=seconds, variables=names) for seconds, names in given)

    return ModelSpec(
        name="test",
        accumulation_steps=accumulation_steps,
        clip_norm=clip_norm,
        optimizer=OptimizerSpec(name="SGD", sparse=True),
        variables=variables,
        timeline=Timeline(
            device="none",
            source="computed",
            forward=segments(forward),
            backward=segments(backward),
            optimizer=(Segment(module="m", seconds=100.0),),
        ),
    )


def dense(name: str = "w", num_elements: int = MEGABYTE, *, use: int = 0, ready: int = 0) -> Variable:
    return Variable(name=name, shape=(num_elements,), use=use, ready=ready)


def term(found: Bound, kind: str, subject: str = "") -> Term:
    (chosen,) = [one for one in found.terms if one.kind == kind and one.subject == subject]
    return chosen


def embedding() -> Variable:
    return Variable(
        name="table",
        shape=(10_000, 16),
        kind="embedding",
        touched_rows=50.5,
        max_touched_rows=100,
        use=0,
        ready=0,
    )


def exchange_seconds(
    variables: Sequence[Variable],
    forward: Sequence[tuple[float, tuple[str, ...]]],
    backward: Sequence[tuple[float, tuple[str, ...]]],
) -> float:
    """A step of two equal nodes that send whatever is ready and used first, and may change their minds at any time."""
    clock, arrived, starts = 0.0, dict.fromkeys((one.name for one in variables), 0.0), list[float]()
    order = {one.name: one.use for one in variables}
    for _ in range(30):
        for seconds, (name,) in forward:
            clock = max(clock, arrived[name]) + seconds
        ready = []
        for seconds, (name,) in backward:
            clock += seconds
            ready.append((clock, name))
        arrived = preemptive(ready, {one.name: one.num_bytes / RATE for one in variables}, order)
        starts.append(clock)
    return (starts[-1] - starts[9]) / 20


def preemptive(ready: Sequence[tuple[float, str]], left: dict[str, float], order: dict[str, int]) -> dict[str, float]:
    """When each is there, where the most urgent of what is ready has the link."""
    clock, arrived, coming = 0.0, dict[str, float](), sorted(ready)
    waiting: set[str] = set()
    while coming or waiting:
        if not waiting:
            clock = max(clock, coming[0][0])
        while coming and coming[0][0] <= clock:
            waiting.add(coming.pop(0)[1])
        urgent = min(waiting, key=lambda name: order[name])
        spent = min(left[urgent], coming[0][0] - clock) if coming else left[urgent]
        clock, left[urgent] = clock + spent, left[urgent] - spent
        if left[urgent] <= 1e-12:
            arrived[urgent] = clock
            waiting.remove(urgent)
    return arrived


@pytest.mark.parametrize("seed", range(20))
def test_use_to_use_is_below_what_an_ideal_exchange_takes(seed: int) -> None:
    """Every node sends to every other as if it were alone on the wire; no steady state is faster than the term."""
    rng = random.Random(seed)
    nodes = [
        worker(f"n{i}", rate=rng.choice((1.0, 2.0, 5.0)) * RATE, into=rng.choice((1.0, 2.0, 5.0)) * RATE)
        for i in range(rng.randint(2, 5))
    ]
    model = model_of(dense(), forward=[(0.01, ("w",))], backward=[(0.02, ("w",))])
    used = [rng.random() * 0.01 for _ in nodes]
    num_steps = 2000
    start = max(used)
    for _ in range(num_steps):
        ready = [clock + 0.03 for clock in used]
        used = [
            max(
                when + (4 * MEGABYTE / min(source.bandwidth_out, target.bandwidth_in) if source is not target else 0.0)
                for source, when in zip(nodes, ready, strict=True)
            )
            for target in nodes
        ]
    period = (max(used) - start) / num_steps
    found = term(bound(model, cluster_of(*nodes)), "use_to_use", "w").seconds
    assert found <= period * 1.001
    if len({(node.bandwidth_out, node.bandwidth_in) for node in nodes}) == 1:
        assert found == pytest.approx(period, rel=1e-3)


def assert_moves_no_less(plan: Plan, model: ModelSpec, cluster: ClusterSpec, expected: Traffic | None = None) -> None:
    """No term about bytes is above what the plan moves, but for a planned number of rows being a whole one."""
    traffic = expected or plan_traffic(plan, cluster)
    rounded = sum(part.row_bytes for part in plan.parts if part.variable.kind == "embedding")
    num_nodes = sum(node.role == "worker" for node in cluster.nodes)
    weights = [1.0 if node.role == "worker" else (num_nodes - 2) / max(num_nodes - 1, 1) for node in cluster.nodes]
    total = min(float(np.dot(weights, way)) for way in (traffic.node_out, traffic.node_in))
    moved: dict[tuple[str, str], tuple[float, float]] = {("total", ""): (total, len(plan.ranks) ** 2)}
    weights = [1.0 if node.role == "worker" else (num_nodes - 2) / num_nodes for node in cluster.nodes]
    both_ways = sum(float(np.dot(weights, way)) for way in (traffic.node_out, traffic.node_in))
    moved["both_ways", ""] = (both_ways, 2 * len(plan.ranks) ** 2)
    for index, node in enumerate(cluster.nodes):
        moved["node_out", node.name] = (traffic.node_out[index], len(plan.ranks))
        moved["node_in", node.name] = (traffic.node_in[index], len(plan.ranks))
    for index, rack in enumerate(cluster.racks):
        moved["rack_out", rack.name] = (traffic.rack_out[index], len(plan.ranks))
        moved["rack_in", rack.name] = (traffic.rack_in[index], len(plan.ranks))
    least_way, both_ways = _moved_between_racks(traffic, cluster)
    moved["rack_total", ""] = (least_way, len(plan.ranks) ** 2)
    moved["rack_both_ways", ""] = (both_ways, 2 * len(plan.ranks) ** 2)
    for even_rows in (False, True):
        for one in bound(model, cluster, even_rows=even_rows).terms:
            if (one.kind, one.subject) in moved:
                num_bytes, num_roundings = moved[one.kind, one.subject]
                assert one.num_bytes <= num_bytes + rounded * num_roundings + 1e-6, (even_rows, one)


def _moved_between_racks(traffic: Traffic, cluster: ClusterSpec) -> tuple[float, float]:
    """The bytes that racks, and nodes without one, exchange: in the direction with less, and in both together.

    Those without workers count with less weight.
    """
    alone = [index for index, node in enumerate(cluster.nodes) if node.rack is None]
    trains = [any(n.rack == rack.name and n.role == "worker" for n in cluster.nodes) for rack in cluster.racks]
    trains += [cluster.nodes[index].role == "worker" for index in alone]
    count = sum(trains)
    ways = [
        np.array([*of_racks, *of_nodes[alone]])
        for of_racks, of_nodes in ((traffic.rack_out, traffic.node_out), (traffic.rack_in, traffic.node_in))
    ]

    def moved(help_of_others: float) -> list[float]:
        weights = [1.0 if one else help_of_others for one in trains]
        return [float(np.dot(weights, way)) for way in ways]

    return min(moved((count - 2) / max(count - 1, 1))), sum(moved((count - 2) / max(count, 1)))


@settings(max_examples=300)
@given(models(), clusters(), st.integers(0, 2**32 - 1))
def test_no_exact_strategy_moves_less(model: ModelSpec, cluster: ClusterSpec, seed: int) -> None:
    strategy = Space(model=model, cluster=cluster).sample(random.Random(seed))
    assert strategy.is_exact
    assert_moves_no_less(lower(strategy, model, cluster), model, cluster)


@settings(max_examples=300)
@given(models(), clusters(backends=["gloo"]), st.integers(0, 2**32 - 1))
def test_no_exact_strategy_moves_less_on_average_if_steps_use_different_variables(
    model: ModelSpec, cluster: ClusterSpec, seed: int
) -> None:
    rng = random.Random(seed)
    varying = with_uses(model, rng)
    plan = lower(Space(model=varying, cluster=cluster).sample(rng), varying, cluster)
    assert_moves_no_less(plan, varying, cluster, expected_traffic(plan, varying, cluster))
    less, more = _seconds_of_terms(bound(varying, cluster)), _seconds_of_terms(bound(model, cluster))
    assert all(seconds <= more[which] + 1e-12 for which, seconds in less.items())


def _seconds_of_terms(found: Bound) -> dict[tuple[str, str], float]:
    """The seconds of all terms. A window of one variable is no term of its own, so the longest of all counts."""
    seconds = {(one.kind, one.subject): one.seconds for one in found.terms if one.kind != "window"}
    spans = [one.seconds for one in found.terms if one.kind in ("window", "use_to_use")]
    return seconds | ({("window", ""): max(spans)} if spans else {})


def test_good_strategies_reach_it() -> None:
    """With equal hosts a ring, and with servers enough sharing out the parts, moves as little as the bound says."""
    model = model_of(dense("a"), dense("b", ready=1))
    hosts = [worker(f"n{index}") for index in range(4)]
    cluster = cluster_of(*hosts)
    for synchroniser in (AllReduce(topology="ring"), Sharded(), AllReduce(topology="halving_doubling")):
        strategy = Strategy(messages=(Message(parts=("a", "b"), synchroniser=synchroniser),))
        traffic = plan_traffic(lower(strategy, model, cluster), cluster)
        assert max(traffic.node_out) / RATE == pytest.approx(bound(model, cluster).seconds)
    with_servers = cluster_of(*hosts, server("s0", rate=4 * RATE), server("s1", rate=4 * RATE))
    shared_out = Strategy(
        messages=(
            Message(parts=("a",), synchroniser=ParameterServer(server="s0")),
            Message(parts=("b",), synchroniser=ParameterServer(server="s1")),
        )
    )
    traffic = plan_traffic(lower(shared_out, model, with_servers), with_servers)
    slowest = max(out / node.bandwidth_out for out, node in zip(traffic.node_out, with_servers.nodes, strict=True))
    found = bound(model, with_servers)
    assert math.isclose(slowest, found.seconds)
    assert found.largest.kind == "node_out"


@pytest.mark.parametrize("seed", range(20))
def test_no_exchange_is_faster_than_its_windows(seed: int) -> None:
    """Two nodes whose links carry gradients in the order of their uses, the best there is for any window."""
    rng = random.Random(seed)
    names = [f"v{number}" for number in range(6)]
    variables = [
        dense(name, rng.randint(1, 20) * 100_000, use=number, ready=5 - number) for number, name in enumerate(names)
    ]
    forward = [(rng.random() * 0.02, (name,)) for name in names]
    backward = [(rng.random() * 0.04, (name,)) for name in reversed(names)]
    found = bound(model_of(*variables, forward=forward, backward=backward), cluster_of(worker("a"), worker("b")))
    assert found.seconds <= exchange_seconds(variables, forward, backward) * 1.001


def varying_seconds(
    variables: Sequence[Variable],
    forward: Sequence[tuple[float, tuple[str, ...]]],
    backward: Sequence[tuple[float, tuple[str, ...]]],
    used: Sequence[frozenset[str]],
) -> float:
    """The mean step of two equal nodes if steps use these variables in turn, and the most urgent has the link."""
    sizes, order = {one.name: one.num_bytes / RATE for one in variables}, {one.name: one.use for one in variables}
    clock, left, starts = 0.0, dict[str, float](), list[float]()

    def compute(seconds: float) -> None:
        nonlocal clock
        clock += seconds
        while seconds > 0 and left:
            urgent = min(left, key=lambda name: order[name])
            spent = min(left[urgent], seconds)
            seconds, left[urgent] = seconds - spent, left[urgent] - spent
            if left[urgent] <= 0:
                del left[urgent]

    for number in range(30 * len(used)):
        starts.append(clock)
        for seconds, (name,) in forward:
            while name in used[number % len(used)] and name in left:
                clock += left.pop(min(left, key=lambda one: order[one]))
            compute(seconds)
        for seconds, (name,) in backward:
            compute(seconds)
            if name in used[number % len(used)]:
                left[name] = left.get(name, 0.0) + sizes[name]
    return (starts[20 * len(used)] - starts[10 * len(used)]) / (10 * len(used))


@pytest.mark.parametrize("seed", range(20))
def test_no_exchange_is_faster_if_steps_use_different_variables(seed: int) -> None:
    """A variable that the next step does not use has that step's compute to hide its transfer."""
    rng = random.Random(seed)
    names = [f"v{number}" for number in range(6)]
    variables = [
        dense(name, rng.randint(1, 8) * 100_000, use=number, ready=5 - number) for number, name in enumerate(names)
    ]
    forward = [(rng.random() * 0.02, (name,)) for name in names]
    backward = [(rng.random() * 0.04, (name,)) for name in reversed(names)]
    used = [frozenset(name for name in names if name == "v5" or rng.random() < 0.5) for _ in range(4)]
    sample = sample_of([used, used], names)
    assert sample is not None
    model = replace(model_of(*variables, forward=forward, backward=backward), use_sample=sample)
    found = bound(model, cluster_of(worker("a"), worker("b")))
    assert found.seconds <= varying_seconds(variables, forward, backward, used) * 1.001
