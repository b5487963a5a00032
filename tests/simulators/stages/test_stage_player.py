"""Played steps of plans with stages: their order is the plan's, and times follow from compute and links."""

import itertools
import random
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from autosync.plan.lowering import lower
from autosync.plan.rank_passes import passes_of
from autosync.plan.types import Transfer
from autosync.simulators.shared.costs import usual_costs
from autosync.simulators.stages.stage_links import StageLinks
from autosync.simulators.stages.stage_player import play_stages
from autosync.specs.cluster import ClusterSpec, Node, Rack
from autosync.specs.model import ModelSpec
from autosync.specs.shaping import bucket
from autosync.strategy.dividing.divided import divided_strategy
from autosync.strategy.stages import ModelStage, PipelineSchedule
from autosync.strategy.synchronisers.all_reduce import AllReduce, Route
from tests.helpers.probed_clusters import with_probed_rates
from tests.helpers.staged_models import chain, nodes, random_division


@given(seed=st.integers(0, 2**32))
@settings(max_examples=40, deadline=None)
def test_every_pass_is_played_once_and_in_order(seed: int) -> None:
    strategy, model, cluster = random_division(random.Random(seed))
    plan = lower(strategy, model, cluster)
    played = play_stages(plan, model, cluster, usual_costs(cluster))
    if not plan.flushes:
        # Several steps are played, and no rank computes for longer than they take.
        for rank in range(plan.num_workers):
            mine = [one for one in played.passes if one.rank == rank]
            assert len(mine) > 2 * len(passes_of(plan, rank))
            assert all(first.end <= second.begin for first, second in itertools.pairwise(mine))
        computing = [one.end - one.begin for one in played.passes if one.rank == 0]
        assert played.seconds >= 0.99 * sum(computing) / len(computing) * len(passes_of(plan, 0))
        return
    assert len(played.passes) == (3 if plan.splits_backward else 2) * len(strategy.stages) * strategy.microbatches
    ends = {(one.kind, one.place.stage, one.place.microbatch): one.end for one in played.passes}
    for one in played.passes:
        stage, microbatch = one.place.stage, one.place.microbatch
        if one.kind == "forward" and stage:
            assert one.begin >= ends["forward", stage - 1, microbatch]
        if one.kind == "backward" and stage < len(strategy.stages) - 1:
            assert one.begin >= ends["backward", stage + 1, microbatch]
    assert played.seconds >= max(ends.values())


def test_on_fast_links_a_step_takes_its_compute_and_its_bubble() -> None:
    model, cluster = chain(4, batch_size=8), nodes(1, 1)
    fast = replace(cluster, nodes=tuple(replace(node, bandwidth_out=1e12, bandwidth_in=1e12) for node in cluster.nodes))
    stages = [ModelStage(before=2 * number, ranks=(number,)) for number in range(2)]
    played = play_stages(lower(divided_strategy(model, stages, 8), model, fast), model, fast, usual_costs(fast))
    # A layer takes three seconds for eight examples, and a microbatch has two.
    assert played.seconds == pytest.approx((8 + 1) * 2 * 3 * 2 / 8, rel=0.01)


def test_gradients_of_weights_of_linear_layers_fill_the_bubble() -> None:
    linear = chain(4, batch_size=8)
    linear = replace(linear, variables=tuple(replace(one, kind="linear", factor_rows=8) for one in linear.variables))
    fast = nodes(1, 1, 1, 1)
    fast = replace(fast, nodes=tuple(replace(node, bandwidth_out=1e12, bandwidth_in=1e12) for node in fast.nodes))
    stages = [ModelStage(before=number, ranks=(number,)) for number in range(4)]

    def seconds(model: ModelSpec, schedule: PipelineSchedule) -> float:
        plan = lower(divided_strategy(model, stages, 8, schedule), model, fast)
        return play_stages(plan, model, fast, usual_costs(fast)).seconds

    # Each of the three passes of a microbatch of four examples takes half a second.
    assert seconds(linear, "1f1b") == pytest.approx((3 * 8 + 3 * 3) * 0.5, rel=0.01)
    assert seconds(linear, "zero_bubble") == pytest.approx((3 * 8 + 3) * 0.5, rel=0.01)
    # Other layers compute all gradients at once.
    dense = chain(4, batch_size=8)
    assert seconds(dense, "zero_bubble") == pytest.approx(seconds(dense, "1f1b"), rel=0.1)


