"""Explanations and traces of simulated steps."""

from __future__ import annotations

import itertools
import json
import random
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from autosync.pictures.trace_file import choose_steps, read_trace
from autosync.simulators.timeline.simulator import TimelineSimulator
from autosync.specs.cluster import ClusterSpec, Node, Rack
from autosync.specs.cluster_file import load_cluster
from autosync.specs.model import ModelSpec, OptimizerSpec, Segment, Timeline, Variable
from autosync.specs.model_file import load_model
from autosync.strategy.presets import build_preset
from autosync.strategy.representation import Message, Strategy
from autosync.strategy.space import Space
from autosync.strategy.synchronisers.all_reduce import AllReduce
from autosync.strategy.synchronisers.parameter_server import ParameterServer
from tests.helpers.example_costs import GLOO
from tests.helpers.example_plans import cluster_of
from tests.helpers.random_specs import clusters, models


def two_layers() -> ModelSpec:
    """Two variables of 10 MB each; the second one's gradient is ready first."""
    variables = tuple(
        Variable(name=name, shape=(2_500_000,), use=use, ready=1 - use) for use, name in enumerate(("first", "second"))
    )
    timeline = Timeline(
        device="none",
        source="computed",
        forward=tuple(Segment(module=v.name, seconds=0.01, variables=(v.name,)) for v in variables),
        backward=tuple(Segment(module=v.name, seconds=0.02, variables=(v.name,)) for v in reversed(variables)),
    )
    return ModelSpec(name="two", optimizer=OptimizerSpec(name="SGD"), variables=variables, timeline=timeline)


RING = Strategy(
    messages=tuple(
        Message(parts=(name,), synchroniser=AllReduce(topology="ring"), lane=lane)
        for lane, name in enumerate(("second", "first"))
    )
)
SERVER = Strategy(
    overlap="forward", messages=(Message(parts=("second", "first"), synchroniser=ParameterServer(server="n0")),)
)


@pytest.mark.parametrize("strategy", [RING, SERVER], ids=["ring", "server"])
def test_the_critical_path_leads_through_the_step(strategy: Strategy) -> None:
    cluster = cluster_of(1, 1, 1)
    found = TimelineSimulator(two_layers(), cluster, costs=GLOO).explain(strategy)
    assert found.compute_seconds == pytest.approx(0.06)
    assert found.exposed_seconds == pytest.approx(found.seconds - 0.06)
    assert found.critical_path
    assert any(one.kind == "transfer" for one in found.critical_path)
    starts = [one.start_seconds for one in found.critical_path]
    assert starts == sorted(starts)
    assert all(one.seconds >= 0 for one in found.critical_path)


def test_compute_is_that_of_ranks_that_train() -> None:
    cluster = cluster_of(1, 1, 0)
    fast = replace(cluster, nodes=tuple([replace(one, compute=2.0) for one in cluster.nodes[:2]]) + cluster.nodes[2:])
    served = replace(SERVER, messages=(replace(SERVER.messages[0], synchroniser=ParameterServer(server="n2")),))
    assert TimelineSimulator(two_layers(), fast, costs=GLOO).explain(served).compute_seconds == pytest.approx(0.03)


@given(model=models(), cluster=clusters(backends=("gloo",)), seed=st.integers(0, 2**32 - 1))
def test_the_critical_path_of_any_strategy_goes_back_in_time_and_ends(
    model: ModelSpec, cluster: ClusterSpec, seed: int
) -> None:
    strategy = Space(model=model, cluster=cluster).sample(random.Random(seed))
    path = TimelineSimulator(model, cluster, costs=GLOO).explain(strategy).critical_path
    assert path
    assert all(one.seconds >= 0 for one in path)
    assert all(before.start_seconds <= after.start_seconds for before, after in itertools.pairwise(path))


def test_work_that_takes_no_time_is_passed_once() -> None:
    """Reference DDP ends with local work of no length; the way back must not stand still at it."""
    model, cluster = load_model("resnet18"), load_cluster("4-hosts")
    path = TimelineSimulator(model, cluster, costs=GLOO).explain(build_preset("ddp", model, cluster)).critical_path
    steps = [(one.operation, one.rank, one.start_seconds) for one in path]
    assert len(steps) == len(set(steps))
    assert path[0].start_seconds < path[-1].start_seconds


