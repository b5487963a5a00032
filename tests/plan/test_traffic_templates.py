"""Each template's bytes into and out of each node, by formulas written down here from what the synchroniser is."""

import math
from collections.abc import Callable, Sequence

import pytest

from autosync.plan.lowering import lower
from autosync.plan.rows import union_rows
from autosync.plan.traffic import Traffic, amortised_traffic, expanded_traffic, plan_traffic
from autosync.plan.types import Transfer
from autosync.specs.cluster import ClusterSpec, Node
from autosync.specs.model import ModelSpec, OptimizerSpec, Timeline, Variable
from autosync.strategy import legality
from autosync.strategy.codecs import Cast, Codec, Int8, PowerSGD
from autosync.strategy.representation import Message, Strategy
from autosync.strategy.synchronisers.all_reduce import AllReduce
from autosync.strategy.synchronisers.base import Synchroniser
from autosync.strategy.synchronisers.parameter_server import ParameterServer
from autosync.strategy.synchronisers.periodic import Periodic
from autosync.strategy.synchronisers.sharded import Sharded
from autosync.strategy.synchronisers.sparse_gather import SparseGather
from autosync.strategy.synchronisers.sufficient_factors import SufficientFactors

LENGTHS = (1, 2, 7, 12, 1000, 1001, 1007)
COUNTS = (2, 3, 4, 5, 6, 7, 8, 11, 16)


def cluster_of(*devices: int) -> ClusterSpec:
    """Nodes n0, n1 … with so many ranks each; 0 stands for a server-only node."""
    return ClusterSpec(
        name="test",
        nodes=tuple(
            Node(
                name=f"n{index}",
                host=f"n{index}",
                role="worker" if count else "server",
                devices=count,
                bandwidth_out=1e8,
                bandwidth_in=1e8,
            )
            for index, count in enumerate(devices)
        ),
    )


def traffic_of(
    variable: Variable,
    synchroniser: Synchroniser,
    cluster: ClusterSpec,
    *,
    codec: Codec | None = None,
    slice_bytes: int | None = None,
    measure: Callable[..., Traffic] = plan_traffic,
) -> Traffic:
    """The traffic of a model of one variable; on the way the closed form is held against the expansion."""
    model = ModelSpec(
        name="test",
        optimizer=OptimizerSpec(name="SGD", sparse=True),
        variables=(variable,),
        timeline=Timeline(device="none", source="computed", forward=(), backward=()),
    )
    message = Message(parts=(variable.name,), synchroniser=synchroniser, codec=codec, slice_bytes=slice_bytes)
    strategy = Strategy(messages=(message,))
    legality.check(strategy, model, cluster)
    plan = lower(strategy, model, cluster)
    expanded = [expanded_traffic(o, cluster).links for o in plan.operations if isinstance(o, Transfer)]
    assert plan_traffic(plan, cluster).links.tolist() == sum(expanded).tolist()
    return measure(plan, cluster)


def dense(num_elements: int) -> Variable:
    return Variable(name="w", shape=(num_elements,), use=0, ready=0)


def chunks(num_elements: int, n: int) -> list[int]:
    """Sizes in bytes of n shares of so many float32."""
    return [4 * len(range(index, num_elements, n)) for index in range(n)]


def assert_nodes(found: Traffic, out: Sequence[float], into: Sequence[float]) -> None:
    assert found.node_out.tolist() == pytest.approx(out, abs=0)
    assert found.node_in.tolist() == pytest.approx(into, abs=0)


@pytest.mark.parametrize("topology", ["ring", "native"])
@pytest.mark.parametrize("n", COUNTS)
@pytest.mark.parametrize("length", LENGTHS)
def test_ring(length: int, n: int, topology: str) -> None:
    """A member sends all but its own chunk, then all but its successor's; its predecessor does the same to it."""
    share, total = chunks(length, n), 4 * length
    found = traffic_of(dense(length), AllReduce(topology=topology), cluster_of(*[1] * n))
    out = [2 * total - share[i] - share[(i + 1) % n] for i in range(n)]
    into = [2 * total - share[i - 1] - share[i] for i in range(n)]
    assert_nodes(found, out, into)


@pytest.mark.parametrize("n", COUNTS)
@pytest.mark.parametrize("length", LENGTHS)
def test_tree(length: int, n: int) -> None:
    """Member i's children are i+1, i+2, i+4 … below its lowest bit; with them and its parent it exchanges all."""
    found = traffic_of(dense(length), AllReduce(topology="tree"), cluster_of(*[1] * n))
    neighbours = []
    for i in range(n):
        lowest_bit = i & -i if i else n
        children = sum(1 for level in range(n) if 2**level < lowest_bit and i + 2**level < n)
        neighbours.append(children + (i > 0))
    assert sum(neighbours) == 2 * (n - 1)
    expected = [4 * length * count for count in neighbours]
    assert_nodes(found, expected, expected)