def test_without_a_flush_there_is_no_bubble() -> None:
    model, cluster = chain(4, batch_size=8), nodes(1, 1)
    fast = replace(cluster, nodes=tuple(replace(node, bandwidth_out=1e12, bandwidth_in=1e12) for node in cluster.nodes))
    stages = [ModelStage(before=2 * number, ranks=(number,)) for number in range(2)]
    played = play_stages(lower(divided_strategy(model, stages, 8, "2bw"), model, fast), model, fast, usual_costs(fast))
    # Each rank is always busy with its half of the layers, which take three seconds for eight examples.
    assert played.seconds == pytest.approx(2 * 3 * 2, rel=0.01)


@pytest.mark.parametrize("microbatches", [1, 2, 8])
def test_stages_that_stash_parameters_have_no_bubble_either(microbatches: int) -> None:
    model, cluster = chain(4, batch_size=8), nodes(1, 1, 1, 1)
    fast = replace(cluster, nodes=tuple(replace(node, bandwidth_out=1e12, bandwidth_in=1e12) for node in cluster.nodes))
    stages = [ModelStage(before=number, ranks=(number,)) for number in range(4)]
    plan = lower(divided_strategy(model, stages, microbatches, "stashing"), model, fast)
    # Each rank is always busy with its layer, which takes three seconds for eight of the 32 examples.
    assert play_stages(plan, model, fast, usual_costs(fast)).seconds == pytest.approx(3 * 4, rel=0.01)


def test_a_stage_that_stashes_waits_for_its_sums_and_2bw_does_not() -> None:
    model = chain(2, batch_size=8, seconds=[4.0, 1.0])
    cuts = tuple(replace(cut, num_bytes=0, constant_bytes=0, fixed_constant_bytes=0) for cut in model.timeline.cuts)
    model = replace(model, timeline=replace(model.timeline, cuts=cuts))
    size = model.variable("w0").num_bytes
    # Between two ranks, the sum of the first stage's gradient takes the time of its bytes: three seconds.
    three = nodes(1, 1, 1)
    rated = tuple(replace(node, bandwidth_out=size / 3.0, bandwidth_in=size / 3.0) for node in three.nodes)
    cluster = replace(three, nodes=rated)
    stages = [ModelStage(before=0, ranks=(0, 1)), ModelStage(before=1, ranks=(2,))]

    def seconds(schedule: PipelineSchedule) -> float:
        plan = lower(divided_strategy(model, stages, 12, schedule), model, cluster)
        return play_stages(plan, model, cluster, replace(usual_costs(cluster), payload_share=1.0)).seconds

    # The first stage takes 12 seconds for eight examples, and its ranks have twelve each.
    assert seconds("2bw") == pytest.approx(18.0, rel=0.01)
    assert seconds("stashing") == pytest.approx(18.0 + 3.0, rel=0.01)


def test_on_slow_links_a_step_takes_its_bytes() -> None:
    model = chain(2, batch_size=8, sizes=[1000])
    slow = ClusterSpec(
        name="slow",
        nodes=tuple(Node(name=f"n{i}", host=f"n{i}", bandwidth_out=100.0, bandwidth_in=100.0) for i in range(2)),
    )
    stages = [ModelStage(before=number, ranks=(number,)) for number in range(2)]
    played = play_stages(
        lower(divided_strategy(model, stages, 4, slack=4), model, slow), model, slow, usual_costs(slow)
    )
    wire = 2 * 8 * 1000 * 4 / 100.0
    assert wire < played.seconds < 1.6 * wire


@given(seed=st.integers(0, 2**32), rate=st.sampled_from([1e2, 1e3, 1e4]))
@settings(max_examples=60, deadline=None)
def test_no_step_is_shorter_than_all_bytes_of_the_busiest_link_take(seed: int, rate: float) -> None:
    strategy, model, cluster = random_division(random.Random(seed))
    cluster = _of_rate(cluster, rate)
    plan, costs = lower(strategy, model, cluster), usual_costs(cluster)
    transfers = [one for one in plan.operations if isinstance(one, Transfer)]
    assert play_stages(plan, model, cluster, costs).seconds >= (1 - 1e-9) * StageLinks(cluster, costs).seconds(
        transfers
    )


def test_sums_share_links_with_what_other_ranks_wait_for() -> None:
    model, cluster = chain(2, batch_size=8, sizes=[1000], seconds=[0.01, 0.01]), _of_rate(nodes(1, 1, 1, 1), 1000.0)
    heavy = replace(model, variables=(model.variables[0], replace(model.variables[1], shape=(4000,))))
    # Half of 32 examples come to the ranks 2 and 3 each. When these have computed all gradients, they still have to
    # send those of 15 examples or more, and the sum of 4000 weights.
    wire = (16 + 15) * 1000 * 4 / 1000.0 + 4000 * 4 / 1000.0
    assert wire < _seconds(heavy, cluster, "gpipe", (0, 1), (2, 3), microbatches=32) < 1.1 * wire


