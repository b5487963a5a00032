"""BytePS: its shares against the paper's formulas and against all other shares, its pieces and its order."""

import random
from collections.abc import Callable, Mapping
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from autosync.errors import DoesNotApplyError
from autosync.plan.lowering import lower
from autosync.plan.traffic import plan_traffic
from autosync.specs.cluster import ClusterSpec, Node
from autosync.specs.cluster_file import load_cluster
from autosync.specs.model import ModelSpec
from autosync.specs.model_file import load_model
from autosync.strategy.parts import Partition
from autosync.strategy.presets import build_preset
from autosync.strategy.presets.byteps import optimal_shares
from autosync.strategy.representation import Message
from autosync.strategy.synchronisers.parameter_server import ParameterServer

Models = Callable[..., ModelSpec]
Clusters = Callable[..., ClusterSpec]
Variables = Callable[..., dict[str, Any]]


@pytest.mark.parametrize(("n", "k"), [(n, k) for n in (2, 3, 4, 8) for k in range(n + 1)])
def test_the_formulas_of_the_paper(n: int, k: int, cluster: Clusters) -> None:
    """Theorem 1: all-reduce's share 1/n without spare nodes, all on the spare ones where they are as many."""
    shares = optimal_shares(cluster([1] * n, servers=k))
    total = n * n + k * n - 2 * k
    for index in range(k):
        assert shares[f"s{index}"] == pytest.approx(2 * (n - 1) / total)
    for index in range(n):
        assert shares.get(f"n{index}", 0.0) == pytest.approx((n - k) / total)


def test_with_more_spare_nodes_than_workers_they_have_all(cluster: Clusters) -> None:
    assert optimal_shares(cluster([1, 1, 1], servers=5)) == pytest.approx({f"s{index}": 0.2 for index in range(5)})


def test_one_node_sums_for_itself(cluster: Clusters) -> None:
    assert optimal_shares(cluster([4], servers=2)) == {"n0": 1.0}


def test_servers_that_cannot_take_part_have_no_share(cluster: Clusters) -> None:
    assert optimal_shares(cluster([1, 1], servers=2, backend="nccl")) == pytest.approx({"n0": 0.5, "n1": 0.5})


def test_a_slow_worker_sums_nothing(cluster: Clusters) -> None:
    # It needs a second for what the others do in 0.3: there is room for more than all on the fast ones.
    shares = optimal_shares(cluster([1] * 8, gigabits=[1] * 7 + [0.3]))
    assert shares == pytest.approx({f"n{index}": 1 / 7 for index in range(7)})


def test_faster_links_have_larger_shares(cluster: Clusters) -> None:
    # Three workers of 1, 1 and 2, a server of 3: m/1 = t - 1 twice, (1 + m)/2 = t, 3m/3 = t, all of which is 1.
    shares = optimal_shares(cluster([1, 1, 1], servers=1, gigabits=[1, 1, 2, 3]))
    seconds = 4 / 5
    assert seconds < 1, "sooner than the slowest worker has sent its own: in a second there is room for twice as much"
    assert shares == pytest.approx({"n2": 0.5, "s0": 0.5})


def _seconds(nodes: tuple[Node, ...], shares: Mapping[str, float]) -> float:
    """When the last link is done, in units of all bytes."""
    n = sum(node.role == "worker" for node in nodes)
    seconds = []
    for node in nodes:
        share = shares.get(node.name, 0.0)
        load = n * share if node.role == "server" else 1 + (n - 2) * share
        seconds.append(load / min(node.bandwidth_in, node.bandwidth_out))
    return max(seconds)


