"""Bytes on every link: the closed forms against the expansion, and against formulas written down for each template."""

import random
from collections.abc import Sequence
from itertools import pairwise
from typing import get_args

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from autosync.plan.expansion import has_algorithm
from autosync.plan.flows import flow
from autosync.plan.traffic import Traffic, expanded_traffic, transfer_traffic
from autosync.plan.types import Algorithm, Collective, Groups, NamedAlgorithm, Transfer
from autosync.specs.cluster import ClusterSpec, Node, Rack

PAIRS = [(c, a) for c in get_args(Collective) for a in get_args(NamedAlgorithm) if has_algorithm(c, a)]
HALVING = [("reduce_scatter", "halving_doubling"), ("all_gather", "halving_doubling")]
LENGTHS = (0, 1, 2, 3, 5, 8, 16, 17, 31, 100, 1003)
# Powers of two and what is beside them; slow are the other numbers, of which the next test draws some.
QUICK_NUMBERS = (1, 2, 3, 4, 5, 7, 8, 9, 16)
GATHERS = ("gather_v", "all_gather_v")


def cluster_of(devices: Sequence[int], racks: Sequence[str | None] = ()) -> ClusterSpec:
    """Nodes with so many ranks each, 0 standing for a server-only node."""
    homes = list(racks) or [None] * len(devices)
    nodes = tuple(
        Node(
            name=f"n{index}",
            host=f"n{index}",
            role="worker" if count else "server",
            devices=count,
            bandwidth_out=1e8,
            bandwidth_in=1e8,
            rack=home,
        )
        for index, (count, home) in enumerate(zip(devices, homes, strict=True))
    )
    names = sorted({home for home in homes if home})
    return ClusterSpec(
        name="test", nodes=nodes, racks=tuple(Rack(name=name, uplink_out=1e8, uplink_in=1e8) for name in names)
    )


def transfer_of(
    collective: Collective,
    algorithm: Algorithm,
    groups: Groups,
    num_elements: int,
    *,
    item_bytes: int = 4,
    within: Groups = (),
) -> Transfer:
    return Transfer(
        collective=collective,
        algorithm=algorithm,
        groups=groups,
        regions=(),
        num_elements=num_elements,
        max_elements=num_elements,
        item_bytes=item_bytes,
        within=within,
        lane=0,
        priority=0,
        message=0,
        after=(),
    )


def fits(collective: str, algorithm: str, n: int) -> bool:
    return (collective, algorithm) not in HALVING or n & (n - 1) == 0


def assert_same(left: Traffic, right: Traffic) -> None:
    np.testing.assert_array_equal(left.links, right.links)


def random_placement(rng: random.Random, n: int) -> tuple[ClusterSpec, tuple[int, ...]]:
    """A cluster of at least n ranks, with and without racks, and n of its ranks in any order."""
    devices = [rng.randint(1, 3)]
    while sum(devices) < n:
        devices.append(rng.choice((0, 1, 1, 2, 4)))
    homes = [rng.choice((None, "east", "west")) for _ in devices]
    cluster = cluster_of(devices, homes)
    return cluster, tuple(rng.sample([rank.index for rank in cluster.ranks], n))


@pytest.mark.parametrize(("collective", "algorithm"), PAIRS)
@pytest.mark.parametrize(
    "n", [pytest.param(n, marks=() if n in QUICK_NUMBERS else pytest.mark.slow) for n in range(1, 18)]
)
def test_closed_form_equals_expansion(collective: Collective, algorithm: Algorithm, n: int) -> None:
    if not fits(collective, algorithm, n):
        return
    rng = random.Random(f"{collective} {algorithm} {n}")
    for num_elements in LENGTHS:
        cluster, ranks = random_placement(rng, n)
        transfer = transfer_of(collective, algorithm, (ranks,), num_elements, item_bytes=rng.choice((1, 2, 4, 8)))
        assert_same(transfer_traffic(transfer, cluster), expanded_traffic(transfer, cluster))


@given(st.sampled_from(PAIRS), st.integers(1, 17), st.integers(0, 2000), st.integers(0, 2**32 - 1))
def test_closed_form_equals_expansion_anywhere(
    pair: tuple[Collective, Algorithm], n: int, num_elements: int, seed: int
) -> None:
    if not fits(*pair, n):
        n = 1 << (n.bit_length() - 1)
    cluster, ranks = random_placement(random.Random(seed), n)
    transfer = transfer_of(*pair, (ranks,), num_elements)
    assert_same(transfer_traffic(transfer, cluster), expanded_traffic(transfer, cluster))


