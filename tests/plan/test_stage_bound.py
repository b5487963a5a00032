"""The bound of strategies with stages: no played division is faster, and its terms are those of docs and words."""

import random
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from autosync.plan.lowering import lower
from autosync.plan.stage_bound import least_divided_memory, stage_bound
from autosync.simulators.shared.costs import usual_costs
from autosync.simulators.stages.stage_player import play_stages
from autosync.specs.cluster import ClusterSpec, Node, Rack
from autosync.specs.model import OptimizerSpec
from autosync.strategy.dividing.divided import divided_strategy
from autosync.strategy.stages import ModelStage
from tests.helpers.staged_models import chain, random_division


@given(seed=st.integers(0, 2**32), slowness=st.sampled_from([1.0, 1e-6, 1e-7]))
@settings(max_examples=60, deadline=None)
def test_no_division_is_faster(seed: int, slowness: float) -> None:
    rng = random.Random(seed)
    strategy, model, cluster = random_division(rng)
    nodes = tuple(
        replace(
            node,
            bandwidth_out=node.bandwidth_out * slowness,
            bandwidth_in=node.bandwidth_in * slowness,
            compute=rng.choice((1.0, 2.0)),
        )
        for node in cluster.nodes
    )
    cluster = _in_two_racks(replace(cluster, nodes=nodes), rng) if rng.random() < 0.5 else replace(cluster, nodes=nodes)
    limit = stage_bound(model, cluster)
    if limit is None:
        return
    played = play_stages(lower(strategy, model, cluster), model, cluster, usual_costs(cluster))
    assert limit.seconds <= played.seconds * (1 + 1e-9)


def _in_two_racks(cluster: ClusterSpec, rng: random.Random) -> ClusterSpec:
    rates = [rng.choice((1e8, 1000.0, 100.0, 10.0)) for _ in range(2)]
    racks = tuple(Rack(name=f"r{place}", uplink_out=rate, uplink_in=rate) for place, rate in enumerate(rates))
    return replace(
        cluster, racks=racks, nodes=tuple(replace(node, rack=f"r{rng.randrange(2)}") for node in cluster.nodes)
    )


def _racks(rate: float, sizes: tuple[int, int] = (2, 2)) -> ClusterSpec:
    return ClusterSpec(
        name="racks",
        racks=(Rack(name="r1", uplink_out=rate, uplink_in=rate), Rack(name="r2", uplink_out=rate, uplink_in=rate)),
        nodes=tuple(
            Node(name=f"n{i}", host=f"n{i}", bandwidth_out=1e8, bandwidth_in=1e8, rack="r1" if i < sizes[0] else "r2")
            for i in range(sum(sizes))
        ),
    )


def test_compute_is_that_of_all_devices_together() -> None:
    model = chain(4, batch_size=8)
    limit = stage_bound(model, _racks(1e8))
    assert limit is not None
    # A rank's batch takes 12 seconds, and each of four ranks computes as much.
    assert limit.seconds == pytest.approx(12.0)
    assert limit.largest.kind == "divided_compute"
    assert str(limit.largest) == "12 s: forward and backward of the whole batch on all devices"


def test_uplinks_bound_what_crosses_the_cheapest_cut() -> None:
    model = chain(4, batch_size=8, sizes=[1000, 200, 1000])
    slow = stage_bound(model, _racks(4.0))
    assert slow is not None
    assert slow.largest.kind == "divided_rack_out"
    # 25.6 kB of activations cross for all examples, and a seventh of them at least: the gradients are fewer here.
    assert slow.largest.num_bytes == pytest.approx(model.num_bytes)
    faster = stage_bound(replace(model, timeline=model.timeline.dilated(1e-4)), _racks(400.0))
    assert faster is not None
    # Compute takes no time beside it: so the other rack could do nearly all of it, but for what every rank computes.
    assert faster.seconds == pytest.approx(min(model.num_bytes, 25600 / 7) / 400)


@pytest.mark.parametrize("rate", [500.0, 1000.0, 2300.0, 5000.0, 1e4, 1e5])
def test_a_rack_with_most_of_the_compute_passes_most_microbatches_alone(rate: float) -> None:
    """Seven hosts in one rack and one in another: only what the one computes of the first stage crosses the uplinks."""
    model = chain(2, batch_size=7, seconds=[7.0, 1.0], sizes=[1000])
    large = replace(model.variable("w1"), shape=(100_000, 3))
    model = replace(model, variables=tuple(large if one.name == "w1" else one for one in model.variables))
    cluster = _racks(rate, sizes=(7, 1))
    stages = [ModelStage(before=0, ranks=(0, 1, 2, 3, 4, 5, 7)), ModelStage(before=1, ranks=(6,))]
    limit = stage_bound(model, cluster)
    assert limit is not None
    plan = lower(divided_strategy(model, stages, 56, slack=4), model, cluster)
    assert limit.seconds <= play_stages(plan, model, cluster, usual_costs(cluster)).seconds * (1 + 1e-9)


def test_there_is_none_without_stages() -> None:
    model = chain(4)
    assert stage_bound(replace(model, loss_scaling=True), _racks(1e8)) is None


def test_memory_is_the_whole_model_and_a_share_of_the_rest() -> None:
    model = replace(chain(4), optimizer=OptimizerSpec(name="AdamW", state_slots=2))
    assert least_divided_memory(model, _racks(1e8)) == pytest.approx(model.num_bytes * (1 + 3 / 4))


def test_a_pod_has_all_nodes_behind_its_uplink() -> None:
    """Two nodes in a rack of the pod, one directly in the pod, and three elsewhere."""
    flat = _racks(768.0, sizes=(3, 3))
    pod, other = flat.racks
    inner = Rack(name="inner", uplink_out=1e8, uplink_in=1e8, rack=pod.name)
    inside = [replace(node, rack="inner") for node in flat.nodes[:2]]
    podded = replace(flat, racks=(pod, other, inner), nodes=(*inside, *flat.nodes[2:]))
    model = chain(4, batch_size=8, sizes=[1000, 200, 1000])
    large = replace(model.variable("w1"), shape=(100_000, 3))
    model = replace(model, variables=tuple(large if one.name == "w1" else one for one in model.variables))
    of_pod = []
    for cluster in (podded, flat):
        limit = stage_bound(model, cluster)
        assert limit is not None
        of_pod.append([(one.kind, one.seconds) for one in limit.terms if one.subject == pod.name])
    assert len(of_pod[0]) == 2
    assert of_pod[0] == of_pod[1]
