"""Classes of ranks: those that do the same, and no others."""

from __future__ import annotations

from autosync.plan.tables import Shape
from autosync.simulators.shared.rank_classes import apart, classes_of
from tests.helpers.example_plans import cluster_of


def groups(*members: tuple[int, ...]) -> tuple[tuple[int, ...], ...]:
    return members


def test_a_ring_of_equal_hosts_has_one_class() -> None:
    ring = Shape("all_reduce", "ring", groups((0, 1, 2, 3)))
    found = classes_of(cluster_of(1, 1, 1, 1), [ring])
    assert (found.of_rank, found.num_ranks, found.num_nodes) == ((0, 0, 0, 0), (4,), (4,))


def test_a_root_is_in_a_class_of_its_own() -> None:
    star = Shape("reduce", "star", groups((1, 0, 2, 3)))
    found = classes_of(cluster_of(1, 1, 1, 1), [star])
    assert found.of_rank == (0, 1, 0, 0)


def test_levels_of_a_tree_are_told_apart() -> None:
    tree = Shape("all_reduce", "tree", groups((0, 1, 2, 3)))
    assert len(classes_of(cluster_of(1, 1, 1, 1), [tree]).num_ranks) == 4


def test_who_meets_others_is_another_too() -> None:
    """Each pair is a ring, but the second has a server's root among its members."""
    pairs = Shape("all_reduce", "ring", groups((0, 1), (2, 3)))
    star = Shape("reduce", "star", groups((2, 0)))
    found = classes_of(cluster_of(1, 1, 1, 1), [pairs, star])
    assert len(set(found.of_rank)) == 4


def test_a_server_and_a_node_with_more_ranks_are_others() -> None:
    everywhere = Shape("all_reduce", "ring", groups((0, 1, 2, 3)))
    found = classes_of(cluster_of(1, 1, 2, 0), [everywhere])
    assert found.of_rank == (0, 0, 1, 1, 2)
    assert found.of_node == (0, 0, 1, 2)


def test_apart_is_everybody_alone() -> None:
    found = apart(cluster_of(2, 1))
    assert (found.of_rank, found.of_node) == ((0, 1, 2), (0, 1))