@given(
    st.sampled_from(PAIRS),
    st.lists(st.integers(1, 4), min_size=1, max_size=6),
    st.integers(0, 500),
    st.integers(0, 2**32 - 1),
)
def test_several_groups_of_unequal_length(
    pair: tuple[Collective, Algorithm], lengths: list[int], num_elements: int, seed: int
) -> None:
    lengths = [length if fits(*pair, length) else 2 for length in lengths]
    cluster, ranks = random_placement(random.Random(seed), sum(lengths))
    ends = np.cumsum([0, *lengths])
    groups = tuple(ranks[start:end] for start, end in pairwise(ends))
    transfer = transfer_of(*pair, groups, num_elements)
    assert_same(transfer_traffic(transfer, cluster), expanded_traffic(transfer, cluster))


@given(st.integers(2, 6), st.integers(2, 5), st.integers(0, 500), st.sampled_from(("ring", "tree", "halving_doubling")))
def test_within_moves_the_share_that_members_own(
    num_nodes: int, num_local: int, num_elements: int, algorithm: Algorithm
) -> None:
    cluster = cluster_of([num_local] * num_nodes)
    inner = cluster.worker_groups()
    across = tuple(zip(*inner, strict=True))
    transfer = transfer_of("all_reduce", algorithm, across, num_elements, within=inner)
    found = transfer_traffic(transfer, cluster)
    assert_same(found, expanded_traffic(transfer, cluster))
    whole = transfer_traffic(transfer_of("all_reduce", "tree", inner[:1], num_elements), cluster)
    assert found.node_within.sum() == 0
    assert found.node_out.sum() >= 2 * (num_nodes - 1) * num_elements * 4
    assert whole.node_out.sum() == 0


@given(
    st.sampled_from([p for p in PAIRS if p[0] in (*GATHERS, "broadcast")]),
    st.lists(st.integers(0, 300), min_size=1, max_size=12),
    st.integers(0, 2**32 - 1),
)
def test_contributions_stand_for_planned_sizes(pair: tuple[Collective, Algorithm], sizes: list[int], seed: int) -> None:
    cluster, ranks = random_placement(random.Random(seed), len(sizes))
    contributions = dict(zip(ranks, sizes, strict=True))
    transfer = transfer_of(*pair, (ranks,), 7)
    assert_same(
        transfer_traffic(transfer, cluster, contributions=contributions),
        expanded_traffic(transfer, cluster, contributions=contributions),
    )
    as_planned = dict.fromkeys(ranks, 7)
    assert_same(transfer_traffic(transfer, cluster, contributions=as_planned), transfer_traffic(transfer, cluster))


def test_only_what_has_a_size_of_its_own_at_run_time_takes_contributions() -> None:
    cluster = cluster_of([1, 1])
    transfer = transfer_of("all_reduce", "ring", ((0, 1),), 8)
    with pytest.raises(ValueError, match="all_reduce has no contributions"):
        transfer_traffic(transfer, cluster, contributions={0: 1, 1: 1})


def test_a_gather_with_contributions_in_numbers() -> None:
    cluster = cluster_of([1, 1, 1, 0])
    transfer = transfer_of("gather_v", "star", ((3, 0, 1, 2),), 100, item_bytes=1)
    found = transfer_traffic(transfer, cluster, contributions={0: 10, 1: 0, 2: 7, 3: 0})
    assert found.node_out.tolist() == [10, 0, 7, 0]
    assert found.node_in.tolist() == [0, 0, 0, 17]


def test_an_unknown_pair_is_refused() -> None:
    with pytest.raises(ValueError, match="gather_v has no algorithm ring"):
        flow("gather_v", "ring", 4)


def test_halving_needs_a_power_of_two() -> None:
    with pytest.raises(ValueError, match="among 6"):
        flow("reduce_scatter", "halving_doubling", 6)


def test_racks_see_what_passes_between_them_and_nothing_else() -> None:
    cluster = cluster_of([1, 1, 1, 1], ["east", "east", "west", None])
    transfer = transfer_of("broadcast", "star", ((0, 1, 2, 3),), 10, item_bytes=1)
    found = transfer_traffic(transfer, cluster)
    assert found.node_out.tolist() == [30, 0, 0, 0]
    assert found.node_in.tolist() == [0, 10, 10, 10]
    assert found.rack_out.tolist() == [20, 0]
    assert found.rack_in.tolist() == [0, 10]