@pytest.mark.parametrize("n", [n for n in COUNTS if n > 2])
@pytest.mark.parametrize("length", LENGTHS)
def test_halving_doubling(length: int, n: int) -> None:
    """Down to one's own block and up again; who is beyond the power of two gives all and gets all."""
    found = traffic_of(dense(length), AllReduce(topology="halving_doubling"), cluster_of(*[1] * n))
    share, total = chunks(length, n), 4 * length
    core = 2 ** int(math.log2(n))
    # The first chunks go in pairs where there are more chunks than members of the core.
    blocks, taken = [], 0
    for i in range(core):
        count = 2 if i < n - core else 1
        blocks.append(sum(share[taken : taken + count]))
        taken += count
    expected = []
    for i in range(core):
        distances = [2**level for level in range(int(math.log2(core)))]
        kept = sum(sum(blocks[i // d * d : i // d * d + d]) for d in distances)
        expected.append(total - blocks[i] + kept + (total if i < n - core else 0))
    expected += [total] * (n - core)
    assert_nodes(found, expected, expected)


@pytest.mark.parametrize(("num_nodes", "num_local"), [(2, 2), (4, 2), (3, 4), (5, 3)])
@pytest.mark.parametrize("length", [12, 1000, 1007])
def test_hierarchical_among_equal_nodes(length: int, num_nodes: int, num_local: int) -> None:
    """Each rank meets those of the same place on the other nodes with its share of the whole."""
    found = traffic_of(
        dense(length), AllReduce(topology="ring", hierarchical=True), cluster_of(*[num_local] * num_nodes)
    )
    out, into = [0] * num_nodes, [0] * num_nodes
    for own in chunks(length, num_local):
        share = chunks(own // 4, num_nodes)
        for i in range(num_nodes):
            out[i] += 2 * own - share[i] - share[(i + 1) % num_nodes]
            into[i] += 2 * own - share[i - 1] - share[i]
    assert_nodes(found, out, into)
    assert found.node_within.tolist() == [2 * (num_local - 1) * 4 * length] * num_nodes


def test_hierarchical_among_unequal_nodes_meets_through_leaders() -> None:
    found = traffic_of(dense(1000), AllReduce(topology="ring", hierarchical=True), cluster_of(1, 3, 2))
    share = chunks(1000, 3)
    assert_nodes(
        found,
        [8000 - share[i] - share[(i + 1) % 3] for i in range(3)],
        [8000 - share[i - 1] - share[i] for i in range(3)],
    )
    assert found.node_within.tolist() == [0, 2 * 2 * 4000, 2 * 4000]


@pytest.mark.parametrize("update", ["server", "worker"])
@pytest.mark.parametrize("slice_bytes", [None, 1024])
def test_server_on_a_workers_node(update: str, slice_bytes: int | None) -> None:
    """Every rank off the server's node sends and receives it once; those on it need no interface."""
    found = traffic_of(
        dense(1001), ParameterServer(server="n1", update=update), cluster_of(1, 2, 3), slice_bytes=slice_bytes
    )
    size = 4004
    expected = [size, 4 * size, 3 * size]
    assert_nodes(found, expected, expected)
    assert found.node_within.tolist() == [0, 2 * size, 0]


def test_server_on_a_node_of_its_own() -> None:
    found = traffic_of(dense(1001), ParameterServer(server="n3"), cluster_of(1, 2, 3, 0))
    expected = [4004, 2 * 4004, 3 * 4004, 6 * 4004]
    assert_nodes(found, expected, expected)
    assert found.node_within.tolist() == [0, 0, 0, 0]


def test_local_proxies_speak_for_their_nodes() -> None:
    found = traffic_of(dense(1001), ParameterServer(server="n1", local_proxy=True), cluster_of(1, 2, 3))
    size = 4004
    expected = [size, 2 * size, size]
    assert_nodes(found, expected, expected)
    assert found.node_within.tolist() == [0, 2 * size, 4 * size]


@pytest.mark.parametrize("n", [2, 3, 5, 8])
@pytest.mark.parametrize("length", LENGTHS)
def test_sharded(length: int, n: int) -> None:
    """What ring all-reduce moves: gradients on the way down, parameters on the way up."""
    sharded = traffic_of(dense(length), Sharded(topology="ring"), cluster_of(*[1] * n))
    reduced = traffic_of(dense(length), AllReduce(topology="ring"), cluster_of(*[1] * n))
    assert_nodes(sharded, reduced.node_out.tolist(), reduced.node_in.tolist())


@pytest.mark.parametrize("n", [4, 8])
def test_sharded_by_halving(n: int) -> None:
    length = n * 100
    found = traffic_of(dense(length), Sharded(topology="halving_doubling"), cluster_of(*[1] * n))
    expected = [2 * 4 * length * (n - 1) / n] * n
    assert_nodes(found, expected, expected)


TABLE = Variable(name="table", shape=(500, 6), kind="embedding", touched_rows=20.0, max_touched_rows=40, use=0, ready=0)
ROW_BYTES = 8 + 6 * 4


def test_sparse_gather() -> None:
    """Everybody's rows pass every interface of the ring but the one back to where they came from."""
    found = traffic_of(TABLE, SparseGather(), cluster_of(1, 1, 1, 1, 1))
    expected = [4 * 20 * ROW_BYTES] * 5
    assert_nodes(found, expected, expected)


@pytest.mark.parametrize("update", ["server", "worker"])
def test_sparse_server(update: str) -> None:
    """Rows in; the rows that anybody touched out."""
    found = traffic_of(TABLE, ParameterServer(server="n3", sparse=True, update=update), cluster_of(1, 2, 1, 0))
    touched, union = 20 * ROW_BYTES, round(500 * (1 - (1 - 20 / 500) ** 4)) * ROW_BYTES
    assert_nodes(found, [touched, 2 * touched, touched, 4 * union], [union, 2 * union, union, 4 * touched])


def test_union_of_rows() -> None:
    assert union_rows(500, 20, 1) == pytest.approx(20)
    assert union_rows(10, 10, 3) == 10
    assert union_rows(100, 50, 2) == pytest.approx(75)
    assert union_rows(0, 0, 4) == 0


def test_sufficient_factors() -> None:
    """32 rows of 30 and 50 numbers from each rank, over every interface but the one back."""
    variable = Variable(name="fc", shape=(30, 50), kind="linear", factor_rows=32, use=0, ready=0)
    found = traffic_of(variable, SufficientFactors(), cluster_of(1, 1, 1, 1))
    expected = [3 * 32 * (30 + 50) * 4] * 4
    assert_nodes(found, expected, expected)


def test_a_cast_halves() -> None:
    found = traffic_of(dense(1000), AllReduce(topology="tree"), cluster_of(1, 1), codec=Cast())
    assert_nodes(found, [2000, 2000], [2000, 2000])


def test_encoded_gradients_are_gathered() -> None:
    found = traffic_of(dense(1000), AllReduce(topology="ring"), cluster_of(1, 1, 1), codec=Int8(block=256))
    expected = [2 * (1000 + 4 * 4)] * 3
    assert_nodes(found, expected, expected)


def test_power_sgd_sums_two_thin_matrices() -> None:
    variable = Variable(name="w", shape=(40, 5, 6), use=0, ready=0)
    found = traffic_of(variable, AllReduce(topology="tree"), cluster_of(1, 1), codec=PowerSGD(rank=2))
    expected = [(40 + 30) * 2 * 4] * 2
    assert_nodes(found, expected, expected)


def test_periodic_averaging_counts_for_a_share_of_each_step() -> None:
    synchroniser = Periodic(every=4, topology="tree")
    once = traffic_of(dense(1000), synchroniser, cluster_of(1, 1))
    assert_nodes(once, [4000, 4000], [4000, 4000])
    in_the_long_run = traffic_of(dense(1000), synchroniser, cluster_of(1, 1), measure=amortised_traffic)
    assert_nodes(in_the_long_run, [1000, 1000], [1000, 1000])


@pytest.mark.parametrize("iteration", range(8))
def test_periodic_averaging_by_iteration(iteration: int) -> None:
    found = traffic_of(
        dense(1000),
        Periodic(every=4, topology="tree"),
        cluster_of(1, 1),
        measure=lambda plan, cluster: plan_traffic(plan, cluster, iteration=iteration),
    )
    expected = [4000 if iteration in (3, 7) else 0] * 2
    assert_nodes(found, expected, expected)


def test_run_time_sizes_of_one_transfer() -> None:
    def measured(plan: object, cluster: ClusterSpec) -> Traffic:
        return plan_traffic(plan, cluster, contributions={0: {0: 100, 1: 7, 2: 0}})

    found = traffic_of(TABLE, SparseGather(), cluster_of(1, 1, 1), measure=measured)
    # Member i sends all but what its successor contributed.
    assert_nodes(found, [100, 107, 7], [7, 100, 107])
