"""One node that stands for all is predicted as all are, and only nodes that do the same are represented by one."""

from __future__ import annotations

import functools
import itertools
from dataclasses import replace

import pytest

from autosync.errors import DoesNotApplyError
from autosync.plan.expansion import expand, ring_moves
from autosync.plan.lowering import lower
from autosync.plan.tables import tables_of
from autosync.plan.types import Collective
from autosync.simulators.large_clusters import most_detailed
from autosync.simulators.timeline import scene_builder
from autosync.simulators.timeline.message_counts import num_messages
from autosync.simulators.timeline.one_node import EqualNodes, moves_of_node, senders_to_node
from autosync.simulators.timeline.simulator import TimelineSimulator
from autosync.specs.cluster import ClusterSpec, Node
from autosync.specs.model import ModelSpec
from autosync.specs.model_file import load_model
from autosync.strategy.presets import build_preset, preset_names
from autosync.testing.simulators import two_layers
from tests.helpers.example_plans import cluster_of
from tests.helpers.probed_clusters import with_probed_rates

AROUND: tuple[Collective, ...] = ("all_reduce", "reduce_scatter", "all_gather")
EVERYWHERE = ("ddp", "all_reduce_per_variable", "hierarchical", "horovod_fusion", "fsdp", "sharded")


def racks_of(num_nodes: int, per_node: int, rate: float = 1.25e9) -> ClusterSpec:
    nodes = [
        Node(
            name=f"n{number}",
            host=f"n{number}",
            devices=per_node,
            bandwidth_out=rate,
            bandwidth_in=rate,
            intra_bandwidth=10e9,
        )
        for number in range(num_nodes)
    ]
    return ClusterSpec(name="equal", nodes=tuple(nodes))


def both(preset: str, model: ModelSpec, cluster: ClusterSpec) -> tuple[float, float, bool]:
    """Return the seconds of a preset played on one node and on all, and whether one node was enough."""
    strategy = build_preset(preset, model, cluster)
    coarse = TimelineSimulator(model, cluster, coarse=True)
    (one,), (every,) = coarse.predict([strategy]), TimelineSimulator(model, cluster, coarse=False).predict([strategy])
    return one.seconds, every.seconds, len(coarse.scene(strategy).trains) < len(cluster.ranks)


@pytest.mark.parametrize("collective", AROUND)
@pytest.mark.parametrize("size", [2, 3, 6])
def test_moves_of_some_members_are_those_among_all(collective: Collective, size: int) -> None:
    every = sorted(expand(collective, "ring", size))
    for count in (1, 2, size):
        for members in itertools.combinations(range(size), count):
            assert sorted(ring_moves(collective, size, members)) == [one for one in every if one.source in members]


@pytest.mark.parametrize("collective", AROUND)
@pytest.mark.parametrize(("num_nodes", "per_node"), [(2, 2), (3, 1), (4, 3)])
def test_as_much_comes_to_a_node_in_a_round_as_leaves_it(collective: Collective, num_nodes: int, per_node: int) -> None:
    nodes, group = EqualNodes(num_nodes, per_node), tuple(range(num_nodes * per_node))
    moves = ring_moves(collective, len(group), senders_to_node(group, nodes))
    found = list(moves_of_node(moves, group, nodes))
    comes = {(one.round, one.destination, one.first) for one in expand(collective, "ring", len(group))}
    assert len(found) == len({one.round for one in (pair.move for pair in found)}) * per_node
    for pair in found:
        assert (pair.came.round, pair.came.destination, pair.came.first) in comes
        assert (pair.move.source, pair.move.destination) == (pair.came.source, pair.came.destination)


@pytest.mark.parametrize("preset", EVERYWHERE)
@pytest.mark.parametrize(("num_nodes", "per_node"), [(3, 2), (4, 3), (5, 1)])
def test_one_node_stands_for_all_that_do_the_same(
    monkeypatch: pytest.MonkeyPatch, preset: str, num_nodes: int, per_node: int
) -> None:
    """Also if the order of messages is chance, and there are very many."""
    monkeypatch.setattr(scene_builder, "FEW_MESSAGES", 0)
    cluster = racks_of(num_nodes, per_node, 1e8)
    try:
        one, every, is_one = both(preset, two_layers(), cluster)
    except DoesNotApplyError:
        pytest.skip("the preset does not apply")
    assert is_one
    assert one == pytest.approx(every, rel=0.03)


def test_few_messages_in_an_order_of_chance_are_all_played() -> None:
    one, every, is_one = both("ddp", two_layers(), racks_of(3, 2))
    assert not is_one
    assert one == every


@pytest.mark.parametrize(("num_nodes", "num_lanes", "num_played"), [(4, 1, 4), (4, 4, 16), (20, 4, 4)])
def test_collectives_in_several_lanes_are_all_played_where_few_ranks_share_links(
    num_nodes: int, num_lanes: int, num_played: int
) -> None:
    model, cluster = load_model("lstm_ptb"), racks_of(num_nodes, 4)
    preset = build_preset("bytescheduler", model, cluster)
    messages = [replace(message, lane=place % num_lanes) for place, message in enumerate(preset.messages)]
    scene = TimelineSimulator(model, cluster, coarse=True).scene(replace(preset, messages=tuple(messages)))
    assert len(scene.trains) == num_played


