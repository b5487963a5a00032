"""Collectives over trees: exact for any trees and shares, and on each link the bytes of the closed form."""

from __future__ import annotations

import random
from collections import Counter

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from autosync.plan.expansion import chunk_bounds, expand, has_algorithm, num_chunks
from autosync.plan.flows import flow
from autosync.plan.shards import shard_bounds, shard_weights
from autosync.plan.traffic import expanded_traffic, transfer_traffic
from autosync.plan.types import Collective
from autosync.strategy.shapes.trees import TreeShape, TreeShare, by_root
from tests.helpers.random_trees import random_shape, shapes
from tests.plan.test_expansion import play
from tests.plan.test_traffic import assert_same, random_placement, transfer_of


@given(shapes())
def test_every_rank_gets_every_contribution_once(shape: TreeShape) -> None:
    n = shape.num_ranks
    held = [[Counter({member: 1}) for _ in range(shape.num_units)] for member in range(n)]
    found = play(expand("all_reduce", shape, n), held)
    assert all(chunk == Counter(range(n)) for member in found for chunk in member)


@given(shapes(), st.sampled_from(("lost", "another root", "off by one")), st.integers(0, 2**32 - 1))
def test_a_wrong_move_shows(shape: TreeShape, mistake: str, seed: int) -> None:
    """A piece that is lost, that goes to another rank than the parent, or that is one unit too short."""
    n, rng = shape.num_ranks, random.Random(seed)
    moves = list(expand("all_reduce", shape, n))
    place = rng.randrange(len(moves))
    wrong = moves.pop(place)
    if mistake == "another root":
        # A sum that reaches the root, or a rank that has yet to send its own, would be in the result.
        sent = {m.source for m in moves if m.adds and m.first == wrong.first and m.round <= wrong.round}
        others = sorted((sent if wrong.adds else set(range(n))) - {wrong.source, wrong.destination})
        moves[place:place] = [wrong._replace(destination=rng.choice(others))] if others else []
    elif mistake == "off by one":
        moves.insert(place, wrong._replace(last=wrong.last - 1))
    held = [[Counter({member: 1}) for _ in range(shape.num_units)] for member in range(n)]
    found = play(tuple(moves), held)
    assert any(chunk != Counter(range(n)) for member in found for chunk in member)


@given(shapes())
def test_shards_are_summed_at_their_roots_and_spread_from_there(shape: TreeShape) -> None:
    n, everything = shape.num_ranks, Counter(range(shape.num_ranks))
    held = [[Counter({member: 1}) for _ in range(shape.num_units)] for member in range(n)]
    summed = play(expand("reduce_scatter", shape, n), held)
    owned = [Counter[int]() for _ in range(shape.num_units)]
    spread = [list(owned) for _ in range(n)]
    for share, (first, last) in zip(shape.shares, shape.ranges, strict=True):
        assert all(chunk == everything for chunk in summed[share.root][first:last])
        spread[share.root][first:last] = [everything] * (last - first)
    found = play(expand("all_gather", shape, n), spread)
    assert all(chunk == everything for member in found for chunk in member)


@given(shapes(), st.integers(0, 5000))
def test_a_rank_owns_the_shares_whose_root_it_is(drawn: TreeShape, num_elements: int) -> None:
    shape = TreeShape(shares=by_root(drawn.shares))
    bounds = shard_bounds(num_elements, shape.num_ranks, shard_weights(shape))
    units = chunk_bounds(num_elements, shape.num_units)
    owned = {
        (units[first], units[last], share.root) for share, (first, last) in zip(shape.shares, shape.ranges, strict=True)
    }
    assert (bounds[0], bounds[-1]) == (0, num_elements)
    assert all(bounds[root] <= first <= last <= bounds[root + 1] for first, last, root in owned)


@given(st.sampled_from(("reduce_scatter", "all_gather")), shapes(), st.integers(0, 2000), st.integers(0, 2**32 - 1))
def test_closed_form_of_halves_equals_expansion(
    collective: Collective, shape: TreeShape, num_elements: int, seed: int
) -> None:
    cluster, ranks = random_placement(random.Random(seed), shape.num_ranks)
    transfer = transfer_of(collective, shape, (ranks,), num_elements)
    assert_same(transfer_traffic(transfer, cluster), expanded_traffic(transfer, cluster))


@given(st.integers(1, 6), st.integers(1, 3), st.integers(0, 2**32 - 1))
def test_servers_bring_nothing(num_workers: int, num_servers: int, seed: int) -> None:
    n = num_workers + num_servers
    shape = random_shape(random.Random(seed), n, num_servers=num_servers)
    held = [
        [Counter({member: 1}) if member < num_workers else Counter({n: 1}) for _ in range(shape.num_units)]
        for member in range(n)
    ]
    found = play(expand("all_reduce", shape, n), held)
    sums = [
        {rank: count for rank, count in chunk.items() if rank < n} for member in found[:num_workers] for chunk in member
    ]
    assert all(one == dict.fromkeys(range(num_workers), 1) for one in sums)


