"""Plans simulated message by message: results that can be computed by hand, and rules that hold for all plans."""

from __future__ import annotations

import random
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from autosync.plan.bound import bound
from autosync.plan.lowering import lower
from autosync.plan.traffic import amortised_traffic
from autosync.simulators.timeline.kernel import play
from autosync.simulators.timeline.links import network_of
from autosync.simulators.timeline.processors import work
from autosync.simulators.timeline.scene import DUE, RANK_STATE, Heap, Scene
from autosync.simulators.timeline.simulator import TimelineSimulator, steady_seconds
from autosync.specs.cluster import ClusterSpec, Rack
from autosync.specs.costs import Costs
from autosync.specs.model import ModelSpec
from autosync.strategy.representation import Message, Strategy
from autosync.strategy.space import Space
from autosync.strategy.synchronisers.all_reduce import AllReduce
from autosync.strategy.synchronisers.parameter_server import ParameterServer
from autosync.testing.simulators import FREE, two_layers
from tests.helpers.example_costs import GLOO
from tests.helpers.example_plans import cluster_of
from tests.helpers.random_specs import random_cluster, random_model

EVEN = cluster_of(1, 1, 1, 1)

RATE = 1e8


def seconds_of(strategy: Strategy, model: ModelSpec, cluster: ClusterSpec, costs: Costs = FREE) -> float:
    (found,) = TimelineSimulator(model, cluster, costs=costs).predict([strategy])
    return found.seconds


def one_message(synchroniser: AllReduce | ParameterServer) -> Strategy:
    return Strategy(messages=(Message(parts=("second", "first"), synchroniser=synchroniser),))


@pytest.mark.parametrize("topology", ["native", "ring"])
def test_a_message_after_all_compute_takes_its_time_on_the_wire(topology: str) -> None:
    """20 MB among two hosts: each sends half of it twice. Requests stand behind what goes the same way."""
    strategy = one_message(AllReduce(topology="ring" if topology == "ring" else "native"))
    found = seconds_of(strategy, two_layers(), cluster_of(1, 1))
    assert 0.06 + 20e6 / RATE <= found * (1 + 1e-9) <= (0.06 + 20e6 / RATE) * 1.05


@pytest.mark.parametrize(("topology", "to"), [("native", -1), ("ring", 1)])
def test_a_ring_goes_the_way_of_its_maker(topology: str, to: int) -> None:
    """gloo's goes down, the engine's up."""
    strategy = one_message(AllReduce(topology="ring" if topology == "ring" else "native"))
    scene = TimelineSimulator(two_layers(), cluster_of(1, 1, 1, 1), costs=GLOO).scene(strategy, every_rank=True)
    ranks = scene.parts["rank"]
    ways = {(int(ranks[one["source"]]), int(ranks[one["destination"]])) for one in scene.channels}
    assert ways == {(rank, (rank + to) % 4) for rank in range(4)}


def test_what_is_ready_first_hides_behind_the_rest_of_backward() -> None:
    strategy = Strategy(messages=(Message(parts=("second",)), Message(parts=("first",))))
    found = seconds_of(strategy, two_layers(), cluster_of(1, 1))
    assert found == pytest.approx(0.04 + 2 * 10e6 / RATE, rel=1e-4)


def test_a_server_with_many_workers_is_slowed_by_its_own_link() -> None:
    """Four workers beside a server: its link carries 4 times the gradients in, and 4 times the parameters out.

    Whoever has its parameters first begins its next step a piece's time earlier.
    """
    cluster = cluster_of(1, 1, 1, 1, 0)
    found = seconds_of(one_message(ParameterServer(server="n4")), two_layers(), cluster)
    assert found == pytest.approx(0.06 + 2 * 4 * 20e6 / RATE, rel=5e-3)


def test_the_slowest_link_decides_a_ring() -> None:
    cluster = cluster_of(1, 1, 1)
    slow = replace(cluster.nodes[1], bandwidth_out=RATE / 4)
    nodes = (cluster.nodes[0], slow, cluster.nodes[2])
    found = seconds_of(one_message(AllReduce(topology="ring")), two_layers(), replace(cluster, nodes=nodes))
    assert found == pytest.approx(0.06 + 4 / 3 * 20e6 / (RATE / 4), rel=0.02)


