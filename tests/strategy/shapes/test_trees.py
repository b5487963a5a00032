"""Trees are checked when they are built, and trees that mean the same have one form."""

from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given

from autosync.strategy.shapes.trees import (
    MAX_SHARES,
    MAX_TOTAL_WEIGHT,
    TreeShape,
    TreeShare,
    depths,
    heights,
    simplified,
)
from tests.helpers.random_trees import shapes

STAR = TreeShare(up=(0, 0, 0))


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: TreeShare(up=(0, 0), weight=0), r"weight 0 carries nothing \(1 or more\)"),
        (lambda: TreeShare(up=(0,)), r"up has 1 ranks \(a tree has 2 or more\)"),
        (lambda: TreeShare(up=(0, 2)), r"up: the parent of rank 1 is 2 \(0 to 1, or -1"),
        (
            lambda: TreeShare(up=(0, -2)),
            r"up: the parent of rank 1 is -2 \(0 to 1, or -1 for a server that is absent\)",
        ),
        (lambda: TreeShare(up=(0, 2, -1)), r"up: the parent of rank 1 is 2, which is absent"),
        (lambda: TreeShare(up=(0, 1, 0)), r"up has 2 roots: 0, 1 \(one rank is its own parent\)"),
        (lambda: TreeShare(up=(1, 0)), r"up has 0 roots: none"),
        (lambda: TreeShare(up=(0, 2, 1)), r"up: rank 1 does not lead to the root 0 \(a tree has no circles\)"),
        (lambda: TreeShare(up=(0, 0), down=(0, 3)), r"down: the parent of rank 1 is 3"),
        (lambda: TreeShare(up=(0, 0), down=(0, 0, 0)), r"trees of 2 and 3 ranks"),
        (lambda: TreeShare(up=(0, 0), down=(1, 1)), r"rank 0 is the root of up but not of down"),
        (lambda: TreeShape(shares=()), r"at least one share"),
        (lambda: TreeShape(shares=(STAR,) * (MAX_SHARES + 1)), rf"at most {MAX_SHARES}"),
        (lambda: TreeShape(shares=(STAR, TreeShare(up=(0, 0)))), r"trees of 2 and 3 ranks"),
        (
            lambda: TreeShape(shares=(TreeShare(up=(0, 0), weight=MAX_TOTAL_WEIGHT), TreeShare(up=(0, 0)))),
            rf"at most {MAX_TOTAL_WEIGHT}",
        ),
    ],
)
def test_what_is_no_tree_is_refused(make: Callable[[], Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make()


def test_a_shape_in_numbers() -> None:
    shape = TreeShape(shares=(TreeShare(up=(0, 0, 1), weight=2), TreeShare(up=(2, 2, 2), down=(1, 2, 2))))
    assert [share.root for share in shape.shares] == [0, 2]
    assert [share.distribution for share in shape.shares] == [(0, 0, 1), (1, 2, 2)]
    assert (shape.num_ranks, shape.num_units, shape.widest) == (3, 3, 2)
    assert shape.ranges == ((0, 2), (2, 3))


def test_a_name_is_for_people() -> None:
    named = TreeShape(shares=(STAR,), name="levels")
    assert str(named) == "levels"
    assert named == TreeShape(shares=(STAR,))
    assert hash(named) == hash(TreeShape(shares=(STAR,)))


def test_one_form_for_trees_that_mean_the_same() -> None:
    long = (TreeShare(up=(0, 0), down=(0, 0), weight=4), TreeShare(up=(1, 1), weight=6))
    assert simplified(long) == (TreeShare(up=(0, 0), weight=2), TreeShare(up=(1, 1), weight=3))
    assert simplified(simplified(long)) == simplified(long)


def test_a_server_may_be_absent() -> None:
    share = TreeShare(up=(3, 3, -1, 3), down=(3, 0, -1, 3))
    assert (share.root, share.absent) == (3, {2})
    assert depths(share.up) == [1, 1, -1, 0]
    assert heights(share.distribution) == [1, 0, 0, 2]
    unused = (TreeShare(up=(0, 0, -1), down=(0, 0, -1)), TreeShare(up=(1, 1, -1)))
    assert simplified(unused) == (TreeShare(up=(0, 0)), TreeShare(up=(1, 1)))


@given(shapes())
def test_depths_and_heights_follow_the_parents(shape: TreeShape) -> None:
    for share in shape.shares:
        for parents in (share.up, share.distribution):
            depth, height = depths(parents), heights(parents)
            for rank, parent in enumerate(parents):
                below = [one for one, above in enumerate(parents) if above == rank and one != rank]
                assert depth[rank] == (0 if rank == parent else depth[parent] + 1)
                assert height[rank] == max((height[one] + 1 for one in below), default=0)