def test_bursts_shorten_steps_on_an_emulated_cluster() -> None:
    model, cluster = chain(2, batch_size=8, sizes=[1000]), _of_rate(nodes(1, 1), 1e5)
    saved = bucket(1e5).burst_bytes
    steps = [_seconds(model, one, "1f1b", (0,), (1,)) for one in (cluster, replace(cluster, launcher="testbed"))]
    # What each of the two links between the ranks has saved passes at once, once or more in each direction.
    assert steps[1] < steps[0] - saved / 1e5


def test_no_pass_waits_for_a_gradient_without_bytes() -> None:
    """A stage whose results need no gradient sends examples on, and goes on by itself."""
    model, cluster = chain(2, batch_size=8, seconds=[1.0, 1.0]), nodes(1, 1)
    cut = replace(model.timeline.cuts[0], num_bytes=0, constant_bytes=8, fixed_constant_bytes=8)
    model = replace(model, timeline=replace(model.timeline, cuts=(cut,)))
    stages = [ModelStage(before=number, ranks=(number,)) for number in range(2)]
    plan = lower(divided_strategy(model, stages, 4), model, cluster)
    played = play_stages(plan, model, cluster, usual_costs(cluster))
    first = [one for one in played.passes if one.rank == 0]
    assert all(one.end == pytest.approx(other.begin) for one, other in itertools.pairwise(first))


def test_each_pass_takes_the_time_of_a_local_operation_besides() -> None:
    model, cluster = chain(2, batch_size=8), nodes(1, 1)
    stages = [ModelStage(before=number, ranks=(number,)) for number in range(2)]
    plan, costs = lower(divided_strategy(model, stages, 4), model, cluster), usual_costs(cluster)
    usual = play_stages(plan, model, cluster, costs).passes
    slow = play_stages(plan, model, cluster, replace(costs, local_seconds=costs.local_seconds + 0.5)).passes
    lasted = [sorted((one.rank, one.kind, one.end - one.begin) for one in passes) for passes in (usual, slow)]
    assert all(after[2] == pytest.approx(before[2] + 0.5) for before, after in zip(*lasted, strict=True))


def test_a_sum_by_halving_and_doubling_crosses_a_rack_in_rounds_of_its_own() -> None:
    """While it does, the links inside racks are idle; a ring uses all links all the time."""
    model = chain(2, batch_size=8, sizes=[1])
    heavy = replace(model, variables=(replace(model.variables[0], shape=(4000,)), model.variables[1]))
    cluster = _of_rate(nodes(1, 1, 1, 1, 1), 1000.0)
    racks = (Rack(name="a", uplink_out=1000.0, uplink_in=1000.0), Rack(name="b", uplink_out=1000.0, uplink_in=1000.0))
    racked = replace(
        cluster,
        racks=racks,
        nodes=tuple(replace(one, rack="a" if place in (0, 1, 4) else "b") for place, one in enumerate(cluster.nodes)),
    )
    stages = [ModelStage(before=0, ranks=(0, 1, 2, 3)), ModelStage(before=1, ranks=(4,))]

    def seconds(topology: Route) -> float:
        strategy = divided_strategy(heavy, stages, 8, "gpipe")
        by = tuple(replace(one, synchroniser=AllReduce(topology=topology)) for one in strategy.messages)
        plan = lower(replace(strategy, messages=by), heavy, racked)
        return play_stages(plan, heavy, racked, replace(usual_costs(racked), payload_share=1.0)).seconds

    num_bytes = 4000 * 4
    # There and back, half of the bytes stay inside a rack, and then two ranks send a quarter each over its uplink.
    by_halves = 2 * (num_bytes / 2 + 2 * num_bytes / 4) / 1000.0
    by_ring = 2 * 3 / 4 * num_bytes / 1000.0
    assert seconds("halving_doubling") - seconds("ring") == pytest.approx(by_halves - by_ring, rel=0.05)


def _of_rate(cluster: ClusterSpec, rate: float, **facts: Any) -> ClusterSpec:
    """The cluster with interfaces of this rate, and with other facts of its nodes."""
    changed = tuple(replace(one, bandwidth_out=rate, bandwidth_in=rate, **facts) for one in cluster.nodes)
    return replace(cluster, nodes=changed)