def test_a_tree_waits_where_its_links_stand_idle() -> None:
    """Four members: the root's link takes in two whole buffers and gives out two, one pair after the other at most."""
    found = seconds_of(one_message(AllReduce(topology="tree")), two_layers(), cluster_of(1, 1, 1, 1))
    assert 0.06 + 2 * 20e6 / RATE < found < 0.06 + 4 * 20e6 / RATE + 0.02


def test_late_requests_do_not_matter_where_slices_are_asked_for_before_their_turn() -> None:
    """Into the slow node comes what one server sends: what the other asks of it comes late, and is asked for early."""
    cluster = cluster_of(1, 1, 1)
    slow = replace(cluster.nodes[2], bandwidth_out=RATE / 2, bandwidth_in=RATE / 2)
    cluster = replace(cluster, nodes=(*cluster.nodes[:2], slow))
    messages = tuple(
        Message(
            parts=(name,),
            lane=lane,
            synchroniser=ParameterServer(server=f"n{lane}", update="worker"),
            slice_bytes=3_000_000,
        )
        for lane, name in enumerate(("second", "first"))
    )
    costs = replace(FREE, hop_seconds=1e-4, queued_seconds=0.0)
    at_once, in_line = (
        seconds_of(Strategy(messages=messages), two_layers(), cluster, replace(costs, bytes_queued=num_bytes))
        for num_bytes in (0.0, 1e9)
    )
    assert in_line == pytest.approx(at_once, rel=0.01)


def test_requests_are_late_behind_what_others_send_on_their_link() -> None:
    """Two hosts of two ranks in a ring: one rank of each sends to the other host, and the other one asks for more."""
    message = Message(parts=("second", "first"), synchroniser=AllReduce(topology="ring"))
    at_once, in_line = (
        seconds_of(Strategy(messages=(message,)), two_layers(), cluster_of(2, 2), replace(FREE, queued_seconds=seconds))
        for seconds in (0.0, 8e-3)
    )
    assert in_line > at_once + 6e-3


def test_requests_wait_for_what_stands_before_the_receiver_when_they_get_there() -> None:
    """A fast host fills the queue of a slow one. What the slow one's other neighbour asks for comes late, and a link
    that has bytes to send stands idle for about a segment's time.
    """
    cluster = cluster_of(1, 1, 1, 1)
    slow = tuple(replace(node, bandwidth_out=RATE / 2, bandwidth_in=RATE / 2) for node in cluster.nodes[2:])
    unequal = replace(cluster, nodes=(*cluster.nodes[:2], *slow))
    costs = replace(FREE, queued_seconds=8e-3)
    passed, behind = (
        seconds_of(one_message(AllReduce()), two_layers(), unequal, replace(costs, bytes_queued=num_bytes))
        for num_bytes in (0.0, 5.8e6)
    )
    assert behind > passed + 5e-3
    # Among equal hosts nothing stands before a receiver.
    passed, behind = (
        seconds_of(one_message(AllReduce()), two_layers(), cluster, replace(costs, bytes_queued=num_bytes))
        for num_bytes in (0.0, 5.8e6)
    )
    assert behind == pytest.approx(passed, rel=1e-3)


@pytest.mark.parametrize(
    ("free", "python_free", "end", "left"),
    [
        # Its Python is free at 5: the processor that is free just then, and the other one stays with others.
        ([5.0, 0.0], 5.0, 7.0, [7.0, 0.0]),
        # Both are free by then: the later one, for the other can do something before.
        ([1.0, 3.0], 5.0, 7.0, [1.0, 7.0]),
        # None is: the first that will be.
        ([9.0, 6.0], 5.0, 8.0, [9.0, 8.0]),
        ([6.0, 9.0], 5.0, 8.0, [8.0, 9.0]),
        # One is: that one, in whatever order.
        ([6.0, 2.0], 5.0, 7.0, [6.0, 7.0]),
        ([2.0, 6.0], 5.0, 7.0, [7.0, 6.0]),
    ],
)
def test_work_takes_the_processor_that_others_can_use_least(
    free: list[float], python_free: float, end: float, left: list[float]
) -> None:
    heap = Heap(np.zeros(1), np.empty(0, DUE), np.empty(0, np.int64), np.zeros(4, np.int64))
    # Compiled code reads fields as attributes, as records let Python do.
    ranks, processor_free = np.zeros(1, RANK_STATE).view(np.recarray), np.array(free)
    ranks["python_free"] = python_free
    assert work.py_func(heap, ranks, processor_free, 0, 2.0, 1.0) == end
    assert processor_free.tolist() == left
    assert ranks["python_free"].tolist() == [end - 1.0]