def test_lanes_of_nccl_do_not_drift() -> None:
    model, cluster = load_model("lstm_ptb"), replace(racks_of(4, 4), backend="nccl")
    preset = build_preset("all_reduce_per_variable", model, cluster)
    messages = [replace(message, lane=place % 4) for place, message in enumerate(preset.messages)]
    strategy = replace(preset, messages=tuple(messages))
    coarse, fine = TimelineSimulator(model, cluster), TimelineSimulator(model, cluster, coarse=False)
    assert len(coarse.scene(strategy).trains) == cluster.nodes[0].devices
    assert coarse.predict([strategy])[0].seconds == pytest.approx(fine.predict([strategy])[0].seconds, rel=0.001)


@pytest.mark.parametrize("backend", ["gloo", "nccl"])
def test_messages_of_fewer_elements_than_ranks_do_not_tell_nodes_apart(backend: str) -> None:
    model, cluster = load_model("bert_tiny"), replace(racks_of(24, 4), backend=backend)
    assert min(variable.num_elements for variable in model.variables) < len(cluster.ranks)
    strategy = build_preset("all_reduce_per_variable", model, cluster)
    coarse, fine = TimelineSimulator(model, cluster), TimelineSimulator(model, cluster, coarse=False)
    assert len(coarse.scene(strategy).trains) == cluster.nodes[0].devices
    assert coarse.predict([strategy])[0].seconds == pytest.approx(fine.predict([strategy])[0].seconds, rel=0.003)


def test_servers_differ_from_other_nodes() -> None:
    one, every, is_one = both("ps", two_layers(), racks_of(3, 2))
    assert not is_one
    assert one == every


def test_unequal_nodes_are_all_played() -> None:
    model, cluster = two_layers(), cluster_of(2, 2, 1)
    scene = TimelineSimulator(model, cluster, coarse=True).scene(build_preset("ddp", model, cluster))
    assert len(scene.trains) == len(cluster.ranks)


def test_one_node_stands_for_nodes_whose_probed_rates_differ_little(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scene_builder, "FEW_MESSAGES", 0)
    plain = racks_of(3, 2, 1e8)
    unlike = tuple(replace(node, memory_bytes=2**39 + number) for number, node in enumerate(plain.nodes))
    rates = {"rate_in": [97e6, 98e6, 96e6], "rate_within": [8e9, 8.1e9, 8.2e9]}
    one, every, is_one = both(
        "ddp", two_layers(), with_probed_rates(replace(plain, nodes=unlike), rate_out=[98e6, 96e6, 97e6], **rates)
    )
    assert is_one
    assert one == pytest.approx(every, rel=0.03)
    assert not both("ddp", two_layers(), with_probed_rates(plain, rate_out=[97e6, 97e6, 60e6], **rates))[2]


def test_on_a_small_cluster_every_probed_link_is_played() -> None:
    model, cluster = two_layers(), with_probed_rates(racks_of(3, 1, 1e8), rate_out=[98e6, 96e6, 97e6])
    scene = TimelineSimulator(model, cluster).scene(build_preset("all_reduce_per_variable", model, cluster))
    assert len(scene.trains) == 3


@pytest.mark.parametrize("preset", ["ddp", "ps", "sharded", "hierarchical"])
def test_messages_are_counted_without_listing_them(preset: str) -> None:
    model, cluster = two_layers(), racks_of(3, 2)
    strategy = build_preset(preset, model, cluster)
    scene = TimelineSimulator(model, cluster).scene(strategy, every_rank=True)
    found = num_messages(tables_of(lower(strategy, model, cluster)))
    assert found == pytest.approx(len(scene.message_bytes), rel=0.3)


@functools.cache
def resnet() -> ModelSpec:
    return load_model("resnet50")


@pytest.mark.slow
@pytest.mark.parametrize("preset", preset_names())
@pytest.mark.parametrize(
    ("name", "num_ranks"),
    [("resnet50", 24), ("resnet50", 64), ("resnet50", 96), ("lstm_ptb", 24), ("lstm_ptb", 48), ("resnet18", 32)],
)
def test_every_preset_is_predicted_alike_coarsely_and_finely(preset: str, name: str, num_ranks: int) -> None:
    cluster = racks_of(num_ranks // 4, 4)
    try:
        one, every, _ = both(preset, load_model(name), cluster)
    except DoesNotApplyError:
        pytest.skip("the preset does not apply")
    assert one == pytest.approx(every, rel=0.03)


@pytest.mark.slow
def test_there_is_no_cliff_beyond_64_ranks() -> None:
    found = []
    for num_nodes in (16, 17):
        cluster = racks_of(num_nodes, 4)
        strategy = build_preset("horovod_fusion", resnet(), cluster)
        (one,) = most_detailed(resnet(), cluster).predict([strategy])
        found.append(one.seconds)
    assert found[1] == pytest.approx(found[0], rel=0.1)


@pytest.mark.slow
@pytest.mark.parametrize("preset", ["horovod_fusion", "ps_load_balanced"])
def test_on_both_sides_of_64_ranks_a_step_is_predicted_as_if_all_were_played(preset: str) -> None:
    # Servers have other variables on another number of nodes, so their steps differ from one side to the other.
    for num_nodes in (16, 17):
        cluster = racks_of(num_nodes, 4)
        strategy = build_preset(preset, resnet(), cluster)
        (found,) = most_detailed(resnet(), cluster).predict([strategy])
        (every,) = TimelineSimulator(resnet(), cluster, coarse=False).predict([strategy])
        assert found.seconds == pytest.approx(every.seconds, rel=0.03)
