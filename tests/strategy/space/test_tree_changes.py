"""Changes of trees keep a legal shape, change one thing, and reach other shards."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from autosync.specs.cluster_file import load_cluster
from autosync.specs.model_file import load_model
from autosync.strategy.representation import Message, Strategy
from autosync.strategy.shapes.fitting import fitted_shares
from autosync.strategy.shapes.trees import MAX_TOTAL_WEIGHT, TreeShape, TreeShare, simplified
from autosync.strategy.space import Limits, Space
from autosync.strategy.space import tree_changes as changes
from autosync.strategy.synchronisers.sharded import Sharded
from tests.helpers.random_trees import random_shape

seeds = st.integers(0, 2**32 - 1)
Trees = tuple[TreeShare, ...]
Change = Callable[[Trees, random.Random], Trees | None]
CHANGES = changes._CHANGES


@pytest.mark.parametrize("change", CHANGES, ids=lambda change: change.__name__)
@given(seed=seeds)
def test_a_change_makes_another_legal_shape_of_the_same_weight(change: Change, seed: int) -> None:
    rng = random.Random(seed)
    num_servers = rng.randint(0, 2)
    before = random_shape(rng, rng.randint(2, 7) + num_servers, num_servers=num_servers).shares
    after = change(before, rng)
    if after is None:
        return
    # Making a shape checks all rules of trees.
    shape = TreeShape(shares=after)
    assert simplified(after) != simplified(before)
    assert shape.num_units % sum(share.weight for share in before) == 0
    assert shape.num_units <= MAX_TOTAL_WEIGHT


def test_a_moved_way_up_leaves_the_way_down() -> None:
    star = TreeShare(up=(0, 0, 0))
    for seed in range(20):
        (after,) = changes._hang_elsewhere((star,), random.Random(seed)) or (star,)
        assert (after.up == star.up) != (after.distribution == star.distribution)


def test_a_new_share_has_the_same_edges_and_another_root() -> None:
    found = changes._add_share((TreeShare(up=(0, 0, 1, 2)),), random.Random(4))
    assert found is not None
    old, new = found
    assert new.root != old.root

    def edges(share: TreeShare) -> set[frozenset[int]]:
        return {frozenset((rank, parent)) for rank, parent in enumerate(share.up) if rank != parent}

    assert edges(old) == edges(new)
    assert old.weight >= new.weight


def _sharded_over_trees() -> tuple[Space, Strategy]:
    """A space on hosts of three speeds, and a strategy with one message of uneven shards."""
    cluster, model = load_cluster("6-hosts-3-speeds"), load_model("squeezenet")
    fitted = Sharded(topology="trees", trees=fitted_shares(cluster, takes_servers=False))
    parts = tuple(variable.name for variable in model.variables)
    strategy = Strategy(messages=(Message(parts=parts, synchroniser=fitted),))
    return Space(model=model, cluster=cluster), strategy


def test_mutants_reach_other_shards() -> None:
    space, strategy = _sharded_over_trees()
    rng, seen = random.Random(1), set[tuple[int, ...]]()
    for _ in range(150):
        mutant = space.mutate(strategy, rng)
        assert space.problems(mutant) == []
        for message in mutant.messages:
            if message.synchroniser.written_trees and message.synchroniser.kind == "sharded":
                seen.add(TreeShape(shares=message.synchroniser.written_trees).owned_units)
    assert len(seen) > 5


def test_limits_without_trees_change_none() -> None:
    space, strategy = _sharded_over_trees()
    limits = Limits(topologies=("native", "ring"))
    room = Space(model=space.model, cluster=space.cluster, limits=limits)._mutator._room
    assert changes.change_trees(room, strategy, random.Random(0)) is None