def test_work_on_shared_processors_takes_turns() -> None:
    """The same plan where all ranks' work is done by two processors, or by each one's own."""
    model, cluster = two_layers(), cluster_of(1, 1, 1, 1)
    costs = GLOO
    apart = seconds_of(one_message(AllReduce(topology="ring")), model, cluster, costs)
    shared = seconds_of(one_message(AllReduce(topology="ring")), model, cluster, replace(costs, num_processors=2))
    assert shared > apart


@pytest.mark.parametrize(("ranks", "pays"), [((1, 1), True), ((2,), False)], ids=["two nodes", "one node"])
def test_bytes_that_stay_within_a_node_cost_less(ranks: tuple[int, ...], pays: bool) -> None:
    strategy, model, cluster = one_message(AllReduce(topology="ring")), two_layers(), cluster_of(*ranks)
    free, dear = (
        seconds_of(
            strategy,
            model,
            cluster,
            replace(GLOO, num_processors=2, processor=replace(GLOO.processor, per_byte=per_byte)),
        )
        for per_byte in ((0.0, 0.0), (2e-8, 0.0))
    )
    assert (dear > 1.2 * free) if pays else (dear == free)


@pytest.mark.parametrize(("ahead", "is_early"), [(0.0, False), (40e6, True)])
def test_who_has_room_in_sockets_begins_the_next_step_before_others_have_the_last(ahead: float, is_early: bool) -> None:
    """A worker that serves as well: what both others have asked for, five pieces ahead, may be left in its sockets."""
    strategy, model, cluster = one_message(ParameterServer(server="n0")), two_layers(), cluster_of(1, 1, 1)
    ends = TimelineSimulator(model, cluster, costs=replace(FREE, bytes_ahead=ahead)).play(strategy).passed[0, :, -1]
    assert ends[1:].min() - ends[0] == pytest.approx(10 * 2**19 / RATE if is_early else 0.0, abs=2e-3)


def test_messages_go_on_while_torch_computes() -> None:
    """Averages of 50 ms on each of four ranks take two processors 100 ms: those of the first message are hidden, for
    the most part, behind the second one's transfer, which needs Python and processors too.
    """
    ring = AllReduce(topology="ring")
    strategy = Strategy(messages=tuple(Message(parts=(name,), synchroniser=ring) for name in ("second", "first")))
    at_once, slow = (
        seconds_of(
            strategy,
            two_layers(),
            cluster_of(1, 1, 1, 1),
            replace(GLOO, num_processors=2, local_rates={"average": 2.5e6 / seconds}),
        )
        for seconds in (1e-3, 50e-3)
    )
    assert 0.1 < slow - at_once < 0.17


def test_steps_of_hours_end() -> None:
    """In the least time that can be told from none a fast link sends more than a byte by then."""
    cluster, strategy = cluster_of(1, 1), one_message(ParameterServer(server="n0"))
    fast = replace(cluster, nodes=tuple(replace(node, bandwidth_out=25e9, bandwidth_in=25e9) for node in cluster.nodes))
    found = seconds_of(strategy, two_layers(backward=1e4), fast, GLOO)
    assert found == pytest.approx(2e4, rel=1e-3)