@pytest.mark.parametrize("preset", ["ddp", "horovod_fusion", "ps"])
def test_nothing_counts_twice(preset: str) -> None:
    """Stock DDP has two buckets under way at a time: what went on beside another one held it not up."""
    model, cluster = load_model("resnet18"), load_cluster("4-hosts")
    found = TimelineSimulator(model, cluster, costs=GLOO).explain(build_preset(preset, model, cluster))
    path = found.critical_path
    assert sum(one.seconds for one in path) <= found.seconds * 1.001
    assert all(before.end_seconds <= after.start_seconds + 1e-9 for before, after in itertools.pairwise(path))
    assert any(one.kind == "compute" for one in path)


def test_links_are_as_busy_as_their_bytes_make_them() -> None:
    """Of three in a ring each sends and receives 4/3 of 20 MB over 100 MB/s; the busiest link comes first."""
    found = TimelineSimulator(two_layers(), cluster_of(1, 1, 1), costs=replace(GLOO, payload_share=1.0)).explain(RING)
    shares = [link.busy_share for link in found.links]
    assert shares == pytest.approx([4 / 3 * 0.2 / found.seconds] * 6, rel=1e-3)
    with_server = TimelineSimulator(two_layers(), cluster_of(1, 1, 1), costs=GLOO).explain(SERVER)
    assert {link.link for link in with_server.links[:2]} == {"interface of n0, in", "interface of n0, out"}


@pytest.mark.parametrize("strategy", [RING, SERVER], ids=["ring", "server"])
def test_a_trace_is_read_as_the_runtimes_is(strategy: Strategy, tmp_path: Path) -> None:
    cluster = cluster_of(1, 1, 1)
    simulator = TimelineSimulator(two_layers(), cluster, costs=GLOO)
    path = tmp_path / "trace.json"
    path.write_text(json.dumps(simulator.trace(strategy)), encoding="utf-8")
    ranks = read_trace(path)
    assert [rank.name for rank in ranks] == [f"rank {number} on n{number}" for number in range(3)]
    (predicted,) = simulator.predict([strategy])
    step = choose_steps(ranks[0], 1)[0]
    assert step.end - step.start == pytest.approx(predicted.seconds, rel=0.02)
    for rank in ranks:
        kinds = {span.kind for span in rank.spans}
        assert {"compute", "wait", "transfer"} <= kinds
        names = [span.name for span in rank.spans if span.kind == "compute" and span.iteration == 1]
        assert names[:2] == ["forward", "backward"]
        assert np.all([span.end >= span.start for span in rank.spans])


def test_links_are_named_whole_and_uplinks_and_insides_are_among_them() -> None:
    nodes = tuple(
        Node(
            name=f"n{number}",
            host=f"n{number}",
            devices=2,
            bandwidth_out=1e8,
            bandwidth_in=1e8,
            intra_bandwidth=1e6 if number == 0 else None,
            rack="r1" if number == 0 else "r2",
        )
        for number in range(2)
    )
    racks = (Rack(name="r1", uplink_out=2e7, uplink_in=1e8), Rack(name="r2", uplink_out=1e8, uplink_in=1e8))
    cluster = ClusterSpec(name="racks", nodes=nodes, racks=racks)
    found = TimelineSimulator(two_layers(), cluster, costs=GLOO).explain(RING)
    shares = {one.link: one.busy_share for one in found.links}
    assert set(shares) == {
        *(f"interface of n{number}, {way}" for number in range(2) for way in ("out", "in")),
        *(f"uplink of rack r{number}, {way}" for number in (1, 2) for way in ("out", "in")),
        *(f"inside of n0, from rank {rank}" for rank in (0, 1)),
    }
    # Of four in a ring one rank of each node sends to the other node, and the slow inside holds all of them up.
    assert found.links[0].link == "inside of n0, from rank 0"
    assert shares["inside of n0, from rank 1"] == 0.0
    assert shares["uplink of rack r1, out"] == pytest.approx(5 * shares["interface of n0, out"], rel=1e-6)
    assert shares["uplink of rack r1, in"] == pytest.approx(shares["interface of n0, in"], rel=1e-6)