def _seconds(
    model: ModelSpec, cluster: ClusterSpec, schedule: PipelineSchedule, *ranks: tuple[int, ...], microbatches: int = 12
) -> float:
    """The seconds of a step in stages of a layer each. All of a link's rate is payload."""
    stages = [ModelStage(before=number, ranks=some) for number, some in enumerate(ranks)]
    plan = lower(divided_strategy(model, stages, microbatches, schedule), model, cluster)
    return play_stages(plan, model, cluster, replace(usual_costs(cluster), payload_share=1.0)).seconds


@pytest.mark.parametrize("schedule", ["1f1b", "2bw", "stashing"])
def test_sends_and_sums_take_the_probed_rates(schedule: PipelineSchedule) -> None:
    model, cluster = chain(2, batch_size=8, sizes=[1000]), nodes(1, 1, 1)
    claimed, slower = _of_rate(cluster, 1e6), _of_rate(cluster, 1000.0)
    found = _seconds(model, with_probed_rates(claimed, rate_out=1000.0, rate_in=1000.0), schedule, (0, 1), (2,))
    assert found == pytest.approx(_seconds(model, slower, schedule, (0, 1), (2,)))
    assert found > 1.5 * _seconds(model, claimed, schedule, (0, 1), (2,))


def test_a_connection_uses_one_of_the_interfaces() -> None:
    model = chain(2, batch_size=8, sizes=[1000])
    two = _seconds(model, _of_rate(nodes(1, 1), 1000.0, nics=2), "1f1b", (0,), (1,), microbatches=4)
    assert two == pytest.approx(_seconds(model, _of_rate(nodes(1, 1), 500.0), "1f1b", (0,), (1,), microbatches=4))
    # All gradients of one stage: a ring has one connection out of each node.
    size = model.num_bytes
    alone = _seconds(model, _of_rate(nodes(1, 1), size, nics=2), "1f1b", (0, 1), microbatches=4)
    assert alone == pytest.approx(_seconds(model, _of_rate(nodes(1, 1), size / 2), "1f1b", (0, 1), microbatches=4))


def test_ranks_of_a_node_send_to_each_other_as_fast_as_its_links_within() -> None:
    model = chain(2, batch_size=8, sizes=[1000])
    apart = _seconds(model, _of_rate(nodes(1, 1), 1000.0), "1f1b", (0,), (1,), microbatches=4)
    for together in (
        _of_rate(nodes(2), 1e8, intra_bandwidth=1000.0),
        with_probed_rates(nodes(2), rate_within=1000.0),
        with_probed_rates(_of_rate(nodes(2), 1e8, intra_bandwidth=1.0), rate_within=1000.0),
    ):
        assert _seconds(model, together, "1f1b", (0,), (1,), microbatches=4) == pytest.approx(apart)


def test_sums_within_a_node_take_their_time() -> None:
    model = chain(2, batch_size=8, seconds=[4.0, 1.0])
    cuts = tuple(replace(cut, num_bytes=0, constant_bytes=0, fixed_constant_bytes=0) for cut in model.timeline.cuts)
    model = replace(model, timeline=replace(model.timeline, cuts=cuts))
    cluster, third = nodes(2, 1), model.variable("w0").num_bytes / 3.0
    fast = _seconds(model, cluster, "stashing", (0, 1), (2,))
    assert fast == pytest.approx(18.0, rel=0.01)
    # Each of two ranks sends as many bytes as the gradient has.
    for slow in (
        _of_rate(cluster, 1e8, intra_bandwidth=third),
        with_probed_rates(cluster, rate_within=third),
        _of_rate(cluster, 1e8, intra_total=2 * third),
    ):
        assert _seconds(model, slow, "stashing", (0, 1), (2,)) == pytest.approx(fast + 3.0, rel=0.01)


def test_sums_of_several_stages_share_the_links_that_they_cross() -> None:
    model = chain(2, batch_size=8, seconds=[4.0, 1.0])
    cluster = nodes(2, 2)
    fast = _seconds(model, cluster, "1f1b", (0, 2), (1, 3))
    # Between two ranks, each sends as many bytes as a gradient has: those of both stages take 100 seconds.
    found = _seconds(model, _of_rate(cluster, model.num_bytes / 100.0, intra_bandwidth=1e9), "1f1b", (0, 2), (1, 3))
    assert 100.0 <= found <= 100.0 + fast + 1.0


def test_sends_to_other_nodes_pass_what_ranks_share_inside_theirs() -> None:
    model = chain(2, batch_size=8, sizes=[1000])
    narrow = _seconds(model, _of_rate(nodes(1, 1), 1e8, intra_total=500.0), "gpipe", (0,), (1,), microbatches=4)
    assert narrow == pytest.approx(_seconds(model, _of_rate(nodes(1, 1), 500.0), "gpipe", (0,), (1,), microbatches=4))