@pytest.mark.parametrize("topology", ["native", "ring"])
@pytest.mark.parametrize("num_hosts", [3, 8])
def test_one_rank_stands_for_all_that_do_alike(topology: str, num_hosts: int) -> None:
    """Of one merged message, and of two of the same size in two lanes (of the engine's: in one)."""
    model, cluster = two_layers(), cluster_of(*[1] * num_hosts)
    synchroniser = AllReduce(topology="ring" if topology == "ring" else "native")
    simulator = TimelineSimulator(model, cluster, costs=GLOO)
    for messages in (
        (Message(parts=("second", "first"), synchroniser=synchroniser),),
        (
            Message(parts=("second",), synchroniser=synchroniser, priority=1),
            Message(parts=("first",), synchroniser=synchroniser, lane=int(topology == "native")),
        ),
    ):
        strategy = Strategy(overlap="forward", messages=messages)
        one, every = simulator.scene(strategy), simulator.scene(strategy, every_rank=True)
        assert (len(one.trains), len(every.trains)) == (1, num_hosts)
        (predicted,) = simulator.predict([strategy])
        assert predicted.seconds == pytest.approx(steady_seconds(every, play(every, 8)), rel=1e-5)


def test_where_members_differ_each_is_played() -> None:
    """A tree has a root, halves are different ones, a slow host is like no other, shared processors are waited for,
    between two hosts requests go behind data, and behind another lane's.
    """
    model, cluster = two_layers(), cluster_of(1, 1, 1, 1)
    ring, slow = one_message(AllReduce(topology="ring")), replace(cluster.nodes[1], bandwidth_out=RATE / 2)
    uneven = replace(cluster, nodes=(cluster.nodes[0], slow, *cluster.nodes[2:]))
    names = ("second", "first")
    rings = [Message(parts=(name,), synchroniser=AllReduce(topology="ring"), lane=names.index(name)) for name in names]
    for strategy, where, costs in (
        (Strategy(messages=tuple(rings)), cluster, GLOO),
        (one_message(AllReduce(topology="tree")), cluster, GLOO),
        (one_message(AllReduce(topology="halving_doubling")), cluster, GLOO),
        (ring, uneven, GLOO),
        (ring, cluster, replace(GLOO, num_processors=2)),
        (ring, cluster_of(1, 1), GLOO),
    ):
        assert len(TimelineSimulator(model, where, costs=costs).scene(strategy).trains) == len(where.ranks)


def drawn(seed: int) -> tuple[Strategy, ModelSpec, ClusterSpec]:
    rng = random.Random(seed)
    model, cluster = random_model(rng), random_cluster(rng)
    return Space(model=model, cluster=cluster).sample(rng), model, cluster


def scene_of(strategy: Strategy, model: ModelSpec, cluster: ClusterSpec) -> Scene:
    scene: Scene = TimelineSimulator(model, cluster, costs=GLOO).scene(strategy, every_rank=True)
    return scene


@pytest.mark.parametrize("topology", ["native", "ring"])
@pytest.mark.parametrize("num_elements", [1, 2, 3, 4, 5, 7, 8, 9])
def test_a_ring_of_hardly_an_element_for_each_is_played(num_elements: int, topology: str) -> None:
    """Of a single element one member has a chunk, and the others have none: none stands for all."""
    first, second = two_layers().variables
    model = replace(two_layers(), variables=(replace(first, shape=(num_elements,)), second))
    messages = (Message(parts=(name,), synchroniser=AllReduce(topology=topology)) for name in ("second", "first"))  # type: ignore[arg-type]
    strategy, simulator = Strategy(messages=tuple(messages)), TimelineSimulator(model, EVEN, costs=GLOO)
    scene, every = (simulator.scene(strategy, every_rank=all_of_them) for all_of_them in (False, True))
    assert steady_seconds(scene, play(scene)) == pytest.approx(steady_seconds(every, play(every)), rel=0.01)


@settings(deadline=None, max_examples=50)
@given(seed=st.integers(0, 2**32))
def test_no_exact_plan_beats_the_bound(seed: int) -> None:
    strategy, model, cluster = drawn(seed)
    if strategy.is_exact:
        assert seconds_of(strategy, model, cluster) >= bound(model, cluster).seconds * (1 - 1e-3)