@given(
    gigabits=st.lists(st.sampled_from([0.1, 0.3, 0.5, 1.0, 2.5, 10.0]), min_size=2, max_size=8),
    num_servers=st.integers(0, 4),
    seed=st.integers(0, 1000),
)
def test_no_other_shares_are_done_sooner(gigabits: list[float], num_servers: int, seed: int) -> None:
    roles = ["worker"] * max(2, len(gigabits) - num_servers) + ["server"] * num_servers
    nodes = tuple(
        Node(
            name=f"{index}",
            host=f"{index}",
            role="server" if role == "server" else "worker",
            devices=int(role == "worker"),
            bandwidth_out=rate * 125e6,
            bandwidth_in=rate * 125e6,
        )
        for index, (role, rate) in enumerate(zip(roles, gigabits * 3, strict=False))
    )
    shares = optimal_shares(ClusterSpec(name="c", nodes=nodes))
    assert sum(shares.values()) == pytest.approx(1)
    best = _seconds(nodes, shares)
    rng = random.Random(seed)
    for _ in range(50):
        weights = [rng.random() ** rng.choice((1, 4)) * (rng.random() < 0.8) for _ in nodes]
        total = sum(weights) or 1.0
        other = {node.name: weight / total for node, weight in zip(nodes, weights, strict=True)}
        if sum(other.values()):
            assert best <= _seconds(nodes, other) * (1 + 1e-9)


def test_pieces_places_and_order(model: Models, variable: Variables, cluster: Clusters) -> None:
    spec = model(
        variable("table", 100, 64, kind="embedding", touched_rows=2.0, max_touched_rows=3),  # 25,600 B
        variable("b", 512),  # 2,048 B
        variable("c", 1, 1024),  # one row of 4,096 B
        variable("d", 3, 512),  # rows of 2,048 B
    )
    strategy = build_preset("byteps", spec, cluster([1, 1]), partition_bytes=2560, num_lanes=2)
    # Ten rows of 256 bytes are a piece; one of 2,048 is.
    assert strategy.partitions == {"table": Partition(sizes=(10,) * 10), "d": Partition(sizes=(1, 1, 1))}
    assert strategy.overlap == "forward"
    servers = [ParameterServer(server=name, update="worker") for name in ("n0", "n1")]
    assert strategy.messages[:2] == (
        Message(parts=("table[0]",), synchroniser=servers[0], priority=0, lane=0),
        Message(parts=("table[1]",), synchroniser=servers[1], priority=0, lane=1),
    )
    # 12,800 bytes each: b to n0, c to n1 (16,896), d to n0 (16,896), n0 (the first of equals), n1.
    assert strategy.messages[10:] == (
        Message(parts=("b",), synchroniser=servers[0], priority=1, lane=0),
        Message(parts=("c",), synchroniser=servers[1], priority=2, lane=1, slice_bytes=2560),
        Message(parts=("d[0]",), synchroniser=servers[0], priority=3, lane=0),
        Message(parts=("d[1]",), synchroniser=servers[0], priority=3, lane=0),
        Message(parts=("d[2]",), synchroniser=servers[1], priority=3, lane=1),
    )


def test_what_must_stay_whole_goes_in_slices(
    model: Models, variable: Variables, cluster: Clusters, optimizers: dict[str, Any]
) -> None:
    spec = model(variable("a", 1000, 4), optimizer=optimizers["lamb"])
    strategy = build_preset("byteps", spec, cluster([2, 1]), partition_bytes=4096, num_lanes=1)
    assert strategy.partitions == {}
    server = ParameterServer(server="n0", update="worker", local_proxy=True)
    assert strategy.messages == (Message(parts=("a",), synchroniser=server, slice_bytes=4096),)


def test_needs_a_backend_on_which_something_can_overtake(model: Models, variable: Variables, cluster: Clusters) -> None:
    with pytest.raises(DoesNotApplyError, match="nccl runs transfers in one static order"):
        build_preset("byteps", model(variable("a", 4)), cluster([1, 1], backend="nccl"))


@pytest.mark.parametrize("name", ["4-hosts", "4-hosts-2-servers", "8-hosts", "6-hosts-3-speeds"])
def test_links_are_as_busy_as_the_shares_say(name: str) -> None:
    """The plan itself: pieces of 4 MB come within a few percent of the optimum on every link."""
    model, cluster = load_model("bert_large"), load_cluster(name)
    plan = lower(build_preset("byteps", model, cluster), model, cluster)
    traffic = plan_traffic(plan, cluster)
    seconds = max(
        max(out / node.bandwidth_out, into / node.bandwidth_in)
        for node, out, into in zip(cluster.nodes, traffic.node_out, traffic.node_in, strict=True)
    )
    best = _seconds(cluster.nodes, optimal_shares(cluster)) * model.num_bytes
    assert best * 0.999 < seconds < best * 1.05