@given(st.integers(1, 6), st.integers(1, 3), st.integers(0, 2000), st.integers(0, 2**32 - 1))
def test_closed_form_equals_expansion_with_servers(n: int, num_servers: int, num_elements: int, seed: int) -> None:
    rng = random.Random(seed)
    shape = random_shape(rng, n + num_servers, num_servers=num_servers)
    cluster, ranks = random_placement(rng, n + num_servers)
    transfer = transfer_of("all_reduce", shape, (ranks,), num_elements)
    assert_same(transfer_traffic(transfer, cluster), expanded_traffic(transfer, cluster))


@given(shapes())
def test_moves_are_well_formed(shape: TreeShape) -> None:
    n = shape.num_ranks
    moves = expand("all_reduce", shape, n)
    rounds = [move.round for move in moves]
    assert rounds == sorted(rounds)
    assert set(rounds) == set(range(len(set(rounds)))), "no round is empty"
    assert len(moves) == 2 * (n - 1) * len(shape.shares)
    assert {(move.first, move.last) for move in moves} == set(shape.ranges)
    assert num_chunks("all_reduce", n, shape) == shape.num_units
    edges = [(move.round, move.source, move.destination, move.first) for move in moves]
    assert len(edges) == len(set(edges)), "one message a round and share between two members"


@given(shapes())
def test_a_rank_sends_a_sum_when_it_has_all_of_it(shape: TreeShape) -> None:
    """Whatever arrives for a share comes in an earlier round than what it is needed for."""
    moves = expand("all_reduce", shape, shape.num_ranks)
    for move in moves:
        arriving = [m for m in moves if (m.destination, m.first, m.adds) == (move.source, move.first, True)]
        if not move.adds:
            arriving += [m for m in moves if (m.destination, m.first, m.adds) == (move.source, move.first, False)]
        assert all(other.round < move.round for other in arriving)


@given(shapes(), st.integers(0, 2000), st.sampled_from((1, 2, 4, 8)), st.integers(0, 2**32 - 1))
def test_closed_form_equals_expansion(shape: TreeShape, num_elements: int, item_bytes: int, seed: int) -> None:
    cluster, ranks = random_placement(random.Random(seed), shape.num_ranks)
    transfer = transfer_of("all_reduce", shape, (ranks,), num_elements, item_bytes=item_bytes)
    assert_same(transfer_traffic(transfer, cluster), expanded_traffic(transfer, cluster))


@given(st.integers(2, 4), st.integers(2, 4), st.integers(0, 500), st.integers(0, 2**32 - 1))
def test_several_groups_share_a_buffer(num_nodes: int, num_local: int, num_elements: int, seed: int) -> None:
    rng = random.Random(seed)
    cluster, ranks = random_placement(rng, num_nodes * num_local)
    inner = tuple(ranks[first : first + num_local] for first in range(0, len(ranks), num_local))
    across = tuple(zip(*inner, strict=True))
    transfer = transfer_of("all_reduce", random_shape(rng, num_nodes), across, num_elements, within=inner)
    assert_same(transfer_traffic(transfer, cluster), expanded_traffic(transfer, cluster))


def test_a_star_and_a_chain_written_out() -> None:
    shape = TreeShape(shares=(TreeShare(up=(0, 0, 0), weight=2), TreeShare(up=(1, 2, 2), down=(2, 0, 2))))
    assert [tuple(move) for move in expand("all_reduce", shape, 3)] == [
        (0, 1, 0, 0, 2, True),
        (0, 2, 0, 0, 2, True),
        (0, 0, 1, 2, 3, True),
        (1, 0, 1, 0, 2, False),
        (1, 0, 2, 0, 2, False),
        (1, 1, 2, 2, 3, True),
        (2, 2, 0, 2, 3, False),
        (3, 0, 1, 2, 3, False),
    ]
    terms = flow("all_reduce", shape, 3)
    assert np.bincount(terms.source, weights=terms.last - terms.first).tolist() == [6, 3, 3]


@pytest.mark.parametrize("collective", ["reduce", "broadcast", "all_gather_v", "gather_v"])
def test_other_collectives_do_not_go_over_trees(collective: Collective) -> None:
    shape = TreeShape(shares=(TreeShare(up=(0, 0)),))
    assert not has_algorithm(collective, shape)
    for computed in (expand, flow):
        with pytest.raises(ValueError, match=f"{collective} has no algorithm trees"):
            computed(collective, shape, 2)


@pytest.mark.parametrize("computed", [expand, flow])
def test_trees_are_for_so_many_members(computed) -> None:
    shape = TreeShape(shares=(TreeShare(up=(0, 0)),))
    with pytest.raises(ValueError, match="trees over 2 ranks for a group of 3"):
        computed("all_reduce", shape, 3)