@settings(deadline=None, max_examples=50)
@given(seed=st.integers(0, 2**32))
def test_no_link_carries_more_than_its_rate(seed: int) -> None:
    """Whatever passes at once after a pause is made up for: shaped links and their queues lend, and do not give."""
    strategy, model, cluster = drawn(seed)
    first, *others = cluster.nodes
    slow = replace(first, bandwidth_in=first.bandwidth_in / 5)
    cluster = replace(cluster, nodes=(slow, *others), alike=(), launcher="testbed")
    traffic = amortised_traffic(lower(strategy, model, cluster), cluster)
    network = network_of(cluster, FREE)
    num_nodes = len(cluster.nodes)
    carried = np.concatenate([traffic.node_out, traffic.node_in, traffic.rack_out, traffic.rack_in])
    rates = np.concatenate([network.link_rate[:num_nodes], network.queue_rate])
    assert seconds_of(strategy, model, cluster) >= (carried / rates).max() * (1 - 1e-3)


def test_an_uplink_for_one_host_is_as_a_slower_link_of_that_host() -> None:
    """Two uplinks are on the way from host to host, and the second has nothing left to hold back."""
    nodes = cluster_of(1, 1).nodes
    racks = tuple(Rack(name=node.name, uplink_out=RATE / 2, uplink_in=RATE / 2) for node in nodes)
    racked = replace(cluster_of(1, 1), nodes=tuple(replace(node, rack=node.name) for node in nodes), racks=racks)
    slower = tuple(replace(node, bandwidth_out=RATE / 2, bandwidth_in=RATE / 2) for node in nodes)
    strategy = one_message(AllReduce(topology="ring"))
    expected = seconds_of(strategy, two_layers(), replace(cluster_of(1, 1), nodes=slower))
    assert seconds_of(strategy, two_layers(), racked) == pytest.approx(expected, rel=0.03)


@pytest.mark.parametrize("slow", ["pod", "rack"])
def test_uplinks_of_pods_are_on_the_way_too(slow: str) -> None:
    """A rack in a pod of its own: whichever uplink is the slower one, it is as a rack with that uplink."""
    nodes = tuple(replace(node, rack=f"r{number // 2}") for number, node in enumerate(cluster_of(1, 1, 1, 1).nodes))
    racks = tuple(Rack(name=f"r{number}", uplink_out=RATE, uplink_in=RATE / 2) for number in range(2))
    fast = tuple(replace(rack, uplink_out=8 * RATE, uplink_in=8 * RATE) for rack in racks)
    outer, inner = (racks, fast) if slow == "pod" else (fast, racks)
    pods = tuple(replace(rack, name=f"pod{number}") for number, rack in enumerate(outer))
    inside = tuple(replace(rack, rack=f"pod{number}") for number, rack in enumerate(inner))
    flat = replace(cluster_of(1, 1, 1, 1), nodes=nodes, racks=racks)
    strategy = one_message(AllReduce(topology="ring"))
    expected = seconds_of(strategy, two_layers(), flat)
    assert seconds_of(strategy, two_layers(), replace(flat, racks=(*pods, *inside))) == pytest.approx(
        expected, rel=1e-6
    )


# Here nodes have unequal numbers of ranks, and reduce among these at the same time.
@example(seed=29)
@example(seed=402)
@example(seed=488)
@settings(deadline=None, max_examples=50)
@given(seed=st.integers(0, 2**32))
def test_every_operation_of_a_step_takes_place(seed: int) -> None:
    """However lanes and gates hang together, every step ends, and everything that is due in it."""
    strategy, model, cluster = drawn(seed)
    simulator = TimelineSimulator(model, cluster, costs=GLOO)
    scene = simulator.scene(strategy, every_rank=True)
    outcome = simulator.play(strategy, count=2)
    assert len(outcome.step_ends) == 2
    due = scene.every[scene.parts["operation"]] == 1
    assert np.isfinite(outcome.ended[0][due]).all()
    assert (outcome.begun[0][due] <= outcome.ended[0][due]).all()


def test_transfers_are_asked_for_before_their_turn() -> None:
    """Twenty slices one after another to a server, as fast where messages take 2 ms on their way as where none."""
    model, cluster = two_layers(), cluster_of(1, 1)
    servers = ParameterServer(server=cluster.nodes[0].name)
    message = Message(parts=("second", "first"), synchroniser=servers, slice_bytes=1_000_000)
    near, far = (
        seconds_of(Strategy(messages=(message,)), model, cluster, replace(FREE, hop_seconds=seconds))
        for seconds in (0.0, 2e-3)
    )
    # Asked for in its turn each slice would wait for a request and for its first piece.
    assert far < near + 20e-3
