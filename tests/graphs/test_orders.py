"""Orders: children come first, a group has one signature, and a searched order needs no more groups than the agenda."""

import random

import numpy as np
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from autosync.graphs.families import sequence, tree
from autosync.graphs.graph_batch import GraphBatch, join
from autosync.graphs.input_graph import InputGraph
from autosync.graphs.order_search import search_table
from autosync.graphs.policy import BatchingPolicy
from autosync.graphs.schedule import make_schedule
from tests.helpers.random_graphs import lattice, random_family

KINDS = ("one", "two")


def _random_batch(seed: int) -> GraphBatch:
    chance = random.Random(seed)
    return join([random_family(chance, KINDS) for _ in range(chance.randint(1, 8))], KINDS)


def _policies(batch: GraphBatch) -> list[BatchingPolicy]:
    table = search_table([batch], most_trials=40)
    orders = [BatchingPolicy(order=order) for order in ("naive", "depth", "agenda")]
    return [*orders, BatchingPolicy(order="searched", table=table)]


@settings(max_examples=20)
@given(seed=st.integers(0, 2**31))
def test_schedules_are_legal_and_complete(seed: int) -> None:
    batch = _random_batch(seed)
    for policy in _policies(batch):
        groups = policy.groups_of(batch)
        schedule = make_schedule(batch, lambda _batch, groups=groups: groups)
        assert sorted(schedule.layout) == list(range(batch.num_vertices))
        assert [group.start for group in schedule.groups] == [0, *(group.stop for group in schedule.groups[:-1])]
        for group in schedule.groups:
            reads = schedule.reads[group.read_start : group.read_stop]
            vertices = schedule.layout[group.start : group.stop]
            wanted = [batch.child_list[batch.child_starts[one] : batch.child_starts[one + 1]] for one in vertices]
            assert schedule.layout[reads].tolist() == [int(child) for one in wanted for child in one]
            assert (reads < group.start).all(), "children are in earlier groups"
            assert len(set(batch.signatures[vertices].tolist())) == 1
            if group.first_read >= 0:
                assert reads.tolist() == list(range(group.first_read, group.first_read + len(reads)))
        if policy.order == "naive":
            assert len(schedule.groups) == batch.num_vertices


@settings(max_examples=15)
@given(seed=st.integers(0, 2**31))
def test_a_searched_order_needs_no_more_groups_than_the_agenda(seed: int) -> None:
    batch = _random_batch(seed)
    counts = {policy.order: len(np.unique(policy.groups_of(batch))) for policy in _policies(batch)}
    assert counts["searched"] <= counts["agenda"]


def test_trees_need_a_group_for_each_height() -> None:
    graphs = [tree([-1, 0, 0, 1, 1], torch.arange(5)), tree([-1], torch.arange(1))]
    batch = join(graphs, ("leaf", "inner"))
    for order in ("depth", "agenda"):
        schedule = make_schedule(batch, BatchingPolicy(order=order).groups_of)
        shapes = [(group.kind, group.num_children, group.num_vertices) for group in schedule.groups]
        assert shapes == [("leaf", 0, 4), ("inner", 2, 1), ("inner", 2, 1)]


def test_each_step_of_sequences_reads_one_slice() -> None:
    graphs = [sequence(torch.zeros(length, 1)) for length in (2, 5, 1, 4)]
    schedule = make_schedule(join(graphs, ("vertex",)), BatchingPolicy().groups_of)
    assert [group.num_vertices for group in schedule.groups] == [4, 3, 2, 2, 1]
    assert all(group.first_read >= 0 for group in schedule.groups[1:])


def test_the_agenda_merges_what_depth_keeps_apart() -> None:
    """Labels of words and of phrases lie at different heights, but may all run at the end."""
    children = [[], [], [0, 1], [0], [1], [2]]
    kinds = ["word", "word", "phrase", "label", "label", "label"]
    graph = InputGraph(children=children, inputs=torch.zeros(6, 1), kinds=kinds)
    batch = join([graph], ("word", "phrase", "label"))
    assert len(np.unique(BatchingPolicy(order="depth").groups_of(batch))) == 4
    assert len(np.unique(BatchingPolicy(order="agenda").groups_of(batch))) == 3


def test_a_search_improves_the_agenda_of_lattices() -> None:
    """A word runs best as soon as it is ready with others, which the agenda's mean heights do not see."""
    chance = random.Random(4)
    batches = [join([lattice(chance, 16, "one", "two") for _ in range(4)], KINDS) for _ in range(2)]
    table = search_table(batches, most_trials=60)
    searched = BatchingPolicy(order="searched", table=table)

    def num_groups(policy: BatchingPolicy) -> int:
        return sum(len(np.unique(policy.groups_of(batch))) for batch in batches)

    assert num_groups(searched) < num_groups(BatchingPolicy(order="agenda"))


def test_a_table_of_other_signatures_is_the_agenda() -> None:
    batch = _random_batch(3)
    searched = BatchingPolicy(order="searched", table={"other/9 | other/9": "other/9"})
    assert (searched.groups_of(batch) == BatchingPolicy(order="agenda").groups_of(batch)).all()
